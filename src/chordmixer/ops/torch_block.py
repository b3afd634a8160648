"""A block in torch: in operations on all tokens if gradients are needed, in tiles if not.

Tiles are the fast path on a CPU. A tile of tokens stays in the cache from Rotate to the residual. Only the output and
two numbers per token for each layer norm are allocated for all tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from chordmixer.ops import reference
from chordmixer.ops.cpu_blocks import MASKS, add_product, cast, draw_mask, product_type
from chordmixer.ops.reference import Mlp, NormState, mix
from chordmixer.ops.rotation import Rotation, rotate, tiles
from chordmixer.ops.sums import segment_mean, segment_squares


def drop(values: Float[Tensor, "T C"], dropout: float) -> Float[Tensor, "T C"]:
    """`F.dropout`, except that on a CPU the mask comes from 16 random bits per number, in a tenth of the time."""
    if not dropout or values.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(values, dropout)
    mask = draw_mask(torch.empty_like(values, dtype=MASKS[values.dtype.itemsize]), dropout)  # -1 or 0
    return values * mask.to(values.dtype).mul_(-1 / (1 - dropout))


def block(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    track_size: int,
    mlp: Mlp,
    order: str,
    prenorm: NormState | None,
    norm: NormState | None,
    residual: Float[Tensor, "T C"],
    dropout: float,
) -> Float[Tensor, "T C"]:
    """`reference.block` with gradients: the same formula, with the fast rotation and norms."""
    z = normalise(values, offsets, prenorm)
    if order == "paper":
        branch = mix(drop(rotate(z, offsets, track_size), dropout), mlp)
    else:
        branch = rotate(drop(mix(z, mlp), dropout), offsets, track_size)
    return normalise(residual + branch, offsets, norm)


def normalise(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: NormState | None
) -> Float[Tensor, "T C"]:
    """`reference.normalise`, with group norms of all sequences at once."""
    if norm is None or norm.kind != "group":
        return reference.normalise(values, offsets, norm)
    lengths = offsets.diff()
    mean, rstd = (
        statistic.repeat_interleave(lengths, 0, output_size=len(values))
        for statistic in group_statistics(values, offsets, norm)
    )
    return ((values - mean) * rstd * norm.weight + norm.bias).to(values.dtype)


def group_statistics(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: NormState
) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
    """Mean and inverse standard deviation of each sequence's channel groups, repeated for the group's channels."""
    mean = by_group(segment_mean(values, offsets), norm.groups)
    lengths = offsets.diff()
    if torch.is_grad_enabled() and values.requires_grad:
        centred = values - mean.repeat_interleave(lengths, 0, output_size=len(values))
        variance = by_group(segment_mean(centred.square(), offsets), norm.groups)
    else:
        variance = by_group(segment_squares(values, offsets, mean), norm.groups)
    return mean, torch.rsqrt(variance + norm.eps)


def by_group(channels: Float[Tensor, "B C"], groups: int) -> Float[Tensor, "B C"]:
    """The mean over each group's channels, repeated for each of them."""
    size = channels.shape[1] // groups
    spread: Tensor = channels.unflatten(1, (groups, size)).mean(2).repeat_interleave(size, dim=1)
    return spread


# --- In tiles, without gradients ---


def tiled_block(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    track_size: int,
    mlp: Mlp,
    order: str,
    prenorm: NormState | None,
    norm: NormState | None,
    residual: Float[Tensor, "T C"],
    out: Float[Tensor, "T C"],
) -> Float[Tensor, "T C"]:
    """`reference.block` into `out`, with no memory besides input, output and tiles."""
    rotation = Rotation(values, offsets, values.shape[1] // track_size, reverse=order == "released")
    unrotated = Rotation(values, offsets, tracks=1)
    prenormalise = None if prenorm is None else _Normaliser(values, offsets, prenorm)
    longest = next(tiles(values))[1]
    rotated = torch.empty_like(values[:longest], memory_format=torch.contiguous_format)
    dtype = product_type(values)
    mlp = cast(mlp, dtype)
    hidden = values.new_empty(longest, len(mlp.fc1_bias), dtype=dtype)
    mixed = None if dtype == values.dtype else torch.empty_like(rotated, dtype=dtype)
    if order == "released" and out is not residual:
        out.copy_(residual)
    for lo, hi in tiles(values):
        if order == "paper":
            z = rotation.gather(values, lo, hi, out=rotated[: hi - lo])
            z = z if prenormalise is None else prenormalise(z, rotation, lo, hi)
            z = z if mixed is None else mixed[: hi - lo].copy_(z)
            torch.addmm(mlp.fc1_bias, z, mlp.fc1_weight.t(), out=hidden[: hi - lo])
            activated = torch.ops.aten.gelu_(hidden[: hi - lo])
            add_product(activated, mlp, residual[lo:hi], mixed, out=out[lo:hi])
        else:
            z = values[lo:hi] if prenormalise is None else prenormalise(values[lo:hi], unrotated, lo, hi)
            mixed = mix(z, mlp).to(out.dtype).view(-1, track_size)
            out.view(-1, track_size).index_add_(0, rotation.rows(lo, hi), mixed)
    if norm is not None:
        normalise_output = _Normaliser(out, offsets, norm)
        for lo, hi in tiles(out):
            out[lo:hi] = normalise_output(out[lo:hi], unrotated, lo, hi)
    return out


class _Normaliser:
    """A norm with precomputed statistics, applied tile by tile to tokens that may already be rotated.

    Batch and group norm commute with the rotation, which permutes each channel within a sequence; a layer norm uses
    the statistics of the token that each track came from.
    """

    def __init__(self, values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: NormState) -> None:
        self.norm = norm
        if norm.kind == "layer":
            dtype = torch.promote_types(values.dtype, torch.float32)
            self.mean, self.rstd = (values.new_empty(len(values), 1, dtype=dtype) for _ in range(2))
            for lo, hi in tiles(values):
                variance, self.mean[lo:hi] = torch.var_mean(values[lo:hi].to(dtype), 1, correction=0, keepdim=True)
                self.rstd[lo:hi] = torch.rsqrt(variance + norm.eps)
        elif norm.kind == "group":
            self.mean, self.rstd = group_statistics(values, offsets, norm)
        else:
            assert norm.mean is not None and norm.variance is not None
            self.mean = norm.mean.expand(len(offsets) - 1, -1)
            self.rstd = torch.rsqrt(norm.variance + norm.eps).expand(len(offsets) - 1, -1)

    def __call__(self, tile: Float[Tensor, "t C"], rotation: Rotation, lo: int, hi: int) -> Float[Tensor, "t C"]:
        if self.norm.kind == "layer":
            source = rotation.sources(lo, hi)
            normal = tile.unflatten(1, (source.shape[1], -1)) - self.mean[source]
            normal = normal.mul_(self.rstd[source]).view(tile.shape)
        else:
            sequence = rotation.sequences(lo, hi)
            normal = (tile - self.mean[sequence]).mul_(self.rstd[sequence])
        return torch.addcmul(self.norm.bias, normal, self.norm.weight).to(tile.dtype)


def layer_norm(values: Float[Tensor, "T C"], norm: NormState, out: Float[Tensor, "T C"]) -> Float[Tensor, "T C"]:
    """A layer norm without gradients, by tiles into `out`: new memory costs a CPU more than the arithmetic."""
    for lo, hi in tiles(values):
        out[lo:hi] = F.layer_norm(values[lo:hi], values.shape[1:], norm.weight, norm.bias, norm.eps)
    return out
