"""Kernel ridge regression: a number as a smooth function of a few standardised features, of any shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Regression
from chordmixer.training.baselines.linear import AnyTarget

RECORDS = 4096
"""Training records at most: the fit takes the square of it in memory, and the cube in time."""
WIDTHS = (0.1, 0.3, 1.0)
"""Of the kernel, to choose from: in units of one over the number of features."""
PENALTIES = (3.0, 1.0, 0.3)


@dataclass(frozen=True)
class Kernel:
    """A sum of bells, exp(-width * squared distance), one around each training record."""

    centres: ndarray
    """Rows of the training records, float32."""
    heights: ndarray
    """Of each bell, float32."""
    width: float

    def scores(self, rows: Any, target: AnyTarget) -> ndarray:
        """A number a row."""
        from scipy.sparse import csr_matrix

        # scipy adds up a row in the order of its columns, whatever rows stand beside it; BLAS does not
        own = rows.astype(np.float64)
        products = np.asarray(csr_matrix(own) @ self._turned)
        distances = (own**2).sum(axis=1)[:, None] + (self._turned**2).sum(axis=0) - 2 * products
        bells = csr_matrix(np.exp(-self.width * np.maximum(distances, 0)))
        return np.asarray(bells @ self.heights.astype(np.float64))[:, None]

    @cached_property
    def _turned(self) -> ndarray:
        return np.ascontiguousarray(self.centres.T, dtype=np.float64)


def fit_kernel(
    rows: ndarray,
    answers: ndarray,
    target: Regression,
    widths: Sequence[float] = WIDTHS,
    penalties: Sequence[float] = PENALTIES,
) -> Iterator[Kernel]:
    """A model for each width and penalty.

    >>> rows = np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    >>> *_, model = fit_kernel(rows, rows[:, 0] ** 2, Regression(), (1.0,), (0.01,))
    >>> model.scores(np.array([[1.5]], np.float32), Regression()).round(1).tolist()
    [[2.3]]
    """
    own = rows.astype(np.float64)
    lengths = (own**2).sum(axis=1)
    distances = np.maximum(lengths[:, None] + lengths - 2 * own @ own.T, 0)
    known = np.asarray(target.standardised(answers), np.float64)
    for width in widths:
        bells = np.exp(-width / rows.shape[1] * distances)
        for penalty in penalties:
            heights = np.linalg.solve(bells + penalty * np.eye(len(bells)), known)
            yield Kernel(rows.astype(np.float32), heights.astype(np.float32), width / rows.shape[1])
