"""A series as one row of numbers, for linear models: amplitudes, spectrum, autocorrelation, and fixed convolutions.

The convolutions are those of MiniRocket (Dempster, Schmidt and Webb, 2021): all 84 kernels of nine taps of which
three are 2 and six are -1, at several dilations; a feature is the share of positions whose response is above a
threshold, and thresholds are quantiles of the responses of some training records. No training, no random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy import ndarray

WINDOW = 64
"""Samples of a short-time spectrum."""
PARTS = 3
"""Parts of a record whose spectra are kept apart, so that change over time is seen."""
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
THRESHOLDS = (0.1, 0.5, 0.9)
"""Quantiles of a kernel's responses that its shares are counted above."""
LAGS = tuple(sorted({round(2 ** (k / 2)) for k in range(20)}))
POSITIONS = 1024
"""Of a record at which a kernel is looked at, spread evenly: a bound on the time that long records take."""
FITTED = 64
"""Training records that thresholds are taken from."""
MOST_CHANNELS = 8
"""With more, kernels look at this many sums of channels with fixed signs."""
TINY = 1e-9

KERNELS = np.full((84, 9), -1.0, dtype=np.float32)
for _row, _taps in zip(KERNELS, combinations(range(9), 3), strict=True):
    _row[list(_taps)] = 2.0


class SeriesFeatures:
    """A function of one series, with the thresholds of training records.

    >>> rng = np.random.default_rng(0)
    >>> features = SeriesFeatures.fit([rng.normal(size=(n, 1)) for n in (50, 300, 1)])
    >>> features(rng.normal(size=(70, 1))).shape, features(np.ones((1, 1))).shape
    ((965,), (965,))
    """

    def __init__(self, dilations: Sequence[int], thresholds: ndarray) -> None:
        """`thresholds` are of shape (views, dilations, 84 kernels, thresholds)."""
        self.dilations, self.thresholds = tuple(dilations), thresholds.astype(np.float32)

    @classmethod
    def fit(cls, series: Sequence[ndarray]) -> SeriesFeatures:
        """Dilations that fit into the typical length, and thresholds."""
        some = [series[i] for i in np.linspace(0, len(series) - 1, min(len(series), FITTED)).round().astype(int)]
        typical = float(np.median([len(own) for own in some]))
        dilations = [2**k for k in range(10) if k == 0 or 8 * 2**k < typical]
        views = [_views(own) for own in some]
        thresholds = [
            [
                np.quantile(np.concatenate([_responses(own[c], d) for own in views], axis=1), THRESHOLDS, axis=1).T
                for d in dilations
            ]
            for c in range(len(views[0]))
        ]
        return cls(dilations, np.array(thresholds))

    def __call__(self, series: ndarray) -> ndarray:
        rows = series.reshape(len(series), -1).astype(np.float64)
        plain = np.concatenate([_channel(channel) for channel in rows.T])
        return np.concatenate([plain, self._shares(_views(series))]).astype(np.float32)

    def _shares(self, views: ndarray) -> ndarray:
        shares = []
        for view, thresholds in zip(views, self.thresholds, strict=True):
            for dilation, own in zip(self.dilations, thresholds, strict=True):
                responses = _responses(view, dilation)
                above = [np.count_nonzero(responses > threshold[:, None], axis=1) for threshold in own.T]
                shares.append(np.concatenate(above) / responses.shape[1])
        return np.concatenate(shares)


def _views(series: ndarray) -> ndarray:
    """What kernels look at: standardised channels, or a few signed sums of them; shape (views, N)."""
    rows = series.reshape(len(series), -1).astype(np.float64).T
    rows = (rows - rows.mean(axis=1, keepdims=True)) / (rows.std(axis=1, keepdims=True) + TINY)
    if len(rows) > MOST_CHANNELS:
        rows = np.random.default_rng(0).choice([-1.0, 1.0], size=(MOST_CHANNELS, len(rows))) @ rows
    return rows.astype(np.float32)


def _responses(view: ndarray, dilation: int) -> ndarray:
    """Of all kernels at some positions, with zeros beyond the ends; shape (84, positions)."""
    at = np.linspace(0, len(view) - 1, min(len(view), POSITIONS)).round().astype(int)
    padded = np.pad(view, 4 * dilation)
    return KERNELS @ padded[at + dilation * np.arange(9)[:, None]]


def _channel(x: ndarray) -> ndarray:
    """Amplitudes, shape, autocorrelation and short-time spectra of one channel."""
    mean, spread = x.mean(), x.std()
    z, steps = (x - mean) / (spread + TINY), np.diff(x, append=x[-1])
    amplitudes = [mean, *np.log(np.abs([spread, np.abs(x).mean(), np.abs(x).max(), np.abs(steps).max()]) + TINY)]
    shape = [z.min(), z.max(), (z**3).mean(), (z**4).mean(), np.abs(np.diff(z, append=z[-1])).mean()]
    shape += [(np.sign(z[1:]) != np.sign(z[:-1])).mean() if len(z) > 1 else 0.0, *np.quantile(z, QUANTILES)]
    sizes = np.log(np.abs(np.quantile(x, QUANTILES)) + 1e-6)
    return np.concatenate([amplitudes, shape, sizes, _autocorrelation(z), _spectra(z)])


def _autocorrelation(z: ndarray) -> ndarray:
    spectrum = np.fft.rfft(z, 1 << (2 * len(z) - 1).bit_length())
    found = np.fft.irfft(np.abs(spectrum) ** 2)[: len(z)] / len(z)
    return np.array([found[lag] if lag < len(z) else 0.0 for lag in LAGS])


def _spectra(z: ndarray) -> ndarray:
    """Mean and spread over the record of the log power at each frequency, and its mean in each part of the record."""
    padded = np.pad(z, (0, max(0, WINDOW - len(z))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[:: WINDOW // 2]
    power = np.log(np.abs(np.fft.rfft(frames * np.hanning(WINDOW), axis=1)) ** 2 + 1e-3)
    parts = [own.mean(axis=0) if len(own) else power.mean(axis=0) for own in np.array_split(power, PARTS)]
    return np.concatenate([power.mean(axis=0), power.std(axis=0), *parts])
