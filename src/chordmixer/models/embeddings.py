"""Embeddings of tokens: a learned vector per id or a linear map of real numbers, and a mark on the first token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chordmixer.models.shards import Sequences, mean
from chordmixer.packed import Packed

MIN_SPREAD = 1e-9
"""Standard deviation within a record below which its numbers count as constant."""


class TokenEmbedding(nn.Module):
    """A learned vector for each id from 0 to `size - 1`; in training, a share `drop` of the tokens become zeros.

    >>> TokenEmbedding(size=5, width=8)(Packed.from_list([torch.tensor([0, 4, 2])])).values.shape
    torch.Size([3, 8])
    """

    def __init__(self, size: int, width: int, drop: float = 0.0) -> None:
        super().__init__()
        self.drop = drop
        self.table = nn.Embedding(size, width)  # normal(0, 1), as in the authors' code

    def forward(self, x: Packed) -> Packed:
        ids, size = x.values, self.table.num_embeddings
        if ids.ndim != 1 or ids.is_floating_point():
            raise ValueError(
                f"values of type {ids.dtype} and shape {tuple(ids.shape)} are not token ids: give whole numbers "
                "of shape (T,), or build the model with embedding='real'"
            )
        if _on_host(ids) and len(ids):
            low, high = (int(v) for v in ids.aminmax())
            if low < 0 or high >= size:
                bad = low if low < 0 else high
                where = _sequence_of(x, ids == bad)
                raise ValueError(
                    f"token id {bad} in sequence {where} is outside this model's vocabulary of {size}: ids run "
                    f"from 0 to {size - 1}; encode with the model's own tokenizer"
                )
        ids, table = ids if ids.dtype == torch.int32 else ids.long(), self.table.weight
        if self.training and self.drop:
            ids = ids.masked_fill(torch.rand(ids.shape, device=ids.device) < self.drop, size)
            table = F.pad(table, (0, 0, 0, 1))  # one more id, for dropped tokens
        return x.with_values(F.embedding(ids, table))


class RealEmbedding(nn.Module):
    """A linear map of real numbers, `size` channels per token.

    >>> RealEmbedding(size=2, width=8)(Packed.from_list([torch.randn(3, 2)])).values.shape
    torch.Size([3, 8])
    """

    def __init__(self, size: int, width: int, drop: float = 0.0) -> None:
        assert not drop, "a config checks this"
        super().__init__()
        self.linear = nn.Linear(size, width)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Packed) -> Packed:
        values, size = x.values, self.linear.in_features
        if values.shape[1:] != (size,) or not values.is_floating_point():
            raise ValueError(
                f"values of type {values.dtype} and shape {tuple(values.shape)} do not fit this model: it takes "
                f"{size} real channels a token; give a float tensor of shape (T, {size})"
            )
        if _on_host(values) and not bool(torch.isfinite(values.sum())):  # quick; large numbers overflow it too
            bad = ~torch.isfinite(values).all(dim=1)
            if bool(bad.any()):
                raise ValueError(
                    f"sequence {_sequence_of(x, bad)} holds a NaN or infinite number: every input must be finite; "
                    "clean or leave out that record"
                )
        return x.with_values(self.linear(values))


def add_standardised(x: Sequences) -> Sequences:
    """Each channel twice: as it is, and standardised within its sequence, which keeps both scale and shape.

    A channel that is constant in a sequence, and all channels of a sequence of one token, are zero there.

    >>> add_standardised(Packed.from_list([torch.tensor([[1.0], [3.0]]), torch.tensor([[7.0]])])).values.tolist()
    [[1.0, -1.0], [3.0, 1.0], [7.0, 0.0]]
    """

    def spread(rows: Tensor) -> Tensor:
        return rows.repeat_interleave(x.offsets.diff(), 0, output_size=x.tokens)

    values = x.values.double()  # so that the mean of a constant is exact
    centred = values - spread(mean(x.with_values(values)))
    variance = mean(x.with_values(centred.square()))
    scale = spread(torch.where(variance > MIN_SPREAD**2, variance, torch.inf).sqrt())  # root 0 has no gradient
    return x.with_values(torch.cat([x.values, (centred / scale).to(x.values.dtype)], dim=1))


class StartMark(nn.Module):
    """Adds one learned vector to the first token of each sequence, whatever the tokens are.

    >>> x = Packed.from_lengths(torch.zeros(3, 8), [2, 1])
    >>> StartMark(8)(x).values.any(dim=1).tolist()
    [True, False, True]
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(width))  # as large as a token's vector

    def forward(self, x: Packed) -> Packed:
        marks = self.vector.to(x.values.dtype).expand(len(x.offsets) - 1, -1)
        return x.with_values(x.values.index_add(0, x.offsets[:-1], marks))


def _on_host(values: Tensor) -> bool:
    """Whether values can be checked without waiting for a device; loaders check theirs on the host."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def _sequence_of(x: Packed, bad: Tensor) -> int:
    first = int(bad.nonzero()[0, 0])
    return int(torch.searchsorted(x.offsets, first, right=True)) - 1


EMBEDDINGS = {"tokens": TokenEmbedding, "real": RealEmbedding}
