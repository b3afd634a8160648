"""One answer from two: the network's and the baseline's outputs, weighted as the validation records want it.

Log-odds of classes and labels, or numbers, are added with a weight each (stacking); the weights also calibrate. The
network alone and the baseline alone get a weight in the same way, and the validation records choose among the three:
each is fitted on four fifths of them and judged on the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Classification, MultiLabel, Regression

Using = Literal["network", "baseline", "both"]
FOLDS = 5
PULL = 0.5
"""Of the weights towards one in all, as a loss over all records: a few validation records that are all answered right
would ask for ever larger ones, and be wrong by as much on the next."""
HEAVIEST = 20.0
"""Weight at most: outputs that are always right would ask for ever more."""

Weights = tuple[float, float, float]
"""Of the network, of the baseline, and what is added; the last is zero unless a number is predicted."""


@dataclass(frozen=True)
class Combination:
    """How the answer is made of the two outputs."""

    using: Using
    """What the validation records choose."""
    weights: dict[Using, Weights]
    """Of each choice."""
    losses: dict[Using, float]
    """Of each choice, on validation records that its weights were not fitted on: log loss, or mean squared error in
    units of the training targets' variance."""

    def outputs(
        self,
        target: Regression | Classification | MultiLabel,
        network: ndarray | None,
        baseline: ndarray | None,
        using: Using | None = None,
    ) -> ndarray:
        """In the model's layout; what is not used may be None.

        >>> target = Classification(["no", "yes"], [0, 1])
        >>> both = Combination("both", {"both": (1.0, 0.5, 0.0)}, {})
        >>> both.outputs(target, np.array([[0.0, 1.0]]), np.array([[0.0, 4.0]])).tolist()
        [[-1.5, 1.5]]
        """
        own, other, shift = self.weights[using or self.using]
        total = np.zeros(())
        for weight, given in ((own, network), (other, baseline)):
            assert given is not None or not weight, "outputs that are used are there"
            if given is not None:  # also at weight zero: the answer has a row for each record
                total = total + weight * as_odds(target, given)
        return as_outputs(target, total + shift).astype(np.float32)


def combine(
    target: Regression | Classification | MultiLabel, network: ndarray, baseline: ndarray, targets: ndarray
) -> Combination:
    """Weights for the outputs of the validation records, and the choice."""
    both = np.stack([as_odds(target, network), as_odds(target, baseline)]).astype(np.float64)
    masks: dict[Using, tuple[bool, bool]] = {
        "network": (True, False),
        "baseline": (False, True),
        "both": (True, True),
    }
    fold = np.random.default_rng(0).permutation(len(targets)) % min(FOLDS, len(targets))
    losses: dict[Using, float] = {}
    for name, used in masks.items():
        judged = np.zeros(len(targets))
        for k in np.unique(fold):
            here, rest = fold == k, fold != k if fold.any() else fold == k
            weights = _fit(target, both[:, rest], targets[rest], used)
            judged[here] = _losses(target, _sum(both[:, here], weights), targets[here])
        losses[name] = float(judged.mean())
    weights_of = {name: _fit(target, both, targets, used) for name, used in masks.items()}
    return Combination(min(losses, key=losses.__getitem__), weights_of, losses)


def _sum(both: ndarray, weights: Weights) -> ndarray:
    total: ndarray = weights[0] * both[0] + weights[1] * both[1] + weights[2]
    return total


def _fit(
    target: Regression | Classification | MultiLabel, both: ndarray, targets: ndarray, used: tuple[bool, bool]
) -> Weights:
    """Weights of the lowest loss, none below zero: an output that is wrong more often than right is left out."""
    from scipy.optimize import minimize

    shifted = isinstance(target, Regression)

    start = np.array([1.0 / sum(used) if one else 0.0 for one in used] + [0.0])

    def loss(weights: ndarray) -> float:
        mean = _losses(target, _sum(both, tuple(weights)), targets).mean()
        return float(mean + PULL / len(targets) * ((weights - start) ** 2)[:2].sum())

    bounds = [(0.0, HEAVIEST if one else 0.0) for one in used] + [(None, None) if shifted else (0.0, 0.0)]
    found = minimize(loss, start, method="L-BFGS-B", bounds=bounds)
    own, other, shift = (float(value) for value in found.x)
    return own, other, shift


def _losses(target: Regression | Classification | MultiLabel, odds: ndarray, targets: ndarray) -> ndarray:
    """Of each record, without the class weights of training: what counts is the answer that a user gets."""
    if isinstance(target, Regression):
        return np.asarray((odds[:, 0] - target.standardised(targets)) ** 2)
    if isinstance(target, Classification):
        top = odds.max(axis=1)
        total = top + np.log(np.exp(odds - top[:, None]).sum(axis=1))
        return np.asarray(total - odds[np.arange(len(odds)), targets])
    return np.logaddexp(0, np.where(targets > 0.5, -odds, odds)).mean(axis=1)


def as_odds(target: Regression | Classification | MultiLabel, outputs: ndarray) -> ndarray:
    """Outputs without the class weights; of classes each row has mean zero, so that two of them can be added."""
    if isinstance(target, Regression):
        return outputs
    odds = target.unweighted(outputs)
    return odds - odds.mean(axis=1, keepdims=True) if isinstance(target, Classification) else odds


def as_outputs(target: Regression | Classification | MultiLabel, odds: ndarray) -> ndarray:
    """Back into the model's layout."""
    return odds if isinstance(target, Regression) else odds - target.unweighted(np.zeros(target.outputs))
