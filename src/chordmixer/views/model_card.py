"""A model card: what a saved model was trained on, how good it is beside baselines, and how to load it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training.evaluation import Evaluation
from chordmixer.version import __version__
from chordmixer.views import metrics, verdict
from chordmixer.views.runs import Run

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
    """README.md of a run, in Markdown with the hub's header; `license` is for its owner to fill in."""
    return "\n".join(_lines(Run.load(folder))) + "\n"


def _lines(run: Run) -> Iterator[str]:
    kind = "classification" if isinstance(run.target, Classification | MultiLabel) else "regression"
    yield FRONT.format(task=f"sequence-{kind}")
    yield f"# A model to {_escaped(verdict.asked(run))}\n"
    yield from (f"{_escaped(sentence)}\n" for sentence in verdict.headline(run))
    yield "## Use\n"
    yield USE.format(example=EXAMPLES.get(run.answers.tokenizer if run.answers else "", '["some text"]'))
    yield from _data(run)
    if run.test is not None:
        yield from _scores(run, run.test)
    yield "## Limits\n"
    yield (
        "Scores are those of the test records of one data set. Predictions may be worse for records that differ from "
        "these in origin, length or preparation, and probabilities are calibrated for the class proportions of the "
        "training set.\n"
    )
    yield f"Written by chordmixer {__version__}; trained by chordmixer {run.versions.get('chordmixer', 'unknown')}."


def _data(run: Run) -> Iterator[str]:
    """What it was trained on, without paths and ids."""
    if run.data is None:
        return
    yield "## Data\n"
    sizes = ", ".join(f"{count:,} for {part}" for part, count in run.data.split["sizes"].items())
    yield f"- Records: {sizes} (split: {run.data.split['method']})"
    found = run.data.inspection
    if found is not None:
        shortest, longest, median = found.edges[0], found.edges[-1], found.percentiles[50]
        yield f"- Lengths in tokens: {shortest:,.0f} to {longest:,.0f}, median {median:,.0f}"
    if run.labels:
        shown = ", ".join(_escaped(label) for label in run.labels[:20])
        yield f"- Classes or labels: {shown}{f' and {len(run.labels) - 20:,} more' if len(run.labels) > 20 else ''}"
    yield ""


def _scores(run: Run, test: Evaluation) -> Iterator[str]:
    yield f"## Scores on {test.records:,} test records\n"
    yield from _table(
        ("metric", "value", "95 % interval"),
        (
            (metrics.name(own), _number(score.value), _ends(score.low, score.high))
            for own, score in test.scores.items()
        ),
    )
    name = metrics.name(test.headline)
    yield f"By length, {name}:\n"
    yield from _table(
        ("tokens", "records", name),
        (
            (f"{own.shortest:,} to {own.longest:,}", f"{own.records:,}", _number(own.scores[test.headline].value))
            for own in test.by_length
        ),
    )
    if run.baselines:
        yield f"Baselines, {name}:\n"
        yield from _table(
            ("baseline", name),
            ((_escaped(own.name), _number(own.evaluation.scores[test.headline].value)) for own in run.baselines),
        )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _ends(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4g} to {high:.4g}"


def _escaped(text: str) -> str:
    """Text of users, which may hold what Markdown or HTML would act on.

    >>> _escaped("a|b <script>")
    'a\\\\|b &lt;script>'
    """
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    for sign in "|*_`[]":
        safe = safe.replace(sign, f"\\{sign}")
    return safe
