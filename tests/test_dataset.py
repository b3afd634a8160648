"""Records from files, lists, a DataFrame and a Hugging Face dataset are the same records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from chordmixer import Dataset
from chordmixer.data.store_cache import IN_MEMORY
from chordmixer.tasks.files import Files, FilesConfig

SEQUENCES = ["ACGTACGT", "TTGACA", "GGCCA", "ACGTTT", "TTGACC", "GGTCA"]
LABELS = ["worm", "fly", "worm", "worm", "fly", "fly"]


class HuggingFace:
    """A stand-in with the interface of `datasets.Dataset` that is used."""

    class ClassLabel:
        names = ("fly", "worm")

    def __init__(self, **columns: list[Any]) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {"label": self.ClassLabel()}

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def record_tuples(data: Dataset) -> list[tuple[Any, ...]]:
    return [(e.sequence, e.label, e.target, e.split, e.group, e.weight) for e in data.entries()]


def test_four_ways_to_the_same_records(tmp_path: Path) -> None:
    parts = ["train"] * 4 + ["test"] * 2
    rows = [f"{s},{label},{part}" for s, label, part in zip(SEQUENCES, LABELS, parts, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["sequence,label,split", *rows]) + "\n")
    frame = pd.DataFrame({"seq": SEQUENCES, "what": LABELS, "part": parts})
    numbers = [int(label == "worm") for label in LABELS]
    hub = {
        "train": HuggingFace(text=SEQUENCES[:4], label=numbers[:4]),
        "test": HuggingFace(text=SEQUENCES[4:], label=numbers[4:]),
    }
    datasets = [
        Dataset.from_files(tmp_path / "t.csv"),
        Dataset.from_lists(SEQUENCES, LABELS, splits=parts),
        Dataset.from_pandas(frame, sequence="seq", target="what", split="part"),
        Dataset.from_huggingface(hub, target="label"),
    ]
    first, *others = map(record_tuples, datasets)
    assert all(other == first for other in others)
    assert [len(data) for data in datasets] == [6] * 4
    assert first[0] == ("ACGTACGT", "worm", None, "training", None, 1.0)


def test_classes_by_file(tmp_path: Path) -> None:
    for name, letters in (("a", "ACGT"), ("b", "TTTT")):
        (tmp_path / f"{name}.fa").write_text(f">r1\n{letters}\n>r2\n{letters}A\n")
    named = Dataset.from_files({"worm": tmp_path / "a.fa", "fly": tmp_path / "b.fa"})
    by_name = Dataset.from_files(tmp_path / "a.fa", tmp_path / "b.fa")
    assert [entry.label for entry in named.entries()] == ["worm", "worm", "fly", "fly"]
    assert [entry.label for entry in by_name.entries()] == ["a", "a", "b", "b"]
    with pytest.raises(ValueError, match="a mapping of class names to files stands alone"):
        Dataset.from_files({"worm": "a.fa"}, "b.fa")


@pytest.mark.parametrize(
    ("targets", "expected", "target_type"),
    [
        (["a", "b"], ["a", "b"], "auto"),
        ([1, 0], ["1", "0"], "auto"),
        (np.array([True, False]), ["true", "false"], "auto"),
        (np.array([1.5, 2.0], dtype=np.float32), [1.5, 2.0], "auto"),
        ([["a", "b"], []], ["a;b", ""], "labels"),
        ([("a",), {"b"}], ["a", "b"], "labels"),
    ],
    ids=str,
)
def test_what_targets_mean(targets: Any, expected: list[Any], target_type: str) -> None:
    data = Dataset.from_lists(["AC", "GT"], targets)
    assert [entry.label if entry.target is None else entry.target for entry in data.entries()] == expected
    assert data.config.target_type == target_type


def test_series_are_arrays_of_any_library() -> None:
    series = [[0.5, 1.5], np.array([[1, 2], [3, 4]]), torch.tensor([0.25])]
    sequences = [entry.sequence for entry in Dataset.from_lists(series).entries()]
    assert [sequence.tolist() for sequence in sequences] == [[0.5, 1.5], [[1, 2], [3, 4]], [0.25]]
    assert {sequence.dtype for sequence in sequences} == {np.dtype(np.float32)}


def test_records_in_memory_have_a_store_by_their_content(tmp_path: Path) -> None:
    letters = ["ACGTACGT"[i:] * 3 + "ACGT"[i % 4] * i for i in range(8)] * 3
    targets = [float(len(sequence)) for sequence in letters]
    first = Dataset.from_lists(letters, targets).stored(tmp_path)
    repeated = Dataset.from_lists(list(letters), np.array(targets)).stored(tmp_path)
    shorter = Dataset.from_lists(letters[1:], targets[1:]).stored(tmp_path)
    assert first.key == repeated.key != shorter.key and first.files == (IN_MEMORY,)
    assert len(list(tmp_path.iterdir())) == 2
    assert Files(first).question.kind == "number"
    with pytest.raises(ValueError, match=r"is gone, and its records were in the memory of a program: call fit"):
        Files(FilesConfig(first.files, key=first.key, cache=str(tmp_path / "elsewhere")))


def test_rare_classes_may_be_left_out(tmp_path: Path) -> None:
    letters = ["ACGT" * 5 + "A" * i for i in range(21)]
    data = Dataset.from_lists(letters, ["a", "b"] * 10 + ["c"], on_rare="reject", cache=tmp_path)
    assert Files(data.stored(tmp_path)).question.names == ["a", "b"]


def test_invalid_input() -> None:
    with pytest.raises(ValueError, match="3 values for label and 2 sequences: give one for each"):
        Dataset.from_lists(["AC", "GT"], ["a", "b", "c"])
    with pytest.raises(ValueError, match="list, record 2 is empty: a record needs"):
        Dataset.from_lists(["AC", ""])
    with pytest.raises(ValueError, match="'ACGT' is one value where a list of them is needed"):
        Dataset.from_lists("ACGT")
    with pytest.raises(ValueError, match="list, record 1, column 'sequence': 7 is not a sequence"):
        Dataset.from_lists([7])
    with pytest.raises(ValueError, match="list, record 2, column 'target': 'tall' is not a finite number"):
        Dataset.from_lists(["AC", "GT"], [1.0, "tall"], target_type="number")
    with pytest.raises(ValueError, match="tokeniser is not an option of a data set: give one of target_type"):
        Dataset.from_lists(["AC"], tokeniser="dna")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="the table has no column 'y': it has 'seq'"):
        Dataset.from_pandas(pd.DataFrame({"seq": ["AC"]}), target="y")
