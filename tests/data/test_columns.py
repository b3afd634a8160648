from __future__ import annotations

import math
from datetime import date
from typing import Any

import numpy as np
import pytest

from chordmixer.config import from_dict
from chordmixer.data.columns import (
    USUAL_NAMES,
    Columns,
    find_columns,
    format_number,
    hold_series,
    parse_row,
    read_numbers,
    real_number,
    row_entry,
    whole_number,
)
from chordmixer.data.sources import source_of
from chordmixer.data.tables import read_table


@pytest.mark.parametrize("text", ["2_0", " 20", "2.0", "", "0x20", "\N{ARABIC-INDIC DIGIT TWO}", "9" * 19, "²"])
def test_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize("text", ["1_0", "nan", "inf", "1e999", "", "1,5", "\N{ARABIC-INDIC DIGIT TWO}", "\xa01"])
def test_no_number(text: str) -> None:
    assert math.isnan(real_number(text))


def test_numbers() -> None:
    assert [whole_number(text) for text in ("20", "-3", "+07")] == [20, -3, 7]
    assert [real_number(text) for text in ("20", "-.5", "1.", " 1e-3", "+2E5")] == [20, -0.5, 1, 0.001, 2e5]
    assert [format_number(number) for number in (1e9 + 7, 0.1, -3, 1e22)] == ["1000000007", "0.1", "-3", "1e+22"]


def test_usual_names_in_any_case() -> None:
    for role, aliases in USUAL_NAMES.items():
        for spelling in (spell(name) for name in aliases for spell in (str, str.upper, str.title, " {} ".format)):
            names = [spelling, "seq" if role != "sequence" else "other"]
            assert find_columns(Columns(), names, "t.csv")[role] == spelling


def test_names_that_are_given() -> None:
    names = ["gene", "Bases", "Phylum", "text"]
    assert find_columns(Columns(id="gene", sequence="bases", label="Phylum"), names, "t.csv") == {
        "id": "gene",
        "sequence": "Bases",
        "label": "Phylum",
    }


def test_an_exact_name_comes_before_one_in_another_case() -> None:
    assert find_columns(Columns(label="Kind"), ["seq", "kind", "Kind"], "t.csv")["label"] == "Kind"


def test_a_column_that_was_given_has_no_second_role_by_its_name() -> None:
    assert find_columns(Columns(label="target"), ["seq", "target"], "t.csv") == {"sequence": "seq", "label": "target"}
    assert find_columns(Columns(label="group", group="group"), ["seq", "group"], "t.csv")["group"] == "group"


def test_a_role_can_be_left_out() -> None:
    assert find_columns(Columns(label="-", weight="-"), ["seq", "class", "weight"], "t.csv") == {"sequence": "seq"}
    assert find_columns(Columns(sequence="-"), ["id", "seq", "class"], "t.csv") == {"id": "id", "label": "class"}


def test_settings_survive_a_run_folder() -> None:
    assert from_dict(Columns, {"label": "-", "id": "gene"}, "columns") == Columns(label="-", id="gene")


def test_the_id_column_is_preferred_to_other_names() -> None:
    assert find_columns(Columns(), ["name", "ID", "accession", "seq"], "t.csv")["id"] == "ID"


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        (
            Columns(),
            ["name", "label"],
            r"t.csv has no column for the sequence: it has 'name', 'label'; choose with --co",
        ),
        (
            Columns(),
            [],
            r"t.csv has no column for the sequence: it has no columns; .* or give --format if this is no su",
        ),
        (
            Columns(),
            ["seq", "text"],
            r"has 2 columns that may be the sequence, 'seq', 'text': .* --column sequence=NAME",
        ),
        (
            Columns(),
            ["seq", "label", "Class"],
            r"may be the label, 'label', 'Class': choose one with --column label=NA",
        ),
        (Columns(), ["seq", "name", "accession"], r"2 columns that may be the id, 'name', 'accession'"),
        (
            Columns(label="x"),
            ["seq", "label"],
            r"t.csv has no column 'x': it has 'seq', 'label'; .* --column label=NAME",
        ),
        (Columns(label="x"), ["seq", "X", " x"], r"t.csv has 2 columns that may be the label, 'X', ' x'"),
        (
            Columns(),
            ["seq", "a", "a"],
            r"t.csv has 'a' as the name of several columns: names must differ; rename one",
        ),
        (Columns(sequence="-"), ["seq"], r"t.csv has no column for the id"),
        (Columns(), [str(i) for i in range(99)], r"'18', '19' and 79 more; choose"),
        (Columns(), ["x" * 1000], r"'x{40}'; choose"),
    ],
    ids=str,
)
def test_names_that_cannot_be_found(columns: Columns, names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_columns(columns, names, "t.csv")


def test_a_partial_row_may_lack_all_but_the_sequence() -> None:
    assert find_columns(Columns(label="x"), ["seq"], "row", partial=True) == {"sequence": "seq"}
    with pytest.raises(ValueError, match="row has no column 'x'"):
        find_columns(Columns(sequence="x"), ["seq"], "row", partial=True)


def parse_value(role: str, value: Any) -> Any:
    return parse_row({"c": value}, {role: "c"}, "t.csv, row 7")[role]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("pos", "pos"),
        (" pos ", "pos"),
        ("", None),
        (None, None),
        (math.nan, None),
        (3, "3"),
        (0, "0"),
        (1.5, "1.5"),
        (True, "true"),
        (False, "false"),
        (b"pos", "pos"),
        (date(2024, 2, 29), "2024-02-29"),
        (["a", "b c"], "a;b c"),
        ([1, 2], "1;2"),
        (np.array([1, 2]), "1;2"),
        ([], ""),
    ],
    ids=str,
)
def test_labels_are_words(value: Any, label: str | None) -> None:
    assert parse_value("label", value) == label


