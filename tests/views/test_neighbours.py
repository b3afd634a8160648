"""Neighbours of embeddings, counted by hand and drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib import pyplot
from numpy import ndarray

from chordmixer.views.neighbours import SHOWN, neighbours, plane, plot, read


def clouds(labels: int, records: int, apart: float) -> tuple[ndarray, list[str]]:
    draw = np.random.default_rng(0)
    centres = apart * draw.normal(size=(labels, 16))
    own = [i % labels for i in range(records)]
    return (centres[own] + draw.normal(size=(records, 16))).astype(np.float32), [f"family{i}" for i in own]


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
    around = neighbours(vectors, ["many"] * 8 + ["few"] * 2, [1])
    assert around.even_shares[1] == pytest.approx(around.shares[1] * 10 / 8 / 2) and around.shares[1] > 0.5
    assert around.chance == pytest.approx(0.8 * 7 / 9 + 0.2 / 9)
    assert around.even_chance == pytest.approx((7 / 9 + 1 / 9) / 2)


def test_the_plane_keeps_what_differs_most() -> None:
    draw = np.random.default_rng(1)
    vectors = draw.normal(size=(200, 5)) * [9, 0.1, 4, 0.1, 0.1] + 100
    points, shares = plane(vectors)
    assert abs(np.corrcoef(points[:, 0], vectors[:, 0])[0, 1]) > 0.99
    assert abs(np.corrcoef(points[:, 1], vectors[:, 2])[0, 1]) > 0.99
    assert shares.sum() > 0.99 and shares[0] > shares[1]
    assert plane(vectors[:, :1])[0].shape == (200, 2)


@pytest.mark.parametrize(("labels", "records"), [(3, 60), (SHOWN + 5, 300), (1, 2), (60, 120)])
def test_a_plot_is_a_picture(tmp_path: Path, labels: int, records: int) -> None:
    path = plot(*clouds(labels, records, apart=5.0), tmp_path / "map.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 10_000
    assert pyplot.get_fignums() == []


def write(path: Path, vectors: list[list[float]]) -> Path:
    column = pa.array(vectors, pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"id": ["a", "b", "c"], "length": [1, 2, 3], "embedding": column}), path)
    return path


def test_embeddings_are_read_by_id(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", [[1, 2], [3, 4], [5, 6]])
    vectors, labels = read(path, {"c": "round", "a": "square", "elsewhere": "flat"})
    assert vectors.tolist() == [[1, 2], [5, 6]] and labels == ["square", "round"]
    with pytest.raises(ValueError, match=r"no record of .* has a label: labels go by id, such as a"):
        read(path, {"d": "round"})


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("nothing")
    for path in (tmp_path / "no.parquet", tmp_path / "absent.parquet"):
        with pytest.raises(ValueError, match=r"has no embeddings to read .*: give a file of chordmixer embed"):
            read(path, {"a": "b"})
    lists = pa.array([[[1.0, 2.0]]], pa.list_(pa.list_(pa.float32(), 2)))
    pq.write_table(pa.table({"id": ["a"], "embedding": lists}), tmp_path / "tokens.parquet")
    with pytest.raises(ValueError, match="several vectors a record: embed without --per-token"):
        read(tmp_path / "tokens.parquet", {"a": "b"})


def test_numbers_that_do_not_fit() -> None:
    vectors, labels = clouds(2, 6, apart=1.0)
    with pytest.raises(ValueError, match="6 vectors and 5 labels do not go together: give one label a vector"):
        neighbours(vectors, labels[:5])
    for k in (0, 6):
        with pytest.raises(ValueError, match=r"k=\[\d\] of 6 records is not a number of others: give 1 to 5"):
            neighbours(vectors, labels, [k])
    with pytest.raises(ValueError, match="1 records make no map: give 2 or more"):
        plane(vectors[:1])
