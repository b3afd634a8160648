"""K-mers, words of texts and features of series as numbers: for count baselines and for sketches."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from numpy import ndarray

from chordmixer.data.tokenizers import Bytes, Characters, Tokenizer

LETTERS = 4
"""Nucleotides: tokens 0 to 3 are A, C, G and T, and larger ones are ambiguous."""
RADIX = 0x9E3779B97F4A7C15
"""The radix of k-mers of arbitrary tokens: odd, so that no token's bits are shifted out."""


def chunks(sequences: Iterable[ndarray], tokens: int, records: int) -> Iterator[list[ndarray]]:
    """Whole records in order, at most so many records and tokens at a time; a longer record comes alone."""
    chunk: list[ndarray] = []
    held = 0
    for sequence in sequences:
        if chunk and (held + len(sequence) > tokens or len(chunk) == records):
            yield chunk
            chunk, held = [], 0
        chunk.append(np.asarray(sequence))
        held += len(sequence)
    if chunk:
        yield chunk


def windows(tokens: ndarray, k: int, radix: int) -> ndarray:
    """Every run of `k` tokens (uint64) as the digits of one number, modulo two to the 64th.

    >>> windows(np.array([1, 2, 3, 4], dtype=np.uint64), 3, radix=10).tolist()
    [123, 234]
    """
    code, width = tokens, 1
    for bit in f"{k:b}"[1:]:
        code = code[:-width] * np.uint64(pow(radix, width, 1 << 64)) + code[width:]
        width *= 2
        if bit == "1":
            code = code[:-1] * np.uint64(radix) + tokens[width:]
            width += 1
    return code


def whole(tokens: ndarray, lengths: ndarray, k: int, letters: int | None) -> ndarray:
    """Which k-mers of concatenated records lie within one record and have only tokens below `letters`.

    >>> whole(np.array([0, 1, 2, 3, 4, 0, 1]), np.array([3, 4]), 2, letters=4).tolist()
    [True, True, False, False, False, True]
    """
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(tokens))
    inside: ndarray = left[: len(tokens) - k + 1] >= k
    if letters is not None and (bad := tokens >= letters).any():
        seen = np.concatenate([[0], np.cumsum(bad, dtype=np.int32)])
        inside &= seen[k:] == seen[:-k]
    return inside


def mix(z: ndarray) -> ndarray:
    """SplitMix64's finaliser (see `draws`): every bit of a number moves every bit of its hash."""
    z = z + np.uint64(RADIX)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def complement(tokens: ndarray) -> ndarray:
    """The reverse complement of DNA tokens; what is no nucleotide stays."""
    back = tokens[::-1]
    return np.where(back < LETTERS, LETTERS - 1 - back, back).astype(tokens.dtype)


