"""Tables for a terminal, Markdown and HTML, and the tables of scores that commands print."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rich import box
from rich import table as rich_table
from rich.console import Group
from rich.text import Text

from chordmixer.training.evaluation import Evaluation, LengthBin
from chordmixer.training.intervals import Score
from chordmixer.views import metrics
from chordmixer.views.charts import compact
from chordmixer.views.page import Html, join, tag

if TYPE_CHECKING:
    from chordmixer.training.file_evaluation import FilesEvaluation

UNDEFINED = "-"
CONSTANT = "constant prediction"
LONGEST_WORD = 20  # maximum length of words that are never broken in HTML
MAX_COLUMNS = 3  # maximum number of models with a column each in the table by length; more have a row each


@dataclass(frozen=True)
class ScoreCell:
    """A score in a table: its value, and its interval if there is one."""

    value: str
    interval: str = ""
    best: bool = False  # whether it is set in bold

    def __str__(self) -> str:
        return f"{self.value} ({self.interval})" if self.interval else self.value


def score_cell(score: Score | None, *, best: bool = False) -> ScoreCell:
    """
    >>> str(score_cell(Score(0.9, 0.85, 0.95))), str(score_cell(Score(float("nan")))), str(score_cell(None))
    ('0.900 (0.850 to 0.950)', '-', '-')
    """
    if score is None or not math.isfinite(score.value):
        return ScoreCell(UNDEFINED)
    return ScoreCell(*metrics.texts(score), best)


def percent_cell(score: Score, digits: int = 1, interval_digits: int = 0) -> ScoreCell:
    """
    >>> [str(percent_cell(score)) for score in (Score(0.98765, 0.98, 1.0), Score(0.5), Score(math.nan))]
    ['98.8 (98-100)', '50.0', '-']
    """
    if math.isnan(score.value):
        return ScoreCell(UNDEFINED)
    ends = [] if score.low is None or score.high is None else [score.low, score.high]
    return ScoreCell(f"{100 * score.value:.{digits}f}", "-".join(f"{100 * end:.{interval_digits}f}" for end in ends))


@dataclass(frozen=True)
class ReportTable:
    """Rows of cells below a header. A cell is text, a `ScoreCell`, or markup of the output format."""

    head: Sequence[object]
    rows: Sequence[Sequence[object]]
    title: str = ""
    words: Collection[int] = (0,)  # columns that are aligned left; numbers are aligned right

    def terminal(self, *, dense: bool = False) -> Group:
        """Render for rich, after an empty line; `dense` has one space between columns. The first is not wrapped."""
        grid = rich_table.Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0 if dense else 1, 0, 0))
        for column, name in enumerate(self.head):
            side: Literal["left", "right"] = "left" if column in self.words else "right"
            grid.add_column(Text(str(name)), justify=side, no_wrap=dense or column == 0, overflow="fold")
        for row in self.rows:
            grid.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
        return Group(Text(), *([Text(self.title, style="bold")] if self.title else []), grid)

    def markdown(self) -> str:
        """
        >>> print(ReportTable(["model", "here"], [["a|b", "60.1"]]).markdown())
        | model | here |
        |---|---|
        | a\\|b | 60.1 |
        """
        lines = [self.head, *self.rows]
        written = [f"| {' | '.join(escaped_markdown(str(cell)) for cell in line)} |" for line in lines]
        return "\n".join([written[0], "|" + "---|" * len(self.head), *written[1:]])

    def html(self, *, stacked: bool = False) -> Html:
        """Render for HTML; a table wider than the page scrolls in its own frame. The first column names the row.

        On a phone the cells of a `stacked` table are below each other, each after the name of its column.
        """
        sides = ["words" if column in self.words else None for column in range(len(self.head))]
        top = [tag("th", cell, scope="col", class_=side) for cell, side in zip(self.head, sides, strict=True)]
        body = []
        for first, *rest in self.rows:
            titles = self.head[1:] if stacked else [None] * len(rest)
            cells = [
                tag("td", _html(cell), class_=_side(cell, side), data_title=title)
                for cell, side, title in zip(rest, sides[1:], titles, strict=True)
            ]
            body.append(tag("tr", tag("th", _html(first), scope="row", class_=_side(first, sides[0])), *cells))
        grid = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *body))
        kind = "scroll stacked" if stacked else "scroll"
        return tag("div", grid, class_=kind, role="region", tabindex="0", aria_label=self.title or "table")


def escaped_markdown(text: str) -> str:
    r"""Escape a user's text, so that nothing in it acts as Markdown or HTML.

    >>> print(escaped_markdown("a|b <script> tree_lstm _emphasis_"))
    a\|b &lt;script> tree_lstm \_emphasis\_
    """
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[|*`\[\]]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", safe)  # an underscore within a word is harmless


def _html(cell: object) -> object:
    if not isinstance(cell, ScoreCell):
        return cell
    value = tag("b", cell.value) if cell.best else cell.value
    return join([value, tag("small", cell.interval) if cell.interval else ""])


def _side(cell: object, side: str | None) -> str | None:
    """The CSS class of a cell; only words too long for a narrow column may be broken in the middle."""
    words = str(cell).split() if isinstance(cell, str) and not isinstance(cell, Html) else []
    return f"{side} long" if side and any(len(word) > LONGEST_WORD for word in words) else side


# --- Scores of `evaluate`: a row per metric ---


def seen_line(evaluation: FilesEvaluation) -> str:
    """Describe how many of the scored records the run was trained on."""
    total = evaluation.overall.records
    if evaluation.seen is None:
        return "warning: this run keeps no hashes of its training records: whether these were seen is unknown"
    seen = sum(evaluation.seen.values())
    if not seen:
        return f"none of the {total:,} records was seen in training"
    parts = ", ".join(f"{count:,} {part}" for part, count in evaluation.seen.items() if count)
    rest = f"the {total - seen:,} unseen records are scored separately" if evaluation.unseen else "give new records"
    return (
        f"warning: {seen:,} of {total:,} records were seen in training ({parts}): their scores show recall, not "
        f"skill; {rest}"
    )


def seen_and_unseen(evaluation: FilesEvaluation) -> dict[str, Evaluation]:
    """Scores by set of records, the unseen ones first."""
    if evaluation.unseen is None or evaluation.unseen is evaluation.overall:
        return {"all": evaluation.overall}
    return {"unseen": evaluation.unseen, "all": evaluation.overall}


def metrics_table(evaluations: Mapping[str, Evaluation]) -> ReportTable:
    """A row per metric, a column per set of records, then the best constant prediction for the first set."""
    first = next(iter(evaluations.values()))
    sets = [f"{name}, {evaluation.records:,} records" for name, evaluation in evaluations.items()]
    rows = []
    for metric in (first.headline, *(name for name in first.scores if name != first.headline)):
        cells = [score_cell(evaluation.scores[metric]) for evaluation in evaluations.values()]
        rows.append((metrics.name(metric), *cells, score_cell(Score(first.guessing.get(metric, math.nan)))))
    return ReportTable(("metric", *sets, "constant"), rows, "scores (95 % interval)")


# --- Scores by length ---


def mean_over_seeds(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """One evaluation per model: the mean over its seeds, with the lowest and highest value as the interval."""
    runs: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        runs.setdefault(evaluation.encoder, []).append(evaluation)
    return [_mean_evaluation(model_runs) if len(model_runs) > 1 else model_runs[0] for model_runs in runs.values()]


def interval_name(evaluations: Sequence[Evaluation]) -> str:
    """The name of the numbers in brackets after a score."""
    counts = set(Counter(e.encoder for e in evaluations).values())
    if counts == {1}:
        return "95 % interval"
    of_runs = f"lowest to highest of {' or '.join(str(n) for n in sorted(counts - {1}))} runs"
    return of_runs if 1 not in counts else f"{of_runs}, 95 % interval of a single one"


def length_table(evaluations: Sequence[Evaluation], width: int) -> Group:
    """A row per length bin and a column per model, then all records and the constant prediction.

    More than three models have a row each, and as many length bins as fit into `width` columns of a terminal.
    """
    models, first = mean_over_seeds(evaluations), evaluations[0]
    metric = metrics.by_length(first.headline)
    unit = f"{metrics.name(metric)}{' in %' if in_percent(metric) else ''}"
    title = f"{records_name(first)}: {unit} by length ({interval_name(evaluations)})"
    if len(models) > MAX_COLUMNS:
        return _row_per_model(models, title, width).terminal(dense=True)
    head = ("percentile", "length", "records", *(model.encoder for model in models))
    rows: list[Sequence[object]] = [
        (*bin_cells(row), *(length_cell(model.by_length[i].scores[metric], metric) for model in models))
        for i, row in enumerate(first.by_length)
    ]
    rows.append(("all", "", f"{first.records:,}", *(length_cell(model.scores[metric], metric) for model in models)))
    guess = [length_cell(Score(model.guessing[metric]), metric) for model in models]
    rows.append((CONSTANT, "", f"{first.records:,}", *guess))
    return ReportTable(head, rows, title, words=()).terminal()


def _row_per_model(models: Sequence[Evaluation], title: str, width: int) -> ReportTable:
    """A table with a row per model: scores in whole per cent by length percentile."""
    metric, bins = metrics.by_length(models[0].headline), models[0].by_length
    longest = [compact(float(f"{row.longest:.2g}")) for row in bins]
    overall = [str(length_cell(model.scores[metric], metric)) for model in models]
    names = max(len(name) for name in (CONSTANT, *(model.encoder for model in models)))
    available = width - names - max(map(len, overall)) - 2
    cells = [[length_cell(row.scores[metric], metric, 0).value for row in model.by_length] for model in models]
    widest = max(len(text) for text in (*longest, *(cell for row in cells for cell in row)))
    shown = _evenly(len(bins), available // (1 + widest))
    head = ("percentile", "all", *(str(bins[i].percentile) for i in shown))
    rows: list[Sequence[object]] = [("longest", "", *(longest[i] for i in shown))]
    for model, score, row in zip(models, overall, cells, strict=True):
        rows.append((model.encoder, score, *(row[i] for i in shown)))
    rows.append((CONSTANT, length_cell(Score(models[0].guessing[metric]), metric), *("" for _ in shown)))
    return ReportTable(head, rows, title)


def bin_cells(row: LengthBin) -> tuple[str, str, str]:
    """Percentile, lengths and number of records of a length bin."""
    return str(row.percentile), f"{row.shortest:,} to {row.longest:,}", f"{row.records:,}"


def records_name(evaluation: Evaluation) -> str:
    """The name of the scored records, at the start of a title."""
    files = evaluation.task == evaluation.split  # files that were named, of a run on files
    return evaluation.task if files else f"{evaluation.task}, {evaluation.split} set"


def in_percent(metric: str) -> bool:
    """Shares are; an error has the target's unit."""
    return metric not in metrics.LESS_IS_BETTER


