"""The list, wide and narrow."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.costs import Cost
from chordmixer.paper.reproduction.listing import listing, words

COST = Cost("cpu", 50_000, 21_400_000, 10, 1_200_000_000, 16_000_000_000, 7_300.0)


def shown(width: int) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(listing(ENTRIES, {"adding-200": COST}, width))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 130, 200])
def test_every_entry_whole_at_any_width(width: int) -> None:
    text = shown(width)
    assert all(any(line.strip().startswith(name) for line in text.splitlines()) for name in ENTRIES)
    assert max(map(len, text.splitlines())) <= width and "…" not in text


def test_narrow_lines() -> None:
    text = shown(100)
    assert (
        "adding-200  Adding problem, base length 200 (section 4.1, figure 3)\n"
        "    paper: All models that were tested worked perfectly."
    ) in text
    assert "    data: made by rule" in text and "    paper: accuracy 60.12 %" in text
    assert "takes: 2.0 hours, 1.2 GB of 16.0 GB on cpu; 10 epochs of 50k records, 21M tokens" in text
    assert "takes: depends on the data (60,000 pictures of 1,024 pixels)" in text
    assert "data: made by rule, or --data FOLDER of the release" in text


def test_a_table_where_there_is_room() -> None:
    header = shown(150).splitlines()[1]
    assert [header.find(title) for title in ("name", "what", "the paper", "data", "a run here")] == sorted(
        header.find(title) for title in ("name", "what", "the paper", "data", "a run here")
    )
    assert "a run here takes about" in header


def test_memory_that_is_not_there() -> None:
    assert "20.0 GB of 16.0 GB on cpu, too much" in words(
        Cost("cpu", 10, 100, 1, 20_000_000_000, 16_000_000_000)
    ) and "; 1 epoch of 10 records" in words(Cost("cpu", 10, 100, 1, 1, 2))
