"""Both strands of DNA: predictions that are equal for a sequence and its reverse complement."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from chordmixer.packed import Packed


def both_strands(
    forward: Callable[[Packed], Tensor], x: Packed, complement: Int[Tensor, "vocabulary"]
) -> Float[Tensor, "B outputs"]:
    """The mean of a model's outputs for the two strands of each sequence.

    Outputs are averaged instead of probabilities, so that the mean can be calibrated by a temperature and also exists
    for regression. For classes it corresponds to the geometric mean of the odds of the two strands.
    """
    return (forward(x).float() + forward(other_strand(x, complement)).float()) / 2


def other_strand(x: Packed, complement: Int[Tensor, "vocabulary"]) -> Packed:
    """The reverse complement of each sequence.

    >>> x = Packed.from_list([torch.tensor([0, 0, 1]), torch.tensor([2])])
    >>> other_strand(x, torch.tensor([3, 2, 1, 0])).to_list()
    [tensor([2, 3, 3]), tensor([1])]
    """
    mirrored = (x.offsets[:-1] + x.offsets[1:] - 1).repeat_interleave(x.offsets.diff(), output_size=x.tokens)
    indices = mirrored - torch.arange(x.tokens, device=x.device)
    return x.with_values(complement[x.values.long()[indices]])


class BothStrands(nn.Module):
    """A model whose outputs are the mean over both strands."""

    complement: Int[Tensor, "vocabulary"]

    def __init__(self, model: nn.Module, complement: ndarray) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("complement", torch.from_numpy(complement.astype("int32")), persistent=False)

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        return both_strands(self.model, x, self.complement)


def averaged(model: nn.Module, complement: ndarray | None, device: torch.device | str = "cpu") -> nn.Module:
    """The model itself, or if there is a complement, the model with outputs averaged over both strands."""
    return model if complement is None else BothStrands(model, complement).to(device)
