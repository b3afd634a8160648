from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chordmixer import Packed, packed
from chordmixer.packed import Layout, gathered

lengths_of_batches = st.lists(st.integers(1, 12), min_size=1, max_size=8)


def sequences(lengths: list[int]) -> list[torch.Tensor]:
    """Numbers that are all different, so that a misplaced one shows."""
    return list(torch.arange(3.0 * sum(lengths)).view(-1, 3).split(lengths))


def assert_same(packed: Packed, expected: list[torch.Tensor]) -> None:
    assert packed.lengths == tuple(len(s) for s in expected)
    assert packed.offsets.tolist() == [0, *torch.tensor(packed.lengths).cumsum(0).tolist()]
    assert len(packed) == len(expected) and packed.tokens == sum(packed.lengths)
    for ours, theirs in zip(packed.to_list(), expected, strict=True):
        assert torch.equal(ours, theirs)


@given(lengths_of_batches)
def test_list_round_trip(lengths: list[int]) -> None:
    assert_same(Packed.from_list(sequences(lengths)), sequences(lengths))


@given(lengths_of_batches, st.integers(0, 3))
def test_padded_round_trip(lengths: list[int], spare_columns: int) -> None:
    padded = Packed.from_list(sequences(lengths)).to_padded(fill=-7.0)
    assert padded.shape == (len(lengths), max(lengths), 3)
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    assert (padded[padding] == -7.0).all() and (padded[~padding] != -7.0).all()
    wider = torch.nn.functional.pad(padded, (0, 0, 0, spare_columns), value=float("nan"))
    assert_same(Packed.from_padded(wider, torch.tensor(lengths)), sequences(lengths))


@given(lengths_of_batches)
def test_nested_round_trip(lengths: list[int]) -> None:
    packed = Packed.from_list(sequences(lengths))
    nested = packed.to_nested()
    for row, sequence in zip(nested.unbind(), sequences(lengths), strict=True):
        assert torch.equal(row, sequence)
    restored = Packed.from_nested(nested)
    assert_same(restored, sequences(lengths))
    assert restored.values.data_ptr() == packed.values.data_ptr()


@given(lengths_of_batches, st.data())
def test_select_is_indexing(lengths: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=10))
    packed = Packed.from_list(sequences(lengths))
    assert_same(packed.select(chosen), [packed.to_list()[i] for i in chosen])


@pytest.mark.parametrize("chosen", [[-1], [-2], [0, -3]])
def test_select_counts_from_the_end(chosen: list[int]) -> None:
    packed = Packed.from_list(sequences([2, 1, 3]))
    assert_same(packed.select(chosen), [packed.to_list()[i] for i in chosen])


def test_select_of_all_copies_nothing() -> None:
    packed = Packed.from_list(sequences([2, 3]))
    assert packed.select(range(2)) is packed


def test_ids_stay_ids() -> None:
    packed = Packed.from_list([torch.tensor([1, 2]), torch.tensor([3])])
    assert packed.values.dtype == torch.int64 and packed.values.shape == (3,)
    assert packed.select([1, 0]).values.tolist() == [3, 1, 2]


def test_list_is_views() -> None:
    packed = Packed.from_list(sequences([2, 3]))
    packed.to_list()[1][0] = 0.0
    assert (packed.values[2] == 0.0).all()


def test_with_values() -> None:
    packed = Packed.from_list(sequences([2, 3]))
    replaced = packed.with_values(torch.zeros(5, 9))
    assert replaced.lengths == (2, 3) and replaced.offsets is packed.offsets
    with pytest.raises(ValueError, match=r"2 lengths that add up to 5 do not fit 4 tokens"):
        packed.with_values(torch.zeros(4, 9))


def test_to_another_type() -> None:
    packed = Packed.from_list(sequences([2, 3])).to(dtype=torch.float64)
    assert packed.values.dtype == torch.float64 and packed.offsets.dtype == torch.int64
    assert_same(packed, [s.double() for s in sequences([2, 3])])


def test_to_another_device_takes_the_offsets_along() -> None:
    moved = Packed.from_list(sequences([2, 3])).to("meta")
    assert moved.device.type == moved.offsets.device.type == "meta"
    assert moved.lengths == (2, 3)


def test_pin_memory_pins_both_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    packed = Packed.from_list(sequences([2, 3]))
    copy = packed.pin_memory()
    assert pinned[0] is packed.values and pinned[1] is packed.offsets
    assert_same(copy, packed.to_list())


