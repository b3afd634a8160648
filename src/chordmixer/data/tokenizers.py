"""Tokenizers of text and numbers, and the choice of a tokenizer: by name, from a run, or guessed from content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from chordmixer import files
from chordmixer.config import check_numbers, from_dict
from chordmixer.data.alphabets import FORMAT, Dna, Kmers, OnBad, Protein, as_text, as_utf8, byte_names, count_bytes
from chordmixer.data.alphabets import Tokenizer as Tokenizer
from chordmixer.data.entries import Entry

FILE = "tokenizer.json"
SAMPLED = 10_000
"""Number of characters of each sequence that a guess uses."""
NOT_FINITE = "not finite"
"""Key of a census for numbers that are missing, infinite or too large for float32."""


@dataclass(frozen=True)
class Bytes(Tokenizer):
    """UTF-8 bytes of a text, or any bytes: 256 tokens, none of them unknown.

    >>> Bytes().encode("grün").tolist()
    [103, 114, 195, 188, 110]
    """

    name = "bytes"

    @property
    def size(self) -> int:
        return 256

    def encode(self, sequence: bytes | str | ndarray) -> ndarray:
        return np.frombuffer(as_utf8(sequence, self.name), np.uint8)

    def decode(self, ids: ndarray) -> str:
        return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        return byte_names(count_bytes(b"".join(as_utf8(s, self.name) for s in sequences)))


@dataclass(frozen=True)
class Characters(Tokenizer):
    """Characters of a vocabulary; any other character gets the last id, unknown, and is counted.

    >>> seen = Characters.of(["to be", "or not"])
    >>> seen.vocabulary, seen.encode("bed").tolist()
    (' benort', [1, 2, 7])
    """

    vocabulary: str
    """All characters, each once; a character's index is its id."""

    name = "characters"

    def __post_init__(self) -> None:
        if not self.vocabulary or len({*self.vocabulary}) < len(self.vocabulary):
            raise ValueError(
                f"vocabulary {self.vocabulary[:40]!r} is empty or has a character twice: each stands for one id; "
                "build it with Characters.of(training texts)"
            )

    @classmethod
    def of(cls, texts: Iterable[bytes | str]) -> Characters:
        """The vocabulary of all characters in the texts, sorted."""
        return cls("".join(sorted({c for text in texts for c in {*as_text(text, cls.name)}})))

    @property
    def size(self) -> int:
        return len(self.vocabulary) + 1

    @property
    def certain(self) -> int:
        return len(self.vocabulary)

    @cached_property
    def table(self) -> ndarray:
        """The id of each code point up to the vocabulary's largest, and a last entry for all others."""
        codes = _codes(self.vocabulary)
        ids = np.full(int(codes.max()) + 2, self.size - 1, dtype=self.dtype)
        ids[codes] = np.arange(len(codes))
        return ids

    def encode(self, sequence: bytes | str | ndarray) -> ndarray:
        return np.take(self.table, _codes(as_text(sequence, self.name)), mode="clip")

    def decode(self, ids: ndarray) -> str:
        letters = self.vocabulary + "\N{REPLACEMENT CHARACTER}"
        return "".join(letters[i] for i in ids.tolist())

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        counts = np.bincount(_codes("".join(as_text(s, self.name) for s in sequences)))
        return Counter({chr(code): int(counts[code]) for code in counts.nonzero()[0]})

    def notes(self, census: Mapping[str, int]) -> Counter[str]:
        unknown = sum(count for c, count in census.items() if c not in self.vocabulary)
        return Counter({"characters that the vocabulary lacks, taken as unknown": unknown} if unknown else {})


