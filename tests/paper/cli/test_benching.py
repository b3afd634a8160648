"""`bench`, from names to a page, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.forked import Forked

from chordmixer.config import to_dict
from chordmixer.models.encoders import ENCODERS
from chordmixer.paper import benching
from chordmixer.paper.benching import subprocesses
from chordmixer.paper.benching.cases import Case

Command = Callable[..., tuple[int, str, str]]


QUICK = """
import io, sys
from chordmixer.paper.benching import measuring, worker
measuring.ROUNDS, measuring.LEAST = 2, 0.0
sys.stdin = io.StringIO(sys.argv[1])
worker.main()
"""


def in_a_fork(case: Case, _: object) -> dict[str, Any]:
    """What `subprocesses.run` gives, from a process that need not import torch; its own tests have one that does."""
    child = Forked([sys.executable, "-c", QUICK, json.dumps(to_dict(case))])
    said, errors = child.communicate(timeout=120)
    assert (child.returncode, errors) == (0, "")
    return {key: value for key, value in subprocesses._merged(said.encode()).items() if key != "done"}


def test_from_names_to_a_page(chordmixer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One encoder gets through, one runs out of memory in training: both are results."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benching")
    monkeypatch.setitem(ENCODERS, "greedy", "troubled_encoders:Greedy")
    monkeypatch.setattr(subprocesses, "run", in_a_fork)
    out = tmp_path / "r.json"
    words = ["bench", "--models", "chordmixer, greedy", "--lengths", "30", "--batch", 2, "--device", "cpu"]
    code, said, errors = chordmixer(*words, "--out", out)
    assert (code, errors) == (0, "")
    assert "2 of 2: greedy at length 30; about " in said and f"page: {tmp_path / 'r.md'}" in said
    assert "Did not get through: greedy (out of memory in training: " in said
    known = json.loads(out.read_text())
    assert known["command"].startswith("chordmixer bench --models 'chordmixer, greedy' --lengths 30")
    through, greedy = known["results"]
    assert (through["failed"], greedy["failed"]) == ("", "out of memory") and through["difference"] < 1e-4
    assert through["training"]["milliseconds"] > 0 and through["inference"]["tokens_per_second"] > 0
    assert greedy["inference"]["milliseconds"] > 0 and greedy["training"] is None
    assert "can't allocate memory" in greedy["message"]
    assert (tmp_path / "r.png").stat().st_size > 10_000
    code, said, errors = chordmixer(*words, "--out", out, "--resume")
    assert (code, errors) == (0, "") and " of 2" not in said and "greedy" in said


def test_what_is_asked_for(chordmixer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stopped(models: list[str], at: list[benching.Setting], *_: object, **others: object) -> None:
        asked.append((len(models), [setting.name for setting in at], others["longest"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(benching, "bench", stopped)
    out = ["--out", tmp_path / "r.json"]
    for words in ([], ["--base-length", "1k"], ["--longest"], ["--longest", "--lengths", "50"]):
        code, said, _ = chordmixer("bench", *words, *out)
        assert code == 130 and "the same command with --resume goes on" in said
    assert [names for _, names, _ in asked] == [
        ["base length 200", "base length 128,000"],
        ["base length 1,000"],
        [],
        ["length 50"],
    ]
    assert [longest for *_, longest in asked] == [False, False, True, True] and asked[0][0] > 15


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "cord"], "encoder 'cord' is not known: choose one of chordmixer"),
        (
            ["--lengths", "1k", "--base-length", "200"],
            "--base-length draws lengths and --lengths fixes them: give one",
        ),
        (["--lengths", "1k,many"], "--lengths 'many' is not a number: write it as 200 or 128k"),
        (["--base-length", "inf"], "--base-length 'inf' is not a number: write it as 200 or 128k"),
        (["--batch", "0"], "batch=0 is too small: give 1 or more"),
        (["--device", "tpu"], "--device tpu is not a choice: give one of auto, cpu, cuda"),
        (["--out", "r.txt"], "--out r.txt is not a .json file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_are_one_line(chordmixer: Command, tmp_path: Path, words: list[str], message: str) -> None:
    code, _, errors = chordmixer("bench", "--out", tmp_path / "r.json", *words)
    assert (code, errors.count("\n")) == (2, 1) and message in errors
    assert not [*tmp_path.iterdir()]
