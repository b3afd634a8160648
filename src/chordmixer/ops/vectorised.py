"""Plain tensor operations whose number does not depend on the lengths, for `torch.export` and ONNX.

Every block runs on every token, and a mask keeps sequences unchanged that have passed their last block. This code is
not optimised and has no dropout: it is the network in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from chordmixer.ops import reference
from chordmixer.ops.reference import Mlp, NormState, mix


def owners(offsets: Int[Tensor, "B+1"], tokens: int) -> Int[Tensor, "T"]:
    """The index of each token's sequence.

    >>> owners(torch.tensor([0, 1, 3]), tokens=3)
    tensor([0, 1, 1])
    """
    starts = torch.zeros(tokens + 1, dtype=torch.int64, device=offsets.device).scatter(0, offsets, 1)
    return starts.cumsum(0)[:-1] - 1


def segment_mean(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """`reference.segment_mean`."""
    values = values if values.dtype == torch.float64 else values.float()
    owner = owners(offsets, values.shape[0])
    total = values.new_zeros(offsets.shape[0], values.shape[1]).index_add(0, owner, values)
    return total[:-1] / offsets.diff()[:, None]


def segment_max(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """The maximum of each channel over a sequence's tokens."""
    owner = owners(offsets, values.shape[0])[:, None].expand(-1, values.shape[1])
    lowest = values.new_full((offsets.shape[0], values.shape[1]), -torch.inf)
    return lowest.scatter_reduce(0, owner, values, "amax")[:-1]


class TokenIndex(NamedTuple):
    """Each token's sequence, its length, and the sources of its tracks."""

    owner: Int[Tensor, "T"]
    """Index of the sequence."""
    length: Int[Tensor, "T"]
    """Length of the sequence."""
    rows: Int[Tensor, "T*M"]
    """The source of each track in Rotate, as a row of the (T * M, S) view."""


def token_index(offsets: Int[Tensor, "B+1"], tokens: int, tracks: int) -> TokenIndex:
    """
    >>> token_index(torch.tensor([0, 1, 3]), tokens=3, tracks=2).rows.view(3, 2)
    tensor([[0, 1],
            [2, 5],
            [4, 3]])
    """
    owner = owners(offsets, tokens)
    start, place = offsets[owner], torch.arange(tokens, device=offsets.device)
    length = offsets[owner + 1] - start
    shifts = torch.tensor([0] + [1 << t for t in range(tracks - 1)], device=offsets.device)
    source = start[:, None] + ((place - start)[:, None] + shifts) % length[:, None]
    rows = source * tracks + torch.arange(tracks, device=offsets.device)
    return TokenIndex(owner, length, rows.flatten())


def blocks(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    track_size: int,
    mlps: Sequence[Mlp],
    *,
    order: str = "paper",
    prenorms: Sequence[NormState | None],
    norms: Sequence[NormState | None],
    reversible: bool = False,
) -> Float[Tensor, "T C"]:
    """All blocks of a network on sequences in any order, each through as many blocks as its length requires.

    `reversible`: each block reads one of two streams and adds to the other, as in `models/reversible.py`.
    """
    index = token_index(offsets, values.shape[0], values.shape[1] // track_size)
    streams = [values, values] if reversible else [values]
    for i, (mlp, prenorm, norm) in enumerate(zip(mlps, prenorms, norms, strict=True)):
        target, source = streams[i % len(streams)], streams[(i + 1) % len(streams)]
        z = _normalise(source, index, offsets.shape[0], prenorm)
        branch = (
            mix(_rotate(z, index, track_size), mlp) if order == "paper" else _rotate(mix(z, mlp), index, track_size)
        )
        mixed = _normalise(target + branch, index, offsets.shape[0], norm)
        passes = index.length > (1 << i if i else 0)
        streams[i % len(streams)] = torch.where(passes[:, None], mixed, target)
    return (streams[0] + streams[1]) / 2 if reversible else streams[0]


def _rotate(values: Float[Tensor, "T C"], index: TokenIndex, track_size: int) -> Float[Tensor, "T C"]:
    return values.reshape(-1, track_size).index_select(0, index.rows).reshape(values.shape)


def _normalise(
    values: Float[Tensor, "T C"], index: TokenIndex, rows: int, norm: NormState | None
) -> Float[Tensor, "T C"]:
    if norm is None or norm.kind != "group":
        return reference.normalise(values, index.owner, norm)  # these norms do not depend on the sequences
    owner = index.owner[:, None].expand(-1, norm.groups)

    def mean(of_tokens: Float[Tensor, "T G"]) -> Float[Tensor, "T G 1"]:
        total = of_tokens.new_zeros(rows, norm.groups).scatter_add(0, owner, of_tokens)
        return (total[index.owner] / index.length[:, None])[:, :, None]

    grouped = values.unflatten(1, (norm.groups, -1))
    centred = grouped - mean(grouped.mean(2))
    normal = centred * torch.rsqrt(mean(centred.square().mean(2)) + norm.eps)
    scaled: Tensor = normal.flatten(1) * norm.weight + norm.bias
    return scaled
