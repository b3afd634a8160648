"""Figures that need no training of their own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

from chordmixer import files
from chordmixer.files import TEMPORARY
from chordmixer.models import ChordMixerConfig
from chordmixer.paper.reproduction import figures
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.figures import Point, measure_run, plot_tradeoff, random_walk
from chordmixer.training import Experiment, evaluation
from chordmixer.training.loop import train

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def trained(tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only to be copied."""
    out = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        train(tiny, out)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_reach() -> None:
    result = figures.figure("reach", ENTRIES["reach"], [])  # type: ignore[arg-type]
    assert "| standard deviation | 3.04e-05 | 3e-5 |" in result.body
    assert result.numbers["hops"] == 14 and result.pictures[""].startswith(PNG)


def test_attention(run: Path) -> None:
    body, numbers, pictures = figures.attention([str(run)])
    assert body[0].startswith("Base length 20. The place of the two marked positions")
    assert len(numbers["sequences"]) == 6 and all(len(row["ranks"]) == 2 for row in numbers["sequences"])
    assert pictures[""].startswith(PNG) and len(pictures[""]) > 20_000 and pyplot.get_fignums() == []


def test_attention_needs_a_model(run: Path) -> None:
    (run / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="has no model yet: its training is not finished; go on with it first"):
        figures.attention([str(run)])


def test_attention_needs_the_adding_problem(tmp_path: Path) -> None:
    from chordmixer.paper.lra.listops import ListOpsConfig
    from chordmixer.paper.recipes import listops

    listops(ListOpsConfig()).save(tmp_path)
    with pytest.raises(
        ValueError, match="is a run of listops, whose marked positions nobody knows: give one of adding"
    ):
        figures.attention([str(tmp_path)])


def test_lengths(motifs: list[str]) -> None:
    body, numbers, pictures = figures.lengths(motifs)
    assert body[2].startswith("| with | 100 | 3") and len(numbers["sets"]) == 2
    assert [*pictures] == ["1-with", "2-without"] and pictures["1-with"] != pictures["2-without"]


def test_tradeoff(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SECONDS", 0.01)
    monkeypatch.setattr(figures.measure_run, "__defaults__", (0.01, False))
    body, numbers, pictures = figures.tradeoff([str(run), str(run)])
    assert len(numbers["models"]) == 2 and numbers["models"][0]["memory"] > 0 and pictures[""].startswith(PNG)
    assert body[0] == "| model | accuracy, % | sequences a second | memory of a batch |"


def test_tradeoff_is_of_one_task(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = figures.Point("a", "accuracy", 0.5, 10.0, 1_000)
    points = iter([point, replace(point, metric="roc_auc")])
    monkeypatch.setattr(figures, "measure_run", lambda path, unverified: next(points))
    with pytest.raises(ValueError, match="the runs are scored by accuracy and roc_auc: give runs of one task"):
        figures.tradeoff(["a", "b"])


def test_all_figures_are_there() -> None:
    drawn = [entry.draw for entry in ENTRIES.values() if isinstance(entry, figures.Figure)]
    assert all(callable(figures.load(path)) for path in drawn) and len(drawn) == 4
    assert TEMPORARY not in "".join(drawn)


@pytest.mark.parametrize("length", [1, 2, 5, 8, 11])
def test_every_walk_counts_the_same(length: int) -> None:
    """All walks one by one, with the shifts of a network's tracks."""
    steps = [0] + [2**k for k in range(ChordMixerConfig(max_length=length).tracks - 1)]
    hops, probabilities = random_walk(length)
    ends = [sum(walk) % length for walk in product(steps, repeat=hops)]
    assert hops == np.ceil(np.log2(length) + 1)
    np.testing.assert_allclose(probabilities, np.bincount(ends, minlength=length) / len(ends), atol=1e-15)


@pytest.mark.parametrize("length", [3, 100, 1024, 1025])
def test_the_hops_of_the_paper_reach_all(length: int) -> None:
    assert (random_walk(length)[1] > 0).all()


POINT = Point("chordmixer", "accuracy", 0.9, 100.0, 2_000_000_000)


def test_a_run_at_work(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    point = measure_run(run, seconds=0.05)
    assert (point.name, point.metric) == ("chordmixer", "accuracy") and 0 <= point.score <= 1
    weights = (run / "model.safetensors").stat().st_size
    assert point.speed > 0 and weights < point.memory < weights + 100_000_000
    assert capfd.readouterr().err == ""  # the profiler's library is hushed, and nothing else


def test_more_sequences_take_more_memory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure_run(run, seconds=0).memory
    monkeypatch.setattr(figures, "SEQUENCES", 1)
    weights = sum(w.nbytes for w in files.read_tensors(run / "model.safetensors").values())
    assert weights < measure_run(run, seconds=0).memory < whole


def test_a_run_that_is_not_finished(run: Path) -> None:
    (run / "evaluation-test.json").unlink()
    with pytest.raises(ValueError, match=r"has no evaluation-test.json: its training is not finished"):
        measure_run(run)


def test_a_picture_of_the_tradeoff(tmp_path: Path) -> None:
    far = replace(POINT, name="transformer", speed=2.0, memory=9_000_000_000)
    near = replace(POINT, name="linformer", speed=150.0)
    pictures = [
        plot_tradeoff(points, tmp_path / "p.png").read_bytes() for points in ([POINT], [POINT, near], [POINT, far])
    ]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures) and len(set(pictures)) == 3
    assert pyplot.get_fignums() == []


def test_all_of_many_models_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a legend that the picture has room for, and at their circles, since colours come again."""
    drawn, save = [], figures.plots.save
    monkeypatch.setattr(figures.plots, "save", lambda figure, path: (drawn.append(figure), save(figure, path))[1])
    many = [replace(POINT, name=f"model {i}", speed=10.0 + i) for i in range(20)]
    plot_tradeoff(many, tmp_path / "p.png")
    (figure,) = drawn
    box = figure.legends[0].get_window_extent()
    assert box.y0 >= 0 and len(figure.legends[0].get_texts()) == 20
    assert [text.get_text() for text in figure.axes[0].texts] == [point.name for point in many]
