"""Leakage: find held-out records with a copy in training, and recognise records that a run has seen by their hashes.

The hashes are saved in the run folder as seen.safetensors. A record and its reverse complement have the same hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

from chordmixer import files
from chordmixer.data.alphabets import Tokenizer
from chordmixer.data.features import complement
from chordmixer.data.sketches import Sketches, near_pairs, strand_digests

SHOWN = 5


@dataclass(frozen=True)
class Leak:
    """Counts of one part's records with a copy in training; each counts once, under the first kind that applies."""

    records: int
    """Number of records in the part."""
    exact: int = 0
    reverse: int = 0
    """Number of reverse complements of training records."""
    near: int = 0
    examples: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """A few examples of each kind: numbers of the record and of the training record."""

    @property
    def total(self) -> int:
        return self.exact + self.reverse + self.near

    def lines(self, part: str, name: Callable[[int], str] = str) -> Iterator[str]:
        r"""A readable summary. `name` gives the id of a record's number.

        >>> print(*Leak(90, exact=3, examples={"exact": [(7, 2)]}).lines("test", "r{}".format), sep="\n")
        test: 3 of 90 records (3.3 %) have a copy in training: 3 exact, 0 near
        exact: r7 = r2, ...
        """
        share = 100 * self.total / max(self.records, 1)
        reverse = f", {self.reverse:,} reverse complement" if self.reverse else ""
        yield (
            f"{part}: {self.total:,} of {self.records:,} records ({share:.1f} %) have a copy in training: "
            f"{self.exact:,} exact{reverse}, {self.near:,} near"
        )
        signs = {"exact": "=", "reverse": "= reverse complement of", "near": "~"}
        for kind, pairs in self.examples.items():
            shown = ", ".join(f"{name(held)} {signs[kind]} {name(trained)}" for held, trained in pairs)
            yield f"{kind}: {shown}{', ...' if getattr(self, kind) > len(pairs) else ''}"


def digests(sequences: Sequence[ndarray], canonical: bool) -> ndarray:
    """Two digests per record: of its tokens, and of their reverse complement for DNA (`canonical`), else the same."""
    return strand_digests(sequences, complement if canonical else None)


def copies(digests: ndarray) -> ndarray:
    """A group number for each record: exact copies and reverse complements share a group."""
    return np.unique(digests.min(axis=1), return_inverse=True)[1]


def find_leaks(
    digests: ndarray,
    sketches: Sketches | None,
    threshold: float,
    parts: Mapping[str, Sequence[int] | ndarray],
    numbers: ndarray | None = None,
) -> dict[str, Leak]:
    """For every part except `training`, count its records with a copy in `training`.

    Without sketches, near-copies are not searched for. `numbers` are the records' numbers in examples; default: their
    positions.
    """
    numbers = np.arange(len(digests)) if numbers is None else numbers
    training = np.asarray(parts["training"], dtype=np.int64)
    kinds = {"exact": _matches(digests, training, column=0), "reverse": _matches(digests, training, column=1)}
    if sketches is not None:
        kinds["near"] = _near_matches(sketches, threshold, training, np.maximum(*kinds.values()) < 0)
    held_out = {part: np.asarray(records, np.int64) for part, records in parts.items() if part != "training"}
    return {part: _count_leaks(kinds, records, numbers) for part, records in held_out.items()}


def _matches(digests: ndarray, training: ndarray, column: int) -> ndarray:
    """For each record a training record with the same digest, or -1."""
    known, first = np.unique(digests[training, 0], return_index=True)
    if not len(known):
        return np.full(len(digests), -1)
    index = np.searchsorted(known, digests[:, column]).clip(max=len(known) - 1)
    return np.where(known[index] == digests[:, column], training[first[index]], -1)


def _near_matches(sketches: Sketches, threshold: float, training: ndarray, unmatched: ndarray) -> ndarray:
    """For each record that is unmatched and not in training, a training record that it is a near-copy of, or -1."""
    in_training = np.zeros(len(sketches), bool)
    in_training[training] = True
    match = np.full(len(sketches), -1)

    def wanted(first: ndarray, second: ndarray) -> ndarray:
        held_out = np.where(in_training[first], second, first)
        return np.asarray((in_training[first] != in_training[second]) & unmatched[held_out] & (match[held_out] < 0))

    for first, second in near_pairs(sketches, threshold, wanted):
        match[np.where(in_training[first], second, first)] = np.where(in_training[first], first, second)
    return match


def _count_leaks(kinds: Mapping[str, ndarray], records: ndarray, numbers: ndarray) -> Leak:
    counts, examples = {}, {}
    remaining = records
    for kind, match in kinds.items():
        matched = remaining[match[remaining] >= 0]
        remaining = remaining[match[remaining] < 0]
        counts[kind] = len(matched)
        if len(matched):
            examples[kind] = [(int(numbers[i]), int(numbers[match[i]])) for i in matched[:SHOWN]]
    return Leak(len(records), **counts, examples=examples)


SEEN_FILE = "seen.safetensors"
SEEN_PARTS = ("training", "validation")
"""The parts that a run uses: weights are fitted on training; validation selects and calibrates them."""
UNSEEN = "no"


def seen_hashes(records: Iterable[ndarray], tokenizer: Tokenizer) -> ndarray:
    """A 64-bit hash of each record: a false match between two sets of a million records has a chance of 10^-7."""
    opposite = None if tokenizer.complement is None else tokenizer.reverse_complement
    seen: ndarray = strand_digests((np.asarray(tokens, tokenizer.dtype) for tokens in records), opposite).min(axis=1)
    return seen


def pack_seen(seen: Mapping[str, ndarray]) -> bytes:
    """The contents of seen.safetensors: the hashes of each of `SEEN_PARTS`, 8 bytes per record."""
    return files.tensor_bytes({part: torch.from_numpy(np.unique(seen[part]).view(np.int64)) for part in SEEN_PARTS})


def load_seen(folder: Path) -> dict[str, ndarray] | None:
    """The hashes of a run, checked by its manifest; None for an older run or one on generated records."""
    path = folder / SEEN_FILE
    recorded = files.recorded(folder)
    if not path.exists() and SEEN_FILE not in recorded:
        return None
    if not {SEEN_FILE, "config.json"}.isdisjoint(recorded):
        files.verify(folder, [SEEN_FILE])
    tensors = files.read_tensors(path)
    if {*tensors} != {*SEEN_PARTS} or any(t.dtype != torch.int64 or t.ndim != 1 for t in tensors.values()):
        raise ValueError(f"{path} has no hashes of {' and '.join(SEEN_PARTS)}: use another copy of the run")
    return {part: tensors[part].numpy().view(np.uint64) for part in SEEN_PARTS}


def find_seen(hashes: ndarray, seen: Mapping[str, ndarray]) -> list[str]:
    """For each hash the first of `SEEN_PARTS` that contains it, or `no`."""
    parts = np.full(len(hashes), UNSEEN, dtype=object)
    for part in reversed(SEEN_PARTS):
        parts[np.isin(hashes, seen[part])] = part
    return parts.tolist()
