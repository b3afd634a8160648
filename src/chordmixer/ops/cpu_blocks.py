"""All blocks of a network on a CPU, tile by tile, forward and backward: products in bf16 or float32, sums in float32.

A tile of tokens stays in the cache from Rotate to the residual. Two tensors are as long as the batch: the stream of
tokens, to which each block adds in place, and what the next block reads, which is the stream standardised and in the
type of the products. For its gradients a block keeps what it read, its hidden layer before GELU and its dropout mask.
Rotation and GELU are computed again: fresh memory costs a CPU more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from chordmixer.ops.reference import Exits, Mlp, NormState
from chordmixer.ops.rotation import Rotation, tiles

MASKS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a number of the products: in a dropout mask all of their bits are set, or none."""


class _Network(NamedTuple):
    """Arguments of all blocks other than tensors with gradients."""

    offsets: Int[Tensor, "B+1"]
    exits: Exits
    tracks: int
    eps: tuple[float | None, ...]
    """Of the layer norm before each block; None: there is none."""
    dropout: float
    dtype: torch.dtype
    """The type of the products."""

    def buffer(self, values: Tensor, columns: int, tokens: int | None = None) -> Tensor:
        """Memory in the type of the products, by default for one tile."""
        rows = next(tiles(values))[1] if tokens is None else tokens
        return values.new_empty(rows, columns, dtype=self.dtype)


class _Saved(NamedTuple):
    """What a block keeps for its gradients."""

    source: Float[Tensor, "T C"]
    """The tokens that it read, standardised where a layer norm stands before it."""
    rstd: Float[Tensor, "T 1"]
    """Of that norm; else empty."""
    hidden: Float[Tensor, "T H"]
    """Before GELU."""
    mask: Int[Tensor, "T C"]
    """Of dropout; else empty."""


def blocks(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    exits: Exits,
    track_size: int,
    mlps: Sequence[Mlp],
    prenorms: Sequence[NormState | None],
    dropout: float,
    dtype: torch.dtype,
) -> Float[Tensor, "T C"]:
    """`reference.blocks` in the order of the paper, with layer norms or none, and products in `dtype`.

    As in the kernels, what a layer norm adds and multiplies is part of the first linear map, behind dropout.
    """
    eps = tuple(None if norm is None else norm.eps for norm in prenorms)
    network = _Network(offsets, exits, values.shape[1] // track_size, eps, dropout, dtype)
    with torch.autocast("cpu", enabled=False):  # every type is chosen here
        folded = [_folded(mlp, norm, dropout) for mlp, norm in zip(mlps, prenorms, strict=True)]
        weights = [weight for mlp in folded for weight in mlp]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (values, *weights)):
            output: Tensor = _CpuBlocks.apply(network, values, *weights)
            return output
        if dtype == values.dtype and not dropout and not any(eps):
            return _two_buffers(network, values.contiguous(), folded)
        return _forward(network, values.contiguous(), folded, [] if dropout else None)


def _folded(mlp: Mlp, norm: NormState | None, dropout: float) -> Mlp:
    """The weights behind a standardised token, scaled to make up for what dropout removes."""
    if norm is not None:
        bias = mlp.fc1_bias + mlp.fc1_weight @ norm.bias
        mlp = mlp._replace(fc1_weight=mlp.fc1_weight * norm.weight, fc1_bias=bias)
    return mlp._replace(fc1_weight=mlp.fc1_weight / (1 - dropout)) if dropout else mlp


def product_type(values: Tensor) -> torch.dtype:
    """The type of the products under the present autocast, which leaves float64 as it is."""
    device = values.device.type
    casts = torch.is_autocast_enabled(device) and values.dtype != torch.float64
    return torch.get_autocast_dtype(device) if casts else values.dtype


def cast(mlp: Mlp, dtype: torch.dtype) -> Mlp:
    """Weights for products of this type."""
    return Mlp(*(weight.detach().to(dtype) for weight in mlp))


class _CpuBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, network: _Network, values: Tensor, *weights: Tensor) -> Tensor:
        saved: list[_Saved] = []
        output = _forward(network, values.contiguous(), _mlps(weights), saved)
        ctx.network, ctx.count = network, len(weights)
        ctx.save_for_backward(*weights, *(tensor for block in saved for tensor in block))
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, tensors = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        size = len(_Saved._fields)
        saved = [_Saved(*tensors[i : i + size]) for i in range(0, len(tensors), size)]
        return None, *_backward(ctx.network, gradient, _mlps(weights), saved)


def _mlps(weights: Sequence[Tensor]) -> list[Mlp]:
    return [Mlp(*weights[i : i + 4]) for i in range(0, len(weights), 4)]


# --- Forward ---