@dataclass(frozen=True)
class Numbers(Tokenizer):
    """Series of real numbers: float32 with `channels` numbers per token, no vocabulary.

    >>> Numbers().encode(np.array([0.5, 2.0])).shape
    (2, 1)
    """

    channels: int = 1
    on_bad: OnBad = "error"
    """NaN and infinite numbers: an error, or replaced by `mean` (0 without one) and counted."""
    mean: tuple[float, ...] = ()
    """The mean of each channel, which is subtracted; (): zero."""
    scale: tuple[float, ...] = ()
    """The scale of each channel, by which centred numbers are divided; (): one."""
    rate: int | None = None
    """Samples per second of the recordings; None: not known, as for all other series."""

    name = "numbers"

    def __post_init__(self) -> None:
        check_numbers(self, channels=(1, 1 << 20), rate=(1, 1 << 32))
        for name, values in (("mean", self.mean), ("scale", self.scale)):
            fits = len(values) in (0, self.channels) and np.isfinite(values).all()
            if not fits or (name == "scale" and 0 in values):
                raise ValueError(
                    f"{name}={values} is not a finite number for each of {self.channels} channels: give one"
                )

    @staticmethod
    def of(sample: Sequence[ndarray], on_bad: OnBad = "error") -> Numbers:
        """Take the channels from the first series, mean and standard deviation from all, to standardise inputs.

        >>> Numbers.of([np.array([10.0, 30.0])])
        Numbers(channels=1, on_bad='error', mean=(20.0,), scale=(10.0,), rate=None)
        """
        channels = sample[0].shape[1] if sample[0].ndim == 2 else 1
        fitting = [s.reshape(len(s), -1) for s in sample if s.size == len(s) * channels]
        rows = np.concatenate(fitting).astype(np.float64)
        rows = rows[np.isfinite(rows).all(axis=1)]
        if not len(rows):
            return Numbers(channels, on_bad)
        spread = rows.std(axis=0)
        spread[~(spread > 0)] = 1
        return Numbers(channels, on_bad, tuple(rows.mean(axis=0).tolist()), tuple(spread.tolist()))

    @property
    def size(self) -> int:
        return self.channels

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def encode(self, sequence: bytes | str | ndarray) -> ndarray:
        if not isinstance(sequence, ndarray) or sequence.dtype.kind not in "fiub":
            raise ValueError(
                f"a sequence of type {getattr(sequence, 'dtype', type(sequence).__name__)} is not a series of real "
                "numbers: give an array of floats, or use another tokenizer"
            )
        values = sequence[:, None] if sequence.ndim == 1 else sequence
        if values.shape[1:] != (self.channels,):
            raise ValueError(
                f"a series of shape {sequence.shape} does not have {self.channels} channels: all records have the "
                f"same; give (N, {self.channels}), or set channels"
            )
        original = values
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        if not np.isfinite(values.sum(dtype=np.float64)) and self.on_bad == "error":
            step, channel = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
            where = f"position {step + 1:,}" + (f", channel {channel + 1}" if self.channels > 1 else "")
            raise ValueError(
                f"{original[step, channel]} at {where} is missing or not finite in float32: fix the record, leave "
                f"it out with --on-bad reject, or have such numbers taken as {self._filled} with --on-bad unknown"
            )
        if self.mean or self.scale:
            values = ((values - np.array(self.mean or 0.0)) / np.array(self.scale or 1.0)).astype(np.float32)
        return np.where(np.isfinite(values), values, np.float32(0)) if self.on_bad == "unknown" else values

    def check_rate(self, rate: int | None) -> None:
        """Refuse a recording with another number of samples per second than those that a model was trained on."""
        if rate is not None and self.rate is not None and rate != self.rate:
            raise ValueError(
                f"{rate:,} samples per second, and this model was trained on recordings with {self.rate:,}: resample "
                f"it, as by ffmpeg -i IN.wav -ar {self.rate} OUT.wav"
            )

    def decode(self, ids: ndarray) -> str:
        values = ids * np.array(self.scale or 1.0) + np.array(self.mean or 0.0)
        return " ".join(",".join(f"{value:g}" for value in token) for token in values)

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        with np.errstate(over="ignore"):
            bad = sum(int((~np.isfinite(np.asarray(s).astype(np.float32))).sum()) for s in sequences)
        return Counter({NOT_FINITE: bad} if bad else {})

    def notes(self, census: Mapping[str, int]) -> Counter[str]:
        bad = census.get(NOT_FINITE, 0)
        return Counter({f"numbers that are missing or not finite, taken as {self._filled}": bad} if bad else {})

    @property
    def _filled(self) -> str:
        return "the channel's mean" if self.mean else "0"


