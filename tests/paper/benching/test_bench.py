"""From encoders to a report, what is kept when it is interrupted, and what goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chordmixer.paper.benching import Report, bench, load, markdown, measuring, words, write
from chordmixer.paper.benching.cases import BenchConfig, Case, Phase, Reach, Result, adding, fixed
from chordmixer.paper.reproduction.page import Origin

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

    monkeypatch.setattr(measuring, "in_subprocess", run)
    return seen


def test_settings_first_then_the_longest(asked: list[str], tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    at = [fixed(9, 2), fixed(20, 2)]
    report = bench(["chordmixer", "cnn"], at, tmp_path / "r.json", CONFIG, longest=True)
    said = log.messages
    assert asked[:4] == ["chordmixer length 9", "cnn length 9", "chordmixer length 20", "cnn length 20"]
    assert asked[4:6] == ["chordmixer inference", "chordmixer training"] and len(report.reaches) == 4
    assert said[0] == "1 of 8: chordmixer at length 9; at most 40 min left"
    assert said[1] == "    inference 2 ms a sequence, 0 MB; training 2 ms a sequence, 0 MB"
    assert said[2].endswith("about 1 s left") and said[-1] == "    1,024 tokens, then time limit"
    assert (tmp_path / "r.png").exists() and load(tmp_path / "r.json") == report


def test_interrupted_and_resumed(asked: list[str], tmp_path: Path) -> None:
    out, at = tmp_path / "r.json", [fixed(9, 2)]
    with pytest.raises(KeyboardInterrupt):
        bench(["cnn", "lstm", "tcn"], at, out, CONFIG, command="first")
    assert [r.encoder for r in load(out).results] == ["cnn"] and out.with_suffix(".md").exists()
    del asked[:]
    go_on = {"resume": True, "command": "second"}
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
        return bench(models.split(), [fixed(9, 2)], out, config, longest=True, resume=True)

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
    bench(["cnn"], at, out, CONFIG)
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


AT = fixed(20, batch=2)


@pytest.fixture
def report(result: Callable[..., Result]) -> Report:
    place = Origin("2026-11-16", "abc1234", "NVIDIA H200", "2.11.0")
    stopped = Result("lstm", AT.name, failed="time limit", stage="training", message="stopped after 9 s")
    results = (result("chordmixer", 10.0), result("cnn", 4.0, receptive_field=9), result("luna", 20.0), stopped)
    reaches = (Reach("cnn", "training", 2048, 0.5, 10**9, "out of memory"),)
    return Report(place, "chordmixer bench", BenchConfig(device="cuda"), 1, (AT,), results, reaches)


def test_there_and_back(report: Report, tmp_path: Path) -> None:
    write(report, tmp_path / "r.json")
    assert load(tmp_path / "r.json") == report and not (tmp_path / "r.png").exists()
    known = json.loads((tmp_path / "r.json").read_text())
    assert (known["device"], known["commit"], known["paper"]["table"]["200"]["cnn"]) == (
        *("NVIDIA H200", "abc1234"),
        [1.4, 3.3],
    )
    write(report, tmp_path / "r.json", draw=True)
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "![Time and memory](r.png)" in (tmp_path / "r.md").read_text()


def test_the_page(report: Report) -> None:
    page = markdown(report)
    assert "Made on 2026-11-16 on NVIDIA H200 with torch 2.11.0, commit abc1234; auto, batches of 5" in page
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    assert rows == ["| model", "| cnn", "| chordmixer", "| luna", "| lstm", "| model", "| cnn"]  # the fastest first
    assert "by CUDA events" in page and "V100" not in page
    assert "V100" in markdown(replace(report, settings=(adding(200, 5),)))


def test_who_is_faster_is_said(report: Report) -> None:
    said = words(report.at(AT), AT)
    assert said == [
        "In training these are faster than ChordMixer: cnn (0.40 of its time, a token sees 9).",
        "In inference these are faster than ChordMixer: cnn (0.40 of its time, a token sees 9).",
        "Of the 2 that train on 20 tokens and see whole sequences, chordmixer is the fastest in training; luna, the "
        "next, takes 2.00 times as long.",
        "Did not get through: lstm (time limit in training: stopped after 9 s).",
    ]


def test_a_rival_that_sees_all_and_is_faster(result: Callable[..., Result]) -> None:
    said = words([result("luna", 5.0), result("chordmixer", 10.0)], AT)
    assert "luna is the fastest in training; chordmixer, the next, takes 2.00 times as long." in said[-1]
    said = words([result("luna", 15.0), result("chordmixer", 10.0)], AT)
    assert said[0] == "In training no other encoder is faster than ChordMixer."


def test_times_of_a_busy_machine(result: Callable[..., Result]) -> None:
    shaky = result("cnn", 30.0, inference=Phase(1.0, 1.0, 1, 7, spread=0.8))
    said = words([shaky, result("chordmixer", 10.0)], AT)
    assert said[-1].startswith(
        "Doubtful, since the middle half of the rounds spreads over more than 25% of the median"
    )
    assert said[-1].endswith(": cnn.")


def test_without_ours(result: Callable[..., Result]) -> None:
    assert words([result("cnn", 1.0)], AT) == ["ChordMixer was not measured here, so nothing is compared with it."]


def test_not_ours_to_go_on_with(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"format": 1}')
    with pytest.raises(
        ValueError, match=r"r.json is not a benchmark of this version of chordmixer: give another --out"
    ):
        load(tmp_path / "r.json")
