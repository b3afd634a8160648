"""From the encoder's tokens to answers: one a sequence (pooled), or one a token.

A head may add tokens of its own before the encoder (`prepare`); `extra` says how many a sequence.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer import ops
from chordmixer.packed import Packed


class TokensHead(nn.Module):
    """An answer for every token: a linear map.

    >>> TokensHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8)])).values.shape
    torch.Size([5, 3])
    """

    extra = 0

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def prepare(self, x: Packed) -> Packed:
        return x

    def forward(self, x: Packed) -> Packed | Float[Tensor, "B outputs"]:
        return x.with_values(self.linear(x.values))


class AverageHead(TokensHead):
    """The paper's predictor: the mean of a sequence's tokens, then a linear map.

    >>> AverageHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        answers: Tensor = self.linear(ops.segment_mean(x.values, x.offsets))
        return answers


class LastHead(TokensHead):
    """The last token of each sequence, then a linear map."""

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        answers: Tensor = self.linear(x.values.index_select(0, x.offsets[1:] - 1))
        return answers


class ClassTokenHead(LastHead):
    """A learned token behind each sequence, read out after the encoder (CLS in the paper's ablation)."""

    extra = 1

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.token = nn.Parameter(torch.randn(width))

    def prepare(self, x: Packed) -> Packed:
        own = torch.arange(len(x), device=x.device)
        at = torch.arange(x.tokens, device=x.device) + own.repeat_interleave(x.offsets.diff(), output_size=x.tokens)
        values = x.values.new_empty(x.tokens + len(x), x.values.shape[1])
        values = values.index_copy(0, at, x.values)
        values = values.index_copy(0, x.offsets[1:] + own, self.token.to(values.dtype).expand(len(x), -1))
        return Packed.from_lengths(values, [n + 1 for n in x.lengths])


HEADS = {"average": AverageHead, "class_token": ClassTokenHead, "last": LastHead, "tokens": TokensHead}
