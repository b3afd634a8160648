"""Curves beside scikit-learn's, thinned, averaged, smoothed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_curve, roc_curve

from chordmixer.views.curves import Curve, grouped, mean_curve, precision_recall, roc, smoothed

rows = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30)


@given(rows)
def test_roc_is_scikit_learns(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = (np.array(column) for column in zip(*pairs, strict=True))
    curve = roc("", scores.astype(float), positive)
    if positive.all() or not positive.any():
        assert not len(curve.x)
        return
    x, y, _ = roc_curve(positive, scores, drop_intermediate=False)
    np.testing.assert_allclose([curve.x, curve.y], [x, y])


@given(rows)
def test_precision_and_recall_are_scikit_learns(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = (np.array(column) for column in zip(*pairs, strict=True))
    curve = precision_recall("", scores.astype(float), positive)
    if not positive.any():
        assert not len(curve.x)
        return
    precision, recall, _ = precision_recall_curve(positive, scores)
    np.testing.assert_allclose(curve.x[1:], recall[:-1][::-1])
    np.testing.assert_allclose(curve.y[1:], precision[:-1][::-1])


def test_no_records_give_an_empty_curve() -> None:
    for draw in (roc, precision_recall):
        assert not draw("", np.empty(0), np.empty(0, dtype=bool)).points


def test_a_thinned_curve_keeps_its_ends_and_its_shape() -> None:
    x = np.linspace(0, 1, 10_000)
    whole = Curve("", x, x**3, 0.5)
    thin = whole.thinned(100)
    assert len(thin.x) <= 100 and thin.area == 0.5
    assert [thin.points[0], thin.points[-1]] == [whole.points[0], whole.points[-1]]
    np.testing.assert_allclose(np.interp(x, thin.x, thin.y), x**3, atol=0.01)
    assert whole.thinned(20_000) is whole


def test_the_mean_curve_leaves_empty_ones_out() -> None:
    empty = Curve("", np.empty(0), np.empty(0))
    flat = [Curve("", np.array([0.0, 1.0]), np.full(2, height), height) for height in (0.2, 0.6)]
    mean = mean_curve("mean", [*flat, empty])
    assert mean.area == pytest.approx(0.4) and set(mean.y.round(9)) == {0.4}
    assert not len(mean_curve("mean", [empty]).x)
    assert np.isnan(empty.at([0.5])).all()


def test_a_running_mean_keeps_a_line_and_the_level() -> None:
    line = np.arange(50.0)
    np.testing.assert_allclose(smoothed(line, 5)[2:-2], line[2:-2])
    np.testing.assert_allclose(smoothed(np.full(7, 3.0), 3), 3.0)
    assert len(smoothed(np.empty(0), 3)) == 0


def test_groups_are_means_of_neighbours() -> None:
    x, y = grouped(np.arange(6.0), np.arange(6.0) * 2, 3)
    assert x.tolist() == [0.5, 2.5, 4.5] and y.tolist() == [1.0, 5.0, 9.0]
    assert len(grouped(np.arange(6.0), np.arange(6.0), 10)[0]) == 6
