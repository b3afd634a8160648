"""The exported form, run eagerly, equals the definition for sequences in any order."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
import torch
from torch import Tensor

from chordmixer.ops import Mlp, NormState, reference, sums, vectorised

LENGTHS = (3, 1, 40, 2, 17, 16)
KINDS = (None, "layer", "batch", "group")
WIDTH, HIDDEN = 14, 9


def offsets() -> Tensor:
    return torch.tensor([0, *accumulate(LENGTHS)])


def norm(kind: str | None) -> NormState | None:
    weight, bias, mean = torch.randn(3, WIDTH)
    return kind and NormState(kind, weight, bias, groups=2, mean=mean, variance=torch.rand(WIDTH) + 1)


@pytest.mark.parametrize("order", ["paper", "released"])
@pytest.mark.parametrize(("prenorm", "last"), [*product(KINDS, KINDS)], ids=str)
def test_blocks(order: str, prenorm: str | None, last: str | None) -> None:
    """Each sequence passes alone through as many blocks as its length requires."""
    values = torch.randn(sum(LENGTHS), WIDTH)
    shapes = ((HIDDEN, WIDTH), (HIDDEN,), (WIDTH, HIDDEN), (WIDTH,))
    mlps = [Mlp(*(torch.randn(shape) / 3 for shape in shapes)) for _ in range(6)]
    prenorms, norms = ([norm(kind) for _ in mlps] for kind in (prenorm, last))
    output = vectorised.blocks(values, offsets(), 2, mlps, order=order, prenorms=prenorms, norms=norms)
    for sequence, actual in zip(values.split(LENGTHS), output.split(LENGTHS), strict=True):
        depth, bounds = max(1, (len(sequence) - 1).bit_length()), torch.tensor([0, len(sequence)])
        for mlp, before, after in list(zip(mlps, prenorms, norms, strict=True))[:depth]:
            sequence = reference.block(sequence, bounds, 2, mlp, order=order, prenorm=before, norm=after)
        torch.testing.assert_close(actual, sequence, rtol=1e-4, atol=1e-4)


def test_pooling() -> None:
    values = torch.randn(sum(LENGTHS), WIDTH)
    torch.testing.assert_close(vectorised.segment_mean(values, offsets()), reference.segment_mean(values, offsets()))
    assert torch.equal(vectorised.segment_max(values, offsets()), sums.segment_max(values, offsets()))
