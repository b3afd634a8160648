"""The report of a run, report.html, and the model card of a saved model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chordmixer import files
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.run_folder import WAIT, RunLock
from chordmixer.version import __version__
from chordmixer.views import metrics, verdict
from chordmixer.views.explanations import explanations_section
from chordmixer.views.page import Html, Section, contents, document, items, join, section, short, tag
from chordmixer.views.report_data import data_section, settings_section, training_line, training_section
from chordmixer.views.report_predictions import (
    calibration_section,
    confusion_section,
    ranking_section,
    regression_section,
)
from chordmixer.views.report_scores import errors_section, members_section, scores_section
from chordmixer.views.runs import Run
from chordmixer.views.tables import ReportTable, escaped_markdown, score_cell

FILE = "report.html"


def write_report(run: Path, unverified: bool = False) -> Path:
    """Write RUN/report.html: one file, readable offline, on a phone, in dark mode and on paper."""
    path = Path(run) / FILE
    content = page(Run.load(Path(run), unverified))
    with RunLock(Path(run), WAIT):
        files.write_text(path, content)
    return path


def page(run: Run) -> Html:
    """Build the page of a run. Parts without data in the folder are replaced by a sentence."""
    name = short(run.folder.resolve().name, 80)
    first, *rest = verdict.headline(run)
    lead = join([tag("p", first, class_="lead"), *(tag("p", line) for line in rest)])
    warnings = [*verdict.warnings(run)]
    warning_box = tag("aside", tag("h2", "Warnings"), items(warnings), class_="warning") if warnings else ""
    sections = [
        scores_section(run),
        *([members_section(run)] if run.ensemble else []),
        data_section(run),
        *([] if run.ensemble else [training_section(run)]),
        *_prediction_sections(run),
        *([explanations_section(run.folder, run.explained)] if run.explained else []),
        settings_section(run),
    ]
    links = contents(sections, "Contents")
    foot = tag("footer", tag("p", f"Written by chordmixer {__version__}.", class_="quiet"))
    body = tag("main", tag("h1", f"Report on {name}"), training_line(run), lead, warning_box, links, *sections)
    return document(f"Report on {name}", body, foot)


def _prediction_sections(run: Run) -> Iterator[Section]:
    """The sections on single predictions."""
    rows, target, missing = run.predictions, run.target, ""
    if rows is None or target is None or not rows.names:
        file = "no predictions.parquet" if rows is None or not rows.names else "no labels.json"
        missing = f"The run has {file}: single predictions are not shown."
    elif odd := rows.not_finite():
        missing = f"{len(odd):,} records have outputs that are not finite, {short(odd[0], 80)} first: none is shown."
    if missing or rows is None or target is None:
        yield section("predictions", "Predictions", tag("p", missing))
        return
    if isinstance(target, Regression):
        yield regression_section(target, rows)
    elif run.output_labels:
        yield confusion_section(run.output_labels, rows)
        yield ranking_section(target, rows)
        yield calibration_section(run.output_labels, rows)
    yield errors_section(run.output_labels, target, rows)


# --- The model card ---

FRONT = """---
library_name: chordmixer
license: other
license_name: not-stated
tags:
- chordmixer
- {task}
---
"""
USE = """```python
from chordmixer import Predictor

predictor = Predictor.from_pretrained("THIS_FOLDER_OR_REPOSITORY")
predictor.predict({example})
```
"""
EXAMPLES = {"dna": '["ACGTTGCA"]', "protein": '["MKVLAAGI"]', "numbers": "[[0.1, 0.4, 0.2]]"}


def model_card(folder: Path) -> str:
    """Build README.md of a run, in Markdown with the header of the Hugging Face hub; its owner adds the license."""
    return "\n".join(_card_lines(Run.load(folder))) + "\n"


def _card_lines(run: Run) -> Iterator[str]:
    kind = "classification" if isinstance(run.target, Classification | MultiLabel) else "regression"
    yield FRONT.format(task=f"sequence-{kind}")
    yield f"# A model to {escaped_markdown(verdict.purpose(run))}\n"
    yield from (f"{escaped_markdown(sentence)}\n" for sentence in verdict.headline(run))
    yield "## Use\n"
    yield USE.format(example=EXAMPLES.get(run.output_labels.tokenizer if run.output_labels else "", '["some text"]'))
    yield from _card_data(run)
    if run.test is not None:
        yield from _card_scores(run, run.test)
    yield "## Limits\n"
    yield (
        "Scores are those of the test records of one data set. Predictions may be worse for records that differ from "
        "these in origin, length or preparation, and probabilities are calibrated for the class proportions of the "
        "training set.\n"
    )
    yield f"Written by chordmixer {__version__}; trained by chordmixer {run.versions.get('chordmixer', 'unknown')}."


def _card_data(run: Run) -> Iterator[str]:
    """The lines on the training data, without paths and ids."""
    if run.data is None:
        return
    yield "## Data\n"
    sizes = ", ".join(f"{count:,} for {part}" for part, count in run.data.split["sizes"].items())
    yield f"- Records: {sizes} (split: {run.data.split['method']})"
    inspection = run.data.inspection
    if inspection is not None:
        shortest, longest, median = inspection.edges[0], inspection.edges[-1] - 1, inspection.percentiles[50]
        yield f"- Lengths in tokens: {shortest:,} to {longest:,}, median {median:,}"
    if run.labels:
        shown = ", ".join(escaped_markdown(label) for label in run.labels[:20])
        yield f"- Classes or labels: {shown}{f' and {len(run.labels) - 20:,} more' if len(run.labels) > 20 else ''}"
    yield ""


def _card_scores(run: Run, test: Evaluation) -> Iterator[str]:
    yield f"## Scores on {test.records:,} test records\n"
    name = metrics.name(test.headline)
    rows = [(metrics.name(metric), score_cell(score)) for metric, score in test.scores.items()]
    yield ReportTable(("metric", "value (95 % interval)"), rows).markdown()
    yield f"\nBy length, {name}:\n"
    bins = [
        (f"{row.shortest:,} to {row.longest:,}", f"{row.records:,}", score_cell(row.scores[test.headline]))
        for row in test.by_length
    ]
    yield ReportTable(("tokens", "records", name), bins).markdown()
    if run.baselines:
        yield f"\nBaselines, {name}:\n"
        baselines = [
            (baseline.name, score_cell(baseline.evaluation.scores[test.headline])) for baseline in run.baselines
        ]
        yield ReportTable(("baseline", name), baselines).markdown()
    yield ""
