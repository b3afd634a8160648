from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.paper.lra import ChosenRecords, Part, ReleaseLayout, chosen, class_of, load, part_of, read_once

LABELS = ("no", "yes")


def parts(part: str) -> Iterator[Part]:
    """Forty training records of 2 to 41 bytes, the first and the last of a class alike, or six for the test."""
    for label in (0, 1):
        texts = [bytes([label, *range(n)]) for n in range(1, 21 if part == "training" else 4)]
        texts[-1] = texts[0]
        lengths = np.array([len(text) for text in texts])
        yield np.frombuffer(b"".join(texts), np.uint8), lengths, np.full(len(texts), label)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "source").write_text("as it is")
    layout = ReleaseLayout(tmp_path / "source", [tmp_path / "source"], parts)
    return read_once(layout, str(tmp_path / "cache"), "set", LABELS, "get it again")


def test_what_was_read_is_read_once(folders: dict[str, Path], tmp_path: Path) -> None:
    def never(part: str) -> Iterator[Part]:
        raise AssertionError(f"{part} is read again")

    source, cache = tmp_path / "source", str(tmp_path / "cache")
    assert read_once(ReleaseLayout(source, [source], never), cache, "set", LABELS, "") == folders
    source.write_text("something else")
    with pytest.raises(AssertionError, match="training is read again"):
        read_once(ReleaseLayout(source, [source], never), cache, "set", LABELS, "")


@given(st.integers(2, 30), st.integers(0, 5))
def test_validation_is_of_the_training_part(validation: int, seed: int) -> None:
    folders = made()
    training, held = (
        chosen(folders, s, validation, seed, real=False, longest=99) for s in ("training", "validation")
    )
    assert sorted([*training.indices, *held.indices]) == list(range(40))
    assert abs(len(held) - validation) <= 2
    assert abs(np.diff(np.bincount(held.targets, minlength=2)).item()) <= 2
    trained = {bytes(record.values) for record in map(training.__getitem__, range(len(training)))}
    assert all(bytes(held[i].values) not in trained for i in range(len(held)))


def test_a_seed_is_a_split() -> None:
    def held(seed: int) -> list[int]:
        return chosen(made(), "validation", 10, seed, real=False, longest=99).indices.tolist()

    assert held(0) == held(0) != held(1)


def test_records_are_cut_counted_and_named(folders: dict[str, Path]) -> None:
    records = chosen(folders, "test", 4, 0, real=False, longest=2)
    whole = chosen(folders, "test", 4, 0, real=False, longest=99)
    assert (whole.lengths, whole.cut) == ([2, 3, 2] * 2, 0) and (records.lengths, records.cut) == ([2] * 6, 2)
    assert records.targets.tolist() == whole.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert bytes(records[4].values) == b"\1\0" and bytes(whole[4].values) == b"\1\0\1"
    held = chosen(folders, "validation", 4, 0, real=False, longest=2)
    where = int(held.indices[3])
    assert held.name(3) == f"training-{where}" and held.targets[3] == (where >= 20)
    inputs, targets = held.batch([3, 1], torch.device("cpu"))
    assert torch.equal(inputs.to_list()[0], held[3].values) and targets[1] == held.targets[1]
    sent: ChosenRecords = pickle.loads(pickle.dumps(held))
    assert torch.equal(sent[2].values, held[2].values) and sent.name(2) == held.name(2)


def test_real_values(folders: dict[str, Path]) -> None:
    values = chosen(folders, "test", 4, 0, real=True, longest=99)[4].values
    assert values.shape == (3, 1) and torch.equal(values, torch.tensor([[1.0], [0.0], [1.0]]) / 255)


def test_too_many_for_validation(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="validation=40 of 40 training records leaves none to train on: give fewer"):
        chosen(folders, "training", 40, 0, real=False, longest=99)


@pytest.mark.parametrize(
    ("kept", "match"), [(1, "20 of no and|of yes and 20 of no"), (0, "0 training records of no")]
)
def test_what_is_not_whole_is_refused(tmp_path: Path, kept: int, match: str) -> None:
    def half(part: str) -> Iterator[Part]:
        return iter(list(parts(part))[:kept])

    cache = tmp_path / "cache"
    with pytest.raises(ValueError, match=f"set has .*({match}).* not whole; get it again"):
        read_once(ReleaseLayout(Path("set"), [], half), str(cache), "set", LABELS, "get it again")
    assert not [*cache.iterdir()]


def test_words_of_tables(tmp_path: Path) -> None:
    assert [class_of(word, LABELS, "") for word in ("no", " yes ", 1, "0")] == [0, 1, 1, 0]
    for word in ("maybe", 2, None, "-1", ""):
        with pytest.raises(ValueError, match=f"row 3: class '{word}' is none of no, yes, nor the number of one"):
            class_of(word, LABELS, "row 3")
    assert [part_of(word, "") for word in ("Train", "test", "training")] == ["training", "test", "training"]
    for word in ("validation", "unsupervised", None):
        with pytest.raises(ValueError, match=f"row 3: split '{word}' is not train or test"):
            part_of(word, "row 3")
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\): mend that"):
        load(tmp_path)


def made() -> dict[str, Path]:
    """In the tests' own cache folder, since hypothesis takes no folder of one test."""
    return read_once(ReleaseLayout(Path("set"), [], parts), None, "official", LABELS, "")
