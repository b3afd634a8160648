"""What commands print."""

from __future__ import annotations

import pytest

from chordmixer.cli.output import first_rank, say


def test_other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    say("one")
    monkeypatch.setenv("RANK", "1")
    say("two")
    assert not first_rank() and capsys.readouterr().out == "one\n"
