"""The chapter on settings: every one of them, and the command that uses the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chordmixer.views.chapters import settings
from chordmixer.views.runs import Run

Make = Callable[..., Path]


def test_every_setting_has_a_row(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    shown = settings.chapter(run)
    for name in (*run.config["training"], *(f"network.{key}" for key in run.config["model"]["network"])):
        assert f"<code>{name}</code>" in shown
    assert "Trained with chordmixer 1.2.3, torch 2.13.0." in shown
    assert "Tokens: dna." in shown


def test_the_command_fits_the_run(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    spaced = replace(run, folder=Path("my runs/<one>"))
    assert "chordmixer predict &#x27;my runs/&lt;one&gt;&#x27; FILES -o answers.tsv" in settings.chapter(spaced)
    own = Run.load(make_run("adding"))
    assert "chordmixer evaluate " in settings.chapter(own) and "predict" not in settings.chapter(own)


def test_versions_that_are_not_known(make_run: Make) -> None:
    run = Run.load(make_run("adding"))
    config = {key: value for key, value in run.config.items() if key != "version"}
    assert "does not say which versions" in settings.chapter(replace(run, config=config))
