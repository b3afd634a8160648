from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from chordmixer import ops
from chordmixer.ops.rotation import Rotation, tiles


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)])


@pytest.mark.parametrize("reverse", [False, True])
def test_gradcheck(reverse: bool) -> None:
    values = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
    arguments = (values, offsets_of([1, 3, 5]), 2, reverse)
    assert torch.autograd.gradcheck(ops.rotate, arguments)
    assert torch.autograd.gradgradcheck(ops.rotate, arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_opcheck(dtype: torch.dtype) -> None:
    values = torch.randn(9, 8, dtype=dtype, requires_grad=True)
    torch.library.opcheck(torch.ops.chordmixer.rotate, (values, offsets_of([1, 3, 5]), 2, False))


@pytest.mark.parametrize("lengths", [[5, 3], [5000]], ids=["index", "slices"])
def test_any_memory_layout(lengths: list[int]) -> None:
    values = torch.randn(8, sum(lengths)).T
    expected = ops.rotate(values.contiguous(), offsets_of(lengths), 2)
    assert torch.equal(ops.rotate(values, offsets_of(lengths), 2), expected)


def test_compiles_without_a_break() -> None:
    values, offsets = torch.randn(9, 8, requires_grad=True), offsets_of([1, 3, 5])
    compiled = torch.compile(ops.rotate, backend="eager", fullgraph=True)
    rotated = compiled(values, offsets, 2)
    assert torch.equal(rotated, ops.rotate(values, offsets, 2))
    rotated.sum().backward()
    assert torch.equal(values.grad, torch.ones_like(values))


def test_where_tracks_come_from() -> None:
    rotation = Rotation(torch.empty(5, 3), offsets_of([2, 3]), tracks=3)
    assert rotation.sequences(1, 4).tolist() == [0, 1, 1]
    assert rotation.sources(0, 5).tolist() == [[0, 1, 0], [1, 0, 1], [2, 3, 4], [3, 4, 2], [4, 2, 3]]
    assert rotation.rows(3, 5).tolist() == [9, 13, 8, 12, 7, 11]


def test_tiles_cover_every_token_once() -> None:
    assert list(tiles(torch.empty(9000, 1))) == [(0, 4096), (4096, 8192), (8192, 9000)]
