"""The definition of every operation, in a few lines of torch each: read this file first.

This code is not optimised. `torch_block.py`, `rotation.py`, `sums.py` and the Triton kernels compute the same and are
tested against it; `__init__.py` chooses between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class NormState(NamedTuple):
    """Weights and statistics of a norm: `layer` by token, `batch` by channel, `group` by sequence and group."""

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
"""For each block, the number of tokens and of sequences that pass it: a prefix of the batch, sorted by depth."""


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
    sign = 1 if reverse else -1

    def rotated(sequence: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        first, *others = sequence.split(track_size, dim=1)
        return torch.cat([first, *(track.roll(sign * 2**t, dims=0) for t, track in enumerate(others))], dim=1)

    return torch.cat([rotated(sequence) for sequence in _sequences(values, offsets)])


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
) -> Float[Tensor, "T C"]:
    """One ChordMixer block; the mixed tokens are added to `residual`, by default `values`.

    `order="paper"`:    norm(residual + mix(dropout(rotate(prenorm(values)))))
    `order="released"`: norm(residual + rotate(dropout(mix(prenorm(values)))))
    """
    z = normalise(values, offsets, prenorm)
    if order == "paper":
        branch = mix(F.dropout(rotate(z, offsets, track_size), dropout), mlp)
    else:
        branch = rotate(F.dropout(mix(z, mlp), dropout), offsets, track_size)
    return normalise((values if residual is None else residual) + branch, offsets, norm)


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
    """All blocks in sequence, each on the prefix of the tokens that passes it."""
    for mlp, prenorm, (tokens, sequences) in zip(mlps, prenorms, exits, strict=True):
        prefix = offsets[: sequences + 1]
        mixed = block(values[:tokens], prefix, track_size, mlp, order=order, prenorm=prenorm, dropout=dropout)
        values = torch.cat([mixed, values[tokens:]])
    return values


def normalise(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: NormState | None
) -> Float[Tensor, "T C"]:
    """Layer norm over a token's channels, batch norm over all tokens, group norm over a sequence's tokens."""
    if norm is None:
        return values
    if norm.kind == "layer":
        return F.layer_norm(values, values.shape[1:], norm.weight, norm.bias, norm.eps)
    if norm.kind == "batch":
        statistics = (norm.mean, norm.variance, norm.weight, norm.bias)
        return F.batch_norm(values, *statistics, norm.training, norm.momentum, norm.eps)
    channels_first = [sequence.T[None] for sequence in _sequences(values, offsets)]
    normed = [F.group_norm(x, norm.groups, norm.weight, norm.bias, norm.eps)[0].T for x in channels_first]
    return torch.cat(normed)


def segment_mean(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """The mean of each sequence's tokens, in float32 or better.

    >>> segment_mean(torch.tensor([[1.0], [3.0], [10.0]]), torch.tensor([0, 2, 3]))
    tensor([[ 2.],
            [10.]])
    """
    values = values if values.dtype == torch.float64 else values.float()
    return torch.stack([sequence.mean(0) for sequence in _sequences(values, offsets)])


def _sequences(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> tuple[Float[Tensor, "N C"], ...]:
    sequences: tuple[Tensor, ...] = values.split(offsets.diff().tolist())
    return sequences
