"""The journal survives a kill in the middle of a line; folders with other contents are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer.tuning.journal import FILE, StudyClock, open_journal, seconds_of


def test_an_unfinished_line_is_dropped(tmp_path: Path) -> None:
    study, _ = open_journal(tmp_path)
    study.set_user_attr("one", 1)
    journal = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(journal + b'{"op_code": 2, "user_a')
    reopened, _ = open_journal(tmp_path)
    reopened.set_user_attr("two", 2)
    assert reopened.user_attrs == {"one": 1, "two": 2} == open_journal(tmp_path)[0].user_attrs
    assert (tmp_path / FILE).read_bytes().startswith(journal)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no study"):
        open_journal(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / FILE).write_text("nothing of ours\nat all\n")
    with pytest.raises(ValueError, match="cannot be read as a study"):
        open_journal(tmp_path / "study")
    with pytest.raises(ValueError, match="cannot be made a folder"):
        open_journal(tmp_path / "notes.txt")


def test_the_clock_counts_processes_once_and_pauses_never(tmp_path: Path) -> None:
    study, _ = open_journal(tmp_path)
    for begin, ends in ((100.0, (110.0, 130.0)), (120.0, (140.0,)), (1_000.0, (1_005.0,))):
        clock = StudyClock(study)
        clock.start = begin
        for end in ends:
            study.set_user_attr(clock.name, [begin, end])
    assert seconds_of(open_journal(tmp_path)[0]) == 45
