"""Pictures: scores by length, lengths, embeddings; and how they are saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot
from numpy import ndarray

from chordmixer.training.evaluation import Evaluation, LengthBin, Score
from chordmixer.views import plots
from chordmixer.views.plots import (
    COLOURS,
    MAX_NAMED,
    neighbours,
    plot_embeddings,
    principal_components,
    read_embeddings,
    strongest,
)
from chordmixer.views.tables import mean_over_seeds


def test_a_figure_is_a_file_and_gone(tmp_path: Path) -> None:
    pyplot = plots.pyplot()
    before = pyplot.get_fignums()
    figure, axes = pyplot.subplots(figsize=(2, 1))
    axes.plot([0, 1])
    path = plots.save(figure, tmp_path / "line.png", dpi=50)
    assert path.read_bytes().startswith(b"\x89PNG") and pyplot.get_fignums() == before
    assert [p.name for p in tmp_path.iterdir()] == ["line.png"]


def test_no_window_is_opened() -> None:
    assert plots.pyplot().get_backend().lower() == "agg"


def test_what_cannot_be_drawn_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        plots.save(object(), tmp_path / "line.png")
    assert not list(tmp_path.iterdir())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40), st.integers(1, 12))
def test_thinning_keeps_the_strongest(numbers: list[int], most: int) -> None:
    thinned = strongest(np.array(numbers), most)
    assert len(thinned) <= most and set(thinned.tolist()) <= {*numbers, 0}
    assert np.abs(thinned).max() == max(map(abs, numbers))


def clouds(labels: int, records: int, apart: float) -> tuple[ndarray, list[str]]:
    rng = np.random.default_rng(0)
    centres = apart * rng.normal(size=(labels, 16))
    classes = [i % labels for i in range(records)]
    return (centres[classes] + rng.normal(size=(records, 16))).astype(np.float32), [f"family{i}" for i in classes]


@pytest.mark.parametrize("k", [1, 3])
def test_neighbours_are_counted(k: int) -> None:
    vectors, labels = clouds(3, 40, apart=1.0)
    expected = []
    for i in range(40):
        nearest = sorted(
            (j for j in range(40) if j != i), key=lambda j: float(((vectors[i] - vectors[j]) ** 2).sum())
        )
        expected += [labels[j] == labels[i] for j in nearest[:k]]
    assert neighbours(vectors, labels, [k]).shares == {k: pytest.approx(np.mean(expected))}


def test_clouds_far_apart_and_none_at_all() -> None:
    apart = neighbours(*clouds(4, 400, apart=10.0))
    assert apart.shares == {1: 1.0, 5: 1.0} and (apart.records, apart.labels) == (400, 4)
    assert apart.chance == pytest.approx(99 / 399)
    mixed = neighbours(*clouds(4, 400, apart=0.0))
    assert all(abs(share - mixed.chance) < 0.08 for share in mixed.shares.values())
    assert apart.lines() == [
        "400 records of 4 labels",
        "100.0% of the nearest have the same label; as a mean over labels 100.0%",
        "100.0% of the 5 nearest have the same label; as a mean over labels 100.0%",
        "by chance 24.8%; as a mean over labels 24.8%",
    ]


def test_a_rare_label_counts_as_much_as_a_frequent_one() -> None:
    """Eight records that find each other, and two that do not."""
    vectors = np.array([[float(i)] for i in (0, 1, 2, 3, 4, 5, 6, 7, -1, 8)])
    result = neighbours(vectors, ["many"] * 8 + ["few"] * 2, [1])
    assert result.even_shares[1] == pytest.approx(result.shares[1] * 10 / 8 / 2) and result.shares[1] > 0.5
    assert result.chance == pytest.approx(0.8 * 7 / 9 + 0.2 / 9)
    assert result.even_chance == pytest.approx((7 / 9 + 1 / 9) / 2)


def test_the_plane_keeps_what_differs_most() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(200, 5)) * [9, 0.1, 4, 0.1, 0.1] + 100
    points, shares = principal_components(vectors)
    assert abs(np.corrcoef(points[:, 0], vectors[:, 0])[0, 1]) > 0.99
    assert abs(np.corrcoef(points[:, 1], vectors[:, 2])[0, 1]) > 0.99
    assert shares.sum() > 0.99 and shares[0] > shares[1]
    assert principal_components(vectors[:, :1])[0].shape == (200, 2)


@pytest.mark.parametrize(("labels", "records"), [(3, 60), (MAX_NAMED + 5, 300), (1, 2), (60, 120)])
def test_a_plot_of_embeddings(tmp_path: Path, labels: int, records: int) -> None:
    path = plot_embeddings(*clouds(labels, records, apart=5.0), tmp_path / "map.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 10_000
    assert pyplot.get_fignums() == []


def write(path: Path, vectors: list[list[float]]) -> Path:
    column = pa.array(vectors, pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"id": ["a", "b", "c"], "length": [1, 2, 3], "embedding": column}), path)
    return path


def test_embeddings_are_read_by_id(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", [[1, 2], [3, 4], [5, 6]])
    vectors, labels = read_embeddings(path, {"c": "round", "a": "square", "elsewhere": "flat"})
    assert vectors.tolist() == [[1, 2], [5, 6]] and labels == ["square", "round"]
    with pytest.raises(ValueError, match=r"no record of .* has a label: labels go by id, such as a"):
        read_embeddings(path, {"d": "round"})


def test_what_cannot_be_read_embeddings(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("nothing")
    for path in (tmp_path / "no.parquet", tmp_path / "absent.parquet"):
        with pytest.raises(ValueError, match=r"has no embeddings to read .*: give a file of chordmixer embed"):
            read_embeddings(path, {"a": "b"})
    lists = pa.array([[[1.0, 2.0]]], pa.list_(pa.list_(pa.float32(), 2)))
    pq.write_table(pa.table({"id": ["a"], "embedding": lists}), tmp_path / "tokens.parquet")
    with pytest.raises(ValueError, match="several vectors a record: embed without --per-token"):
        read_embeddings(tmp_path / "tokens.parquet", {"a": "b"})


def test_numbers_that_do_not_fit() -> None:
    vectors, labels = clouds(2, 6, apart=1.0)
    with pytest.raises(ValueError, match="6 vectors and 5 labels do not go together: give one label per vector"):
        neighbours(vectors, labels[:5])
    for k in (0, 6):
        with pytest.raises(ValueError, match=r"k=\[\d\] of 6 records is not a number of others: give 1 to 5"):
            neighbours(vectors, labels, [k])
    with pytest.raises(ValueError, match="1 records make no map: give 2 or more"):
        principal_components(vectors[:1])


# --- Scores by length ---


def evaluation(encoder: str, value: float) -> Evaluation:
    score = {"accuracy": Score(value, value - 0.05, value + 0.05)}
    bins = [
        LengthBin(10, 30, 99, 5, score),
        LengthBin(50, 100, 1_999, 20, score),
        LengthBin(100, 2_000, 9_000, 25, score),
    ]
    return Evaluation("adding", "test", encoder, "accuracy", 50, 0.01, score, {"accuracy": 0.125}, bins)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures that are saved, in their order."""
    figures: list[Any] = []
    save = plots.save
    monkeypatch.setattr(plots, "save", lambda figure, path: (figures.append(figure), save(figure, path))[1])
    return figures


