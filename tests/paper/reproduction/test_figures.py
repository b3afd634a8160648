"""Figures that need no training of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chordmixer.files import TEMPORARY
from chordmixer.paper.reproduction import figures
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.views import tradeoff
from chordmixer.training import Experiment, train

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run(tiny: Experiment, tmp_path: Path) -> Path:
    train(tiny, tmp_path / "run")
    return tmp_path / "run"


def quiet(_: str) -> None:
    """Nobody listens."""


def test_reach() -> None:
    result = figures.figure("reach", ENTRIES["reach"], [], quiet)  # type: ignore[arg-type]
    assert "| standard deviation | 3.04e-05 | 3e-5 |" in result.body
    assert result.numbers["hops"] == 14 and result.pictures[""].startswith(PNG)


def test_attention(run: Path) -> None:
    body, numbers, pictures = figures.attention([str(run)], quiet)
    assert body[0].startswith("Base length 20. The place of the two marked positions")
    assert len(numbers["sequences"]) == 6 and all(len(row["ranks"]) == 2 for row in numbers["sequences"])
    assert pictures[""].startswith(PNG)


def test_attention_needs_a_model(run: Path) -> None:
    (run / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="has no model yet: its training is not finished; go on with it first"):
        figures.attention([str(run)], quiet)


def test_attention_needs_the_adding_problem(tmp_path: Path) -> None:
    from chordmixer.paper.lra.listops import ListOpsConfig
    from chordmixer.paper.recipes import listops

    listops(ListOpsConfig()).save(tmp_path)
    with pytest.raises(
        ValueError, match="is a run of listops, whose marked positions nobody knows: give one of adding"
    ):
        figures.attention([str(tmp_path)], quiet)


def test_lengths(motifs: list[str]) -> None:
    body, numbers, pictures = figures.lengths(motifs, quiet)
    assert body[2].startswith("| with | 100 | 3") and len(numbers["sets"]) == 2
    assert [*pictures] == ["1-with", "2-without"] and pictures["1-with"] != pictures["2-without"]


def test_tradeoff(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tradeoff, "SECONDS", 0.01)
    monkeypatch.setattr(tradeoff.measure, "__defaults__", (0.01, False))
    body, numbers, pictures = figures.tradeoff([str(run), str(run)], quiet)
    assert len(numbers["models"]) == 2 and numbers["models"][0]["memory"] > 0 and pictures[""].startswith(PNG)
    assert body[0] == "| model | accuracy, % | sequences a second | memory of a batch |"


def test_tradeoff_is_of_one_task(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = tradeoff.Point("a", "accuracy", 0.5, 10.0, 1_000)
    points = iter([point, replace(point, metric="roc_auc")])
    monkeypatch.setattr(tradeoff, "measure", lambda path, unverified: next(points))
    with pytest.raises(ValueError, match="the runs are scored by accuracy and roc_auc: give runs of one task"):
        figures.tradeoff(["a", "b"], quiet)


def test_all_figures_are_there() -> None:
    drawn = [entry.draw for entry in ENTRIES.values() if isinstance(entry, figures.Figure)]
    assert all(callable(figures.load(path)) for path in drawn) and len(drawn) == 4
    assert TEMPORARY not in "".join(drawn)
