"""What commands print."""

from __future__ import annotations

import pytest

from chordmixer.cli.output import print_line
from chordmixer.terminal import first_rank


def test_other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    print_line("one")
    monkeypatch.setenv("RANK", "1")
    print_line("two")
    assert not first_rank() and capsys.readouterr().out == "one\n"