@pytest.mark.parametrize("value", [-1.5, "-1.5", " -1.5 ", "-15e-1"], ids=repr)
def test_targets_are_numbers(value: Any) -> None:
    assert parse_value("target", value) == -1.5


def test_a_target_may_be_missing() -> None:
    assert parse_value("target", "") is None and parse_value("target", None) is None


@pytest.mark.parametrize("word", ["train", "Training", " TRAIN "])
def test_splits_have_one_name(word: str) -> None:
    assert parse_value("split", word) == "training"
    assert [parse_value("split", w) for w in ("val", "valid", "validation", "dev")] == ["validation"] * 4
    assert parse_value("split", "test") == "test"


def test_sequences() -> None:
    assert parse_value("sequence", " AC\nGT ") == " AC\nGT "
    assert parse_value("sequence", b"AC\xff") == b"AC\xff"
    assert parse_value("sequence", None) == ""
    assert parse_value("sequence", [1, 2.5]).tolist() == [1, 2.5]
    assert parse_value("sequence", [[1, 2], [3, 4]]).shape == (2, 2)
    assert parse_value("sequence", []).shape == (0,)


@pytest.mark.parametrize("value", [None, "", "NA", " n/a ", "NaN", "null", "None", math.nan])
def test_targets_that_are_not_there(value: Any) -> None:
    assert parse_value("target", value) is None


def test_weights() -> None:
    assert parse_value("weight", "0.25") == 0.25 and parse_value("weight", 3) == 3.0


@pytest.mark.parametrize(
    ("role", "value", "message"),
    [
        ("split", "holdout", r"t.csv, row 7, column 'c': 'holdout' is not a split: write train, validation or test"),
        ("split", None, "None is not a split"),
        ("target", "high", "'high' is not a finite number: give one"),
        ("target", "NA7", "'NA7' is not a finite number: give one, or leave the cell empty where there is none"),
        ("target", math.inf, "inf is not a finite number"),
        ("target", "1e999", "'1e999' is not a finite number"),
        ("target", 10**400, r"10+\.\.\. is not a finite number"),
        ("target", True, "True is not a finite number"),
        ("target", "1_000", "'1_000' is not a finite number"),
        ("target", [1], r"\[1\] is not a finite number"),
        ("weight", 0, "0 is not a number above 0: give one"),
        ("weight", "-1", "'-1' is not a number above 0"),
        ("weight", None, "None is not a number above 0"),
        ("weight", "", "'' is not a number above 0"),
        ("label", {"a": 1}, r"\{'a': 1\} is not a single value"),
        ("label", [["a"]], r"\['a'\] is not a single value"),
        ("label", ["a;b"], "label 'a;b' in a list: labels must not be empty or hold a semicolon"),
        ("label", ["a", None], "label '' in a list"),
        ("label", "a\nb", r"'a\\nb' holds a line break, tab or control character: a name has none; rename it"),
        ("id", "a\tb", "holds a line break, tab"),
        ("group", "a\x7f", "holds a line break, tab or control"),
        ("label", b"\xff", "byte 0 is not UTF-8"),
        ("label", "a\ud800", r"half a character \(a surrogate\) at position 1"),
        ("sequence", "a\0b", "a NUL character at position 1: text must have none; remove it"),
        ("sequence", "ab\udcff", "half a character"),
        ("sequence", 7, "7 is not a sequence: give text or a list of numbers"),
        ("sequence", [1, "x"], "is not a type of real number"),
        ("sequence", [[1, 2], [3]], "lists of unequal lengths"),
    ],
    ids=repr,
)
def test_values_that_are_refused(role: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        parse_value(role, value)
    assert "\n" not in str(error.value) and str(error.value).startswith("t.csv, row 7, column 'c': ")


def test_a_row_without_an_id_is_named_by_its_place() -> None:
    assert row_entry("data/t.csv", 7, {"sequence": "A"}).id == "t.csv:7"
    assert row_entry("data/t.csv", 7, {"sequence": "A", "id": None}).id == "t.csv:7"
    entry = row_entry("data/t.csv", 7, {"sequence": "A", "id": "g", "weight": 2.0})
    assert (entry.id, entry.weight, entry.place) == ("g", 2.0, "data/t.csv, row 7")


def test_a_wide_table_takes_time_in_proportion() -> None:
    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [Name(f"gene {number}") for number in range(1000)]
    assert find_columns(Columns(), [*names, "seq", "label"], "t.csv") == {"sequence": "seq", "label": "label"}
    assert Name.compared < 20 * len(names)


def sequences(*cells: str) -> list[object]:
    text = "series;label\n" + "".join(f'"{cell}";a\n' for cell in cells)
    return [entry.sequence for entry in read_table(source_of(text.encode(), "t.csv"), Columns(), "csv")]


@pytest.mark.parametrize("cell", ["0.5 -1e3 2", " 0.5,-1e3,2 ", "0.5; -1e3; 2", "[0.5, -1e3, 2]", "[0.5 -1e3  2]"])
def test_ways_to_write_a_series(cell: str) -> None:
    first, second = sequences(cell, "7 8")
    assert isinstance(first, np.ndarray) and first.tolist() == [0.5, -1000, 2]
    assert isinstance(second, np.ndarray) and second.dtype == np.float32


def test_channels_and_missing_numbers() -> None:
    (series,) = sequences("[[1, 2], [3, 4], [5, 6]]")
    assert isinstance(series, np.ndarray) and series.shape == (3, 2)
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
