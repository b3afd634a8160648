"""The definition of every operation, in plain torch, and the fast path on a CPU.

Rotation is a gather. Seen as rows of S channels, (T, C) is (T * M, S), and row (j, t) of the result is row
(source(j, t), t) of the input: one `index_select`, whatever the lengths. Long inputs go through in tiles of
tokens that stay in the cache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

SLICED = 2048
"""Tokens a sequence from which on a CPU copies slices faster than it gathers by index."""


class Norm(NamedTuple):
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


# --- Rotate ---------------------------------------------------------------------------------------------


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
    rotated: Tensor = torch.ops.chordmixer.rotate(values, offsets, track_size, reverse)
    return rotated


@torch.library.custom_op("chordmixer::rotate", mutates_args=())
def _rotate(values: Tensor, offsets: Tensor, track_size: int, reverse: bool) -> Tensor:
    rotation = _Rotation(values, offsets, values.shape[1] // track_size, reverse)
    rotated = torch.empty_like(values, memory_format=torch.contiguous_format)
    for lo, hi in _tiles(values):
        rotation.gather(values, lo, hi, out=rotated[lo:hi])
    return rotated


@_rotate.register_fake
def _(values: Tensor, offsets: Tensor, track_size: int, reverse: bool) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _rotate_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, offsets, ctx.track_size, ctx.reverse = inputs
    ctx.save_for_backward(offsets)


def _rotate_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    """A permutation's gradient is the reverse permutation."""
    (offsets,) = ctx.saved_tensors
    return rotate(gradient, offsets, ctx.track_size, not ctx.reverse), None, None, None


_rotate.register_autograd(_rotate_backward, setup_context=_rotate_context)


class _Rotation:
    """Where the tracks of each token come from, worked out for one tile of tokens at a time."""

    def __init__(
        self, values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], tracks: int, reverse: bool = False
    ) -> None:
        shifts = [0] + [1 << t for t in range(tracks - 1)]
        lengths = offsets.diff()[:, None]
        steps = torch.tensor(shifts, device=offsets.device) % lengths
        kind = torch.int32 if len(values) * tracks < 1 << 31 else torch.int64
        self.steps = ((lengths - steps) % lengths if reverse else steps).to(kind)
        self.offsets = offsets.to(kind)
        self.bounds = offsets.tolist() if offsets.device.type == "cpu" else []

    def _range(self, stop: int, start: int = 0) -> Int[Tensor, "t"]:
        return torch.arange(start, stop, dtype=self.offsets.dtype, device=self.offsets.device)

    def sequences(self, lo: int, hi: int) -> Int[Tensor, "t"]:
        """The sequence that each token from lo to hi belongs to."""
        small = self.offsets.dtype == torch.int32
        return torch.searchsorted(self.offsets, self._range(hi, lo), right=True, out_int32=small).sub_(1)

    def sources(self, lo: int, hi: int) -> Int[Tensor, "t M"]:
        """The token that each track of the tokens from lo to hi reads."""
        sequence = self.sequences(lo, hi)
        end = self.offsets.index_select(0, sequence + 1)
        length = end - self.offsets.index_select(0, sequence)
        source = self.steps.index_select(0, sequence).add_(self._range(hi, lo)[:, None])
        return source.sub_((source >= end[:, None]) * length[:, None])

    def rows(self, lo: int, hi: int) -> Int[Tensor, "t*M"]:
        """The same as rows of the (T * M, S) view."""
        tracks = self.steps.shape[1]
        return self.sources(lo, hi).mul_(tracks).add_(self._range(tracks)).flatten()

    def gather(self, values: Float[Tensor, "T C"], lo: int, hi: int, out: Float[Tensor, "t C"]) -> Tensor:
        """The rotated tokens from lo to hi: two slices a track in long sequences, an index among short ones."""
        tracks = self.steps.shape[1]
        first, last = bisect_right(self.bounds, lo) - 1, bisect_left(self.bounds, hi)
        if not self.bounds or hi - lo < SLICED * (last - first):
            rows = values.reshape(len(values) * tracks, -1)
            torch.index_select(rows, 0, self.rows(lo, hi), out=out.view(-1, rows.shape[1]))
            return out
        source, target = values.unflatten(1, (tracks, -1)), out.unflatten(1, (tracks, -1))
        for start, end, steps in zip(
            self.bounds[first:last], self.bounds[first + 1 :], self.steps[first:last].tolist(), strict=False
        ):
            begin, stop = max(lo, start), min(hi, end)
            for track, step in enumerate(steps):
                read = begin + step if begin + step < end else begin + step - (end - start)
                turn = begin - lo + min(stop - begin, end - read)
                target[begin - lo : turn, track] = source[read : read + turn - (begin - lo), track]
                target[turn : stop - lo, track] = source[start : start + stop - lo - turn, track]
        return out