@pytest.fixture
def several() -> list[Evaluation]:
    return [evaluation("chordmixer", 0.9), evaluation("pointwise", 0.2)]


def test_regression_is_plotted_by_its_error(drawn: list[Any], tmp_path: Path) -> None:
    score = {"r2": Score(-5.0, -80.0, 0.2), "mae": Score(12.5, 10.0, 15.0)}
    bins, guess = [LengthBin(50, 10, 90, 5, score), LengthBin(100, 91, 200, 5, score)], {"r2": 0.0, "mae": 20.0}
    plots.plot_lengths(
        [Evaluation("files", "files", "m", "r2", 10, 0.1, score, guess, bins)], tmp_path / "lengths.png"
    )
    (axes,) = drawn[0].axes
    assert axes.get_ylabel() == "mean absolute error" and axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 20


@pytest.mark.parametrize("models", [1, 2])
def test_a_plot_of_lengths(several: list[Evaluation], tmp_path: Path, models: int) -> None:
    path = plots.plot_lengths(several[:models], tmp_path / "lengths.png")
    assert path == tmp_path / "lengths.png"
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 10_000 and pyplot.get_fignums() == []


def test_every_model_is_drawn(tmp_path: Path, drawn: list[Any]) -> None:
    """More models than colours have a panel each, beside the first model, the best one first."""
    many = [evaluation(f"model {i}", 0.1 * i) for i in range(len(COLOURS) + 1)]
    for count in (1, 2, 6):
        plots.plot_lengths(many[:count], tmp_path / "lengths.png", "Adding")
        (axes,) = drawn.pop().axes
        assert [bars.get_label() for bars in axes.containers] == [f"model {i}" for i in range(count)]
    plots.plot_lengths(many, tmp_path / "lengths.png", "Adding")
    panels = [axes for axes in drawn[0].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"model {i}: {10 * i:.1f} %" for i in (6, 5, 4, 3, 2, 1)]
    assert {axes.containers[0].get_label() for axes in panels} == {"model 0"}
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["model 0: 0.0 %", "constant prediction"]
    assert drawn[0].get_suptitle() == "Adding, test set, 50 sequences; bars: 95 % interval"


