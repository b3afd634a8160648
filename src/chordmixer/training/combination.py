"""Combine a network with a baseline: fit the weights, store them in the run folder, apply them.

Log-odds of classes and labels, or numbers, are added with one weight each (stacking); the weights also calibrate.
The network alone and the baseline alone get a weight in the same way. Cross-validation on the validation records
chooses among the three; where these are few, one alone must be clearly better than both. A run folder without
combination.json and baseline.safetensors predicts by its network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy import ndarray

from chordmixer import files
from chordmixer.config import from_dict
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.baselines.stored import FittedBaseline, load_baseline
from chordmixer.training.labels import RecordTarget

Using = Literal["network", "baseline", "both"]
Weights = tuple[float, float, float]
"""Of the network, of the baseline, and what is added; the last is zero unless a number is predicted."""

FILE, BASELINE = "combination.json", "baseline.safetensors"
FORMAT = 1
NETWORK = "network alone"
"""Name of the network in comparisons with the combination."""
FOLDS = 5
PULL = 6.0
"""L2 penalty of the distance of weights and shift from those without records, as a log-likelihood of all: a few
validation records that are all predicted right would drive the weights up, and be wrong by as much on the next."""
NETWORK_SHARE = 0.25
"""Weight of the network towards which weights are pulled. The network's own weights were chosen on the validation
records, so that it looks better there than it is, and small data say more about the baseline: on most of 22 sets with
4 to 40 validation records it is the better one (docs/log.md)."""
FEW = 30
"""Validation records below which both are used: so few cannot tell which is better."""
MANY = 100
"""Validation records from which on the lowest loss decides."""
CLEAR = 2.0
"""Standard errors by which one alone must be better than both, on fewer: there the lowest loss is often that of
chance, and the mean of two models is seldom worse than either."""
SLIGHT = 0.05
"""Share of the weights below which a model is left out of a tie: predictions need not wait for it."""
HEAVIEST = 20.0
"""Largest weight: outputs that are always right would drive it up without end."""
FARTHEST = 1e6
"""Largest addition to a number, in standard deviations of the training targets."""


@dataclass(frozen=True)
class Combination:
    """Weights of the network's and the baseline's outputs."""

    using: Using
    """The choice of the validation records."""
    weights: dict[Using, Weights]
    """Of each choice."""
    losses: dict[Using, float]
    """Of each choice, by cross-validation on the validation records: log loss, or mean squared error in units of the
    training targets' variance."""

    def outputs(
        self, target: RecordTarget, network: ndarray | None, baseline: ndarray | None, using: Using | None = None
    ) -> ndarray:
        """In the model's layout; what is not used may be None.

        >>> target = Classification(["no", "yes"], [0, 1])
        >>> both = Combination("both", {"both": (1.0, 0.5, 0.0)}, {})
        >>> both.outputs(target, np.array([[0.0, 1.0]]), np.array([[0.0, 4.0]])).tolist()
        [[-1.5, 1.5]]
        """
        *weights, shift = self.weights[using or self.using]
        total = np.zeros(())
        for weight, outputs in zip(weights, (network, baseline), strict=True):
            assert outputs is not None or not weight, "outputs that are used are there"
            if outputs is not None:  # also at weight zero: the result has a row for each record
                total = total + weight * as_odds(target, outputs)
        return as_outputs(target, total + shift).astype(np.float32)