def _codes(text: str) -> ndarray:
    """Code points of a text, including unpaired surrogates."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


TOKENIZERS: dict[str, type[Tokenizer]] = {cls.name: cls for cls in (Dna, Protein, Bytes, Characters, Kmers, Numbers)}


def tokenizer_from_json(document: Mapping[str, Any], where: str = FILE) -> Tokenizer:
    """The tokenizer that `to_json` has described; `where` is the source in error messages."""
    settings = dict(document)
    number, name = settings.pop("format", None), settings.pop("tokenizer", None)
    if number != FORMAT:
        raise ValueError(f"{where} has format {number!r}: this version reads {FORMAT}; use the one that wrote it")
    if not isinstance(name, str) or name not in TOKENIZERS:
        raise ValueError(f"{where} names tokenizer {name!r}: choose from {', '.join(TOKENIZERS)}")
    return from_dict(TOKENIZERS[name], settings, where)


def load_tokenizer(folder: Path) -> Tokenizer:
    return tokenizer_from_json(files.read_json(folder / FILE), str(folder / FILE))


def guess(sample: Iterable[bytes | str | ndarray]) -> str:
    """Guess the name of the tokenizer for a sample of sequences.

    Arrays are `numbers`. Otherwise characters except gaps are counted. `dna`: at least 90 % are A, C, G, T, U or N,
    or all are nucleotide letters and at least half are these six. Else `protein`: at least 95 % are letters or `*`,
    of them at least half in upper case. Anything else is text, `bytes`.

    >>> guess([b"ACGTNN", b"acguR"]), guess([b"MKTAYIAKQR", b"GATTACA"]), guess(["To be, or not to be"])
    ('dna', 'protein', 'bytes')
    """
    counts: Counter[str] = Counter()
    for sequence in sample:
        if isinstance(sequence, ndarray):
            return "numbers"
        counts.update(sequence[:SAMPLED] if isinstance(sequence, str) else sequence[:SAMPLED].decode("latin-1"))
    for gap in "-.":
        del counts[gap]
    total = counts.total()
    if not total:
        raise ValueError("there are no characters to guess a tokenizer from: name one with --tokenizer")

    def share(letters: str) -> float:
        return sum(count for c, count in counts.items() if c in letters) / total

    plain, nucleotides = (share(letters + letters.lower()) for letters in ("ACGTUN", "ACGTUNRYSWKMBDHV"))
    if plain >= 0.9 or (nucleotides == 1 and plain >= 0.5):
        return "dna"
    upper = share("ABCDEFGHIJKLMNOPQRSTUVWXYZ*")
    lower = share("abcdefghijklmnopqrstuvwxyz")
    return "protein" if upper + lower >= 0.95 and upper >= lower else "bytes"


@dataclass(frozen=True)
class TokenizerConfig:
    """Settings of the conversion of letters, text or numbers into tokens."""

    name: Literal["auto", "dna", "protein", "bytes", "characters", "kmers", "numbers"] = "auto"
    """The tokenizer. `auto`: guessed from the first records. The vocabulary of `characters` is that of the files."""
    k: int = 3
    """Length of k-mers, for kmers."""
    case: Literal["same", "mask"] = "same"
    """For dna, protein and kmers: lower case is the same as upper case, or masked, that is, read as unknown."""
    others: Literal["unknown", "own"] = "unknown"
    """For dna and protein: further letters of the alphabet are read as unknown, or have a token each."""
    on_bad: Literal["error", "unknown", "reject"] = "error"
    """Bad characters and numbers: an error, read as unknown (numbers: as the mean), or the record is rejected."""

    def __post_init__(self) -> None:
        check_numbers(self, k=(1, 12))


def make_tokenizer(
    config: TokenizerConfig, sample: Sequence[Entry], read_all: Callable[[], Iterable[Entry]]
) -> Tokenizer:
    """The tokenizer that the config names, or that is guessed from the sample; `read_all` reads all entries again."""
    name = config.name if config.name != "auto" else guess(entry.sequence for entry in sample)
    on_bad: OnBad = "unknown" if config.on_bad == "unknown" else "error"
    if name == "characters":
        return Characters.of(map(_letters, read_all()))
    if name == "numbers":
        series = [entry.sequence for entry in sample if isinstance(entry.sequence, ndarray)]
        rate = next((entry.rate for entry in sample if entry.rate is not None), None)
        return replace(Numbers.of(series, on_bad) if series else Numbers(on_bad=on_bad), rate=rate)
    if name == "bytes":
        return Bytes()
    if name == "kmers":
        return Kmers(config.k, case=config.case, on_bad=on_bad)
    return (Dna if name == "dna" else Protein)(config.others, config.case, on_bad)


def _letters(entry: Entry) -> bytes | str:
    if isinstance(entry.sequence, ndarray):
        raise ValueError(f"{entry.place} ({entry.id}) holds numbers: characters are of texts; use numbers")
    return entry.sequence
