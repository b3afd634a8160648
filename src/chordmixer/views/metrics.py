"""Names, explanations and number formats of metrics; counts and durations as text."""

from __future__ import annotations

import math

from chordmixer.tasks.scores import SHARES
from chordmixer.training.intervals import MIN_SUPPORT, Score

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
LESS_IS_BETTER = {"log_loss", "mae", "mse"}
MEANINGS = {
    "accuracy": "the share of correct predictions; with several labels per record, all of them must be correct.",
    "average_precision": "the area under the precision-recall curve; a random ranking gives the share of positives.",
    "balanced_accuracy": "the mean recall of the classes, so that large and small classes count equally.",
    "f1_macro": "the harmonic mean of precision and recall, averaged over classes or labels.",
    "f1_micro": "the harmonic mean of precision and recall, over all labels of all records together.",
    "log_loss": "the mean negative log probability of the true class, before calibration; lower is better.",
    "mae": "the mean absolute difference between prediction and truth, in the target's unit; lower is better.",
    "mcc": "the correlation between predicted and true classes: 1 is perfect, 0 is chance.",
    "mse": "the mean squared difference between prediction and truth; lower is better.",
    "pearson": "the linear correlation between prediction and truth: 1 is perfect, 0 is none.",
    "r2": "the share of the targets' variance that is explained: 1 is perfect, 0 is predicting the mean.",
    "roc_auc": "the probability that a positive record scores above a negative one, ties counting half: 1 is "
    "perfect, 0.5 is chance; with several classes the mean over all, each against the rest.",
    "spearman": "the correlation between the ranks of prediction and truth: 1 is the same order, 0 is none.",
}
DECISION = (
    "The prediction is the most probable class, or every label with a probability above 0.5. Probabilities are "
    "calibrated and corrected for the class weights of the training loss, as those of chordmixer predict; this holds "
    "for all scores, tables and figures."
)
INTERVALS = (
    "95 % intervals are percentiles over 1,000 bootstrap resamples of the test records, or of whole groups where "
    "records have groups. Accuracy over single records has Wilson's interval, and so has a share that is 0 or 1 in "
    "all resamples, for as many records as the rarer class has. There is no interval and no verdict below "
    f"{MIN_SUPPORT} records or groups, nor, for metrics by class, below {MIN_SUPPORT} records of the rarer class; "
    "with several classes or labels, half of them need as many."
)
DIFFERENCES = (
    "Model and baseline are compared on the same resamples, by the interval of their difference: above zero the "
    "model is better, below zero it is worse, and where the interval contains zero they are tied. The intervals of "
    "the two scores may overlap even so."
)


def by_length(headline: str) -> str:
    """The metric of length bins: the mean absolute error in place of R², which is unreliable on few records.

    >>> by_length("r2"), by_length("roc_auc")
    ('mae', 'roc_auc')
    """
    return "mae" if headline == "r2" else headline


def name(metric: str) -> str:
    return NAMES.get(metric, metric.replace("_", " "))


def title(metric: str) -> str:
    """The name of a metric at the start of a line.

    >>> title("accuracy"), title("roc_auc")
    ('Accuracy', 'ROC-AUC')
    """
    words = name(metric)
    return words[:1].upper() + words[1:]


def number(value: float) -> str:
    """Format a number with three decimals, or more if it is small or would be rounded to one.

    >>> number(0.96789), number(24.301), number(1234.5), number(0.00012345), number(0.99964), number(float("nan"))
    ('0.968', '24.30', '1,234', '0.000123', '0.9996', 'undefined')
    """
    if not math.isfinite(value):
        return "undefined"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.01:
        return f"{value:.3g}"
    if 0.9995 <= abs(value) < 1:
        return f"{value:.{min(15, math.ceil(-math.log10(1 - abs(value))))}f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:#.4g}".rstrip(".")


def texts(score: Score) -> tuple[str, str]:
    """A value and its interval, with the same number of decimals: enough for two digits of half the width.

    >>> texts(Score(0.9, 0.85, 0.95)), texts(Score(0.9))
    (('0.900', '0.850 to 0.950'), ('0.900', ''))
    >>> texts(Score(0.99964, 0.96, 1.0))
    ('0.9996', '0.9600 to 1.0000')
    >>> texts(Score(0.0000762, 0.0000194, 0.000137)), texts(Score(-0.0204, -0.0472, 0.00186))
    (('0.000076', '0.000019 to 0.000137'), ('-0.020', '-0.047 to 0.002'))
    """
    if score.low is None or score.high is None:
        return number(score.value), ""
    numbers = (score.value, score.low, score.high)
    half = (score.high - score.low) / 2
    if all(map(math.isfinite, numbers)) and half > 0 and max(map(abs, numbers)) < 10:
        decimals = max(3, min(8, 1 + math.ceil(-math.log10(half))))
        if 0.9995 <= abs(score.value) < 1:  # it is not rounded to one
            decimals = max(decimals, len(number(score.value).partition(".")[2]))
        value, low, high = (f"{n:.{decimals}f}" for n in numbers)
    else:
        value, low, high = map(number, numbers)
    return value, f"{low} to {high}"


def sentence(score: Score) -> str:
    """
    >>> sentence(Score(0.9, 0.85, 0.95)), sentence(Score(1.0))
    ('0.900 (95 % interval 0.850 to 0.950)', '1.000 (too few records for an interval)')
    """
    value, interval = texts(score)
    interval_text = f"95 % interval {interval}" if interval else "too few records for an interval"
    return f"{value} ({interval_text})"


def ends(score: Score) -> tuple[float, float]:
    """The ends of the interval, for a chart; NaN, which is not drawn, if there is none."""
    return (math.nan if score.low is None else score.low, math.nan if score.high is None else score.high)


def within(metric: str) -> tuple[float, float]:
    """The range of a metric."""
    return (0.0, 1.0) if metric in SHARES else (-math.inf, math.inf)


def counted(number: int, noun: str, plural: str = "") -> str:
    """
    >>> counted(1, "record"), counted(1200, "record"), counted(2, "class", "classes")
    ('1 record', '1,200 records', '2 classes')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit.

    >>> [duration(s) for s in (0.2, 50, 400, 9_000, 300_000)]
    ['1 s', '50 s', '7 min', '2.5 hours', '3.5 days']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