def _tiles(values: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of tokens: on a CPU as many as stay in its cache, elsewhere enough to fill the device."""
    size = 4096 if values.device.type == "cpu" else 1 << 17
    return ((lo, min(lo + size, len(values))) for lo in range(0, len(values), size))


# --- Norms ----------------------------------------------------------------------------------------------


def normalise(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: Norm | None) -> Float[Tensor, "T C"]:
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
    mean, rstd = _group_statistics(values, offsets, norm)
    lengths = offsets.diff()
    mean, rstd = (s.repeat_interleave(lengths, 0, output_size=len(values)) for s in (mean, rstd))
    return ((values - mean) * rstd * norm.weight + norm.bias).to(values.dtype)


def layer_norm(values: Float[Tensor, "T C"], norm: Norm, out: Float[Tensor, "T C"]) -> Float[Tensor, "T C"]:
    """A layer norm without gradients, tile by tile into `out`: fresh memory costs a CPU more than the arithmetic."""
    for lo, hi in _tiles(values):
        out[lo:hi] = F.layer_norm(values[lo:hi], values.shape[1:], norm.weight, norm.bias, norm.eps)
    return out


def _group_statistics(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: Norm
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
        variance = by_group(_segment_squares(values, offsets, mean))
    return mean, torch.rsqrt(variance + norm.eps)


def _segment_squares(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], mean: Float[Tensor, "B C"]
) -> Float[Tensor, "B C"]:
    """Mean square distance from `mean` by sequence and channel, in tiles."""
    total = torch.zeros(mean.shape, dtype=torch.float64, device=mean.device)
    rotation = _Rotation(values, offsets, tracks=1)
    for lo, hi in _tiles(values):
        sequence = rotation.sequences(lo, hi)
        total.index_add_(0, sequence, (values[lo:hi] - mean[sequence]).square().double())
    return (total / offsets.diff()[:, None]).to(mean.dtype)


class _Normaliser:
    """A norm whose statistics are known, applied tile by tile to tokens that may already be rotated.

    Batch and group norm commute with the rotation, which stays inside a channel of one sequence; a layer norm
    takes the statistics of the token that each track came from.
    """

    def __init__(self, values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], norm: Norm) -> None:
        self.norm = norm
        if norm.kind == "layer":
            kind = torch.promote_types(values.dtype, torch.float32)
            self.mean, self.rstd = (values.new_empty(len(values), 1, dtype=kind) for _ in range(2))
            for lo, hi in _tiles(values):
                variance, self.mean[lo:hi] = torch.var_mean(values[lo:hi].to(kind), 1, correction=0, keepdim=True)
                self.rstd[lo:hi] = torch.rsqrt(variance + norm.eps)
        elif norm.kind == "group":
            self.mean, self.rstd = _group_statistics(values, offsets, norm)
        else:
            assert norm.mean is not None and norm.variance is not None
            self.mean = norm.mean.expand(len(offsets) - 1, -1)
            self.rstd = torch.rsqrt(norm.variance + norm.eps).expand(len(offsets) - 1, -1)

    def __call__(self, tile: Float[Tensor, "t C"], rotation: _Rotation, lo: int, hi: int) -> Float[Tensor, "t C"]:
        if self.norm.kind == "layer":
            source = rotation.sources(lo, hi)
            normal = tile.unflatten(1, (source.shape[1], -1)) - self.mean[source]
            normal = normal.mul_(self.rstd[source]).view(tile.shape)
        else:
            sequence = rotation.sequences(lo, hi)
            normal = (tile - self.mean[sequence]).mul_(self.rstd[sequence])
        return torch.addcmul(self.norm.bias, normal, self.norm.weight).to(tile.dtype)


# --- The block ------------------------------------------------------------------------------------------


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
    prenorm: Norm | None = None,
    norm: Norm | None = None,
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
        out = torch.empty_like(residual, memory_format=torch.contiguous_format) if out is None else out
        return _block_in_tiles(values, offsets, track_size, mlp, order, prenorm, norm, residual, out)
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
    prenorms: Sequence[Norm | None],
    dropout: float = 0.0,
) -> Float[Tensor, "T C"]:
    """One block after the other, each over the prefix of the tokens that has not left yet."""
    left = []
    for mlp, prenorm, (tokens, sequences) in zip(mlps, prenorms, exits, strict=True):
        left.append(values[tokens:])
        own = offsets[: sequences + 1]
        values = block(values[:tokens], own, track_size, mlp, order=order, prenorm=prenorm, dropout=dropout)
    return torch.cat([values, *reversed(left)])


def _block_in_tiles(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    track_size: int,
    mlp: Mlp,
    order: str,
    prenorm: Norm | None,
    norm: Norm | None,
    residual: Float[Tensor, "T C"],
    out: Float[Tensor, "T C"],
) -> Float[Tensor, "T C"]:
    """The same without gradients: never more in memory than input, output and tiles."""
    rotation = _Rotation(values, offsets, values.shape[1] // track_size, reverse=order == "released")
    still = _Rotation(values, offsets, tracks=1)
    before = None if prenorm is None else _Normaliser(values, offsets, prenorm)
    longest = next(_tiles(values))[1]
    rotated = torch.empty_like(values[:longest], memory_format=torch.contiguous_format)
    hidden = values.new_empty(longest, len(mlp.fc1_bias))
    if order == "released" and out is not residual:
        out.copy_(residual)
    for lo, hi in _tiles(values):
        if order == "paper":
            z = rotation.gather(values, lo, hi, out=rotated[: hi - lo])
            z = z if before is None else before(z, rotation, lo, hi)
            _add_mixed(z, mlp, residual[lo:hi], hidden[: hi - lo], out=out[lo:hi])
        else:
            z = values[lo:hi] if before is None else before(values[lo:hi], still, lo, hi)
            mixed = mix(z, mlp).to(out.dtype).view(-1, track_size)
            out.view(-1, track_size).index_add_(0, rotation.rows(lo, hi), mixed)
    if norm is not None:
        after = _Normaliser(out, offsets, norm)
        for lo, hi in _tiles(out):
            out[lo:hi] = after(out[lo:hi], still, lo, hi)
    return out


def _add_mixed(
    z: Float[Tensor, "t C"],
    mlp: Mlp,
    residual: Float[Tensor, "t C"],
    hidden: Float[Tensor, "t H"],
    out: Tensor,
) -> None:
    """`out = residual + mix(z)` without fresh memory, which costs a CPU more than the arithmetic."""
    if torch.is_autocast_enabled(z.device.type):
        torch.add(residual, mix(z, mlp), out=out)
        return
    torch.addmm(mlp.fc1_bias, z, mlp.fc1_weight.t(), out=hidden)
    torch.ops.aten.gelu_(hidden)
    torch.addmm(residual, hidden, mlp.fc2_weight.t(), out=out)
    out.add_(mlp.fc2_bias)


# --- Pooling --------------------------------------------------------------------------------------------


def segment_mean(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """The mean of each sequence's tokens, in float32 or better.

    >>> segment_mean(torch.tensor([[1.0], [3.0], [10.0]]), torch.tensor([0, 2, 3]))
    tensor([[ 2.],
            [10.]])
    """
    values = values if values.dtype == torch.float64 else values.float()
    return _SegmentSum.apply(values, offsets) / offsets.diff()[:, None]


class _SegmentSum(torch.autograd.Function):
    """Sums by sequence, first over chunks counted from the sequence's own start, then over its chunks.

    Two levels keep the rounding error of a million terms near that of a thousand, and the answer of a sequence
    the same in every batch.
    """

    CHUNK = 1024

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.tokens = len(values)
        chunks = -(-offsets.diff() // _SegmentSum.CHUNK)
        ends = F.pad(chunks.cumsum(0), (1, 0))
        inside = torch.arange(int(ends[-1]), device=offsets.device) - ends[:-1].repeat_interleave(chunks)
        starts = offsets[:-1].repeat_interleave(chunks) + inside * _SegmentSum.CHUNK
        partial = torch.segment_reduce(values, "sum", offsets=torch.cat([starts, offsets[-1:]]), axis=0)
        return torch.segment_reduce(partial, "sum", offsets=ends, axis=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (offsets,) = ctx.saved_tensors
        return gradient.repeat_interleave(offsets.diff(), 0, output_size=ctx.tokens), None
