"""Networks on packed sequences for `torch.export`, and through it for ONNX: tensors in, tensors out, any lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from chordmixer.packed import Packed, check_packed


class Unpacked(nn.Module):
    """Wraps a network on `Packed` as one on tensors: tokens and offsets in, tokens or outputs out.

    >>> Unpacked(nn.Identity())(torch.zeros(5, 8), torch.tensor([0, 2, 5])).shape
    torch.Size([5, 8])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, values: Tensor, offsets: Tensor) -> Tensor:
        outputs: Packed | Tensor = self.network(Packed(values, offsets))
        return outputs.values if isinstance(outputs, Packed) else outputs


def export(network: nn.Module, example: Packed) -> ExportedProgram:
    """Export a network that takes a `Packed` as a program of (values, offsets), for any number of both.

    Only types and channels of the example are used; it needs two sequences or more. The program does not check
    lengths: the output of a sequence longer than `max_length` is wrong.
    """
    check_packed(example)
    if len(example) < 2:
        raise ValueError(
            "an example of 1 sequence makes a program for one sequence: give two or more, of any lengths, for a "
            "program that takes any number"
        )
    sizes = {"values": {0: Dim.DYNAMIC}, "offsets": {0: Dim.DYNAMIC}}
    with torch.no_grad():
        return torch.export.export(Unpacked(network), (example.values, example.offsets), dynamic_shapes=sizes)
