"""Prediction targets, with loss, best constant prediction and metrics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from numpy import ndarray
from torch import Tensor

from chordmixer.packed import Packed
from chordmixer.tasks import scores

HUGE = 1e150
"""Limit of numbers whose squares fit float64."""
FEW_RECORDS = 40
"""Records per class below which areas under the curve are computed from all pairs of records."""
MIN_STEPS = 100
"""Minimum standard deviation of the targets, in units of the spacing of float64 numbers."""


@lru_cache(maxsize=16)
def on_device(weights: Tensor, device: torch.device) -> Tensor:
    """A cached copy on the device: copying it in each step would wait for the device."""
    return weights.to(device)


class Target(Protocol):
    """A prediction target with one prediction per sequence."""

    outputs: int
    headline: str
    """The main metric, for which higher is better."""

    def losses(self, outputs: Float[Tensor, "B outputs"], targets: Shaped[Tensor, "B"]) -> Float[Tensor, "B"]:
        """One loss per sequence; a batch's loss is their mean, or their weighted sum if records have weights."""
        ...

    def constant(self, targets: ndarray) -> ndarray:
        """The outputs of the best constant prediction of these targets, the minimum for a model to beat."""
        ...

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]: ...

    def to_dict(self) -> dict[str, Any]:
        """The plain values from which the target can be rebuilt, for a run's labels.json."""
        ...


@runtime_checkable
class TokenTarget(Target, Protocol):
    """A target with predictions for tokens; sums over them take the place of a sequence's outputs."""

    def rows(
        self, model: Callable[[Packed], Packed], x: Packed, targets: Shaped[Tensor, "B"]
    ) -> Float[Tensor, "B columns"]:
        """Run a model that predicts every token, and return one row of sums per sequence."""
        ...


def target_outputs(
    target: Target, model: Callable[[Packed], Any], inputs: Packed, targets: Shaped[Tensor, "B *K"]
) -> Float[Tensor, "B columns"]:
    """The inputs of a target's losses and metrics: the model's outputs, or a token target's sums."""
    rows: Tensor = target.rows(model, inputs, targets) if isinstance(target, TokenTarget) else model(inputs)
    return rows


