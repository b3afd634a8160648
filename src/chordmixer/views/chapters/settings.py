"""What the run was made with: every setting, the versions, and the command that uses the model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from chordmixer.views.page import Html, details, join, section, short, table, tag
from chordmixer.views.plan import duration
from chordmixer.views.runs import Run

PARTS = {"data": "Data", "model": "Model", "training": "Training"}


def chapter(run: Run) -> Html:
    grids = [
        details(
            f"{title} settings", table(("setting", "value"), _rows(run.config.get(part)), words=(0, 1), name=title)
        )
        for part, title in PARTS.items()
        if run.config.get(part)
    ]
    return section("settings", "Settings and use", *_use(run), *_command(run), *_versions(run), *grids)


def made(run: Run) -> Html:
    """When, for how long and on what it was trained, in a line."""
    known = run.provenance
    if known is None:
        return join([])
    took = duration(known.seconds) if known.whole else f"more than {duration(known.seconds)}"
    line = f"Trained on {short(known.started, 40)} in {took} on {short(known.device, 80)}."
    return tag("p", line, class_="quiet")


def _command(run: Run) -> Iterator[Html]:
    if run.provenance and run.provenance.command:
        yield tag("h3", "The command that trained it")
        yield tag("pre", tag("code", short(run.provenance.command, 2000)))


def _use(run: Run) -> Iterator[Html]:
    folder = shlex.quote(str(run.folder))
    yield tag("h3", "Use this model")
    if run.answers:
        yield tag("pre", tag("code", f"chordmixer predict {folder} FILES -o answers.tsv"))
        yield tag("p", "A row a record of FILES, with a probability or a number, in the order of the files.")
    else:
        yield tag("pre", tag("code", f"chordmixer evaluate {folder}"))
        yield tag("p", "The run has no labels.json: it answers its own task, and not files.")


def _versions(run: Run) -> Iterator[Html]:
    yield tag("h3", "Versions and settings")
    known = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    yield tag("p", f"Trained with {known}." if known else "The run does not say which versions trained it.")
    if run.answers:
        strands = "the mean over both strands" if run.answers.both_strands else "of the sequence as it stands"
        heat = "none" if run.answers.temperature is None else f"{run.answers.temperature:.4g}"
        yield tag("p", f"Tokens: {run.answers.tokenizer}. Answers: {strands}. Temperature: {heat}.")


def _rows(given: object, prefix: str = "") -> Iterator[tuple[Html, str]]:
    """Nested settings by their dotted names.

    >>> [(str(name), value) for name, value in _rows({"network": {"hidden": 96}})]
    [('<code>network.hidden</code>', '96')]
    """
    pairs: Mapping[str, Any] = given if isinstance(given, Mapping) else {"": given}
    for key, value in pairs.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _rows(value, f"{name}.")
        else:
            yield join([tag("code", name)]), short("none" if value is None else value, 400)
