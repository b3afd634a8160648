"""The demo makes two runs, and deletes nothing but those."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chordmixer.config import override
from chordmixer.paper import recipes
from chordmixer.training import Experiment

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tiny_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recipes.demo
    data = {"training": 32, "validation": 16, "test": 16, "max_length": 64}
    less = {"data": data, "training": {"epochs": 1}, "model": {"network": {"hidden": 4, "track_size": 2}}}
    monkeypatch.setattr(recipes, "demo", lambda encoder: override(whole(encoder), less))


@pytest.mark.usefixtures("tiny_demo")
def test_demo_compares_two_models_and_can_be_repeated(chordmixer: Command, tmp_path: Path) -> None:
    for _ in range(2):
        code, said, errors = chordmixer("demo", "--out", tmp_path / "demo")
        assert (code, errors) == (0, "")
        header = next(line for line in said.splitlines() if "percentile" in line)
        assert "chordmixer" in header and "pointwise" in header
        assert f"chordmixer evaluate {tmp_path / 'demo' / 'chordmixer'}" in said
    assert (tmp_path / "demo" / "lengths-test.png").stat().st_size > 0
    encoders = [Experiment.load(tmp_path / "demo" / name).model.encoder for name in ("chordmixer", "pointwise")]
    assert encoders == ["chordmixer", "pointwise"]


@pytest.mark.usefixtures("tiny_demo")
def test_demo_deletes_nothing_that_is_not_its_own(chordmixer: Command, tmp_path: Path) -> None:
    """Not even in a folder that is called like one of its runs, as in a checkout of this package."""
    for folder in (tmp_path / "work", tmp_path / "src" / "chordmixer"):
        folder.mkdir(parents=True)
        (folder / "thesis.tex").write_text("three years")
        code, _, errors = chordmixer("demo", "--out", tmp_path / folder.relative_to(tmp_path).parts[0])
        assert (folder / "thesis.tex").exists()
        assert code == 2 and "give a new folder" in errors
