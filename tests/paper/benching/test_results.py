from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chordmixer.paper.benching.results import Phase, Result, ours, ratio


def test_the_longest_sequence_counts_for_memory(result: Callable[..., Result]) -> None:
    own = result("cnn", 10.0)
    assert (own.time("training"), own.peak("training")) == (10.0, 100_000_000)
    more = replace(own, longest_training=Phase(99.0, 1.0, 500_000_000, 1))
    assert (more.time("training"), more.peak("training")) == (10.0, 500_000_000)
    unknown = replace(own, inference=Phase(1.0, 1.0, None, 1))
    assert unknown.peak("inference") is None


def test_what_ended_it() -> None:
    assert Result("cnn", "x").verdict == ""
    assert Result("cnn", "x", failed="crashed").verdict == "crashed"
    assert Result("cnn", "x").time("training") is None


def test_ratios(result: Callable[..., Result]) -> None:
    assert ratio(3.0, 2.0) == 1.5 and ratio(None, 2.0) is None and ratio(1.0, None) is None
    both = [result("cnn", 1.0), result("chordmixer", 2.0)]
    assert ours(both, "length 20") is both[1] and ours(both, "length 30") is None
