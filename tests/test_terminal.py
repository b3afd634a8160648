"""Nothing in a user's data reaches a terminal as a control sequence."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table
from tests.test_house import TREES, label

from chordmixer import terminal
from chordmixer.terminal import printable, show_log, tell

Command = Callable[..., tuple[int, str, str]]
PRINTS = {"terminal.py"}
"""The modules that may print."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gene7 \N{GREEK SMALL LETTER ALPHA}\tb\n", "gene7 \N{GREEK SMALL LETTER ALPHA}\tb\n"),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("a\rb\x9b31m\x7f", r"a\rb\x9b31m\x7f"),
        ("a\u202eb\u2028c\udcff", r"a\u202eb\u2028c\udcff"),
    ],
)
def test_control_characters_are_escapes(text: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(text) == expected
    tell(text, stderr=True)
    assert capsys.readouterr() == ("", expected + "\n")


def test_the_log_is_shown_and_the_logger_restored(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("chordmixer.data")
    library = logging.getLogger("chordmixer")
    before = (library.level, [*library.handlers])
    with show_log():
        logger.info("read 3 % \x1b[31m")
        with show_log(stderr=True):
            logger.info("once")
        logger.warning("few records")
        logger.debug("not shown")
    logger.warning("silent")
    assert capsys.readouterr() == ("read 3 % \\x1b[31m\nwarning: few records\n", "once\n")
    assert (library.level, library.handlers) == before


def test_a_table_keeps_its_own_colours_and_no_others() -> None:
    table, output = Table("class"), io.StringIO()
    table.add_row("worm\x1b[31m")
    terminal.console(file=output, force_terminal=True, width=40, color_system="standard").print(table, style="bold")
    assert "\x1b[1m" in output.getvalue() and r"worm\x1b" in output.getvalue()
    assert "\x1b[31m" not in output.getvalue()
    assert len({len(line) for line in output.getvalue().splitlines()[1:-1]}) <= 2, "columns are out of line"


def test_commands_quote_what_files_hold(chordmixer: Command, tmp_path: Path) -> None:
    for args in (["inspect", tmp_path / "a\x1b[31m.fa"], ["train", tmp_path / "a\x1b[31m.fa", "--out", tmp_path]):
        code, out, errors = chordmixer(*args)
        assert code == 2 and r"a\x1b[31m.fa" in errors and "\x1b" not in out + errors
    for name, letters in (("x\x1b[5m", "ACGT"), ("y", "GGTA")):
        (tmp_path / f"{name}.fa").write_text("".join(f">r{i}\n{letters * (i + 2)}\n" for i in range(4)))
    code, out, errors = chordmixer("inspect", *tmp_path.glob("*.fa"), "--labels", "files")
    assert code == 0, errors
    assert r"\x1b[5m" in out and "\x1b[5m" not in out + errors


def prints(tree: ast.Module) -> bool:
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return not calls.isdisjoint({"print", "Console", "rich.print"})


def test_only_one_module_prints() -> None:
    printing = {label(path) for path, tree in TREES.items() if prints(tree)}
    assert printing <= PRINTS, "print with terminal.tell or terminal.console"
