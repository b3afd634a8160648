from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from chordmixer import files
from chordmixer.data import leakage
from chordmixer.data.alphabets import Dna, Protein
from chordmixer.data.features import complement
from chordmixer.data.leakage import Leak, copies, digests, find_leaks
from chordmixer.data.sketches import SketchConfig, sketch_all
from chordmixer.data.tokenizers import Numbers

CONFIG = SketchConfig()


def dna(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, length).astype(np.uint8)


def near(record: np.ndarray) -> np.ndarray:
    copy = record.copy()
    copy[::100] = 3 - copy[::100]
    return copy


TRAINING = [dna(500, seed) for seed in range(20)]
HELD_OUT = [TRAINING[3], complement(TRAINING[4]), near(TRAINING[5]), TRAINING[6][100:300], dna(500, 99), TRAINING[7]]


def report(records: list[np.ndarray], parts: dict[str, range], canonical: bool = True) -> dict[str, Leak]:
    return find_leaks(digests(records, canonical), sketch_all(records, CONFIG), CONFIG.threshold, parts)


def test_kinds_are_told_apart() -> None:
    leaks = report(TRAINING + HELD_OUT, {"training": range(20), "validation": range(25, 26), "test": range(20, 25)})
    assert leaks["validation"] == Leak(1, exact=1, examples={"exact": [(25, 7)]})
    assert leaks["test"] == Leak(5, 1, 1, 2, {"exact": [(20, 3)], "reverse": [(21, 4)], "near": [(22, 5), (23, 6)]})
    assert leaks["test"].total == 4


def test_the_training_part_may_stand_last_or_be_mixed() -> None:
    records = TRAINING + HELD_OUT
    order = np.random.default_rng(0).permutation(len(records))
    training, test = np.flatnonzero(order < 20), np.flatnonzero(order >= 20)
    leak = report([records[i] for i in order], {"training": training, "test": test})["test"]
    assert (leak.exact, leak.reverse, leak.near) == (2, 1, 2)


def test_one_of_very_many_copies() -> None:
    """Four hundred near-copies of one record, most of which are never compared directly."""
    records = [near(TRAINING[0]) if i % 2 else TRAINING[0][: 400 + i % 50] for i in range(400)]
    leak = report(records, {"training": range(200), "test": range(200, 400)})["test"]
    assert leak.total == 200


def test_copies_within_a_part_are_no_leak() -> None:
    leaks = report([*TRAINING, dna(300, 50), dna(300, 50)], {"training": range(20), "test": range(20, 22)})
    assert leaks["test"].total == 0


def test_without_sketches_only_copies_are_seen() -> None:
    parts = {"training": range(20), "test": range(20, 26)}
    leak = find_leaks(digests(TRAINING + HELD_OUT, True), None, 0.25, parts)["test"]
    assert (leak.exact, leak.reverse, leak.near) == (2, 1, 0)


def test_text_has_no_reverse_complement() -> None:
    parts = {"training": range(20), "test": range(20, 26)}
    leak = find_leaks(digests(TRAINING + HELD_OUT, False), None, 0.25, parts)["test"]
    assert (leak.exact, leak.reverse, leak.near) == (2, 0, 0)


def test_copies_are_groups() -> None:
    groups = copies(digests([TRAINING[0], TRAINING[1], complement(TRAINING[0]), TRAINING[1].copy()], True))
    assert groups[0] == groups[2] != groups[1] == groups[3]


def test_series_have_copies_too() -> None:
    series = [np.ones((5, 2), np.float32), np.ones((5, 2), np.float32), np.zeros((5, 2), np.float32)]
    assert len(set(copies(digests(series, False)).tolist())) == 2


def test_no_training_records() -> None:
    leak = report(TRAINING, {"training": range(0), "test": range(20)})["test"]
    assert (leak.records, leak.total) == (20, 0)


def test_examples_are_few_and_named() -> None:
    leak = report(TRAINING + TRAINING, {"training": range(20), "test": range(20, 40)})["test"]
    lines = list(leak.lines("test", "gene{}".format))
    assert lines[0].startswith("test: 20 of 20 records (100.0 %) have a copy in training: 20 exact, 0 near")
    assert lines[1].startswith("exact: gene20 = gene0, gene21 = gene1") and lines[1].endswith("gene24 = gene4, ...")


@pytest.mark.parametrize("kind", ["reverse", "near"])
def test_every_kind_has_a_line(kind: str) -> None:
    leak = Leak(9, **{kind: 1}, examples={kind: [(1, 2)]})  # type: ignore[arg-type]
    assert len(list(leak.lines("test"))) == 2


def test_case_and_strand_of_dna_do_not_matter_and_letters_do() -> None:
    texts = [b"AACGTNA", b"aacgtna", b"TNACGTT", b"AACGTNC"]
    same, lower, reverse, different = leakage.seen_hashes([Dna().encode(text) for text in texts], Dna()).tolist()
    assert same == lower == reverse != different
    forward, backward = leakage.seen_hashes([Protein().encode(text) for text in (b"MKV", b"VKM")], Protein()).tolist()
    assert forward != backward


def test_the_type_in_which_tokens_travel_does_not_matter() -> None:
    tokens = Dna().encode(b"ACGGT")
    assert len({*leakage.seen_hashes([tokens, tokens.astype(np.int64)], Dna()).tolist()}) == 1
    series = Numbers().encode(np.array([0.5, 1.5], np.float32))
    assert len({*leakage.seen_hashes([series, series.astype(np.float64), -series], Numbers()).tolist()}) == 2


def test_hashes_are_saved_and_loaded(tmp_path: Path) -> None:
    assert leakage.load_seen(tmp_path) is None
    hashes = {"training": np.array([2**64 - 1, 3, 3], np.uint64), "validation": np.array([7], np.uint64)}
    files.write_bytes(tmp_path / leakage.SEEN_FILE, leakage.pack_seen(hashes))
    files.write_manifest(tmp_path, [leakage.SEEN_FILE])
    assert (tmp_path / leakage.SEEN_FILE).stat().st_size < 200 + 8 * 4
    loaded = leakage.load_seen(tmp_path)
    assert loaded is not None
    assert leakage.find_seen(np.array([3, 7, 8, 2**64 - 1], np.uint64), loaded) == [
        "training",
        "validation",
        "no",
        "training",
    ]


def test_a_changed_or_missing_file_is_refused(tmp_path: Path) -> None:
    old, new = (leakage.pack_seen({part: np.array([n], np.uint64) for part in leakage.SEEN_PARTS}) for n in (1, 2))
    files.write_bytes(tmp_path / leakage.SEEN_FILE, old)
    files.write_manifest(tmp_path, [leakage.SEEN_FILE])
    files.write_bytes(tmp_path / leakage.SEEN_FILE, new)
    with pytest.raises(ValueError, match=r"seen\.safetensors was changed or damaged"):
        leakage.load_seen(tmp_path)
    (tmp_path / leakage.SEEN_FILE).unlink()
    with pytest.raises(ValueError, match=r"seen\.safetensors is missing"):
        leakage.load_seen(tmp_path)
    files.write_bytes(tmp_path / leakage.SEEN_FILE, files.tensor_bytes({"training": torch.zeros(2)}))
    files.write_manifest(tmp_path, [leakage.SEEN_FILE])
    with pytest.raises(ValueError, match="has no hashes of training and validation"):
        leakage.load_seen(tmp_path)
