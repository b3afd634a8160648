"""The numbers to predict, summed up."""

from __future__ import annotations

import numpy as np
import pytest

from chordmixer.data.target_summary import BINS, summarise_targets


def test_a_summary() -> None:
    numbers = np.random.default_rng(0).normal(5, 2, 1_000).round(2)
    numbers[:7] = np.nan
    numbers[7:107] = 0
    known = numbers[7:]
    found = summarise_targets(numbers)
    assert found is not None and (found.records, found.missing) == (993, 7)
    assert found.quartiles == pytest.approx(np.percentile(known, [0, 25, 50, 75, 100]))
    assert (found.mean, found.deviation) == pytest.approx((known.mean(), known.std()))
    assert (found.commonest, found.commonest_share) == (0, pytest.approx(100 / 993))
    values, counts = np.unique(known, return_counts=True)
    assert found.repeated == pytest.approx(sum(np.isin(known, values[counts > 1])) / 993)
    assert len(found.histogram) == BINS and sum(found.histogram) == 993
    assert found.histogram == tuple(np.histogram(known, BINS)[0].tolist())


@pytest.mark.parametrize(
    ("numbers", "histogram"),
    [
        ([3.0, 3.0], (2,)),
        ([0.0, 1.0, 1.0, 5.0], (3, 0, 1)),
        ([1.0, np.nextafter(1.0, 2)], (1, 1)),
        ([-1.7e308, 1.7e308, 1.7e308], (1, 2)),
        ([0.0], (1,)),
    ],
    ids=["one-value", "few-values", "neighbours", "huge", "zero"],
)
def test_numbers_of_any_size(numbers: list[float], histogram: tuple[int, ...]) -> None:
    found = summarise_targets(np.array(numbers))
    assert found is not None
    assert sum(found.histogram) == len(numbers) and len(found.edges) == len(found.histogram) + 1
    assert found.histogram == histogram or numbers[0] == 1.0  # between neighbours there is no edge
    assert np.isfinite([*found.quartiles, found.mean, found.deviation, *found.edges]).all()


def test_no_number_has_no_summary() -> None:
    assert summarise_targets(np.array([np.nan])) is None