@dataclass(frozen=True)
class Regression:
    """A real number, by squared error; with a `tolerance`, accuracy counts errors below it as correct.

    The model predicts (number - mean) / scale, so that its outputs are near zero for any range of numbers.

    >>> Regression(tolerance=0.04).metrics(np.array([[0.5], [0.9]]), np.array([0.51, 0.5]))["accuracy"]
    0.5
    """

    tolerance: float | None = None
    mean: float = 0.0
    scale: float = 1.0
    outputs: int = 1

    @staticmethod
    def of(training_targets: Sequence[float] | ndarray, tolerance: float | None = None) -> Regression:
        """A target with the mean and standard deviation of the training set."""
        numbers = np.asarray(training_targets, dtype=np.float64)
        if not np.isfinite(numbers).all():
            raise ValueError("a target is NaN or infinite: every target must be finite; leave that record out")
        low, high, step = float(numbers.min()), float(numbers.max()), float(np.spacing(np.abs(numbers).max()))
        if low == high:
            raise ValueError(f"all {len(numbers):,} training numbers are {low:g}: nothing to learn; give others")
        if max(-low, high) > HUGE or high - low < 1 / HUGE:
            raise ValueError(
                f"training numbers from {low:g} to {high:g} are too large or too close: their squares do not fit "
                "float64; rescale them, or take their logarithms"
            )
        if (scale := float(numbers.std())) < MIN_STEPS * step:
            raise ValueError(
                f"training numbers from {low:.17g} to {high:.17g} lose their differences: float64 holds such numbers "
                f"in steps of {step:g}; subtract a constant from all of them"
            )
        return Regression(tolerance, float(numbers.mean()), scale)

    def __post_init__(self) -> None:
        if not abs(self.mean) <= HUGE or not 0 < self.scale <= HUGE or self.outputs != 1:
            raise ValueError(
                f"mean={self.mean}, scale={self.scale}, outputs={self.outputs}: a number needs a finite mean, a "
                "scale above 0 and one output; use another copy"
            )
        if self.tolerance is not None and not 0 < self.tolerance <= HUGE:
            raise ValueError(f"tolerance={self.tolerance} is not above 0 and finite: give a positive number")

    @property
    def headline(self) -> str:
        return "r2" if self.tolerance is None else "accuracy"

    def losses(self, outputs: Float[Tensor, "B 1"], targets: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        expected: Tensor = self.standardised(targets)
        return (outputs.float().squeeze(1) - expected.float()).square()

    def constant(self, targets: ndarray) -> ndarray:
        return np.array([self.standardised(targets.mean())], dtype=np.float32)

    def standardised(self, targets: Any) -> Any:
        """Targets in units of the model's outputs, in float64: float32 has seven digits and cannot hold 1e9 + i."""
        if (self.mean, self.scale) == (0, 1):
            return targets
        exact = targets.double() if isinstance(targets, Tensor) else np.asarray(targets, np.float64)
        return (exact - self.mean) / self.scale

    def values(self, outputs: ndarray) -> ndarray:
        """The model's outputs in units of the targets."""
        if (self.mean, self.scale) == (0, 1):
            return outputs[:, 0]
        return outputs[:, 0].astype(np.float64) * self.scale + self.mean

    def rounded(self, value: float) -> float:
        """Round to significant digits: seven relative to `scale`, and the leading digits of `mean` before them.

        >>> Regression(mean=1e9, scale=10.0).rounded(1_000_000_007.123456789)
        1000000007.12346
        """
        before = max(0, math.ceil(math.log10(max(abs(self.mean), self.scale) / self.scale)))
        return float(f"{value:.{min(7 + before, 17)}g}")

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]:
        """Errors in units of the targets; accuracy with a tolerance, else explained variance and correlations."""
        predictions = self.values(outputs)
        distance = np.abs(predictions - targets)
        squared = float((distance**2).mean())
        if self.tolerance is not None:
            return {"accuracy": float((distance < self.tolerance).mean()), "mse": squared}
        return {
            "r2": scores.explained(predictions, targets),
            "spearman": scores.spearman(predictions, targets),
            "pearson": scores.pearson(predictions, targets),
            "mse": squared,
            "mae": float(distance.mean()),
        }

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "regression", "tolerance": self.tolerance, "mean": self.mean, "scale": self.scale}


class _Labelled(ABC):
    """A target with named outputs and the number of training records of each."""

    def __init__(self, labels: Sequence[str], counts: ndarray) -> None:
        if len(labels) != len(counts) or len(labels) == 0:
            raise ValueError(f"{len(labels)} labels have {len(counts)} counts: each needs one; use another copy")
        if len({*labels}) < len(labels):
            raise ValueError(
                f"{len(labels)} labels are not all different: each stands for one output; use another copy"
            )
        if counts.min() < 1:
            raise ValueError(
                f"class {labels[int(counts.argmin())]!r} has no training record: every class needs one; "
                "leave the class out or change the split"
            )
        self.labels, self.counts, self.outputs = list(labels), counts, len(labels)

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]:
        metrics = self.resampled(outputs, targets, np.ones((1, len(targets))))
        return {name: float(value[0]) for name, value in metrics.items()}

    @abstractmethod
    def resampled(self, outputs: ndarray, targets: ndarray, weights: ndarray) -> dict[str, ndarray]:
        """The metrics for each row of weights, from the model's outputs."""


