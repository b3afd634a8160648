"""Numerical features of k-mers, words of texts and series, for count baselines and for sketches."""

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
"""Number of nucleotides: tokens 0 to 3 are A, C, G and T; larger ones are ambiguous."""
RADIX = 0x9E3779B97F4A7C15
"""The radix by which k-mers of arbitrary tokens are coded: odd, so that no token's bits are shifted out."""


def chunks(sequences: Iterable[ndarray], tokens: int, records: int) -> Iterator[list[ndarray]]:
    """Chunks of consecutive records, of at most `records` records and `tokens` tokens; a longer record is a chunk."""
    chunk: list[ndarray] = []
    size = 0
    for sequence in sequences:
        if chunk and (size + len(sequence) > tokens or len(chunk) == records):
            yield chunk
            chunk, size = [], 0
        chunk.append(np.asarray(sequence))
        size += len(sequence)
    if chunk:
        yield chunk


def kmer_codes(tokens: ndarray, k: int, radix: int) -> ndarray:
    """The code of every k-mer: its tokens (uint64) as digits of one number in base `radix`, modulo 2^64.

    >>> kmer_codes(np.array([1, 2, 3, 4], dtype=np.uint64), 3, radix=10).tolist()
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


def valid_kmers(tokens: ndarray, lengths: ndarray, k: int, letters: int | None) -> ndarray:
    """Mask of the k-mers of concatenated records that lie within one record and have only tokens below `letters`.

    >>> valid_kmers(np.array([0, 1, 2, 3, 4, 0, 1]), np.array([3, 4]), 2, letters=4).tolist()
    [True, True, False, False, False, True]
    """
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(tokens))
    inside: ndarray = left[: len(tokens) - k + 1] >= k
    if letters is not None and (bad := tokens >= letters).any():
        seen = np.concatenate([[0], np.cumsum(bad, dtype=np.int32)])
        inside &= seen[k:] == seen[:-k]
    return inside


def mix(z: ndarray) -> ndarray:
    """The finaliser of SplitMix64 (see `draws`), a hash in which every input bit affects every output bit."""
    z = z + np.uint64(RADIX)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def complement(tokens: ndarray) -> ndarray:
    """The reverse complement of DNA tokens; ambiguous tokens are unchanged."""
    back = tokens[::-1]
    return np.where(back < LETTERS, LETTERS - 1 - back, back).astype(tokens.dtype)


CODE_POINTS, LETTERS_END = 0x110000, 0x40000
"""Number of Unicode code points, and the code point from which on none is a letter."""
SINGLE_WORD = 1 << 31
"""Flag added to the code point of a character that is a word of its own."""
IDEOGRAPHS = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""First and last code points of scripts written without spaces: Chinese, and Japanese with its kana."""
_EMPTY = np.empty(0, np.uint32)


