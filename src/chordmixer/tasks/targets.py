"""What a model's outputs are held against: the loss, what guessing would cost, and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from numpy import ndarray
from torch import Tensor


class Target(Protocol):
    """A question with one answer a sequence."""

    outputs: int
    headline: str
    """The metric to show first."""

    def losses(self, outputs: Float[Tensor, "B outputs"], targets: Shaped[Tensor, "B"]) -> Float[Tensor, "B"]:
        """One loss a sequence; a batch's loss is their mean."""
        ...

    def constant(self, targets: ndarray) -> ndarray:
        """The outputs of the best constant answer to these targets: what a model has to beat."""
        ...

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]: ...


@dataclass(frozen=True)
class Regression:
    """A real number, by squared error; right when it is nearer than `tolerance`.

    >>> Regression(tolerance=0.04).metrics(np.array([[0.5], [0.9]]), np.array([0.51, 0.5]))["accuracy"]
    0.5
    """

    tolerance: float
    outputs: int = 1
    headline: str = "accuracy"

    def losses(self, outputs: Float[Tensor, "B 1"], targets: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        return (outputs.float().squeeze(1) - targets).square()

    def constant(self, targets: ndarray) -> ndarray:
        return np.array([targets.mean()], dtype=np.float32)

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]:
        distance = np.abs(outputs[:, 0] - targets)
        return {"accuracy": float((distance < self.tolerance).mean()), "mse": float((distance**2).mean())}


class Classification:
    """One of several classes, by cross-entropy weighted against the training set's imbalance.

    A class of n of all N training records among K classes weighs N / (K n), so that the weights of the training
    set have mean one.
    """

    headline = "accuracy"

    def __init__(self, labels: Sequence[str], training_targets: Sequence[int] | ndarray) -> None:
        counts = np.bincount(np.asarray(training_targets), minlength=len(labels))
        if counts.min() == 0:
            raise ValueError(
                f"class {labels[int(counts.argmin())]!r} has no training record: every class needs one; "
                "leave the class out or change the split"
            )
        self.labels = list(labels)
        self.outputs = len(labels)
        self.weights = torch.tensor(counts.sum() / (len(labels) * counts), dtype=torch.float32)
        if len(labels) == 2:
            self.headline = "roc_auc"

    def losses(self, outputs: Float[Tensor, "B K"], targets: Shaped[Tensor, "B"]) -> Float[Tensor, "B"]:
        return F.cross_entropy(outputs.float(), targets, weight=self.weights.to(outputs.device), reduction="none")

    def constant(self, targets: ndarray) -> ndarray:
        """The weighted classes' own shares, as scores."""
        weighted = np.bincount(targets, weights=self.weights.numpy()[targets], minlength=self.outputs)
        return np.log(np.clip(weighted / weighted.sum(), 1e-12, None)).astype(np.float32)

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]:
        """Accuracy, and ROC-AUC from the scores (mean over classes, each against the rest)."""
        classes = range(1, 2) if self.outputs == 2 else range(self.outputs)
        areas = [_roc_auc(_log_odds(outputs, k), targets == k) for k in classes]
        return {
            "accuracy": float((outputs.argmax(axis=1) == targets).mean()),
            "roc_auc": float(np.mean(areas)),
        }


def _log_odds(outputs: ndarray, k: int) -> ndarray:
    """Of class k against the rest: ranks like its probability, without rounding to 0 or 1."""
    rest = np.delete(outputs.astype(np.float64), k, axis=1)
    return outputs[:, k] - np.logaddexp.reduce(rest, axis=1)


def _roc_auc(scores: ndarray, positive: ndarray) -> float:
    """The chance that a positive scores above a negative, ties counting half; NaN without both."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))