class Classification(_Labelled):
    """One of several classes, by cross-entropy.

    Of two classes both have the same total weight: one with n of all N training records has the weight N / (2 n),
    which improves ROC-AUC if one of them is rare. More than two classes have the weight one, since accuracy counts
    records: weights against imbalance lost a third of it on 1,195 folds of proteins (docs/log.md).
    """

    headline = "accuracy"

    def __init__(self, labels: Sequence[str], training_targets: Sequence[int] | ndarray) -> None:
        self._count(labels, np.bincount(np.asarray(training_targets), minlength=len(labels)))

    @staticmethod
    def of_counts(labels: Sequence[str], counts: Sequence[int] | ndarray) -> Classification:
        """A target from the number of training records of each class."""
        target = Classification.__new__(Classification)
        target._count(labels, np.asarray(counts))
        return target

    def _count(self, labels: Sequence[str], counts: ndarray) -> None:
        super().__init__(labels, counts)
        self.weights = torch.ones(len(labels))
        if len(labels) == 2:
            self.weights = torch.tensor(counts.sum() / (2 * counts.astype(np.float64)), dtype=torch.float32)
            self.headline = "roc_auc"

    def losses(self, outputs: Float[Tensor, "B K"], targets: Shaped[Tensor, "B"]) -> Float[Tensor, "B"]:
        return F.cross_entropy(
            outputs.float(), targets, weight=on_device(self.weights, outputs.device), reduction="none"
        )

    def constant(self, targets: ndarray) -> ndarray:
        """The log of each class's weighted share."""
        weighted = np.bincount(targets, weights=self.weights.numpy()[targets], minlength=self.outputs)
        return np.asarray(np.log(np.clip(weighted / weighted.sum(), 1e-12, None)), np.float32)

    def unweighted(self, outputs: ndarray) -> ndarray:
        """The outputs of an equivalent model trained without class weights.

        The weights multiply a class's odds in training; this divides them out again, and so comes before calibration.
        """
        return np.asarray(outputs - np.log(self.weights.numpy()))

    def decided(self, outputs: ndarray) -> ndarray:
        """The most probable class of each record, for metrics, reports and predictions."""
        return np.asarray(self.unweighted(outputs).argmax(axis=1))

    def resampled(self, outputs: ndarray, targets: ndarray, weights: ndarray) -> dict[str, ndarray]:
        """Metrics for each row of weights; areas under the curve are means over classes."""
        predictions, outputs = self.decided(outputs), self.unweighted(outputs)
        correct, total = predictions == targets, weights.sum(axis=1)
        odds, precision = scores.log_odds(outputs), np.empty(0)
        if self.outputs == 2:
            roc, precision = _areas(odds.T[1:], targets[None] == 1, weights)
        elif len(targets) < FEW_RECORDS * self.outputs:
            roc = scores.areas_of_many(odds, targets, weights)
        else:
            roc, _ = _areas(odds.T, targets == np.arange(self.outputs)[:, None], weights)
        counts = ((weights * correct, targets), (weights, targets), (weights, predictions))
        return {
            "accuracy": weights @ correct / total,
            "roc_auc": scores.mean_of_known(roc.T),
            **({"average_precision": precision[0]} if self.outputs == 2 else {}),
            **scores.of_counts(*(scores.sums_by_class(summed, codes, self.outputs) for summed, codes in counts)),
            "log_loss": weights @ scores.log_losses(outputs, targets) / total,
        }

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "classification", "labels": self.labels, "counts": self.counts.tolist()}


