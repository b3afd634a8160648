"""The printed report on a data set."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from chordmixer.data.entries import Account
from chordmixer.data.inspection import Channels, Duplicates, Inspection, summarise_targets
from chordmixer.views import inspection as view

GOOD = Inspection(
    tokenizer="dna",
    records=1_000,
    tokens=250_000,
    percentiles={0: 40, 1: 42, 10: 60, 25: 90, 50: 120, 75: 300, 90: 500, 99: 900, 100: 1_500},
    edges=[40, 200, 800, 1_501],
    histogram=[700, 299, 1],
    longest=[("gene7", 1_500), ("gene1", 900)],
    letters={"A": 100_000, "C": 80_000, "G": 69_900, "N": 100},
    ambiguous=0.0004,
    gc=0.6,
    duplicates=Duplicates(0, 0, 0, []),
    classes={"worm": 600, "fly": 400},
    unlabelled=0,
    length_tells=0.51,
    gc_tells=0.62,
    padding_in_batch=0.7,
    padding_to_longest=0.83,
    account=Account(1_000, 1_000),
)
TWICE = Duplicates(12, 4, 3, [["gene1", "gene9"], ["gene2", "gene3"]])


def printed(inspection: Inspection, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(view.report(inspection))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_everything_is_there_at_80_columns() -> None:
    text = printed(GOOD)
    assert all(len(line) <= 80 for line in text.splitlines())
    for phrase in (
        "1,000 records, 250,000 tokens (dna)",
        "1,000 records read: 1,000 used, 0 rejected",
        "40 to 199      700  " + "█" * 32,
        "800 to 1,500        1  ▏",
        "A  100,000  40.0%",
        "worm    600  60.0%",
        "shortest 40, 1% 42, 10% 60",
        "90% 500, 99% 900, longest 1,500",
        "gene7 (1,500), gene1 (900)",
        "ambiguous tokens    0.04%",
        "GC content          60.0%",
        "0 exact, 0 reverse complement; 0 sequences across labels",
        "length ROC-AUC 0.51, GC content ROC-AUC 0.62",
        "70% of what random batches of 32 would hold",
    ):
        assert phrase in text, phrase
    assert "Warnings" not in text


def test_what_is_absent_is_not_shown() -> None:
    bare = replace(
        GOOD,
        tokenizer="numbers",
        letters={},
        ambiguous=None,
        gc=None,
        gc_tells=None,
        length_tells=None,
        classes={},
        duplicates=Duplicates(0, None, 0, []),
    )
    text = printed(bare)
    for phrase in ("letters", "ambiguous", "GC content", "classes", "predict the label", "complement", "labels"):
        assert phrase not in text, phrase


def test_channels_of_series() -> None:
    channels = Channels([-1.0] * 14, [0.5] * 14, [0.25] * 14, [1234.5] * 14, missing=30, numbers=1000)
    text = printed(replace(GOOD, letters={"not finite": 30}, channels=channels))
    assert "letters" not in text and "2 more" in text
    assert "-1   0.5                0.25  1234" in text and "missing numbers: 30 of 1,000 (3.00%)" in text


def test_many_classes_and_long_names() -> None:
    many = {f"[bold]class {i} " + "of a long name " * 5: 50 - i for i in range(40)}
    text = printed(replace(GOOD, classes=many))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "28 more" in text and "[bold]class 0" in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_ids_that_look_like_markup(width: int) -> None:
    odd = replace(GOOD, longest=[("[/red]x" * 20, 5)], letters={" ": 3, "[": 2})
    text = printed(odd, width)
    assert "[/red]x" in text and "' '" in text
    assert all(len(line) <= width for line in text.splitlines())


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"length_tells": 0.91}, "length alone predicts the label with ROC-AUC 0.91: a model with this score"),
        ({"gc_tells": 0.7}, "GC content alone predicts the label with ROC-AUC 0.70"),
        (
            {"duplicates": TWICE},
            "12 exact duplicates and 4 reverse complements of another record (such as gene1 = gene9): copies across",
        ),
        ({"duplicates": replace(TWICE, reverse_complement=None)}, "12 exact duplicates (such as gene1"),
        ({"duplicates": replace(TWICE, exact=1)}, "1 exact duplicate and"),
        ({"duplicates": TWICE}, "3 sequences under more than one label: no model can separate these; correct"),
        ({"ambiguous": 0.2}, "20.0% of the tokens are ambiguous or unknown: check that dna is what these files hold"),
        ({"classes": {"worm": 1_000}}, "class worm is the only one: a classifier needs two or more."),
        (
            {"classes": {"worm": 990, "fly": 10}},
            "class worm has 99 times the records of fly: always predicting worm is right for 99%; use ROC-AUC",
        ),
        ({"classes": {"worm": 9_999, "fly": 1}, "records": 10_000}, "always predicting worm is right for 99%;"),
        ({"classes": {"a": 90, "b": 80, "c": 2}, "records": 100}, "always predicting a is right for 90%;"),
        (
            {"classes": {"worm": 40, "bee": 40, "fly": 4}},
            "class worm has 10 times the records of fly: the accuracy says little about small classes; see",
        ),
        (
            {"classes": {"a": 9, "b": 2, "c": 1}},
            "2 classes of fewer than 3 records (b, c): training, validation and test need one each",
        ),
        ({"classes": {"a": 9, "b": 2}}, "1 class of fewer than 3 records (b):"),
        ({"unlabelled": 5}, "5 records without a label: --on-unmatched reject leaves them out."),
    ],
    ids=lambda value: str(value)[:40],
)
def test_warnings(change: dict[str, object], expected: str) -> None:
    changed = replace(GOOD, **change)  # type: ignore[arg-type]
    warnings = [*view.warnings(changed)]
    assert any(expected in line for line in warnings), warnings
    assert "Warnings" in printed(changed)


def test_no_warnings() -> None:
    assert not [*view.warnings(GOOD)]


def test_rejected_records_are_named() -> None:
    account = Account(2, 1)
    account.rejected["empty"], account.examples["empty"] = 1, ["gene[7]"]
    assert "1 rejected, empty: gene[7]" in printed(replace(GOOD, account=account))


def test_one_length() -> None:
    single = replace(GOOD, edges=[7, 8], histogram=[3], percentiles=dict.fromkeys(GOOD.percentiles, 7))
    assert "7        3  █" in printed(single)


def test_targets_are_summed_up() -> None:
    targets = summarise_targets(np.array([0.0] * 6 + [1.5, 2.5, 4.0, np.nan]))
    numbers = replace(GOOD, classes={}, length_tells=None, gc_tells=None, targets=targets, duplicates=TWICE)
    text = " ".join(printed(numbers).split())
    for phrase in (
        "9 records, 1 without a target",
        "lowest 0.000, 25% 0.000, median 0.000, 75% 1.500, highest 4.000",
        "mean 0.889, standard deviation 1.390",
        "66.7% share their value with another record, 66.7% are 0.000",
        "0.000 to 1.000 6",
        "3 sequences across targets",
        "1 record without a target (empty or NA): training refuses these",
        "67% of the targets are 0.000: a model that always predicts it has a small error",
        "3 sequences under more than one target: no model can separate these; correct the targets",
    ):
        assert phrase in text, phrase
    assert "label" not in text
    equal = replace(numbers, targets=summarise_targets(np.array([2.0, 2.0])))
    assert "all targets are 2.000: there is nothing to learn." in " ".join(view.warnings(equal))