def _forward(network: _Network, values: Tensor, mlps: Sequence[Mlp], saved: list[_Saved] | None) -> Tensor:
    """The tokens after all blocks; what each block keeps for gradients is added to `saved`, if there is a list."""
    (width, hidden), exits = mlps[0].fc2_weight.shape, network.exits
    rotation = Rotation(values, network.offsets, network.tracks, keeps=True)
    rotated, active = network.buffer(values, width), network.buffer(values, hidden)
    mixed = None if network.dtype == values.dtype else torch.empty_like(rotated)
    alternating = [network.buffer(values, width, len(values)) for _ in exits[:2]] if saved is None else None
    stream, output = values, torch.empty_like(values)
    current = _block_buffers(network, values, hidden, 0, alternating)
    for lo, hi in tiles(values):
        _write_source(values, network.eps[0], current, slice(lo, hi))
    for block, (tokens, _) in enumerate(exits):
        mlp = cast(mlps[block], network.dtype)
        staying = exits[block + 1][0] if block + 1 < len(exits) else 0
        following = _block_buffers(network, values, hidden, block + 1, alternating) if staying else current
        for lo, hi in tiles(values[:tokens]):
            z, activation = rotation.gather(current.source, lo, hi, out=rotated[: hi - lo]), active[: hi - lo]
            preactivation = activation if saved is None else current.hidden[lo:hi]
            if network.dropout:
                _drop(z, draw_mask(current.mask[lo:hi], network.dropout))
            torch.addmm(mlp.fc1_bias, z, mlp.fc1_weight.t(), out=preactivation)
            torch.ops.aten.gelu.out(preactivation, out=activation)
            add_product(activation, mlp, stream[lo:hi], mixed, out=output[lo:hi])
            if lo < staying:  # while the tile is in the cache
                _write_source(output, network.eps[block + 1], following, slice(lo, min(hi, staying)))
        if saved is not None:
            saved.append(current)
        stream, current = output, following
    return output


def _block_buffers(
    network: _Network, values: Tensor, hidden: int, block: int, alternating: list[Tensor] | None
) -> _Saved:
    """Memory for a block; without gradients two sources alternate, and there is nothing else."""
    tokens, none = network.exits[block][0], values.new_empty(0, 1)  # a slice would keep all of them
    if alternating is not None:
        return _Saved(alternating[block % 2][:tokens], none, none, none)
    mask = none
    if network.dropout:
        mask = values.new_empty(tokens, values.shape[1], dtype=MASKS[network.dtype.itemsize])
    return _Saved(
        network.buffer(values, values.shape[1], tokens),
        none if network.eps[block] is None else values.new_empty(tokens, 1),
        network.buffer(values, hidden, tokens),
        mask,
    )


def _write_source(stream: Tensor, eps: float | None, buffers: _Saved, part: slice) -> None:
    """Write a block's source for these tokens: the stream, standardised if a layer norm precedes the block."""
    tile = stream[part]
    if eps is None:
        buffers.source[part] = tile
        return
    width = tile.shape[1]
    one, zero = tile.new_ones(width), tile.new_zeros(width)  # without them torch takes twice the time
    normal, _, rstd = torch.native_layer_norm(tile, (width,), one, zero, eps)
    buffers.source[part] = normal
    if len(buffers.rstd):
        buffers.rstd[part] = rstd


def add_product(active: Tensor, mlp: Mlp, residual: Tensor, mixed: Tensor | None, out: Tensor) -> None:
    """The second linear map, added to `residual`; `mixed` is memory for products of another type than that."""
    if mixed is None:
        torch.addmm(residual, active, mlp.fc2_weight.t(), out=out)
        out.add_(mlp.fc2_bias)
    else:
        product = torch.addmm(mlp.fc2_bias, active, mlp.fc2_weight.t(), out=mixed[: len(active)])
        torch.add(residual, product, out=out)


