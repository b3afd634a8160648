from __future__ import annotations

import numpy as np
import pytest

from chordmixer.training.baselines.counting import Grams
from chordmixer.training.baselines.features import LARGEST, Frequencies, SeriesRows


def test_training_rows_have_mean_zero_and_spread_one() -> None:
    chance = np.random.default_rng(0)
    dna = [chance.integers(0, 5, n).astype(np.uint8) for n in chance.integers(10, 90, 50)]
    series = [chance.normal(size=(n, 2)).astype(np.float32) for n in (1, 40, 90, 200)]
    for rows in (Frequencies.fit(dna, (Grams(1, 4), Grams(2, 4)), length=True)(dna), SeriesRows.fit(series)[1]):
        assert np.abs(rows.mean(axis=0)).max() < 1e-3
        assert np.isin(rows.std(axis=0).round(2), [0, 1]).all()


def test_a_row_depends_on_its_record_alone() -> None:
    chance = np.random.default_rng(0)
    series = [chance.normal(size=(n, 3)).astype(np.float32) for n in (1, 40, 90, 200)]
    features, rows = SeriesRows.fit(series)
    assert (features(series) == rows).all() and (rows[2] == features([series[2]])[0]).all() and len(features([])) == 0


def test_constant_channels_and_records_unlike_all_others() -> None:
    series = [np.full((n, 1), 7, np.float32) for n in (1, 5, 300)]
    features, _ = SeriesRows.fit(series)
    rows = features([*series, np.full((9, 1), 1e30, np.float32), np.array([[-1e9], [1e9]], np.float32)])
    assert np.isfinite(rows).all() and np.abs(rows).max() <= LARGEST


def test_another_number_of_channels() -> None:
    features, _ = SeriesRows.fit([np.ones((4, 2), np.float32)])
    with pytest.raises(ValueError, match="a series has 3 channels: the baseline learned from 2; give as many"):
        features([np.ones((4, 3), np.float32)])