@dataclass(frozen=True)
class TextWords:
    """Splits texts, given as token ids, into words; each word becomes a 64-bit hash.

    A word is a run of letters, marks and digits in lower case. Every other visible character, and every Chinese or
    Japanese one, is a word of its own. Blanks, control characters and bytes that are not UTF-8 separate words.

    >>> words = TextWords()
    >>> first, second = words([np.frombuffer(text.encode(), np.uint8) for text in ("No, no!", "NO one")])
    >>> len(first), len(second), bool(first[0] == first[2] == second[0])
    (4, 2, True)
    """

    points: ndarray | None = None
    """The code point of each token id (uint32); None: tokens are UTF-8 bytes."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TextWords | None:
        """The words of a tokenizer of bytes or characters; None for other tokenizers, whose tokens form no words."""
        if isinstance(tokenizer, Bytes):
            return cls()
        if isinstance(tokenizer, Characters):
            return cls(np.array([*map(ord, tokenizer.vocabulary), ord("\N{REPLACEMENT CHARACTER}")], np.uint32))
        return None

    def __call__(self, sequences: Sequence[ndarray]) -> list[ndarray]:
        """Word hashes (uint64) of each record, in order."""
        points = [self._code_points(tokens) for tokens in sequences]
        ends = np.cumsum([len(codes) for codes in points], dtype=np.int64)
        symbols = _symbol_table()[np.insert(np.concatenate([_EMPTY, *points]), ends, 0)]  # a record's end ends a word
        place = np.flatnonzero(symbols)
        symbols = symbols[place]
        single, first = symbols >= SINGLE_WORD, np.ones(len(place), bool)
        first[1:] = (np.diff(place) > 1) | single[1:] | single[:-1]
        starts = np.flatnonzero(first)
        within = np.arange(len(place)) - np.repeat(starts, np.diff(np.append(starts, len(place))))
        letters = mix(symbols.astype(np.uint64) << np.uint64(32) | within.astype(np.uint64))
        words = np.add.reduceat(letters, starts) if len(starts) else letters
        return np.split(words, np.searchsorted(place[starts], ends + np.arange(len(ends))))[: len(points)]

    def _code_points(self, tokens: ndarray) -> ndarray:
        if self.points is not None:
            points: ndarray = np.take(self.points, tokens, mode="clip")  # unknown ids are clipped to the last point
            return points
        text = np.asarray(tokens).astype(np.uint8).tobytes().decode("utf-8", "replace")
        return np.frombuffer(text.encode("utf-32-le"), np.uint32)


@cache
def _symbol_table() -> ndarray:
    """The lower case of each code point (uint32), plus `SINGLE_WORD` if it is a word; 0 if it separates words."""
    symbols = np.zeros(CODE_POINTS, np.uint32)
    for point in range(LETTERS_END):
        letter = chr(point)
        group = unicodedata.category(letter)[0]
        if group in "LMN":
            symbols[point] = ord(letter.lower()[0])
        elif group in "PS":
            symbols[point] = point | SINGLE_WORD
    symbols[ord("\N{REPLACEMENT CHARACTER}")] = 0
    for first, last in IDEOGRAPHS:
        script = symbols[first : last + 1]
        script[script > 0] |= np.uint32(SINGLE_WORD)
    return symbols


WINDOW = 64
"""Samples in a window of the short-time spectrum."""
PARTS = 3
"""Parts of a record with separate mean spectra, so that features show change over time."""
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
THRESHOLDS = (0.1, 0.5, 0.9)
"""Quantiles of a kernel's responses that serve as thresholds of its features."""
SMALL_DATA, MORE_THRESHOLDS = 1000, tuple(0.618034 * k % 1 for k in range(1, 7))
"""Training records up to which more thresholds, evenly spread, are used: small data gain most, and cost little."""
MEDIUM_DATA, DILATIONS = 4096, 10
"""Training records up to which kernels also see channels not standardised by record, with this many dilations."""
LAGS = tuple(sorted({round(2 ** (k / 2)) for k in range(20)}))
POSITIONS = 1024
"""Evenly spaced positions per record at which kernels are evaluated: this bounds the time for long records."""
FIT_RECORDS = 64
"""Training records from which thresholds are computed."""
MAX_CHANNELS = 12
"""Number of channels above which kernels see this many sums of channels with fixed signs instead."""
TINY, HUGE = 1e-9, 1e6

KERNELS = np.full((84, 9), -1.0, dtype=np.float32)
for _row, _taps in zip(KERNELS, combinations(range(9), 3), strict=True):
    _row[list(_taps)] = 2.0


class SeriesFeatures:
    """Features of a series for linear models: amplitudes, spectrum, autocorrelation and fixed convolutions.

    The convolutions are those of MiniRocket (Dempster, Schmidt and Webb, 2021): all 84 kernels of nine taps of which
    three are 2 and six are -1, at several dilations. A feature is the share of positions whose response is above a
    threshold; thresholds are quantiles of the responses of some training records. Kernels look at channels that are
    standardised within their record and, for up to `MEDIUM_DATA` training records, also at channels standardised over
    all training records, since their size may matter. Nothing is trained or random.

    >>> rng = np.random.default_rng(0)
    >>> features = SeriesFeatures.fit([rng.normal(size=(n, 1)) for n in (50, 300, 1)])
    >>> features(rng.normal(size=(70, 1))).shape, features(np.ones((1, 1))).shape
    ((6257,), (6257,))
    """

    def __init__(self, dilations: Sequence[int], thresholds: ndarray, moments: ndarray | None = None) -> None:
        """`thresholds` have the shape (views, dilations, 84 kernels, thresholds). `moments` are the mean and standard
        deviation of each channel in training, shape (2, channels); None: channels are standardised by record only."""
        self.dilations, self.thresholds = tuple(dilations), thresholds.astype(np.float32)
        self.moments = None if moments is None else moments.astype(np.float32)

    @classmethod
    def fit(cls, series: Sequence[ndarray]) -> SeriesFeatures:
        """Choose dilations that fit into the median length, and compute thresholds."""
        chosen = np.linspace(0, len(series) - 1, min(len(series), FIT_RECORDS)).round().astype(int)
        sample = [series[i] for i in chosen]
        typical = float(np.median([len(record) for record in sample]))
        dilations, moments = [2**k for k in range(10) if k == 0 or 8 * 2**k < typical], None
        if len(series) <= MEDIUM_DATA:
            most = np.log2(max(1.0, (typical - 1) / 8))
            dilations, moments = sorted({int(2**k) for k in np.linspace(0, most, DILATIONS)}), _moments(sample)
        quantiles = MORE_THRESHOLDS if len(series) <= SMALL_DATA else THRESHOLDS
        views = [_views(record, moments) for record in sample]
        thresholds = [
            [
                np.quantile(np.concatenate([_responses(view[c], d) for view in views], axis=1), quantiles, axis=1).T
                for d in dilations
            ]
            for c in range(len(views[0]))
        ]
        return cls(dilations, np.array(thresholds), moments)

    def __call__(self, series: ndarray) -> ndarray:
        rows = series.reshape(len(series), -1).astype(np.float64)
        plain = np.concatenate([_channel_features(channel) for channel in rows.T])
        return np.concatenate([plain, self._shares(_views(series, self.moments))]).astype(np.float32)

    def _shares(self, views: ndarray) -> ndarray:
        shares = []
        for view, thresholds in zip(views, self.thresholds, strict=True):
            for dilation, levels in zip(self.dilations, thresholds, strict=True):
                responses = _responses(view, dilation)
                above = [np.count_nonzero(responses > level[:, None], axis=1) for level in levels.T]
                shares.append(np.concatenate(above) / responses.shape[1])
        return np.concatenate(shares)