def fit_weights(
    target: RecordTarget, network: ndarray, baseline: ndarray, targets: ndarray, share: float = 0.5
) -> Combination:
    """Fit the weights on the outputs of the validation records, and choose.

    Of few records the weights stay near `share` for the first and 1 - `share` for the second.
    """
    both = np.stack([as_odds(target, network), as_odds(target, baseline)]).astype(np.float64)
    masks: dict[Using, tuple[bool, bool]] = {
        "network": (True, False),
        "baseline": (False, True),
        "both": (True, True),
    }
    fold = np.random.default_rng(0).permutation(len(targets)) % min(FOLDS, len(targets))
    judged: dict[Using, ndarray] = {name: np.zeros(len(targets)) for name in masks}
    for name, used in masks.items():
        for k in np.unique(fold):
            here, rest = fold == k, fold != k if fold.any() else fold == k
            weights = _fit(target, both[:, rest], targets[rest], used, share)
            judged[name][here] = _losses(target, _sum(both[:, here], weights), targets[here])
    weights_of = {name: _fit(target, both, targets, used, share) for name, used in masks.items()}
    losses = {name: float(own.mean()) for name, own in judged.items()}
    return Combination(_chosen(judged, weights_of["both"]), weights_of, losses)


def _chosen(judged: dict[Using, ndarray], weights: Weights) -> Using:
    """The lowest mean loss; of few records both, if that is a tie and each of the two has a weight that matters."""
    best = min(judged, key=lambda name: float(judged[name].mean()))
    worse = judged["both"] - judged[best]
    error = worse.std(ddof=1) / np.sqrt(len(worse)) if len(worse) > 1 else np.inf
    shared = min(weights[:2]) > SLIGHT * sum(weights[:2])
    tied = len(worse) < FEW or (len(worse) < MANY and worse.mean() <= CLEAR * error)
    return "both" if shared and tied else best


def _sum(both: ndarray, weights: Weights) -> ndarray:
    return np.asarray(weights[0] * both[0] + weights[1] * both[1] + weights[2])


def _fit(target: RecordTarget, both: ndarray, targets: ndarray, used: tuple[bool, bool], share: float) -> Weights:
    """Weights of the lowest loss, none below zero: outputs that are wrong more often than right are left out.

    A squared error is a log-likelihood in units of twice the variance of the noise, which is at most the mean squared
    error of the better of the two.
    """
    from scipy.optimize import minimize

    start = np.array([share, 1 - share, 0.0] if all(used) else [*used, 0.0], dtype=np.float64)
    unit = 1.0
    if isinstance(target, Regression):
        unit = 2 * min(float(_losses(target, outputs, targets).mean()) for outputs in both)

    def loss(weights: ndarray) -> float:
        mean = _losses(target, _sum(both, tuple(weights)), targets).mean()
        return float(mean + unit * PULL / len(targets) * ((weights - start) ** 2).sum())

    shift = (None, None) if isinstance(target, Regression) else (0.0, 0.0)
    bounds = [*((0.0, HEAVIEST if one else 0.0) for one in used), shift]
    first, second, added = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x.tolist()
    return first, second, added


def _losses(target: RecordTarget, odds: ndarray, targets: ndarray) -> ndarray:
    """Of each record, without the class weights of training, as predictions are given."""
    if isinstance(target, Regression):
        return np.asarray((odds[:, 0] - target.standardised(targets)) ** 2)
    if isinstance(target, Classification):
        top = odds.max(axis=1)
        total = top + np.log(np.exp(odds - top[:, None]).sum(axis=1))
        return np.asarray(total - odds[np.arange(len(odds)), targets])
    return np.asarray(np.logaddexp(0, np.where(targets > 0.5, -odds, odds)).mean(axis=1))


def as_odds(target: RecordTarget, outputs: ndarray) -> ndarray:
    """Outputs without the class weights; of classes each row has mean zero, so that two of them can be added."""
    if isinstance(target, Regression):
        return outputs
    odds = target.unweighted(outputs)
    return odds - odds.mean(axis=1, keepdims=True) if isinstance(target, Classification) else odds


def as_outputs(target: RecordTarget, odds: ndarray) -> ndarray:
    """The inverse of `as_odds`: back into the model's layout."""
    return odds if isinstance(target, Regression) else odds - target.unweighted(np.zeros(target.outputs))


# --- In a run folder ---


