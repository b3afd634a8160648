"""Nearest neighbours: the answers of the training records whose TF-IDF rows are most like a record's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines.linear import ABSENT, CERTAIN, AnyTarget, unweighting

NEAREST = 50
"""Training records that answer."""
ENTRIES = 9_000_000
"""Of the stored matrix, at most: 54 MB. Larger training parts have no neighbours."""
ROWS = 512
"""Records that are compared at a time."""


@dataclass(frozen=True)
class Neighbours:
    """Votes of the nearest training records, each with the weight exp(sharpness * cosine) - 1."""

    values: ndarray
    """Of the training rows (CSR): float16, a float32 of which is taken to compare."""
    columns: ndarray
    offsets: ndarray
    answers: ndarray
    """Of the training records: classes, rows of zeros and ones, or numbers as a model answers them."""
    width: int
    sharpness: float
    temperature: float = 1.0

    @classmethod
    def fit(cls, rows: Any, answers: ndarray, target: AnyTarget, sharpness: float) -> Neighbours:
        """From sparse training rows of length one."""
        known = target.standardised(answers).astype(np.float32) if isinstance(target, Regression) else answers
        known = (known > 0.5).astype(np.uint8) if isinstance(target, MultiLabel) else known
        columns, offsets = rows.indices.astype(np.int32), rows.indptr.astype(np.int64)
        return cls(rows.data.astype(np.float16), columns, offsets, known, rows.shape[1], sharpness)

    def sharpened(self, sharpness: float) -> Neighbours:
        return replace(self, sharpness=sharpness)

    def cooled(self, temperature: float, target: AnyTarget) -> Neighbours:
        """With the log-odds divided by a temperature."""
        return replace(self, temperature=self.temperature * temperature)

    def scores(self, rows: Any, target: AnyTarget) -> ndarray:
        """In the model's layout, class weights included, before `as_outputs`."""
        return self.voted(*self.nearest(rows), target)

    def voted(self, near: ndarray, cosines: ndarray, target: AnyTarget) -> ndarray:
        """The scores from the nearest records."""
        scores = self._votes(near, cosines, target)
        if isinstance(target, Regression):
            return scores
        scores = scores / self.temperature - unweighting(target)
        if isinstance(target, MultiLabel):  # what all training records have, or none
            scores[:, self.answers.min(axis=0) == 1] = CERTAIN
            scores[:, self.answers.max(axis=0) == 0] = -CERTAIN
        return scores

    def _votes(self, near: ndarray, cosines: ndarray, target: AnyTarget) -> ndarray:
        """Log-odds in the classes' own shares, or numbers."""
        votes = np.expm1(self.sharpness * cosines.astype(np.float64))
        if isinstance(target, Regression):
            total = (votes * self.answers[near]).sum(axis=1, keepdims=True)
            return np.asarray(total / (1 + votes.sum(axis=1, keepdims=True)))
        if isinstance(target, MultiLabel):
            hits = self.answers[near].astype(np.float64)
            yes = (votes[:, :, None] * hits).sum(axis=1)
            no = (votes[:, :, None] * (1 - hits)).sum(axis=1)
            return np.log(1 + yes) - np.log(1 + no)
        return self._classes(near, votes, target)

    def _classes(self, near: ndarray, votes: ndarray, target: Classification) -> ndarray:
        place = self.answers[near] + np.arange(len(near))[:, None] * target.outputs
        total = np.bincount(place.ravel(), weights=votes.ravel(), minlength=len(near) * target.outputs)
        scores = np.log(total.reshape(len(near), -1) + 1)
        scores[:, self._absent(target)] = ABSENT
        return scores

    def nearest(self, rows: Any) -> tuple[ndarray, ndarray]:
        """The numbers of the `NEAREST` training records of each row and their cosines."""
        count = min(NEAREST, len(self.answers))
        near, cosines = [np.empty((0, count), np.int64)], [np.empty((0, count), np.float32)]
        for start in range(0, rows.shape[0], ROWS):
            alike = (rows[start : start + ROWS] @ self._turned).toarray()
            near.append(np.sort(np.argpartition(-alike, count - 1, axis=1)[:, :count], axis=1))
            cosines.append(np.take_along_axis(alike, near[-1], axis=1))
        return np.concatenate(near), np.concatenate(cosines)

    def _absent(self, target: Classification) -> ndarray:
        return np.bincount(self.answers, minlength=target.outputs) == 0

    @cached_property
    def _turned(self) -> Any:
        """The training rows as columns."""
        from scipy.sparse import csr_matrix

        shape = len(self.offsets) - 1, self.width
        return csr_matrix((self.values.astype(np.float32), self.columns, self.offsets), shape).T.tocsr()
