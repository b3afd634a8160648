"""Leakage: held-out records with a copy in training, and the hashes by which a run recognises records it has seen.

The hashes are kept in the run folder as seen.safetensors. A record and its reverse complement have the same hash.
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
    """Records of one part with a copy in training; each counts once, under the first kind that holds."""

    records: int
    """Records of the part."""
    exact: int = 0
    reverse: int = 0
    """The reverse complement of a training record."""
    near: int = 0
    examples: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """A few of each: the record's number and the training record's."""

    @property
    def total(self) -> int:
        return self.exact + self.reverse + self.near

    def lines(self, part: str, name: Callable[[int], str] = str) -> Iterator[str]:
        r"""A readable summary.

        >>> print(*Leak(90, exact=3, examples={"exact": [(7, 2)]}).lines("test", "r{}".format), sep="\n")
        test: 3 of 90 records (3.3 %) have a copy in training: 3 exact, 0 reverse complement, 0 near
        exact: r7 = r2, ...
        """
        share = 100 * self.total / max(self.records, 1)
        yield (
            f"{part}: {self.total:,} of {self.records:,} records ({share:.1f} %) have a copy in training: "
            f"{self.exact:,} exact, {self.reverse:,} reverse complement, {self.near:,} near"
        )
        signs = {"exact": "=", "reverse": "= reverse complement of", "near": "~"}
        for kind, pairs in self.examples.items():
            shown = ", ".join(f"{name(held)} {signs[kind]} {name(trained)}" for held, trained in pairs)
            yield f"{kind}: {shown}{', ...' if getattr(self, kind) > len(pairs) else ''}"


def digests(sequences: Sequence[ndarray], canonical: bool) -> ndarray:
    """Two digests per record: its own and, for DNA (`canonical`), its reverse complement's, else its own again."""
    return strand_digests(sequences, complement if canonical else None)


def copies(digests: ndarray) -> ndarray:
    """A group number for each record: exact copies and reverse complements have the same."""
    return np.unique(digests.min(axis=1), return_inverse=True)[1]


def find_leaks(
    digests: ndarray,
    sketches: Sketches | None,
    threshold: float,
    parts: Mapping[str, Sequence[int] | ndarray],
    numbers: ndarray | None = None,
) -> dict[str, Leak]:
    """For every part but `training`, how many of its records have a copy there; without sketches, no near ones.

    Examples give records by these `numbers`, or else by their places.
    """
    numbers = np.arange(len(digests)) if numbers is None else numbers
    training = np.asarray(parts["training"], dtype=np.int64)
    kinds = {"exact": _same(digests, training, column=0), "reverse": _same(digests, training, column=1)}
    if sketches is not None:
        kinds["near"] = _near(sketches, threshold, training, np.maximum(*kinds.values()) < 0)
    held_out = {part: np.asarray(records, np.int64) for part, records in parts.items() if part != "training"}
    return {part: _leak(kinds, records, numbers) for part, records in held_out.items()}


def _same(digests: ndarray, training: ndarray, column: int) -> ndarray:
    """For each record a training record that is its copy, or -1."""
    known, where = np.unique(digests[training, 0], return_index=True)
    if not len(known):
        return np.full(len(digests), -1)
    place = np.searchsorted(known, digests[:, column]).clip(max=len(known) - 1)
    return np.where(known[place] == digests[:, column], training[where[place]], -1)


def _near(sketches: Sketches, threshold: float, training: ndarray, open_: ndarray) -> ndarray:
    """For each open record outside training a near training record, or -1."""
    trained = np.zeros(len(sketches), bool)
    trained[training] = True
    found = np.full(len(sketches), -1)

    def wanted(first: ndarray, second: ndarray) -> ndarray:
        held = np.where(trained[first], second, first)
        return np.asarray((trained[first] != trained[second]) & open_[held] & (found[held] < 0))

    for first, second in near_pairs(sketches, threshold, wanted):
        found[np.where(trained[first], second, first)] = np.where(trained[first], first, second)
    return found


def _leak(kinds: Mapping[str, ndarray], records: ndarray, numbers: ndarray) -> Leak:
    counts, examples = {}, {}
    left = records
    for kind, found in kinds.items():
        hit = left[found[left] >= 0]
        left = left[found[left] < 0]
        counts[kind] = len(hit)
        if len(hit):
            examples[kind] = [(int(numbers[i]), int(numbers[found[i]])) for i in hit[:SHOWN]]
    return Leak(len(records), **counts, examples=examples)


SEEN_FILE = "seen.safetensors"
SEEN_PARTS = ("training", "validation")
"""Weights are fitted to the first, and chosen and calibrated by the second."""
UNSEEN = "no"


def seen_hashes(records: Iterable[ndarray], tokenizer: Tokenizer) -> ndarray:
    """64 bits of each record's tokens: with a million records on either side, a false match has a chance of 10^-7."""
    opposite = None if tokenizer.complement is None else tokenizer.reverse_complement
    found: ndarray = strand_digests((np.asarray(tokens, tokenizer.dtype) for tokens in records), opposite).min(axis=1)
    return found


def pack_seen(seen: Mapping[str, ndarray]) -> bytes:
    """The contents of seen.safetensors: the hashes of each of `SEEN_PARTS`, 8 bytes a record."""
    return files.tensor_bytes({part: torch.from_numpy(np.unique(seen[part]).view(np.int64)) for part in SEEN_PARTS})


def load_seen(folder: Path) -> dict[str, ndarray] | None:
    """The hashes of a run, checked by its manifest; None if it has none, being older or making its own records."""
    path = folder / SEEN_FILE
    recorded = files.recorded(folder)
    if not path.exists() and SEEN_FILE not in recorded:
        return None
    if not {SEEN_FILE, "config.json"}.isdisjoint(recorded):
        files.verify(folder, [SEEN_FILE])
    found = files.read_tensors(path)
    if {*found} != {*SEEN_PARTS} or any(t.dtype != torch.int64 or t.ndim != 1 for t in found.values()):
        raise ValueError(f"{path} has no hashes of {' and '.join(SEEN_PARTS)}: use another copy of the run")
    return {part: found[part].numpy().view(np.uint64) for part in SEEN_PARTS}


def find_seen(given: ndarray, seen: Mapping[str, ndarray]) -> list[str]:
    """For each hash the first of `SEEN_PARTS` that has it, or `no`."""
    found = np.full(len(given), UNSEEN, dtype=object)
    for part in reversed(SEEN_PARTS):
        found[np.isin(given, seen[part])] = part
    return found.tolist()
