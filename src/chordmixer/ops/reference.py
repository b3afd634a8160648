"""The definition of every operation, in plain torch: read this file first.

With gradients a block is computed as it stands here. What makes it fast, above all on a CPU, stands beside it:

- `rotation.py`: how Rotate is carried out, a tile of tokens at a time.
- `sums.py`: how the tokens of each sequence are added up.
- `tiled_block.py`: a whole block without gradients. `block` goes there by itself; tests hold it to this definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from chordmixer.ops import rotation, sums


class NormState(NamedTuple):
    """A normalisation as data: `layer` by token, `batch` by channel, `group` by sequence and channel group."""

    kind: str
    weight: Float[Tensor, "C"]
    bias: Float[Tensor, "C"]
    groups: int = 1
    """Channel groups of a group norm."""
    mean: Float[Tensor, "C"] | None = None
    """Running mean and variance of a batch norm; `training` updates them in place with `momentum`."""
    variance: Float[Tensor, "C"] | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


class Mlp(NamedTuple):
    """The weights of a Mix step: `fc2(gelu(fc1(z)))`."""

    fc1_weight: Float[Tensor, "H C"]
    fc1_bias: Float[Tensor, "H"]
    fc2_weight: Float[Tensor, "C H"]
    fc2_bias: Float[Tensor, "C"]


Exits = list[tuple[int, int]]
"""Tokens and sequences of the prefix that passes each block: deep sequences first, shallow ones leave early."""


def rotate(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], track_size: int, reverse: bool = False
) -> Float[Tensor, "T C"]:
    """Equations 1 and 2: track t >= 1 of position j takes position (j + 2^(t-1)) mod N of its own sequence.

    >>> x = torch.arange(4).float()[:, None].expand(4, 3)
    >>> rotate(x, torch.tensor([0, 4]), track_size=1).T
    tensor([[0., 1., 2., 3.],
            [1., 2., 3., 0.],
            [2., 3., 0., 1.]])
    """
    return rotation.rotate(values, offsets, track_size, reverse)


def mix(z: Float[Tensor, "T C"], mlp: Mlp) -> Float[Tensor, "T C"]:
    """Equation 3, with the paper's f: two linear maps with a GELU between them."""
    hidden = F.gelu(F.linear(z, mlp.fc1_weight, mlp.fc1_bias))
    return F.linear(hidden, mlp.fc2_weight, mlp.fc2_bias)


def block(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    track_size: int,
    mlp: Mlp,
    *,
    order: str = "paper",
    prenorm: NormState | None = None,
    norm: NormState | None = None,
    dropout: float = 0.0,
    residual: Float[Tensor, "T C"] | None = None,
    out: Float[Tensor, "T C"] | None = None,
) -> Float[Tensor, "T C"]:
    """One ChordMixer block; `residual` is what the mixed tokens are added to, `values` themselves if not given.

    Without gradients the result may be written to `out`: never `values`, but `residual` will do.

    `order="paper"`:    norm(residual + mix(dropout(rotate(prenorm(values)))))
    `order="released"`: norm(residual + rotate(dropout(mix(prenorm(values)))))
    """
    residual = values if residual is None else residual
    learning = (prenorm is not None and prenorm.training) or (norm is not None and norm.training)
    if not (torch.is_grad_enabled() or dropout or learning or torch.compiler.is_compiling()):
        from chordmixer.ops import tiled_block  # late, for it is built on this file

        out = torch.empty_like(residual, memory_format=torch.contiguous_format) if out is None else out
        return tiled_block.block(values, offsets, track_size, mlp, order, prenorm, norm, residual, out)
    z = normalise(values, offsets, prenorm)
    if order == "paper":
        branch = mix(F.dropout(rotate(z, offsets, track_size), dropout), mlp)
    else:
        branch = rotate(F.dropout(mix(z, mlp), dropout), offsets, track_size)
    return normalise(residual + branch, offsets, norm)


def blocks(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    exits: Exits,
    track_size: int,
    mlps: Sequence[Mlp],
    *,
    order: str = "paper",
    prenorms: Sequence[NormState | None],
    dropout: float = 0.0,
) -> Float[Tensor, "T C"]:
    """One block after the other, each over the prefix of the tokens that has not left yet."""
    left = []
    for mlp, prenorm, (tokens, sequences) in zip(mlps, prenorms, exits, strict=True):
        left.append(values[tokens:])
        own = offsets[: sequences + 1]
        values = block(values[:tokens], own, track_size, mlp, order=order, prenorm=prenorm, dropout=dropout)
    return torch.cat([values, *reversed(left)])


def normalise(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: NormState | None
) -> Float[Tensor, "T C"]:
    """Layer norm over a token's channels, batch norm over all tokens, group norm over a sequence's tokens."""
    if norm is None:
        return values
    if norm.kind == "layer":
        return F.layer_norm(values, values.shape[1:], norm.weight, norm.bias, norm.eps)
    if norm.kind == "batch":
        return F.batch_norm(
            values,
            norm.mean,
            norm.variance,
            norm.weight,
            norm.bias,
            norm.training,
            norm.momentum,
            norm.eps,
        )
    mean, rstd = group_statistics(values, offsets, norm)
    lengths = offsets.diff()
    mean, rstd = (s.repeat_interleave(lengths, 0, output_size=len(values)) for s in (mean, rstd))
    return ((values - mean) * rstd * norm.weight + norm.bias).to(values.dtype)


def group_statistics(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: NormState
) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
    """Mean and inverse deviation of each sequence's channel groups, spread over the group's channels."""

    def by_group(channels: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        size = channels.shape[1] // norm.groups
        return channels.unflatten(1, (norm.groups, size)).mean(2).repeat_interleave(size, dim=1)

    mean = by_group(segment_mean(values, offsets))
    lengths = offsets.diff()
    if torch.is_grad_enabled() and values.requires_grad:
        centred = values - mean.repeat_interleave(lengths, 0, output_size=len(values))
        variance = by_group(segment_mean(centred.square(), offsets))
    else:
        variance = by_group(sums.segment_squares(values, offsets, mean))
    return mean, torch.rsqrt(variance + norm.eps)


def segment_mean(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """The mean of each sequence's tokens, in float32 or better.

    >>> segment_mean(torch.tensor([[1.0], [3.0], [10.0]]), torch.tensor([0, 2, 3]))
    tensor([[ 2.],
            [10.]])
    """
    values = values if values.dtype == torch.float64 else values.float()
    return sums.segment_sum(values, offsets) / offsets.diff()[:, None]
