"""How much memory a frozen encoder takes in a training step: a few tokens' worth, whatever its depth.

Nothing is kept for gradients. Tokens go from one buffer to another and back; plain torch takes a tile of them at a
time through a block. Since every step asks for the same few tensors, no holes were seen in the heap of a CPU: only in
that of a reversible network, some 40 MB at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chordmixer import ops
from chordmixer.models.model import ModelConfig

if TYPE_CHECKING:
    from chordmixer.training.memory import Place, Size, Terms

TILE, GPU_TILE = 4_096, 1 << 17
"""Tokens that plain torch takes at a time, on a CPU and on a GPU."""


def moments(size: Size, place: Place, model: ModelConfig) -> list[Terms]:
    """Those of its forward pass that may be the fullest: in the blocks, at their end, in the last norm."""
    net, T, full = size.network, size.tokens, 4 * size.channels
    short = place.kernels and place.half  # tokens are bfloat16, and the embedding is not
    stream = T * full // (2 if short else 1)
    embedding = {"embedding": T * full + (stream if short else 0)}
    apart = net.prenorm == "layer" and not net.reversible and not place.kernels  # a third buffer, for the norm
    buffers = {**embedding, "tokens around a block": stream * (min(2, len(size.reach)) + apart)}
    within = {**buffers, **(_launch(size, place) if place.kernels else _tile(size, place, apart))}
    end = {**embedding, "tokens around a block": 2 * stream, "outputs": stream} if net.reversible else {}
    last = {"outputs": stream, "last norm": T * full * (2 if short else 1)} if model.final_norm else {}
    return [within, end, last]


def _tile(size: Size, place: Place, apart: bool) -> Terms:
    """What Mix reads and its hidden layer; more where a norm or another type comes between."""
    net, full, hidden = size.network, 4 * size.channels, 4 * size.hidden
    lean = net.order == "paper" and not (place.half or net.norm) and (apart or net.prenorm is None)
    row = full + hidden + (12 * net.tracks if lean else 2 * full)
    return {"a tile of a block": row * min(size.tokens, TILE if place.processors == 1 else GPU_TILE)}


def _launch(size: Size, place: Place) -> Terms:
    """A block's weights as its kernel reads them, and norms that no kernel knows."""
    net, full = size.network, 4 * size.channels
    normed = net.prenorm == "layer"
    others = [kind for kind in (net.norm, net.prenorm if net.prenorm == "group" else None) if kind]
    rows = sum(4 * full if kind == "group" else full for kind in others) + (8 if normed else 0)
    weights = size.of_blocks // len(size.reach)
    wide = (size.channels + size.hidden) * (2 if place.half else 4) if size.hidden > ops.WIDE else 0
    return {
        "hidden layer": size.reach[0] * wide,
        "norms of a block": size.reach[0] * rows,
        "weights for the kernels": weights * ((2 if place.half else 0) + (2 if normed else 0)),
    }