def _moments(series: Sequence[ndarray]) -> ndarray:
    """Mean and standard deviation of each channel over all records; the latter is 1 for a constant channel."""
    rows = np.concatenate([record.reshape(len(record), -1) for record in series]).astype(np.float64)
    spread = rows.std(axis=0)
    return np.stack([rows.mean(axis=0), np.where(spread > TINY, spread, 1)])


def _views(series: ndarray, moments: ndarray | None) -> ndarray:
    """The inputs of the kernels, shape (views, N): channels or signed sums of them, standardised within the record
    and, with `moments`, also over the training records."""
    rows = series.reshape(len(series), -1).astype(np.float64).T
    views = [(rows - rows.mean(axis=1, keepdims=True)) / (rows.std(axis=1, keepdims=True) + TINY)]
    if moments is not None:
        mean, spread = moments.astype(np.float64)[:, :, None]
        views.append(np.clip((rows - mean) / spread, -HUGE, HUGE))
    if len(rows) > MAX_CHANNELS:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(MAX_CHANNELS, len(rows)))
        views = [signs @ view for view in views]
    return np.concatenate(views).astype(np.float32)


def _responses(view: ndarray, dilation: int) -> ndarray:
    """The responses of all kernels to the zero-padded input at evenly spaced positions; shape (84, positions)."""
    positions = np.linspace(0, len(view) - 1, min(len(view), POSITIONS)).round().astype(int)
    padded = np.pad(view, 4 * dilation)
    return np.asarray(KERNELS @ padded[positions + dilation * np.arange(9)[:, None]])


def _channel_features(x: ndarray) -> ndarray:
    """Amplitudes, distribution, autocorrelation and short-time spectra of one channel."""
    mean, spread = x.mean(), x.std()
    z, steps = (x - mean) / (spread + TINY), np.diff(x, append=x[-1])
    amplitudes = [mean, *np.log(np.abs([spread, np.abs(x).mean(), np.abs(x).max(), np.abs(steps).max()]) + TINY)]
    shape = [z.min(), z.max(), (z**3).mean(), (z**4).mean(), np.abs(np.diff(z, append=z[-1])).mean()]
    shape += [(np.sign(z[1:]) != np.sign(z[:-1])).mean() if len(z) > 1 else 0.0, *np.quantile(z, QUANTILES)]
    sizes = np.log(np.abs(np.quantile(x, QUANTILES)) + 1e-6)
    return np.concatenate([amplitudes, shape, sizes, _autocorrelation(z), _short_time_spectra(z)])


def _autocorrelation(z: ndarray) -> ndarray:
    spectrum = np.fft.rfft(z, 1 << (2 * len(z) - 1).bit_length())
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)[: len(z)] / len(z)
    return np.array([correlation[lag] if lag < len(z) else 0.0 for lag in LAGS])


def _short_time_spectra(z: ndarray) -> ndarray:
    """Mean and standard deviation of the log power at each frequency, and its mean in each part of the record."""
    padded = np.pad(z, (0, max(0, WINDOW - len(z))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[:: WINDOW // 2]
    power = np.log(np.abs(np.fft.rfft(frames * np.hanning(WINDOW), axis=1)) ** 2 + 1e-3)
    parts = [part.mean(axis=0) if len(part) else power.mean(axis=0) for part in np.array_split(power, PARTS)]
    return np.concatenate([power.mean(axis=0), power.std(axis=0), *parts])
