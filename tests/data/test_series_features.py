from __future__ import annotations

import numpy as np
from numpy import ndarray

from chordmixer.data.series_features import KERNELS, SeriesFeatures


def waves(records: int, period: float, rng: np.random.Generator) -> list[ndarray]:
    """Noisy sines of any phase, 60 to 400 samples long."""
    lengths = rng.integers(60, 400, records).tolist()
    return [
        (np.sin(2 * np.pi * np.arange(n) / period + rng.uniform(0, 7)) + rng.normal(size=n))[:, None] for n in lengths
    ]


def test_kernels_have_nine_taps_that_sum_to_zero() -> None:
    assert KERNELS.shape == (84, 9) and not KERNELS.sum(axis=1).any() and len({*map(bytes, KERNELS)}) == 84


def test_what_moments_cannot_tell_is_told() -> None:
    """Two periods under noise have the same mean, spread and range."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    series = waves(60, 9.0, rng) + waves(60, 23.0, rng)
    features, kind = SeriesFeatures.fit(series), np.repeat([0, 1], 60)
    rows = np.array([features(own) for own in series])
    rows = (rows - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-9)
    learned = LogisticRegression(C=0.01, max_iter=200).fit(rows[::2], kind[::2])
    assert learned.score(rows[1::2], kind[1::2]) > 0.95


def test_odd_series_have_finite_features() -> None:
    """One sample, a constant channel, many channels, huge numbers: as many features as any other, all finite."""
    rng = np.random.default_rng(0)
    for channels in (1, 12):
        usual = rng.normal(size=(50, channels))
        odd = [usual[:1], np.zeros((30, channels)), np.full((5, channels), 7.0), 1e18 * usual, 1e-18 * usual]
        features = SeriesFeatures.fit([usual, *odd])
        rows = np.array([features(own) for own in [usual, *odd]])
        assert np.isfinite(rows).all() and len(rows) == 6


def test_shares_do_not_depend_on_scale_and_amplitudes_do() -> None:
    rng = np.random.default_rng(0)
    series = rng.normal(size=(80, 1))
    features = SeriesFeatures.fit([series])
    own, large = features(series), features(100 * series)
    shares = len(features.dilations) * KERNELS.shape[0] * 3
    np.testing.assert_allclose(own[-shares:], large[-shares:], atol=0.02)
    assert np.abs(own[:5] - large[:5]).max() > 1


def test_saved_thresholds_give_the_same_features() -> None:
    rng = np.random.default_rng(0)
    features = SeriesFeatures.fit([rng.normal(size=(n, 2)) for n in (40, 200)])
    again, series = SeriesFeatures(features.dilations, features.thresholds), rng.normal(size=(90, 2))
    assert np.array_equal(features(series), again(series))
