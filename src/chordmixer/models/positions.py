"""Learned vectors for positions, so that the network knows where in its sequence a token stands."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from chordmixer.packed import Packed

SPREAD = 0.1
"""Standard deviation of the initial vectors; that of the tokens' is 1."""


class PositionEmbedding(nn.Module):
    """Adds two learned vectors to each token: for its position from the start, and for that from the end.

    Only the first and the last `count` tokens of a sequence have one. Rotation and pooling treat all positions alike,
    but positions matter where sequences are aligned: windows around a site, variants of one protein, peptides.

    >>> x = Packed.from_lengths(torch.zeros(5, 8), [4, 1])
    >>> PositionEmbedding(count=1, width=8)(x).values.any(dim=1).tolist()
    [True, False, False, True, True]
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2, count, width).mul_(SPREAD))

    def forward(self, x: Packed) -> Packed:
        from_start = x.places()
        from_end = x.offsets.diff().index_select(0, x.owners()) - 1 - from_start
        return x.with_values(x.values + self.vectors(from_start, from_end, x.values.dtype))

    def vectors(
        self, from_start: Int[Tensor, "T"], from_end: Int[Tensor, "T"], dtype: torch.dtype
    ) -> Float[Tensor, "T C"]:
        """The sum of both vectors for each pair of positions, which are counted from 0."""
        count = self.table.shape[1]
        padded = F.pad(self.table.to(dtype), (0, 0, 0, 1))  # the last row is that of all positions further inside
        start, end = (
            F.embedding(position.clamp(max=count), table)
            for position, table in zip((from_start, from_end), padded, strict=True)
        )
        total: Tensor = start + end
        return total