POINTS, LAST = 0x110000, 0x40000
"""Code points of Unicode, and from where on none is a letter."""
ALONE = 1 << 31
"""Added to the code point of a character that is a word of its own."""
IDEOGRAPHS = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""First and last of scripts that are written without blanks: Chinese, and Japanese with its kana."""
_NONE = np.empty(0, np.uint32)


@dataclass(frozen=True)
class TextWords:
    """Token ids of a text become one 64-bit number for each of its words, in their order.

    A word is a run of letters, marks and digits in lower case; each other visible character, and each Chinese or
    Japanese one, is a word of its own. Blanks, control characters and bytes that are not UTF-8 only separate.

    >>> words = TextWords()
    >>> one, other = words([np.frombuffer(text.encode(), np.uint8) for text in ("No, no!", "NO one")])
    >>> len(one), len(other), bool(one[0] == one[2] == other[0])
    (4, 2, True)
    """

    points: ndarray | None = None
    """The code point of each token id, uint32; None: tokens are the bytes of UTF-8."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TextWords | None:
        """For bytes and characters; other tokens, such as k-mers, make no words."""
        if isinstance(tokenizer, Bytes):
            return cls()
        if isinstance(tokenizer, Characters):
            return cls(np.array([*map(ord, tokenizer.vocabulary), ord("\N{REPLACEMENT CHARACTER}")], np.uint32))
        return None

    def __call__(self, sequences: Sequence[ndarray]) -> list[ndarray]:
        """A uint64 array for each record."""
        points = [self._points(own) for own in sequences]
        ends = np.cumsum([len(own) for own in points], dtype=np.int64)
        symbols = _symbols()[np.insert(np.concatenate([_NONE, *points]), ends, 0)]  # no word crosses a record's end
        place = np.flatnonzero(symbols)
        symbols = symbols[place]
        alone, first = symbols >= ALONE, np.ones(len(place), bool)
        first[1:] = (np.diff(place) > 1) | alone[1:] | alone[:-1]
        starts = np.flatnonzero(first)
        within = np.arange(len(place)) - np.repeat(starts, np.diff(np.append(starts, len(place))))
        letters = mix(symbols.astype(np.uint64) << np.uint64(32) | within.astype(np.uint64))
        words = np.add.reduceat(letters, starts) if len(starts) else letters
        return np.split(words, np.searchsorted(place[starts], ends + np.arange(len(ends))))[: len(points)]

    def _points(self, tokens: ndarray) -> ndarray:
        if self.points is not None:
            own: ndarray = np.take(self.points, tokens, mode="clip")  # the last one is unknown
            return own
        text = np.asarray(tokens).astype(np.uint8).tobytes().decode("utf-8", "replace")
        return np.frombuffer(text.encode("utf-32-le"), np.uint32)


@cache
def _symbols() -> ndarray:
    """For each code point (uint32) its lower case, plus `ALONE` if it is a word of its own; 0 if it separates."""
    symbols = np.zeros(POINTS, np.uint32)
    for point in range(LAST):
        letter = chr(point)
        group = unicodedata.category(letter)[0]
        if group in "LMN":
            symbols[point] = ord(letter.lower()[0])
        elif group in "PS":
            symbols[point] = point | ALONE
    symbols[ord("\N{REPLACEMENT CHARACTER}")] = 0
    for first, last in IDEOGRAPHS:
        here = symbols[first : last + 1]
        here[here > 0] |= np.uint32(ALONE)
    return symbols


WINDOW = 64
"""Samples of a short-time spectrum."""
PARTS = 3
"""Parts of a record whose spectra are kept apart, so that change over time is seen."""
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
THRESHOLDS = (0.1, 0.5, 0.9)
"""Quantiles of a kernel's responses that its shares are counted above."""
FEW, MORE_THRESHOLDS = 1000, tuple(0.618034 * k % 1 for k in range(1, 7))
"""Training records up to which there are more of them, evenly spread: small data have the time, and gain most."""
SOME, DILATIONS = 4096, 10
"""Training records up to which kernels also look at channels as they are, and at more dilations."""
LAGS = tuple(sorted({round(2 ** (k / 2)) for k in range(20)}))
POSITIONS = 1024
"""Positions per record at which kernels are evaluated, evenly spaced: this bounds the time for long records."""
FITTED = 64
"""Training records that thresholds are taken from."""
MOST_CHANNELS = 12
"""With more, kernels look at this many sums of channels with fixed signs."""
TINY, HUGE = 1e-9, 1e6

KERNELS = np.full((84, 9), -1.0, dtype=np.float32)
for _row, _taps in zip(KERNELS, combinations(range(9), 3), strict=True):
    _row[list(_taps)] = 2.0


