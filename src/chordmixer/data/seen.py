"""Which records a run has seen: a hash of the tokens of each, kept in the run folder as seen.safetensors.

A record and its reverse complement have the same hash, as a split takes them for copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

from chordmixer import files
from chordmixer.data.encoding import Tokenizer
from chordmixer.data.sketches import digest

FILE = "seen.safetensors"
PARTS = ("training", "validation")
"""Weights are fitted to the first, and chosen and calibrated by the second."""
UNSEEN = "no"


def hashes(records: Iterable[ndarray], tokenizer: Tokenizer) -> ndarray:
    """64 bits of each record's tokens: with a million records on either side, a false match has the chance 1 in 10^7.

    >>> from chordmixer.data.alphabets import Dna
    >>> one, other = hashes([Dna().encode(b"AACGN"), Dna().encode(b"ncgtt")], Dna()).tolist()
    >>> one == other
    True
    """
    return np.fromiter((_hash(tokens, tokenizer) for tokens in records), np.uint64)


def _hash(tokens: ndarray, tokenizer: Tokenizer) -> int:
    tokens = np.asarray(tokens, tokenizer.dtype)
    if tokenizer.complement is None:
        return digest(tokens)
    return min(digest(tokens), digest(tokenizer.reverse_complement(tokens).astype(tokenizer.dtype)))


def packed(seen: Mapping[str, ndarray]) -> bytes:
    """The file with the hashes of each of `PARTS`, 8 bytes a record."""
    return files.tensor_bytes({part: torch.from_numpy(np.unique(seen[part]).view(np.int64)) for part in PARTS})


def load(folder: Path) -> dict[str, ndarray] | None:
    """The hashes of a run, checked by its manifest; None where it has none: it is older, or makes its own records."""
    path = folder / FILE
    recorded = files.recorded(folder)
    if not path.exists() and FILE not in recorded:
        return None
    if not {FILE, "config.json"}.isdisjoint(recorded):
        files.verify(folder, [FILE])
    found = files.read_tensors(path)
    if {*found} != {*PARTS} or any(t.dtype != torch.int64 or t.ndim != 1 for t in found.values()):
        raise ValueError(f"{path} is not the hashes of {' and '.join(PARTS)} records: use another copy of the run")
    return {part: found[part].numpy().view(np.uint64) for part in PARTS}


def where(given: ndarray, seen: Mapping[str, ndarray]) -> list[str]:
    """Of each hash, the first of `PARTS` that has it, or `no`.

    >>> where(np.array([5, 7, 9], np.uint64), {"training": np.array([5]), "validation": np.array([5, 9])})
    ['training', 'no', 'validation']
    """
    found = np.full(len(given), UNSEEN, dtype=object)
    for part in reversed(PARTS):
        found[np.isin(given, seen[part])] = part
    return found.tolist()
