from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from chordmixer.paper.lra.text import Text, TextConfig, layout

SHARED = Path(__file__).parents[4] / "shared" / "data" / "imdb.parquet"
CURE = r"unpack aclImdb_v1\.tar\.gz of ai\.stanford\.edu/~amaas/data/sentiment and give its folder aclImdb"

REVIEWS = {
    (split, label): [f"{word} film no. {n}, été {'!' * n}<br />" for n in range(10)]
    for split, label, word in (
        ("train", "neg", "Dull"),
        ("train", "pos", "Fine"),
        ("test", "neg", "Flat"),
        ("test", "pos", "Good"),
    )
}


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """With what else lies in the true one."""
    folder = tmp_path / "aclImdb"
    for (split, label), texts in REVIEWS.items():
        (folder / split / label).mkdir(parents=True)
        for number, text in enumerate(texts):
            (folder / split / label / f"{number}_8.txt").write_text(text, encoding="utf-8")
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("Neither")
    (folder / "train" / "urls_pos.txt").write_text("http://x\n")
    (folder / "README").write_text("Large Movie Review Dataset")
    return folder


def rows(numbers: bool = False) -> list[dict[str, Any]]:
    return [
        {"text": text, "label": ["neg", "pos"].index(label) if numbers else label, "split": split}
        for (split, label), texts in REVIEWS.items()
        for text in texts
    ]


def task(source: Path | None, cache: Path, **settings: int) -> Text:
    return Text(TextConfig(source=source and str(source), cache=str(cache), **{"validation": 4, **settings}))


def read(text: Text) -> dict[str, set[tuple[str, int]]]:
    sets = {split: text.records(split) for split in ("training", "validation", "test")}
    return {
        split: {(bytes(records[i].values).decode(), int(records[i].target)) for i in range(len(records))}
        for split, records in sets.items()
    }


def test_every_layout_holds_the_same_reviews(official: Path, tmp_path: Path) -> None:
    table, lines = tmp_path / "x.parquet", tmp_path / "x.jsonl"
    parquet.write_table(pa.Table.from_pylist(rows()), table)
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows(numbers=True)))
    known = {(row["split"], row["text"], row["label"]) for row in rows(numbers=True)}
    for number, source in enumerate((official, official.parent, table, lines)):
        found = read(task(source, tmp_path / f"cache{number}"))
        assert [len(own) for own in found.values()] == [16, 4, 20]
        training = {("train", *pair) for pair in found["training"] | found["validation"]}
        assert training | {("test", *pair) for pair in found["test"]} == known


def test_records(official: Path, tmp_path: Path) -> None:
    text = task(official, tmp_path / "cache", length=30)
    assert (text.embedding, text.inputs, text.max_length, text.target.outputs) == ("tokens", 256, 30, 2)
    assert text.target.headline == "accuracy" and text.target.labels == ["neg", "pos"] and text.documents() == {}
    records = text.records("test")
    assert records.cut == 16 and records.lengths == [29] + [30] * 9 + [29] + [30] * 9
    assert (
        records[0].values.dtype == torch.uint8 and bytes(records[2].values) == "Flat film no. 2, été !!<br /".encode()
    )
    held = text.records("validation")
    assert np.bincount(held.targets).tolist() == [2, 2]
    assert set(task(official, tmp_path / "cache", seed=1).records("validation").indices) != set(held.indices)
    longer = task(official, tmp_path / "cache", length=99).records("test")
    assert longer.folder == records.folder and longer.cut == 0


# --- What is refused ---


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no reviews are named: Text is the IMDb review set; {CURE}"):
        task(None, tmp_path).records("training")
    with pytest.raises(ValueError, match=f"nowhere does not exist: Text is the IMDb review set; {CURE}"):
        layout(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=f"train/neg is missing: reviews lie in train and test, .*; {CURE}"):
        layout(str(tmp_path))
    for name, noun in {"length": "bytes", "validation": "reviews"}.items():
        with pytest.raises(ValueError, match=f"{name}=0 is not a number of {noun}: give 1 or more"):
            TextConfig(**{name: 0})


def test_a_folder_that_is_not_whole(official: Path, tmp_path: Path) -> None:
    (official / "test" / "pos" / "3_8.txt").unlink()
    with pytest.raises(ValueError, match=r"aclImdb has 9 test records of pos and 10 of neg: .* not whole; unpack"):
        task(official, tmp_path / "cache").records("training")
    (official / "test" / "pos" / "3_8.txt").write_text("")
    with pytest.raises(ValueError, match=r"3_8.txt is empty: a review has a byte or more; use another copy"):
        task(official, tmp_path / "cache").records("training")
    (official / "test" / "pos").rename(official / "pos")
    with pytest.raises(ValueError, match="test/pos is missing"):
        task(official, tmp_path / "cache").records("training")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"label": "mixed"}, "row 3: class 'mixed' is none of neg, pos"),
        ({"label": None}, "row 3: class 'None' is none of neg, pos"),
        ({"split": "dev"}, "row 3: split 'validation' is not train or test"),
        ({"split": "unsup"}, "row 3, column 'split': 'unsup' is not a split"),
        ({"text": ""}, "row 3 is empty"),
        ({"text": [1.0, 2.0]}, "row 3: the text is a list of numbers"),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    table = rows()
    table[2] |= change
    (tmp_path / "x").write_text("".join(json.dumps(row) + "\n" for row in table))
    with pytest.raises(ValueError, match=match):
        task(tmp_path / "x", tmp_path / "cache").records("training")


@pytest.mark.parametrize("column", ["label", "split"])
def test_tables_without_a_column(tmp_path: Path, column: str) -> None:
    parquet.write_table(pa.Table.from_pylist(rows()).drop([column]), tmp_path / "x")
    with pytest.raises(ValueError, match=f"has no column {column}: text, label and split are needed; add it"):
        task(tmp_path / "x", tmp_path / "cache").records("training")


def test_a_file_that_is_cut(tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(rows()), tmp_path / "x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-30])
    with pytest.raises(ValueError, match="x cannot be read as Parquet"):
        task(tmp_path / "x", tmp_path / "cache").records("training")


@pytest.mark.skipif(not SHARED.is_file(), reason="needs ../shared/data/imdb.parquet beside the repository")
def test_the_true_reviews(tmp_path: Path) -> None:
    text = Text(TextConfig(source=str(SHARED), cache=str(tmp_path)))
    sets = [text.records(split) for split in ("training", "validation", "test")]
    assert [len(records) for records in sets] == [22_500, 2_500, 25_000]
    assert sum(records.cut for records in sets) == 1510 and max(sets[0].lengths) == 4000
    assert all(np.ptp(np.bincount(records.targets)) == 0 for records in sets)
