from __future__ import annotations

import numpy as np
import pytest

from chordmixer.paper.lra import snakes
from chordmixer.paper.lra.pathfinder import STYLES

KEYS = np.arange(1000, 1040)


@pytest.fixture(scope="module")
def grown() -> tuple[np.ndarray, np.ndarray]:
    """Masks and dashes of 40 pictures of 32 x 32."""
    return snakes._two_snakes(STYLES[32], 14, KEYS, np.ones(40, np.float32))


def points(dashes: np.ndarray, length: float) -> np.ndarray:
    """Five points on each dash, (dashes, 5, 2), with sines of their own."""
    y, x, angle = dashes.astype(float).T
    along = np.linspace(-length / 2, length / 2, 5)
    turn = (angle * 2 * np.pi / snakes.TURN)[:, None]
    return np.stack([y[:, None] + along * np.sin(turn), x[:, None] + along * np.cos(turn)], axis=-1)


def test_snakes_are_chains_that_keep_apart(grown: tuple[np.ndarray, np.ndarray]) -> None:
    for dashes in grown[1]:
        own = points(dashes, 2)
        assert own.min() > 0 and own.max() < 31
        distance = np.linalg.norm(own[:, None, :, None] - own[None, :, None, :], axis=-1).min(axis=(2, 3))
        for snake in (0, 1):
            chain = own[snake::2]
            heads, tails = chain[:, 4] * 1.5 - chain[:, 0] * 0.5, chain[:, 0] * 1.5 - chain[:, 4] * 0.5
            assert heads[:-1] == pytest.approx(tails[1:], abs=0.01), "a margin from dash to joint, and one from there"
        near = np.abs(np.subtract.outer(np.arange(28), np.arange(28)))
        assert distance[(near != 0) & (near != 2)].min() > 1.5, "as far as rounding to pixels lets them come"


def test_turns_are_gentle(grown: tuple[np.ndarray, np.ndarray]) -> None:
    turns = (np.diff(grown[1][:, ::2, 2], axis=1) + snakes.TURN / 2) % snakes.TURN - snakes.TURN / 2
    assert np.abs(turns).max() <= snakes.TURN / 4 and np.abs(turns).mean() < snakes.TURN / 10


def test_quantiles_of_turns_have_the_published_weights() -> None:
    turns = snakes._turns(1.8) * 2 * np.pi / snakes.TURN
    assert np.abs(turns).max() <= np.pi / 3.6 and turns.mean() == pytest.approx(0, abs=1e-3)
    grid = np.linspace(-np.pi / 3.6, np.pi / 3.6, 10_001)
    weights = np.cos(1.8 * grid) ** 2
    assert turns.var() == pytest.approx((weights * grid**2).sum() / weights.sum(), rel=0.01)


@pytest.mark.parametrize(("size", "contour"), [(32, 6), (32, 14), (64, 9), (128, 14)])
def test_pictures(size: int, contour: int) -> None:
    joined = np.arange(6) % 2 == 0
    seen = snakes.pictures(STYLES[size], contour, KEYS[:6], joined)
    assert seen.shape == (6, size, size) and seen.dtype == np.uint8
    assert seen.max() == 255 and 0.02 < (seen > 60).mean() < 0.35
    assert np.array_equal(snakes.pictures(STYLES[size], contour, KEYS[3:5], joined[3:5]), seen[3:5])
    other = snakes.pictures(STYLES[size], contour, KEYS[:6], ~joined)
    changed = (seen != other).reshape(6, -1).sum(axis=1)
    assert (changed > 0).all() and changed.max() < 4 * (2 * STYLES[size].marker + 2) ** 2, "only one disc moves"


def test_a_picture_that_must_never_change() -> None:
    seen = snakes.pictures(STYLES[32], 14, KEYS[:2], np.array([True, False])).astype(int)
    assert seen.sum(axis=(1, 2)).tolist() == [24970, 24742]
