"""From encoders to a report, what is kept when it is interrupted, and what goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chordmixer.paper.benching import BenchConfig, Report, bench, fixed, subprocesses
from chordmixer.paper.benching.cases import Case
from chordmixer.paper.benching.report import load

CONFIG = BenchConfig(device="cpu", batch=2)
PHASE = {"milliseconds": 2.0, "tokens_per_second": 9.0, "peak": 5, "rounds": 7}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cases that were asked for; none of them takes a process."""
    seen: list[str] = []

    def run(case: Case, process: object) -> dict[str, Any]:
        assert process is None, "on a CPU nothing runs beside what is measured"
        seen.append(f"{case.encoder} {case.setting.name if case.setting else case.phase}")
        if case.encoder == "lstm":
            raise KeyboardInterrupt
        late = {"failed": "time limit", "stage": "x", "message": "y", "limit": case.config.time_limit}
        if case.setting is None:
            return {"length": 1024, "seconds": 1.0, "peak": 5} | late
        if case.encoder == "transformer" and case.config.time_limit < 60:
            return late
        return {"stage": "training", "parameters": 3, "inference": PHASE, "training": PHASE}

    monkeypatch.setattr(subprocesses, "run", run)
    return seen


def test_settings_first_then_the_longest(asked: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    at = [fixed(9, 2), fixed(20, 2)]
    report = bench(["chordmixer", "cnn"], at, tmp_path / "r.json", CONFIG, longest=True, say=said.append)
    assert asked[:4] == ["chordmixer length 9", "cnn length 9", "chordmixer length 20", "cnn length 20"]
    assert asked[4:6] == ["chordmixer inference", "chordmixer training"] and len(report.reaches) == 4
    assert said[0] == "1 of 8: chordmixer at length 9; at most 40 min left"
    assert said[1] == "    inference 2 ms a sequence, 0 MB; training 2 ms a sequence, 0 MB"
    assert said[2].endswith("about 1 s left") and said[-1] == "    1,024 tokens, then time limit"
    assert (tmp_path / "r.png").exists() and load(tmp_path / "r.json") == report


def test_interrupted_and_resumed(asked: list[str], tmp_path: Path) -> None:
    out, at = tmp_path / "r.json", [fixed(9, 2)]
    with pytest.raises(KeyboardInterrupt):
        bench(["cnn", "lstm", "tcn"], at, out, CONFIG, command="first", say=lambda line: None)
    assert [r.encoder for r in load(out).results] == ["cnn"] and out.with_suffix(".md").exists()
    del asked[:]
    go_on = {"resume": True, "command": "second", "say": lambda line: None}
    report = bench(["cnn", "tcn"], [*at, fixed(20, 2)], out, CONFIG, **go_on)
    assert asked == ["tcn length 9", "cnn length 20", "tcn length 20"] and len(report.results) == 4
    del asked[:]
    assert len(bench(["luna"], at, out, CONFIG, **go_on).settings) == 2
    assert asked == ["luna length 9"]
    assert load(out).command == "first\nsecond", "all that it takes to measure it again"


def test_more_time_for_those_that_were_stopped(asked: list[str], tmp_path: Path) -> None:
    def go(models: str, limit: float) -> Report:
        del asked[:]
        config = replace(CONFIG, time_limit=limit)
        return bench(models.split(), [fixed(9, 2)], out, config, longest=True, resume=True, say=lambda line: None)

    out = tmp_path / "r.json"
    assert go("cnn transformer", 20).results[1].failed == "time limit"
    for limit in (20, 10):
        assert len(go("cnn transformer", limit).results) == 2 and not asked, "no more time: not tried again"
    report = go("cnn", 100)
    assert asked == ["cnn inference", "cnn training"] and len(report.results) == 2, "what is not asked for stays"
    report = go("cnn transformer", 100)
    assert asked == ["transformer length 9", "transformer inference", "transformer training"]
    assert [(r.encoder, r.failed) for r in report.results] == [("cnn", ""), ("transformer", "")]
    assert len(report.reaches) == 4


def test_refusals(asked: list[str], tmp_path: Path) -> None:
    out, at = tmp_path / "r.json", [fixed(9, 2)]
    bench(["cnn"], at, out, CONFIG, say=lambda line: None)
    with pytest.raises(ValueError, match=r"r.json is there already: give a new --out, or add --resume to go on"):
        bench(["cnn"], at, out, CONFIG)
    with pytest.raises(ValueError, match=r"r.json was measured with batch=2, not 3: give another --out"):
        bench(["cnn"], at, out, BenchConfig(device="cpu", batch=3), resume=True)
    with pytest.raises(ValueError, match=r"r.json has other lengths at length 9: give another --out"):
        bench(["cnn"], [fixed(9, 3)], out, CONFIG, resume=True)
    with pytest.raises(ValueError, match="encoder 'cmn' is not known: choose one of chordmixer"):
        bench(["cmn"], at, tmp_path / "new.json", CONFIG)
    with pytest.raises(
        ValueError, match=r"--out .*/new.txt is not a .json file: give one; .md and .png are put beside"
    ):
        bench(["cnn"], at, tmp_path / "new.txt", CONFIG)
    assert asked == ["cnn length 9"]