class SeriesFeatures:
    """A series as one row of numbers for linear models: amplitudes, spectrum, autocorrelation, fixed convolutions.

    The convolutions are those of MiniRocket (Dempster, Schmidt and Webb, 2021): all 84 kernels of nine taps of which
    three are 2 and six are -1, at several dilations. A feature is the share of positions whose response is above a
    threshold; thresholds are quantiles of the responses of some training records. Kernels look at channels that are
    standardised within their record and, of up to `SOME` training records, also at channels as they are, since
    their size may matter. Nothing is trained or random.

    >>> rng = np.random.default_rng(0)
    >>> features = SeriesFeatures.fit([rng.normal(size=(n, 1)) for n in (50, 300, 1)])
    >>> features(rng.normal(size=(70, 1))).shape, features(np.ones((1, 1))).shape
    ((6257,), (6257,))
    """

    def __init__(self, dilations: Sequence[int], thresholds: ndarray, moments: ndarray | None = None) -> None:
        """`thresholds` are of shape (views, dilations, 84 kernels, thresholds); `moments` are mean and spread of each
        channel in training, of shape (2, channels), where kernels also look at channels as they are."""
        self.dilations, self.thresholds = tuple(dilations), thresholds.astype(np.float32)
        self.moments = None if moments is None else moments.astype(np.float32)

    @classmethod
    def fit(cls, series: Sequence[ndarray]) -> SeriesFeatures:
        """Dilations that fit into the typical length, and thresholds."""
        some = [series[i] for i in np.linspace(0, len(series) - 1, min(len(series), FITTED)).round().astype(int)]
        typical = float(np.median([len(own) for own in some]))
        dilations, moments = [2**k for k in range(10) if k == 0 or 8 * 2**k < typical], None
        if len(series) <= SOME:
            most = np.log2(max(1.0, (typical - 1) / 8))
            dilations, moments = sorted({int(2**k) for k in np.linspace(0, most, DILATIONS)}), _channel_moments(some)
        quantiles = MORE_THRESHOLDS if len(series) <= FEW else THRESHOLDS
        views = [_views(own, moments) for own in some]
        thresholds = [
            [
                np.quantile(np.concatenate([_responses(own[c], d) for own in views], axis=1), quantiles, axis=1).T
                for d in dilations
            ]
            for c in range(len(views[0]))
        ]
        return cls(dilations, np.array(thresholds), moments)

    def __call__(self, series: ndarray) -> ndarray:
        rows = series.reshape(len(series), -1).astype(np.float64)
        plain = np.concatenate([_channel(channel) for channel in rows.T])
        return np.concatenate([plain, self._shares(_views(series, self.moments))]).astype(np.float32)

    def _shares(self, views: ndarray) -> ndarray:
        shares = []
        for view, thresholds in zip(views, self.thresholds, strict=True):
            for dilation, own in zip(self.dilations, thresholds, strict=True):
                responses = _responses(view, dilation)
                above = [np.count_nonzero(responses > threshold[:, None], axis=1) for threshold in own.T]
                shares.append(np.concatenate(above) / responses.shape[1])
        return np.concatenate(shares)


def _channel_moments(series: Sequence[ndarray]) -> ndarray:
    """Mean and spread of each channel over all records; a constant channel has spread 1."""
    rows = np.concatenate([own.reshape(len(own), -1) for own in series]).astype(np.float64)
    spread = rows.std(axis=0)
    return np.stack([rows.mean(axis=0), np.where(spread > TINY, spread, 1)])


def _views(series: ndarray, moments: ndarray | None) -> ndarray:
    """The inputs of the kernels, shape (views, N): channels, or a few signed sums of them, standardised within the
    record, and with `moments` also by these."""
    rows = series.reshape(len(series), -1).astype(np.float64).T
    views = [(rows - rows.mean(axis=1, keepdims=True)) / (rows.std(axis=1, keepdims=True) + TINY)]
    if moments is not None:
        mean, spread = moments.astype(np.float64)[:, :, None]
        views.append(np.clip((rows - mean) / spread, -HUGE, HUGE))
    if len(rows) > MOST_CHANNELS:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(MOST_CHANNELS, len(rows)))
        views = [signs @ own for own in views]
    return np.concatenate(views).astype(np.float32)


def _responses(view: ndarray, dilation: int) -> ndarray:
    """The responses of all kernels at some positions, zero-padded; shape (84, positions)."""
    at = np.linspace(0, len(view) - 1, min(len(view), POSITIONS)).round().astype(int)
    padded = np.pad(view, 4 * dilation)
    return np.asarray(KERNELS @ padded[at + dilation * np.arange(9)[:, None]])


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
