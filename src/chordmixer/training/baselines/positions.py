"""Letters by their position, for records that are aligned or short: peptides, variants of a protein, splice sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

REACH, ALIGNED = 64, 1024
"""Positions from either end that are looked at; and where all training records have one length, from the start."""
MOST_LETTERS = 1 << 16
"""Tokens from this number on are not looked at; of kinds with few letters, those beyond the letters."""


@dataclass(frozen=True)
class Positions:
    """Sparse rows: which letter stands at each position from the start, and at each from the end.

    The end is left out where all training records have one length. Rows have a length of about one.

    >>> peptides = [np.array(own, np.uint8) for own in ([0, 1, 2], [0, 1], [2, 1, 2], [2, 1])]
    >>> rows = Positions.fit(peptides, letters=20)(peptides)
    >>> rows.shape, rows.indices[:4].tolist()
    ((4, 7), [0, 2, 3, 5])
    """

    letters: int
    reach: int
    """Positions from the start, and as many from the end."""
    ends: bool
    """Whether positions from the end count too."""
    kept: ndarray
    """Numbers of the features that are used, ascending."""
    scale: float
    """Of each entry."""

    @classmethod
    def fit(cls, sequences: Sequence[ndarray], letters: int | None) -> Positions:
        """Keep what at least two training records have in common."""
        lengths = np.array([len(own) for own in sequences])
        ends = bool((lengths != lengths[0]).any())
        reach = min(int(lengths.max()), REACH if ends else ALIGNED)
        raw = cls(letters or MOST_LETTERS, reach, ends, np.empty(0, np.int32), 1.0)
        _, codes = raw._found(sequences)
        kept, counts = np.unique(codes, return_counts=True)
        entries = max(len(codes) / len(sequences), 1.0)
        return replace(raw, kept=kept[counts > 1].astype(np.int32), scale=float(np.float32(entries**-0.5)))

    @property
    def width(self) -> int:
        """Columns, at least one."""
        return max(len(self.kept), 1)

    def __call__(self, sequences: Sequence[ndarray]) -> Any:
        """A scipy CSR matrix of float32, one row per record, one column per kept feature."""
        from scipy.sparse import csr_matrix

        rows, codes = self._found(sequences)
        column = np.searchsorted(self.kept, codes)
        known = np.append(self.kept, -1)[column] == codes
        values = np.full(int(known.sum()), self.scale, np.float32)
        return csr_matrix((values, (rows[known], column[known])), (len(sequences), self.width))

    def _found(self, sequences: Sequence[ndarray]) -> tuple[ndarray, ndarray]:
        """The record and the number of the feature of each letter that is looked at."""
        rows, codes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for row, own in enumerate(sequences):
            for side, letters in enumerate((own[: self.reach], own[::-1][: self.reach])[: 1 + self.ends]):
                places = np.flatnonzero(letters < self.letters)
                codes.append((side * self.reach + places) * self.letters + letters[places])
                rows.append(np.full(len(places), row))
        return np.concatenate(rows), np.concatenate(codes)
