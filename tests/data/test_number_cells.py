"""Numbers in the cells of CSV files."""

from __future__ import annotations

import numpy as np
import pytest

from chordmixer.data.columns import Columns
from chordmixer.data.number_cells import hold_series, read_numbers
from chordmixer.data.sources import source_of
from chordmixer.data.tables import read_csv


def sequences(*cells: str) -> list[object]:
    text = "series;label\n" + "".join(f'"{cell}";a\n' for cell in cells)
    return [entry.sequence for entry in read_csv(source_of(text.encode(), "t.csv"), Columns())]


@pytest.mark.parametrize("cell", ["0.5 -1e3 2", " 0.5,-1e3,2 ", "0.5; -1e3; 2", "[0.5, -1e3, 2]", "[0.5 -1e3  2]"])
def test_ways_to_write_a_series(cell: str) -> None:
    first, second = sequences(cell, "7 8")
    assert isinstance(first, np.ndarray) and first.tolist() == [0.5, -1000, 2]
    assert isinstance(second, np.ndarray) and second.dtype == np.float32


def test_channels_and_missing_numbers() -> None:
    (both,) = sequences("[[1, 2], [3, 4], [5, 6]]")
    assert isinstance(both, np.ndarray) and both.shape == (3, 2)
    np.testing.assert_array_equal(read_numbers("1,,NA nan 2"), [1, np.nan, np.nan, np.nan, 2])


@pytest.mark.parametrize("cells", [["1 2", "a text"], ["7", "8"], ["1_0 2"], ["NA NA"], ["ACGT"], ["12:30 1"]])
def test_what_stays_text(cells: list[str]) -> None:
    assert not hold_series(cells) and sequences(*cells) == cells


def test_a_column_is_judged_by_its_first_rows_and_held_to_it() -> None:
    many = ["1 2 3"] * 12_000  # more than is looked at
    with pytest.raises(
        ValueError, match=r"^t\.csv, row 12001, column 'series': 'two' is not a number, as all others of this column"
    ):
        sequences(*many, "1 two")
    assert len(sequences(*many, "")) == 12_001


@pytest.mark.parametrize(
    "cell", ["0.25 " * 20_000 + "1", "[" + "0.25, " * 20_000 + "1]", "[" + "[1, 2], " * 20_000 + "[3, 4]]"]
)
def test_a_first_cell_longer_than_what_is_looked_at(cell: str) -> None:
    (series,) = sequences(cell)
    assert isinstance(series, np.ndarray) and len(series) == 20_001
