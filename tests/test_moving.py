"""Layouts: there and back, by an index or sequence by sequence, and each the gradient of the other."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chordmixer import Packed, moving
from chordmixer.moving import Layout, gathered


@pytest.fixture(params=[1, 1 << 14], ids=["apart", "by-index"], autouse=True)
def long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Mean length from which on sequences move one by one: all here, or none."""
    monkeypatch.setattr(moving, "LONG", request.param)
    return int(request.param)


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def layout_of(lengths: list[int], gaps: list[int], backwards: bool) -> Layout:
    """Sequences behind gaps, in their order or the other way round."""
    order = range(len(lengths))[:: -1 if backwards else 1]
    ends = [*accumulate(gaps[b] + lengths[b] for b in order)]
    starts = {b: end - lengths[b] for b, end in zip(order, ends, strict=True)}
    return Layout(lengths, [starts[b] for b in range(len(lengths))], ends[-1] + 3)


@given(
    LENGTHS, st.lists(st.integers(0, 4), min_size=6, max_size=6), st.booleans(), st.sampled_from([(), (2,), (2, 3)])
)
def test_there_and_back(lengths: list[int], gaps: list[int], backwards: bool, channels: tuple[int, ...]) -> None:
    layout = layout_of(lengths, gaps, backwards)
    values = torch.rand(sum(lengths), *channels) + 1
    row = layout.put(values)
    assert row.shape == (layout.size, *channels) and torch.equal(row[layout.place], values)
    assert int((row != 0).sum()) == values.numel(), "and zeros elsewhere"
    assert torch.equal(layout.take(row), values)
    wider = layout.within(2, 5)
    assert torch.equal(wider.put(values)[2:-5], row) and torch.equal(wider.take(wider.put(values)), values)


@settings(max_examples=15)
@given(LENGTHS, st.lists(st.integers(0, 4), min_size=6, max_size=6), st.booleans())
def test_gradients(lengths: list[int], gaps: list[int], backwards: bool) -> None:
    """Also those of gradients, which a penalty on them needs."""
    layout = layout_of(lengths, gaps, backwards)
    values = torch.randn(sum(lengths), 2, dtype=torch.float64, requires_grad=True)
    row = torch.randn(layout.size, 2, dtype=torch.float64, requires_grad=True)
    for move, given_ in ((layout.put, values), (layout.take, row)):
        assert torch.autograd.gradcheck(move, given_) and torch.autograd.gradgradcheck(move, given_)


@settings(max_examples=15)
@given(st.permutations(range(9)), st.integers(1, 9))
def test_gathered(order: list[int], count: int) -> None:
    values = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    place = torch.tensor(order[:count])
    assert torch.equal(gathered(values, place), values[place])
    assert torch.autograd.gradcheck(gathered, (values, place))
    assert torch.autograd.gradgradcheck(gathered, (values, place))


def test_select_is_differentiable_in_any_order_and_with_repetitions() -> None:
    x = Packed.from_lengths(torch.randn(7, 2, dtype=torch.float64, requires_grad=True), [2, 4, 1])
    for indices in ([2, 0, 1], [1], [0, 2, 0]):
        weights = torch.randn(sum(x.lengths[i] for i in indices), 2, dtype=torch.float64)
        (found,) = torch.autograd.grad((x.select(indices).values * weights).sum(), x.values)
        literal = torch.cat([x.to_list()[i] for i in indices])
        (expected,) = torch.autograd.grad((literal * weights).sum(), x.values)
        assert torch.equal(x.select(indices).values, literal)
        torch.testing.assert_close(found, expected)


def test_in_a_compiled_graph() -> None:
    layout = Layout([2, 3], [1, 4], size=8)
    there = torch.compile(lambda values: 2 * layout.put(values), backend="eager", fullgraph=True)
    back = torch.compile(lambda row: layout.take(row) + 1, backend="eager", fullgraph=True)
    values = torch.randn(5, 2)
    torch.testing.assert_close(there(values), 2 * layout.put(values))
    torch.testing.assert_close(back(layout.put(values)), values + 1)
