"""Random walks in a Chord network, as numbers and as a histogram."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

from chordmixer.models import ChordMixerConfig
from chordmixer.paper.views.reach import plot, reach


def test_the_numbers_of_the_paper() -> None:
    walked = reach(5000)
    assert (walked.length, walked.hops) == (5000, 14)
    assert f"{walked.mean:.0e} {walked.deviation:.0e}" == "2e-04 3e-05"
    assert walked.probabilities.sum() == pytest.approx(1)


@pytest.mark.parametrize(("length", "hops"), [(1, 3), (2, 2), (5, 3), (8, 4), (11, 2)])
def test_every_walk_counts_the_same(length: int, hops: int) -> None:
    """All walks one by one, with the shifts of a network's tracks."""
    steps = [0] + [2**k for k in range(ChordMixerConfig(max_length=length).tracks - 1)]
    ends = [sum(walk) % length for walk in product(steps, repeat=hops)]
    expected = np.bincount(ends, minlength=length) / len(ends)
    np.testing.assert_allclose(reach(length, hops).probabilities, expected, atol=1e-15)


@pytest.mark.parametrize("length", [1, 2, 3, 100, 1024, 1025])
def test_the_hops_of_the_paper_reach_all(length: int) -> None:
    walked = reach(length)
    assert walked.hops == np.ceil(np.log2(length) + 1)
    assert (walked.probabilities > 0).all()


def test_no_hop_stays() -> None:
    assert reach(3, hops=0).probabilities.tolist() == [1, 0, 0]


@pytest.mark.parametrize(("length", "hops"), [(5000, None), (1, None), (2, None), (100, 0)])
def test_a_plot_is_a_picture(tmp_path: Path, length: int, hops: int | None) -> None:
    """Also where all positions are alike."""
    path = plot(reach(length, hops), tmp_path / "reach.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 10_000
    assert pyplot.get_fignums() == []


def test_a_circle_needs_a_position() -> None:
    with pytest.raises(ValueError, match="length=0 is too small: a circle needs a position; give 1 or more"):
        reach(0)


def test_hops_are_counted() -> None:
    with pytest.raises(ValueError, match="hops=-1 is not a number of hops: give 0 or more"):
        reach(10, hops=-1)
