from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.trained_runs import CLASSES, SEVERAL, make_run

from chordmixer import files
from chordmixer.data.alphabets import Kmers, Protein
from chordmixer.data.entries import Account, Entry
from chordmixer.data.tokenizers import Bytes
from chordmixer.training import inference
from chordmixer.training.answers import Answers
from chordmixer.training.inference import Trained


def entries(lengths: list[int]) -> list[Entry]:
    return [Entry(f"r{i}", b"A" * n, f"x.fa, record {i + 1}") for i, n in enumerate(lengths)]


def sizes(trained: Trained, lengths: list[int]) -> list[list[int]]:
    windows = trained.windows(entries(lengths), Account(), None, print)
    return [[len(item.tokens) for item in window] for window in windows]


def test_windows_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(make_run(tmp_path), batch_tokens=10)
    assert sizes(trained, [20, 20, 1, 39, 1, 100, 3]) == [[20, 20], [1, 39], [1], [100], [3]]
    monkeypatch.setattr(inference, "MOST_RECORDS", 2)
    assert sizes(trained, [1, 1, 1]) == [[1, 1], [1]]


def test_windows_are_gathered_as_they_are_used(tmp_path: Path) -> None:
    taken = []
    stream = (taken.append(entry.id) or entry for entry in entries([40] * 9))  # type: ignore[func-returns-value]
    windows = Trained(make_run(tmp_path), batch_tokens=10).windows(stream, Account(), None, print)
    next(windows)
    assert len(taken) == 2


def test_batches_have_like_lengths_under_a_budget(tmp_path: Path) -> None:
    trained = Trained(make_run(tmp_path), batch_tokens=10)
    (window,) = trained.windows(entries([1, 9, 2, 12, 8]), Account(), None, print)
    found = [packed.lengths for _, packed in trained.batches(window, trained.pieces(window, "error"))]
    assert found == [(12,), (9,), (8, 2), (1,)]


def test_a_device_that_is_too_small_is_one_line(tmp_path: Path) -> None:
    trained = Trained(make_run(tmp_path), batch_tokens=10)
    (window,) = trained.windows(entries([3, 5]), Account(), None, print)

    def fail(packed: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory\nand much more")

    with pytest.raises(ValueError, match=r"8 tokens at once do not fit into the memory of cpu, .* r1 of 5: lower"):
        trained.averages(window, trained.pieces(window, "error"), fail, 3)


def test_other_failures_stay_what_they_are(tmp_path: Path) -> None:
    trained = Trained(make_run(tmp_path))
    (window,) = trained.windows(entries([3]), Account(), None, print)

    def fail(packed: Any) -> torch.Tensor:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        trained.averages(window, trained.pieces(window, "error"), fail, 3)


# --- Run folders ---


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing is not a folder: give the --out folder of a training run"):
        Trained(tmp_path / "nothing")


def test_a_changed_file(tmp_path: Path) -> None:
    make_run(tmp_path)
    Answers(CLASSES, "dna", 9.0).save(tmp_path)
    with pytest.raises(ValueError, match=r"labels\.json was changed or damaged"):
        Trained(tmp_path)


@pytest.mark.parametrize("part", ["tokenizer", "labels", "name"])
def test_parts_of_different_runs(tmp_path: Path, part: str) -> None:
    make_run(tmp_path)
    (tmp_path / "manifest.json").unlink()
    if part == "tokenizer":
        files.write_json(tmp_path / "tokenizer.json", Bytes().to_json())
    else:
        Answers(SEVERAL if part == "labels" else CLASSES, "dna" if part == "labels" else "bytes").save(tmp_path)
    with pytest.raises(ValueError, match="do not fit each other: use the files of one run"):
        Trained(tmp_path, unverified=True)


@pytest.mark.parametrize("tokenizer", [Protein(), Kmers(k=2, stride=2)])
def test_one_strand_is_not_two(tmp_path: Path, tokenizer: Any) -> None:
    make_run(tmp_path, tokenizer=tokenizer, both_strands=True)
    with pytest.raises(ValueError, match=r"asks for both strands, and .* has one"):
        Trained(tmp_path)


def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device cuda, but torch sees no GPU"):
        Trained(make_run(tmp_path), device="cuda")
    assert Trained(tmp_path, device="auto").device.type == "cpu"
