"""Hashes of the records that a run has seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from chordmixer import files
from chordmixer.data import seen
from chordmixer.data.alphabets import Dna, Protein
from chordmixer.data.tokenizers import Numbers


def test_case_and_strand_of_dna_do_not_matter_and_letters_do() -> None:
    texts = [b"AACGTNA", b"aacgtna", b"TNACGTT", b"AACGTNC"]
    same, lower, reverse, other = seen.hashes([Dna().encode(text) for text in texts], Dna()).tolist()
    assert same == lower == reverse != other
    forward, backward = seen.hashes([Protein().encode(text) for text in (b"MKV", b"VKM")], Protein()).tolist()
    assert forward != backward


def test_the_type_in_which_tokens_travel_does_not_matter() -> None:
    tokens = Dna().encode(b"ACGGT")
    assert len({*seen.hashes([tokens, tokens.astype(np.int64)], Dna()).tolist()}) == 1
    series = Numbers().encode(np.array([0.5, 1.5], np.float32))
    assert len({*seen.hashes([series, series.astype(np.float64), -series], Numbers()).tolist()}) == 2


def test_a_folder_gives_back_what_it_was_given(tmp_path: Path) -> None:
    assert seen.load(tmp_path) is None
    given = {"training": np.array([2**64 - 1, 3, 3], np.uint64), "validation": np.array([7], np.uint64)}
    files.write_bytes(tmp_path / seen.FILE, seen.packed(given))
    files.write_manifest(tmp_path, [seen.FILE])
    assert (tmp_path / seen.FILE).stat().st_size < 200 + 8 * 4
    known = seen.load(tmp_path)
    assert known is not None
    assert seen.where(np.array([3, 7, 8, 2**64 - 1], np.uint64), known) == [
        "training",
        "validation",
        "no",
        "training",
    ]


def test_a_changed_or_missing_file_is_refused(tmp_path: Path) -> None:
    one, two = (seen.packed({part: np.array([n], np.uint64) for part in seen.PARTS}) for n in (1, 2))
    files.write_bytes(tmp_path / seen.FILE, one)
    files.write_manifest(tmp_path, [seen.FILE])
    files.write_bytes(tmp_path / seen.FILE, two)
    with pytest.raises(ValueError, match=r"seen\.safetensors was changed or damaged"):
        seen.load(tmp_path)
    (tmp_path / seen.FILE).unlink()
    with pytest.raises(ValueError, match=r"seen\.safetensors is missing"):
        seen.load(tmp_path)
    files.write_bytes(tmp_path / seen.FILE, files.tensor_bytes({"training": torch.zeros(2)}))
    files.write_manifest(tmp_path, [seen.FILE])
    with pytest.raises(ValueError, match="is not the hashes of training and validation records"):
        seen.load(tmp_path)