def length_cell(score: Score, metric: str, digits: int = 1) -> ScoreCell:
    """
    >>> [str(length_cell(Score(0.876, 0.8, 0.9), metric)) for metric in ("accuracy", "mae")]
    ['87.6 (80-90)', '0.876 (0.800 to 0.900)']
    """
    return percent_cell(score, digits) if in_percent(metric) else score_cell(score)


def _evenly(count: int, limit: int) -> list[int]:
    """At most `limit` of the numbers below `count`, evenly spaced and including the last.

    >>> _evenly(12, 20) == [*range(12)], _evenly(12, 4), _evenly(12, 1), _evenly(12, 0)
    (True, [0, 4, 7, 11], [11], [11])
    """
    if limit >= count:
        return [*range(count)]
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)] if limit > 1 else [count - 1]


def _mean_evaluation(runs: Sequence[Evaluation]) -> Evaluation:
    """The mean of runs of one model over the same records."""
    first = runs[0]
    bins = {tuple((row.percentile, row.longest, row.records) for row in run.by_length) for run in runs}
    if len(bins) > 1 or len({(run.task, run.split) for run in runs}) > 1:
        raise ValueError(
            f"{len(runs)} evaluations of {first.encoder} are of different records: only runs on the same ones have a "
            "mean; give those"
        )
    by_length = [
        replace(row, scores=_mean_scores([run.by_length[i].scores for run in runs]))
        for i, row in enumerate(first.by_length)
    ]
    loss = sum(run.loss for run in runs) / len(runs)
    return replace(first, loss=loss, scores=_mean_scores([run.scores for run in runs]), by_length=by_length)


def _mean_scores(runs: Sequence[Mapping[str, Score]]) -> dict[str, Score]:
    """The mean of each metric, with the lowest and the highest of the defined values."""
    means = {}
    for name in runs[0]:
        known = [scores[name].value for scores in runs if not math.isnan(scores[name].value)]
        means[name] = Score(sum(known) / len(known), min(known), max(known)) if known else Score(math.nan)
    return means
