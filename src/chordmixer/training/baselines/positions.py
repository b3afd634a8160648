"""One-hot letters by position, for records that are aligned or short: peptides, protein variants, splice sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

MAX_REACH, MAX_ALIGNED_REACH = 64, 1024
"""Maximum number of positions from either end; and from the start, if all training records have the same length."""
MAX_LETTERS = 1 << 16
"""Tokens from this number on are ignored; with a known number of letters, tokens beyond these."""


@dataclass(frozen=True)
class Positions:
    """Sparse one-hot rows of the letter at each position from the start, and at each from the end.

    Positions from the end are omitted if all training records have the same length. The norm of a row is about one.

    >>> peptides = [np.array(ids, np.uint8) for ids in ([0, 1, 2], [0, 1], [2, 1, 2], [2, 1])]
    >>> rows = Positions.fit(peptides, letters=20)(peptides)
    >>> rows.shape, rows.indices[:4].tolist()
    ((4, 7), [0, 2, 3, 5])
    """

    letters: int
    reach: int
    """Number of positions from the start, and from the end."""
    ends: bool
    """Whether there are columns for positions from the end."""
    kept: ndarray
    """Codes of the features that are used, ascending."""
    scale: float
    """Value of each entry of a row."""

    @classmethod
    def fit(cls, sequences: Sequence[ndarray], letters: int | None) -> Positions:
        """Keep features that at least two training records share."""
        lengths = np.array([len(sequence) for sequence in sequences])
        ends = bool((lengths != lengths[0]).any())
        reach = min(int(lengths.max()), MAX_REACH if ends else MAX_ALIGNED_REACH)
        raw = cls(letters or MAX_LETTERS, reach, ends, np.empty(0, np.int32), 1.0)
        _, codes = raw._coded(sequences)
        kept, counts = np.unique(codes, return_counts=True)
        entries = max(len(codes) / len(sequences), 1.0)
        return replace(raw, kept=kept[counts > 1].astype(np.int32), scale=float(np.float32(entries**-0.5)))

    @property
    def width(self) -> int:
        """Number of columns, at least one."""
        return max(len(self.kept), 1)

    def __call__(self, sequences: Sequence[ndarray]) -> Any:
        """A scipy CSR matrix of float32, one row per record, one column per kept feature."""
        from scipy.sparse import csr_matrix

        rows, codes = self._coded(sequences)
        column = np.searchsorted(self.kept, codes)
        known = np.append(self.kept, -1)[column] == codes
        values = np.full(int(known.sum()), self.scale, np.float32)
        return csr_matrix((values, (rows[known], column[known])), (len(sequences), self.width))

    def _coded(self, sequences: Sequence[ndarray]) -> tuple[ndarray, ndarray]:
        """The record and the feature code of each letter within reach."""
        rows, codes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for row, sequence in enumerate(sequences):
            for side, letters in enumerate((sequence[: self.reach], sequence[::-1][: self.reach])[: 1 + self.ends]):
                positions = np.flatnonzero(letters < self.letters)
                codes.append((side * self.reach + positions) * self.letters + letters[positions])
                rows.append(np.full(len(positions), row))
        return np.concatenate(rows), np.concatenate(codes)