def draw_mask(mask: Tensor, dropout: float) -> Tensor:
    """A dropout mask from 16 random bits a number, of which 15 count: a tenth of the time of `bernoulli_`."""
    noise = torch.empty(-(-mask.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    bits = noise.view(torch.int16)[: mask.numel()].view(mask.shape)
    torch.bitwise_right_shift(bits, 1, out=mask)
    return mask.sub_(round((1 - dropout) * (1 << 15)) - (1 << 14)).bitwise_right_shift_(15)


def _drop(z: Tensor, mask: Tensor) -> None:
    z.view(mask.dtype).bitwise_and_(mask)


def _two_buffers(network: _Network, values: Tensor, mlps: Sequence[Mlp]) -> Tensor:
    """Without gradients, norms or another type blocks read the stream itself, and two buffers alternate."""
    width, hidden = mlps[0].fc2_weight.shape
    rotation = Rotation(values, network.offsets, network.tracks, keeps=True)
    rotated, active = network.buffer(values, width), network.buffer(values, hidden)
    buffers = [torch.empty_like(values) for _ in network.exits[:2]]
    for block, (mlp, (tokens, _)) in enumerate(zip(mlps, network.exits, strict=True)):
        out = buffers[block % 2]
        for lo, hi in tiles(values[:tokens]):
            z, layer = rotation.gather(values, lo, hi, out=rotated[: hi - lo]), active[: hi - lo]
            torch.addmm(mlp.fc1_bias, z, mlp.fc1_weight.t(), out=layer)
            add_product(torch.ops.aten.gelu_(layer), mlp, values[lo:hi], None, out=out[lo:hi])
        values = out
    for block in range(len(network.exits) - 2, -1, -2):  # the sequences that left from the other buffer
        left = slice(network.exits[block + 1][0], network.exits[block][0])
        values[left] = buffers[block % 2][left]
    return values


# --- Backward ---


def _backward(network: _Network, gradient: Tensor, mlps: Sequence[Mlp], saved: Sequence[_Saved]) -> list[Tensor]:
    """The gradients of the tokens and of all weights: block by block, first to what Mix read, then through Rotate."""
    stream = gradient.clone(memory_format=torch.contiguous_format)
    width, hidden = mlps[0].fc2_weight.shape
    rotation, undo = (
        Rotation(stream, network.offsets, network.tracks, reverse, keeps=True) for reverse in (False, True)
    )
    back = network.buffer(stream, width, len(stream))
    wide = network.dtype == stream.dtype
    tile = _Tile(*(network.buffer(stream, columns) for columns in (width, 0 if wide else width, hidden, hidden)))
    sums = [Mlp(*(torch.zeros_like(weight) for weight in mlp)) for mlp in mlps]
    for block in reversed(range(len(mlps))):
        of_block, mlp, tokens = saved[block], cast(mlps[block], network.dtype), network.exits[block][0]
        for lo, hi in tiles(stream[:tokens]):
            z = rotation.gather(of_block.source, lo, hi, out=tile.rotated[: hi - lo])
            _mix_backward(z, of_block, mlp, stream[lo:hi], slice(lo, hi), tile, sums[block], out=back[lo:hi])
        for lo, hi in tiles(stream[:tokens]):
            source_gradient = undo.gather(back, lo, hi, out=tile.rotated[: hi - lo])
            _source_backward(source_gradient, network.eps[block], of_block, slice(lo, hi), stream[lo:hi])
    return [stream, *(weight for mlp in sums for weight in mlp)]


class _Tile(NamedTuple):
    """Buffers for one tile of the backward pass, in the type of the products."""

    rotated: Float[Tensor, "t C"]
    gradient: Float[Tensor, "t C"]
    """Of the output of Mix; without columns if the stream already has that type."""
    active: Float[Tensor, "t H"]
    hidden: Float[Tensor, "t H"]


def _mix_backward(
    z: Tensor, saved: _Saved, mlp: Mlp, gradient: Tensor, part: slice, tile: _Tile, sums: Mlp, out: Tensor
) -> None:
    """For one tile, add to the gradients of the weights, and write that of `z` before dropout to `out`."""
    rows, preactivation = len(z), saved.hidden[part]
    output_gradient = gradient if gradient.dtype == z.dtype else tile.gradient[:rows].copy_(gradient)
    activation, hidden_gradient = torch.ops.aten.gelu.out(preactivation, out=tile.active[:rows]), tile.hidden[:rows]
    _add_product_of(output_gradient, activation, sums.fc2_weight)
    sums.fc2_bias.add_(gradient.sum(0))
    torch.mm(output_gradient, mlp.fc2_weight, out=activation)
    torch.ops.aten.gelu_backward.grad_input(activation, preactivation, grad_input=hidden_gradient)
    if len(saved.mask):
        _drop(z, saved.mask[part])
    _add_product_of(hidden_gradient, z, sums.fc1_weight)
    sums.fc1_bias.add_(hidden_gradient.sum(0, dtype=sums.fc1_bias.dtype))
    torch.mm(hidden_gradient, mlp.fc1_weight, out=out)
    if len(saved.mask):
        _drop(out, saved.mask[part])


def _add_product_of(
    gradient: Float[Tensor, "t A"], inputs: Float[Tensor, "t B"], total: Float[Tensor, "A B"]
) -> None:
    """A tile's part of the gradient of weights, summed over tiles in the type of the weights."""
    if total.dtype == gradient.dtype:
        total.addmm_(gradient.t(), inputs)
    else:
        total.add_(torch.mm(gradient.t(), inputs))


def _source_backward(gradient: Tensor, eps: float | None, saved: _Saved, part: slice, stream: Tensor) -> None:
    """Add the gradient of a block's source to that of the stream, through the norm where there is one."""
    if eps is None:
        stream.add_(gradient)
        return
    normal, width = saved.source[part].to(stream.dtype), (stream.shape[1],)
    mean, rstd = stream.new_zeros(len(stream), 1), stream.new_ones(len(stream), 1)  # it is standardised
    normal_gradient, _, _ = torch.ops.aten.native_layer_norm_backward(
        gradient.to(stream.dtype), normal, width, mean, rstd, None, None, [True, False, False]
    )
    stream.addcmul_(normal_gradient, saved.rstd[part])