def test_seeds_change_the_picture(tmp_path: Path) -> None:
    runs = [evaluation("chordmixer", value) for value in (0.8, 0.9)]
    images = [
        plots.plot_lengths(evaluations, tmp_path / "p.png").read_bytes()
        for evaluations in (runs, [runs[0]], [mean_over_seeds(runs)[0]])
    ]
    assert len(set(images)) == 3


def test_a_single_length_stands_in_the_middle(several: list[Evaluation], tmp_path: Path, drawn: list[Any]) -> None:
    """Such as that of images, which all have one length: models stand side by side around it, not at the edges."""
    plots.plot_lengths([replace(model, by_length=model.by_length[:1]) for model in several], tmp_path / "lengths.png")
    (axes,) = drawn[0].axes
    low, high = axes.get_xlim()
    positions = [bars[0].get_xdata()[0] for bars in axes.containers]
    assert low == -high and all(2 * abs(position) < high for position in positions)


def test_scores_without_an_interval_have_no_bar(drawn: list[Any], tmp_path: Path) -> None:
    few = replace(evaluation("chordmixer", 0.9), scores={"accuracy": Score(0.9)})
    few = replace(few, by_length=[replace(row, scores={"accuracy": Score(1.0)}) for row in few.by_length])
    plots.plot_lengths([few], tmp_path / "few.png")
    caps = drawn[0].axes[0].containers[0].lines[1]
    assert len(caps) == 2 and all(np.isnan(np.asarray(cap.get_ydata(), dtype=float)).all() for cap in caps)


# --- Lengths of records ---


@pytest.mark.parametrize("edges", [[40, 200, 800, 1_501], [7, 8]], ids=["several", "one length"])
def test_a_histogram_of_lengths(tmp_path: Path, edges: list[int]) -> None:
    inspection: Any = SimpleNamespace(
        edges=edges,
        histogram=[3] * (len(edges) - 1),
        percentiles={50: edges[0], 99: edges[-1] - 1},
        records=9,
        tokens=99,
    )
    path = plots.plot_histogram(inspection, tmp_path / "lengths.png")
    assert path == tmp_path / "lengths.png" and path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 10_000 and pyplot.get_fignums() == []
