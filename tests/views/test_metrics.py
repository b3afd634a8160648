"""How metrics are written."""

from __future__ import annotations

import math

import pytest

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.views import metrics


def test_every_metric_has_a_name_and_a_meaning() -> None:
    import numpy as np

    rows, classes = np.zeros((2, 2), dtype=np.float32), np.array([0, 1])
    names = {
        *Classification(["a", "b"], [0, 1]).metrics(rows, classes),
        *MultiLabel(["a", "b"], [1, 1], 2).metrics(rows, np.eye(2)),
        *Regression().metrics(rows[:, :1], classes),
        *Regression(0.1).metrics(rows[:, :1], classes),
    }
    assert names <= {*metrics.NAMES} and names <= {*metrics.MEANINGS}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, "0.500"),
        (0.0, "0.000"),
        (-3.2, "-3.200"),
        (123.46, "123.5"),
        (99999.6, "100,000"),
        (math.inf, "undefined"),
    ],
)
def test_numbers(value: float, expected: str) -> None:
    assert metrics.number(value) == expected


def test_an_unknown_metric_is_written_as_it_is() -> None:
    assert metrics.name("top_five") == "top five" and metrics.within("top_five") == (-math.inf, math.inf)