@dataclass(frozen=True)
class CombinationDocument(Combination):
    """The combination.json of a run folder."""

    baseline: str
    """Its name."""
    format: int

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format}, where this version reads {FORMAT}")
        for what, entries in (("weights", self.weights), ("losses", self.losses)):
            if {*entries} != {*get_args(Using)}:
                names = ", ".join(entries) or "nothing"
                raise ValueError(f"{what} are of {names}, not of {', '.join(get_args(Using))}")
        for name, weights in self.weights.items():
            most = np.array([HEAVIEST * (name != "baseline"), HEAVIEST * (name != "network"), FARTHEST])
            if min(weights[:2]) < 0 or not (np.abs(weights) <= most).all():
                raise ValueError(f"weights of {name} are {weights}, not three numbers in their range")


@dataclass(frozen=True)
class CombinedModel:
    """What turns a network's outputs and a record's tokens into the outputs that a run delivers."""

    target: RecordTarget
    combination: CombinationDocument
    baseline: FittedBaseline
    complement: ndarray | None
    """Of DNA where outputs are the mean over both strands."""
    using: Using

    @property
    def network(self) -> bool:
        """Whether the network's outputs are needed."""
        return self.using != "baseline"

    @property
    def title(self) -> str:
        name = self.combination.baseline
        return {"network": "network", "baseline": name, "both": f"network and {name}"}[self.using]

    def outputs(self, network: ndarray | None, sequences: Sequence[ndarray]) -> ndarray:
        """One row per record in the model's layout, from the network's rows and the records' tokens."""
        baseline = None if self.using == "network" else _strand_mean(self.baseline, sequences, self.complement)
        return self.combination.outputs(self.target, network, baseline, self.using)

    def contents(self) -> dict[str, bytes]:
        """The two files, by name."""
        own = self.combination
        document = {
            "format": own.format,
            "baseline": own.baseline,
            "using": own.using,
            "weights": own.weights,
            "losses": own.losses,
        }
        return {FILE: files.json_bytes(document), BASELINE: self.baseline.packed()}


def fit_combination(
    target: RecordTarget,
    network: ndarray,
    targets: ndarray,
    baseline: FittedBaseline,
    name: str,
    sequences: Sequence[ndarray],
    complement: ndarray | None,
) -> CombinedModel:
    """From the validation records: the network's outputs, the targets, and the tokens for the baseline."""
    found = fit_weights(target, network, _strand_mean(baseline, sequences, complement), targets, NETWORK_SHARE)
    document = CombinationDocument(found.using, found.weights, found.losses, name, FORMAT)
    return CombinedModel(target, document, baseline, complement, found.using)


def _strand_mean(baseline: FittedBaseline, sequences: Sequence[ndarray], complement: ndarray | None) -> ndarray:
    """The baseline's outputs, as the mean over both strands where the network's are that too."""
    outputs = baseline.outputs(sequences)
    if complement is None:
        return outputs
    reverse = [complement[np.asarray(own)[::-1]].astype(np.asarray(own).dtype) for own in sequences]
    return np.asarray((outputs + baseline.outputs(reverse)) / 2)


def load_combination(
    folder: Path, target: RecordTarget, complement: ndarray | None, using: Using | None = None
) -> CombinedModel | None:
    """The combination of a run folder, `using` its own choice or the given one; None where the network predicts."""
    if using is not None and using not in get_args(Using):
        raise ValueError(f"--using {using} is not a choice: give one of {', '.join(get_args(Using))}")
    if FILE in files.recorded(folder):
        files.verify(folder, [FILE, BASELINE])
    document = read_document(folder)
    if document is None:
        if using in (None, "network"):
            return None
        raise ValueError(
            f"{folder} keeps no baseline for --using {using}: leave it out, or train again without --no-baselines"
        )
    baseline = load_baseline(folder / BASELINE, target)
    return CombinedModel(target, document, baseline, complement, using or document.using)


def read_document(folder: Path) -> CombinationDocument | None:
    """The combination.json of a run folder; None where it has none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return from_dict(CombinationDocument, files.read_json(path), FILE)
    except ValueError as error:
        raise ValueError(f"{path} is not whole ({error}): use another copy") from None
