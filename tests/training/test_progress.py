"""Progress: a bar on a terminal, lines elsewhere, and a journal that survives a torn line."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from chordmixer import files
from chordmixer.training import progress
from chordmixer.training.progress import Display, Journal


class Clock:
    """A clock that stands still until it is moved."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_lines_every_ten_seconds_where_there_is_no_terminal(clock: Clock) -> None:
    console = Console(file=StringIO(), width=40)
    with Display(console) as display:
        for second in range(1, 26):
            clock.now = 1000.0 + second
            display.update(second / 100, epoch=0, step=second, loss=0.25, tokens=2000)
    lines = printed(console).strip().splitlines()
    assert lines == [
        "11%  epoch 1  step 11  loss 0.2500  2k tokens/s  1m29s left",
        " 22%  epoch 1  step 22  loss 0.2500  2k tokens/s  1m18s left",
    ]


def test_a_long_run_is_announced_once(clock: Clock) -> None:
    console = Console(file=StringIO(), width=40)
    with Display(console) as display:
        for second in range(1, 60):
            clock.now = 1000.0 + second
            display.update(second / 10_000, epoch=0, step=second, loss=0.25, tokens=2000)
    hints = [line for line in printed(console).splitlines() if line.startswith("at this pace")]
    assert len(hints) == 1 and hints[0].startswith(
        "at this pace 2h46m are left: Ctrl-C stops the run, --resume goes on"
    )


def test_a_bar_on_a_terminal(clock: Clock) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120)
    with Display(console) as display:
        clock.now += 30
        display.update(0.25, epoch=2, step=7, loss=0.5, tokens=90_000_000)
        display.say("validation [here]")
    text = printed(console)
    assert "epoch 3  step 7  loss 0.5000  3M tokens/s  1m30s left" in text
    assert "━" in text and "25 %" in text and "validation [here]\n" in text


def test_time_left_counts_from_where_this_process_began(clock: Clock) -> None:
    """Progress that a resumed run begins with does not count for its speed."""
    console = Console(file=StringIO(), width=200)
    display = Display(console)
    display.start = 0.75
    with display:
        clock.now += 20
        display.update(0.875, epoch=0, step=1, loss=0.0, tokens=1)
    assert " 0m20s left" in printed(console)


def test_other_ranks_are_quiet(clock: Clock) -> None:
    console = Console(file=StringIO(), force_terminal=True)
    with Display(console, quiet=True) as display:
        clock.now += 100
        display.update(0.5, 0, 1, 0.1, 10)
        display.say("hello")
    assert printed(console).strip() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0m00s"), (59.9, "0m59s"), (61, "1m01s"), (3599, "59m59s"), (7325, "2h02m")]
)
def test_time_is_short(seconds: float, text: str) -> None:
    assert progress._clock(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0.3, "0"), (999, "999"), (1000, "1k"), (12_345, "12.3k"), (2.5e6, "2.5M"), (3e9, "3G")]
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert progress._short(number) == text


def test_the_journal_has_a_line_for_each_event(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(10, "training", loss=0.5)
    journal.write(12, "validation", loss=0.25, accuracy=1.0)
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"step": 10, "split": "training", "loss": 0.5},
        {"step": 12, "split": "validation", "loss": 0.25, "accuracy": 1.0},
    ]


@pytest.mark.parametrize("torn", ["", '{"step": 8, "split": "tra', "\x00\x00", '{"step": 8}\n{"step": 9}\n'])
def test_the_journal_forgets_what_a_killed_process_wrote(tmp_path: Path, torn: str) -> None:
    """Lines after those that the checkpoint counts are dropped, whether complete or torn."""
    journal = Journal(tmp_path)
    for step in (5, 6, 7):
        journal.write(step, "training", loss=1.0 / step)
    content, lines = journal.path.read_text(), journal.lines
    with journal.path.open("a") as file:
        file.write(torn)
    reopened = Journal(tmp_path)
    reopened.keep(lines)
    assert journal.path.read_text() == content
    reopened.write(8, "validation", loss=0.1)
    assert [json.loads(line)["step"] for line in journal.path.read_text().splitlines()] == [5, 6, 7, 8]
    assert reopened.lines == 4


def test_a_missing_journal_needs_no_repair(tmp_path: Path) -> None:
    Journal(tmp_path).keep(3)
    assert not list(tmp_path.iterdir())


def test_a_journal_on_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write to /dev/full fails."""
    monkeypatch.setattr(files, "open_own", lambda path, flags: open("/dev/full", "wb"))  # noqa: PTH123, SIM115
    with pytest.raises(ValueError, match=r"metrics\.jsonl needs \d+ bytes and [\d,]+ are free") as error:
        Journal(tmp_path).write(10, "training", loss=0.5)
    assert "\n" not in str(error.value)


def test_pace_says_what_is_done_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    clock = iter([0.0, 4.0, 11.0, 15.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    pace = progress.Throughput()
    for _ in range(3):
        pace.done(records=2, tokens=1_100)
    assert log.messages == ["4 records, 2,200 tokens done, 200 tokens/s"]