class MultiLabel(_Labelled):
    """Any number of labels per record, by binary cross-entropy with a positive and a negative weight per label.

    For a label of n of all N training records, positives weigh N / 2n and negatives N / 2(N - n), as for two classes,
    but positives at most `MOST` times the negatives. Targets are rows of zeros and ones.
    """

    MOST = 100.0
    headline = "roc_auc"

    def __init__(self, labels: Sequence[str], counts: Sequence[int] | ndarray, records: int) -> None:
        counts = np.asarray(counts)
        super().__init__(labels, counts)
        if counts.max() > records:
            raise ValueError(f"{counts.max():,} records of {records:,} have a label: correct the counts")
        self.records = records
        positive, negative = records / (2 * counts), records / (2 * np.maximum(records - counts, 1))
        self.positive = torch.tensor(np.minimum(positive, self.MOST * negative), dtype=torch.float32)
        self.negative = torch.tensor(negative, dtype=torch.float32)

    @staticmethod
    def of(labels: Sequence[str], training_targets: ndarray) -> MultiLabel:
        """A target from the training set's rows of zeros and ones."""
        return MultiLabel(labels, training_targets.sum(axis=0).astype(int), len(training_targets))

    def losses(self, outputs: Float[Tensor, "B K"], targets: Shaped[Tensor, "B K"]) -> Float[Tensor, "B"]:
        positive, negative = (on_device(weights, outputs.device) for weights in (self.positive, self.negative))
        hits = targets.float()
        weights = hits * positive + (1 - hits) * negative
        return F.binary_cross_entropy_with_logits(outputs.float(), hits, weights, reduction="none").mean(dim=1)

    def constant(self, targets: ndarray) -> ndarray:
        """The log-odds of each label's weighted share."""
        hits = targets.mean(axis=0, dtype=np.float64)
        positive = np.clip(hits * self.positive.numpy(), 1e-12, None)
        negative = np.clip((1 - hits) * self.negative.numpy(), 1e-12, None)
        return np.asarray(np.log(positive) - np.log(negative), np.float32)

    def unweighted(self, outputs: ndarray) -> ndarray:
        """The outputs of an equivalent model trained without label weights, for calibration."""
        return np.asarray(outputs - np.log((self.positive / self.negative).numpy()))

    def decided(self, outputs: ndarray) -> ndarray:
        """The predicted labels of each record, those with a probability above 0.5."""
        return np.asarray(self.unweighted(outputs) > 0)

    def resampled(self, outputs: ndarray, targets: ndarray, weights: ndarray) -> dict[str, ndarray]:
        """Metrics for each row of weights: areas as means over labels, accuracy of whole rows, F1 of `decided`."""
        true, predicted = targets > 0.5, self.decided(outputs)
        roc, precision = _areas(self.unweighted(outputs).T, true.T, weights)
        hits, both = weights @ (true & predicted), weights @ predicted + weights @ true
        return {
            "roc_auc": scores.mean_of_known(roc.T),
            "average_precision": scores.mean_of_known(precision.T),
            "accuracy": weights @ (true == predicted).all(axis=1) / weights.sum(axis=1),
            "f1_micro": 2 * hits.sum(axis=1) / np.maximum(both.sum(axis=1), 1),
            "f1_macro": (2 * hits / np.maximum(both, 1)).mean(axis=1),
        }

    def to_dict(self) -> dict[str, Any]:
        counts = self.counts.tolist()
        return {"kind": "multi-label", "labels": self.labels, "counts": counts, "records": self.records}


def resampled(target: Target, outputs: ndarray, targets: ndarray, weights: ndarray) -> dict[str, ndarray]:
    """`target.metrics` of many resamples at once; NaN for a metric that is not defined.

    A resample is a row of weights, the number of times each record was drawn. Results that do not depend on it, such
    as the order of the scores, are computed only once.

    >>> target, outputs = Classification(["no", "yes"], [0, 1]), np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> metrics = resampled(target, outputs, np.array([0, 1, 0]), np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 0.0]]))
    >>> metrics["accuracy"].round(2).tolist(), metrics["roc_auc"].tolist()
    ([0.67, 1.0], [0.5, nan])
    """
    if isinstance(target, _Labelled):
        return target.resampled(outputs, targets, weights)
    drawn = (np.repeat(np.arange(len(row)), row.astype(np.int64)) for row in weights)
    samples = [target.metrics(outputs[rows], targets[rows]) for rows in drawn]
    return {name: np.array([sample[name] for sample in samples]) for name in samples[0]}


def _areas(rows: ndarray, positive: ndarray, weights: ndarray) -> tuple[ndarray, ndarray]:
    """ROC-AUC and average precision, with one row per class or label and one column per resample."""
    pairs = [scores.weighted_areas(row, true, weights) for row, true in zip(rows, positive, strict=True)]
    return np.array([roc for roc, _ in pairs]), np.array([precision for _, precision in pairs])
