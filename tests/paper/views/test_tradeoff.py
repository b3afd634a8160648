"""Accuracy against speed and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chordmixer import files
from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.recipes import adding
from chordmixer.paper.views import tradeoff
from chordmixer.paper.views.tradeoff import Point, measure, plot
from chordmixer.training import evaluation as scoring
from chordmixer.training import train
from chordmixer.training.experiment import TrainingConfig

POINT = Point("chordmixer", "accuracy", 0.9, 100.0, 2_000_000_000)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scoring, "RESAMPLES", 10)
    made = adding(AddingConfig(20, max_length=60, training=64, validation=16, test=40))
    train(replace(made, training=TrainingConfig(epochs=1, device="cpu")), tmp_path / "run")
    return tmp_path / "run"


def test_a_run_at_work(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    point = measure(run, seconds=0.05)
    assert (point.name, point.metric) == ("chordmixer", "accuracy") and 0 <= point.score <= 1
    weights = (run / "model.safetensors").stat().st_size
    assert point.speed > 0 and weights < point.memory < weights + 100_000_000
    assert capfd.readouterr().err == ""  # the profiler's library is hushed, and nothing else


def test_more_sequences_take_more_memory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure(run, seconds=0).memory
    monkeypatch.setattr(tradeoff, "SEQUENCES", 1)
    weights = sum(w.nbytes for w in files.read_tensors(run / "model.safetensors").values())
    assert weights < measure(run, seconds=0).memory < whole


def test_a_run_that_is_not_finished(run: Path) -> None:
    (run / "evaluation-test.json").unlink()
    with pytest.raises(ValueError, match=r"has no evaluation-test.json: its training is not finished"):
        measure(run)


def test_a_picture(tmp_path: Path) -> None:
    far = replace(POINT, name="transformer", speed=2.0, memory=9_000_000_000)
    near = replace(POINT, name="linformer", speed=150.0)
    pictures = [plot(points, tmp_path / "p.png").read_bytes() for points in ([POINT], [POINT, near], [POINT, far])]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures) and len(set(pictures)) == 3


def test_all_of_many_models_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a legend that the picture has room for, and at their circles, since colours come again."""
    drawn, save = [], tradeoff.drawing.save
    monkeypatch.setattr(tradeoff.drawing, "save", lambda figure, path: (drawn.append(figure), save(figure, path))[1])
    many = [replace(POINT, name=f"model {i}", speed=10.0 + i) for i in range(20)]
    plot(many, tmp_path / "p.png")
    (figure,) = drawn
    box = figure.legends[0].get_window_extent()
    assert box.y0 >= 0 and len(figure.legends[0].get_texts()) == 20
    assert [text.get_text() for text in figure.axes[0].texts] == [point.name for point in many]


def test_no_figure_stays_open(tmp_path: Path) -> None:
    from matplotlib import pyplot

    plot([POINT], tmp_path / "p.png")
    assert pyplot.get_fignums() == []


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model was measured: a picture needs at least one; give a Point"):
        plot([], tmp_path / "p.png")
