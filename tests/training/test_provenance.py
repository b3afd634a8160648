"""When, by which command and for how long a run was trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from chordmixer import files
from chordmixer.training import Experiment, provenance, train
from chordmixer.training.provenance import recording

CPU = torch.device("cpu")


def test_a_run_says_how_it_was_made(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/chordmixer", "train", "adding", "--out", "my run"])
    train(tiny, tmp_path / "run")
    known = files.read_json(tmp_path / "run" / "run.json")
    assert known["command"] == "chordmixer train adding --out 'my run'"
    assert known["started"].endswith(" UTC") and known["device"].startswith("CPU (") and known["seconds"] > 0
    files.verify(tmp_path / "run", ["run.json"])
    train(tiny, tmp_path / "run", resume=True)
    assert files.read_json(tmp_path / "run" / "run.json") == known  # nothing was left to do


def test_starts_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 20.0, 100.0, 105.0])
    monkeypatch.setattr(provenance.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys, "argv", ["pytest"])
    with pytest.raises(RuntimeError, match="stopped"), recording(tmp_path, CPU):
        raise RuntimeError("stopped")
    with recording(tmp_path, CPU):
        half = files.read_json(tmp_path / "run.json")
        assert (half["starts"], half["ends"]) == (2, 1)
    known = files.read_json(tmp_path / "run.json")
    assert (known["seconds"], known["starts"], known["ends"], known["command"]) == (25.0, 2, 2, "")


def test_what_is_damaged_or_deleted_stays_so(tmp_path: Path) -> None:
    files.write_json(tmp_path / "run" / "run.json", {"seconds": "long", "starts": None})
    with recording(tmp_path / "run", CPU):
        (tmp_path / "run" / "run.json").unlink()
        (tmp_path / "run").rmdir()
    assert not (tmp_path / "run").exists()
