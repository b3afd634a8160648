from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chordmixer.paper.benching.cases import BenchConfig, adding, fixed
from chordmixer.paper.benching.report import Report, load, markdown, words, write
from chordmixer.paper.benching.results import Phase, Reach, Result
from chordmixer.paper.reproduction.page import Origin

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
