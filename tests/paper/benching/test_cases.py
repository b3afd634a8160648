from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer import ops
from chordmixer.config import from_dict, to_dict
from chordmixer.paper.adding import AddingConfig, AddingRecords
from chordmixer.paper.benching.cases import (
    BenchConfig,
    Case,
    Phase,
    Result,
    adding,
    chordmixer_result,
    fixed,
    ratio,
    settings,
)


@given(st.integers(1, 40))
def test_short_and_long_in_every_batch(batch: int) -> None:
    setting = adding(200, batch)
    assert {len(own) for own in setting.batches} == {batch} and setting.longest == 6_700
    assert not setting.has_longest
    if 3 <= batch <= 10:
        assert all(min(own) < 300 < max(own) for own in setting.batches)


def test_lengths_are_those_of_the_adding_problem() -> None:
    setting = adding(128_000, 5)
    drawn = AddingRecords(AddingConfig(128_000, training=5_000), "training").lengths
    lengths = [n for batch in setting.batches for n in batch]
    assert statistics.mean(lengths) == pytest.approx(statistics.mean(drawn), rel=0.05)
    assert (setting.longest, setting.base_length) == (1_500_000, 128_000)


def test_a_fixed_length() -> None:
    (setting,) = settings([], [1_000], batch=3)
    assert (setting.name, setting.batches, setting.has_longest) == ("length 1,000", ((1_000,) * 3,), True)
    with pytest.raises(ValueError, match="length 0 is too small: give 1 or more"):
        fixed(0, 1)


def test_a_case_travels_as_json() -> None:
    case = Case("cnn", "a:B", BenchConfig(), adding(20, 5))
    assert from_dict(Case, to_dict(case), "case") == case


def test_choices_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here = BenchConfig().here()
    assert (here.device, here.precision) == ("cpu", "fp32")
    assert BenchConfig(precision="bf16").here().precision == "bf16"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    here = BenchConfig().here()
    assert (here.device, here.precision) == ("cuda", "bf16")
    monkeypatch.setattr(ops, "on_kernels", lambda values: False)
    with pytest.raises(ValueError, match="backend='triton' but its kernels do not run on this cpu: use"):
        BenchConfig(device="cpu", backend="triton").here()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"batch": 0}, "batch=0 is too small: give 1 or more"),
        ({"time_limit": 0.0}, "time_limit=0 is not above zero: give seconds"),
        ({"memory_limit": -1.0}, "memory_limit=-1 is below zero: give gigabytes, or 0 for all free"),
    ],
)
def test_refusals(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BenchConfig(**setting)  # type: ignore[arg-type]


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
    assert chordmixer_result(both, "length 20") is both[1] and chordmixer_result(both, "length 30") is None
