"""Both strands of DNA: the answer for a sequence and for its reverse complement is the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from chordmixer.packed import Packed


def both_strands(
    answer: Callable[[Packed], Tensor], x: Packed, complement: Int[Tensor, "vocabulary"]
) -> Float[Tensor, "B outputs"]:
    """The mean of a model's rows for the two strands of each sequence.

    Outputs are averaged, not probabilities: the mean is then again an output, which one temperature calibrates and
    which a regression has as well. Of classes it is the geometric mean of the two strands' odds.
    """
    return (answer(x).float() + answer(other_strand(x, complement)).float()) / 2


def other_strand(x: Packed, complement: Int[Tensor, "vocabulary"]) -> Packed:
    """Each sequence read backwards, every token as the one that stands opposite.

    >>> x = Packed.from_list([torch.tensor([0, 0, 1]), torch.tensor([2])])
    >>> other_strand(x, torch.tensor([3, 2, 1, 0])).to_list()
    [tensor([2, 3, 3]), tensor([1])]
    """
    turn = (x.offsets[:-1] + x.offsets[1:] - 1).repeat_interleave(x.offsets.diff(), output_size=x.tokens)
    back = turn - torch.arange(x.tokens, device=x.device)
    return x.with_values(complement[x.values.long()[back]])


class BothStrands(nn.Module):
    """A model that answers with the mean over both strands."""

    complement: Int[Tensor, "vocabulary"]

    def __init__(self, model: nn.Module, complement: ndarray) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("complement", torch.from_numpy(complement.astype("int32")), persistent=False)

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        return both_strands(self.model, x, self.complement)


def averaged(model: nn.Module, complement: ndarray | None, device: torch.device | str = "cpu") -> nn.Module:
    """The model itself, or where there is a complement, the mean over both strands."""
    return model if complement is None else BothStrands(model, complement).to(device)