def test_lengths_are_read_off_the_offsets() -> None:
    assert Packed(torch.zeros(5), torch.tensor([0, 2, 5])).lengths == (2, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Packed.from_list([]), "a batch of 0 sequences cannot be packed: it needs at least one"),
        (lambda: Packed.from_lengths(torch.zeros(0), []), "a batch of 0 sequences"),
        (lambda: Packed.from_padded(torch.zeros(0, 3), []), "a batch of 0 sequences"),
        (lambda: Packed.from_list([torch.zeros(2)]).select([]), "a batch of 0 sequences"),
        (
            lambda: Packed.from_list([torch.zeros(2), torch.zeros(0)]),
            "sequence 1 of the batch has length 0: every sequence needs at least one token; leave empty records out",
        ),
        (lambda: Packed.from_lengths(torch.zeros(1), [3, -2]), "sequence 1 of the batch has length -2"),
        (lambda: Packed.from_lengths(torch.zeros(4), [2, 3]), r"2 lengths that add up to 5 do not fit 4 tokens"),
        (lambda: Packed(torch.zeros(5), torch.tensor([0, 2, 4])), "2 lengths that add up to 4 do not fit 5 tokens"),
        (
            lambda: Packed.from_padded(torch.zeros(2, 3), [3]),
            r"padded tensor of shape \(2, 3\) does not hold 1 sequences of up to 3 tokens: give one length a row",
        ),
        (lambda: Packed.from_padded(torch.zeros(2, 3), [1, 4]), r"does not hold 2 sequences of up to 4 tokens"),
    ],
    ids=[
        "empty-list",
        "empty-lengths",
        "empty-padded",
        "empty-select",
        "length-0",
        "length-negative",
        "too-few-tokens",
        "offsets-too-short",
        "rows",
        "columns",
    ],
)
def test_errors(build: Callable[[], Packed], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_only_jagged_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(ValueError, match=r"layout torch.strided cannot be packed: the layout must be torch.jagged"):
        Packed.from_nested(nested)


def test_where_a_token_stands() -> None:
    x = Packed.from_lengths(torch.zeros(6), [3, 1, 2])
    assert x.owners().tolist() == [0, 0, 0, 1, 2, 2]
    assert x.places().tolist() == [0, 1, 2, 0, 0, 1]


def layout_of(lengths: list[int], gaps: list[int], backwards: bool) -> Layout:
    """Sequences behind gaps, in their order or in reverse."""
    order = range(len(lengths))[:: -1 if backwards else 1]
    ends = [*accumulate(gaps[b] + lengths[b] for b in order)]
    starts = {b: end - lengths[b] for b, end in zip(order, ends, strict=True)}
    return Layout(lengths, [starts[b] for b in range(len(lengths))], ends[-1] + 3)


class TestLayout:
    """`put` and `take` are inverse, by an index or sequence by sequence, and each is the gradient of the other."""

    @pytest.fixture(params=[1, 1 << 14], ids=["one-by-one", "by-index"], autouse=True)
    def slice_length(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Mean length from which on sequences are copied one by one: all here, or none."""
        monkeypatch.setattr(packed, "SLICE_LENGTH", request.param)

    @given(
        lengths_of_batches,
        st.lists(st.integers(0, 4), min_size=8, max_size=8),
        st.booleans(),
        st.sampled_from([(), (2,), (2, 3)]),
    )
    def test_there_and_back(
        self, lengths: list[int], gaps: list[int], backwards: bool, channels: tuple[int, ...]
    ) -> None:
        layout = layout_of(lengths, gaps, backwards)
        values = torch.rand(sum(lengths), *channels) + 1
        row = layout.put(values)
        assert row.shape == (layout.size, *channels) and torch.equal(row[layout.index], values)
        assert int((row != 0).sum()) == values.numel(), "all others must be zero"
        assert torch.equal(layout.take(row), values)
        wider = layout.within(2, 5)
        assert torch.equal(wider.put(values)[2:-5], row) and torch.equal(wider.take(wider.put(values)), values)

    @settings(max_examples=15)
    @given(lengths_of_batches, st.lists(st.integers(0, 4), min_size=8, max_size=8), st.booleans())
    def test_gradients(self, lengths: list[int], gaps: list[int], backwards: bool) -> None:
        """Also second derivatives, which a penalty on gradients needs."""
        layout = layout_of(lengths, gaps, backwards)
        values = torch.randn(sum(lengths), 2, dtype=torch.float64, requires_grad=True)
        row = torch.randn(layout.size, 2, dtype=torch.float64, requires_grad=True)
        for function, tensor in ((layout.put, values), (layout.take, row)):
            assert torch.autograd.gradcheck(function, tensor) and torch.autograd.gradgradcheck(function, tensor)

    @settings(max_examples=15)
    @given(st.permutations(range(9)), st.integers(1, 9))
    def test_gathered(self, order: list[int], count: int) -> None:
        values = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
        index = torch.tensor(order[:count])
        assert torch.equal(gathered(values, index), values[index])
        assert torch.autograd.gradcheck(gathered, (values, index))
        assert torch.autograd.gradgradcheck(gathered, (values, index))

    def test_select_is_differentiable_in_any_order_and_with_repetitions(self) -> None:
        x = Packed.from_lengths(torch.randn(7, 2, dtype=torch.float64, requires_grad=True), [2, 4, 1])
        for indices in ([2, 0, 1], [1], [0, 2, 0]):
            weights = torch.randn(sum(x.lengths[i] for i in indices), 2, dtype=torch.float64)
            (gradient,) = torch.autograd.grad((x.select(indices).values * weights).sum(), x.values)
            literal = torch.cat([x.to_list()[i] for i in indices])
            (expected,) = torch.autograd.grad((literal * weights).sum(), x.values)
            assert torch.equal(x.select(indices).values, literal)
            torch.testing.assert_close(gradient, expected)

    def test_in_a_compiled_graph(self) -> None:
        layout = Layout([2, 3], [1, 4], size=8)
        put = torch.compile(lambda values: 2 * layout.put(values), backend="eager", fullgraph=True)
        take = torch.compile(lambda row: layout.take(row) + 1, backend="eager", fullgraph=True)
        values = torch.randn(5, 2)
        torch.testing.assert_close(put(values), 2 * layout.put(values))
        torch.testing.assert_close(take(layout.put(values)), values + 1)
