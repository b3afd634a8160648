"""What a split leaks: each record under the first kind that holds."""

from __future__ import annotations

import numpy as np
import pytest

from chordmixer.data.kmers import complement
from chordmixer.data.leakage import Leak, copies, digests, leakage
from chordmixer.data.sketches import SketchConfig, sketch_all

CONFIG = SketchConfig()


def dna(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, length).astype(np.uint8)


def near(record: np.ndarray) -> np.ndarray:
    copy = record.copy()
    copy[::100] = 3 - copy[::100]
    return copy


TRAINING = [dna(500, seed) for seed in range(20)]
HELD = [TRAINING[3], complement(TRAINING[4]), near(TRAINING[5]), TRAINING[6][100:300], dna(500, 99), TRAINING[7]]


def report(records: list[np.ndarray], parts: dict[str, range], canonical: bool = True) -> dict[str, Leak]:
    return leakage(digests(records, canonical), sketch_all(records, CONFIG), CONFIG.threshold, parts)


def test_kinds_are_told_apart() -> None:
    found = report(TRAINING + HELD, {"training": range(20), "validation": range(25, 26), "test": range(20, 25)})
    assert found["validation"] == Leak(1, exact=1, examples={"exact": [(25, 7)]})
    assert found["test"] == Leak(5, 1, 1, 2, {"exact": [(20, 3)], "reverse": [(21, 4)], "near": [(22, 5), (23, 6)]})
    assert found["test"].total == 4


def test_the_training_part_may_stand_last_or_be_mixed() -> None:
    records = TRAINING + HELD
    order = np.random.default_rng(0).permutation(len(records))
    training, test = np.flatnonzero(order < 20), np.flatnonzero(order >= 20)
    found = report([records[i] for i in order], {"training": training, "test": test})["test"]
    assert (found.exact, found.reverse, found.near) == (2, 1, 2)


def test_one_of_very_many_copies() -> None:
    """All held out but one, which most are never compared with directly."""
    records = [near(TRAINING[0]) if i % 2 else TRAINING[0][: 400 + i % 50] for i in range(400)]
    found = report(records, {"training": range(200), "test": range(200, 400)})["test"]
    assert found.total == 200


def test_copies_within_a_part_are_no_leak() -> None:
    found = report([*TRAINING, dna(300, 50), dna(300, 50)], {"training": range(20), "test": range(20, 22)})
    assert found["test"].total == 0


def test_without_sketches_only_copies_are_seen() -> None:
    parts = {"training": range(20), "test": range(20, 26)}
    found = leakage(digests(TRAINING + HELD, True), None, 0.25, parts)["test"]
    assert (found.exact, found.reverse, found.near) == (2, 1, 0)


def test_text_has_no_reverse_complement() -> None:
    parts = {"training": range(20), "test": range(20, 26)}
    found = leakage(digests(TRAINING + HELD, False), None, 0.25, parts)["test"]
    assert (found.exact, found.reverse, found.near) == (2, 0, 0)


def test_copies_are_groups() -> None:
    found = copies(digests([TRAINING[0], TRAINING[1], complement(TRAINING[0]), TRAINING[1].copy()], True))
    assert found[0] == found[2] != found[1] == found[3]


def test_series_have_copies_too() -> None:
    series = [np.ones((5, 2), np.float32), np.ones((5, 2), np.float32), np.zeros((5, 2), np.float32)]
    assert len(set(copies(digests(series, False)).tolist())) == 2


def test_no_training_records() -> None:
    found = report(TRAINING, {"training": range(0), "test": range(20)})["test"]
    assert (found.records, found.total) == (20, 0)


def test_examples_are_few_and_named() -> None:
    found = report(TRAINING + TRAINING, {"training": range(20), "test": range(20, 40)})["test"]
    lines = list(found.lines("test", "gene{}".format))
    assert lines[0].startswith("test: 20 of 20 records (100.0 %) have a copy in training: 20 exact, 0 reverse")
    assert lines[1].startswith("exact: gene20 = gene0, gene21 = gene1") and lines[1].endswith("gene24 = gene4, ...")


@pytest.mark.parametrize("kind", ["reverse", "near"])
def test_every_kind_has_a_line(kind: str) -> None:
    leak = Leak(9, **{kind: 1}, examples={kind: [(1, 2)]})  # type: ignore[arg-type]
    assert len(list(leak.lines("test"))) == 2
