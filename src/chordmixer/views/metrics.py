"""How metrics are named, written and explained to a reader."""

from __future__ import annotations

import math

from chordmixer.tasks.scores import SHARES
from chordmixer.training.intervals import LEAST, Score
from chordmixer.views.page import Html, join, tag

NAMES = {
    "accuracy": "accuracy",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy",
    "f1_macro": "F1, mean of classes",
    "f1_micro": "F1, all labels",
    "log_loss": "log loss",
    "mae": "mean absolute error",
    "mcc": "Matthews correlation",
    "mse": "mean squared error",
    "pearson": "Pearson correlation",
    "r2": "R²",
    "roc_auc": "ROC-AUC",
    "spearman": "Spearman correlation",
}
UNDEFINED = "-"
"""In a table."""
LESS_IS_BETTER = {"log_loss", "mae", "mse"}
MEANINGS = {
    "accuracy": "the share of records answered right; with several labels a record, with all of them right.",
    "average_precision": "the area under the precision-recall curve; guessing gives the share of positives.",
    "balanced_accuracy": "accuracy as a mean over the classes, so that large classes count no more than small ones.",
    "f1_macro": "the harmonic mean of precision and recall, as a mean over classes or labels.",
    "f1_micro": "the harmonic mean of precision and recall over all labels of all records together.",
    "log_loss": "the mean of -log of the probability given to the true class, before calibration; less is better.",
    "mae": "the mean distance between answer and truth, in the target's own unit; less is better.",
    "mcc": "the correlation between answers and truth: 1 is perfect, 0 is guessing.",
    "mse": "the mean squared distance between answer and truth; less is better.",
    "pearson": "the correlation between answer and truth: 1 is perfect, 0 is none.",
    "r2": "the share of the targets' variance that the answers explain: 1 is perfect, 0 is the mean for all records.",
    "roc_auc": "the chance that a positive record scores above a negative one, ties counting half: 1 is perfect, 0.5 "
    "is guessing; with several classes the mean over all, each against the rest.",
    "spearman": "the correlation between the ranks of answer and truth: 1 is the right order, 0 is none.",
}


DECISION = (
    "A record's answer is its most probable class, or each label whose probability is above 0.5. Probabilities are "
    "calibrated and without the class weights of the training loss, as predict gives them; all scores, tables and "
    "figures go by this rule."
)
INTERVALS = (
    "95 % intervals are the middle 95 % of a metric over 1,000 resamples of the test records, or of whole groups "
    "where records have groups. Accuracy over single records has Wilson's interval, and so has a share that is 0 or "
    "1 in all resamples, for as many records as the rarer class has. There is no interval and no verdict below "
    f"{LEAST} records or groups, nor, of a metric that goes by class, below {LEAST} records of the rarer class; of "
    "several classes or labels, half of them need as many."
)
DIFFERENCES = (
    "Model and baseline are compared on the same resamples, and the interval is that of their difference: the model "
    "is better or worse where it lies above or below zero, and tied where it holds zero. The intervals of the two "
    "scores may overlap all the same."
)


def by_length(headline: str) -> str:
    """What is shown for each length bin: R² of a few records of similar length says little, their error does.

    >>> by_length("r2"), by_length("roc_auc")
    ('mae', 'roc_auc')
    """
    return "mae" if headline == "r2" else headline


def name(metric: str) -> str:
    return NAMES.get(metric, metric.replace("_", " "))


def title(metric: str) -> str:
    """Its name at the start of a line.

    >>> title("accuracy"), title("roc_auc")
    ('Accuracy', 'ROC-AUC')
    """
    words = name(metric)
    return words[:1].upper() + words[1:]


def number(value: float) -> str:
    """
    >>> number(0.96789), number(24.301), number(1234.5), number(0.00012345), number(float("nan"))
    ('0.968', '24.30', '1,234', '0.000123', 'undefined')
    """
    if not math.isfinite(value):
        return "undefined"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.01:
        return f"{value:.3g}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:#.4g}".rstrip(".")


def spread(score: Score) -> str:
    """
    >>> spread(Score(0.9, 0.85, 0.95)), spread(Score(0.9))
    ('0.850 to 0.950', '')
    """
    return "" if score.low is None or score.high is None else f"{number(score.low)} to {number(score.high)}"


def sentence(score: Score) -> str:
    """
    >>> sentence(Score(0.9, 0.85, 0.95)), sentence(Score(1.0))
    ('0.900 (95 % interval 0.850 to 0.950)', '1.000 (too few records for an interval)')
    """
    known = f"95 % interval {spread(score)}" if spread(score) else "too few records for an interval"
    return f"{number(score.value)} ({known})"


def cell(score: Score | None, *, best: bool = False) -> Html:
    """For a table: the value, and its interval below."""
    if score is None or not math.isfinite(score.value):
        return join([UNDEFINED])
    value = number(score.value)
    return join([tag("b", value) if best else value, tag("small", spread(score)) if spread(score) else ""])


def ends(score: Score) -> tuple[float, float]:
    """Of its interval, for a chart; NaN, which is not drawn, where there is none."""
    return (math.nan if score.low is None else score.low, math.nan if score.high is None else score.high)


def within(metric: str) -> tuple[float, float]:
    """Where values of a metric can lie."""
    return (0.0, 1.0) if metric in SHARES else (-math.inf, math.inf)
