"""How much memory a training step takes where the blocks are Triton kernels: they compute hidden layers again."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from chordmixer import ops
from chordmixer.models.model import ModelConfig

if TYPE_CHECKING:
    from chordmixer.training.memory import Place, Size, Terms


def moments(size: Size, place: Place, model: ModelConfig) -> list[Terms]:
    """Those of a step that may be its fullest."""
    return _reversible(size, place) if model.network.reversible else _stored(size, place, model)


def of_norm(kind: str | None, channels: int) -> int:
    """What autograd keeps for a norm, in bytes a token; float32 whatever the rest is."""
    return {None: 0, "layer": 4 * channels + 8, "batch": 4 * channels, "group": 16 * channels + 24}[kind]


def _stored(size: Size, place: Place, model: ModelConfig) -> list[Terms]:
    net, C, T = size.network, size.channels, size.tokens
    a, full = 2 if place.half else 4, 4 * C
    normed = net.prenorm == "layer"
    folded = net.prenorm == "batch" and not (net.dropout and net.order == "paper")  # into the first layer
    behind = a * C if net.norm == "batch" else of_norm(net.norm, C)
    beside = behind + (0 if normed or folded else of_norm(net.prenorm, C))
    kept = {
        "inputs of the blocks": (size.passes + (T + size.left if net.prenorm == "group" else 0)) * a * C,
        "inputs of the norms": size.passes * (beside + (8 if normed else 0)),
        "weights for the kernels": size.of_blocks * (a + (2 if normed else 0)),
    }
    embedding = T * full if place.half else 0  # in float32, beside the copy that the blocks read
    left = T * a * C if size.reach[-1] < T else 0  # those who left early are copied behind the others
    forward = {**kept, "embedding": embedding, "outputs": size.reach[-1] * a * C + left}
    forward["weights for the kernels"] += 4 * size.of_blocks if place.half else 0  # before they are made bfloat16
    read = {**kept, "outputs": T * a * C}
    if model.final_norm:
        copied = T * full if place.half else 0
        read |= {"last norm": copied + T * (full + 8)}
        learn = {**kept, "last norm": T * of_norm("layer", C), "gradients": 2 * T * full}
    else:
        learn = {**kept, "gradients": T * a * C}
    buffers = T * a * C * ((3 if beside == 0 else 2) + (1 if normed else 0))  # with other norms, one block at a time
    backward = {**kept, "gradients": buffers, **_scratch(size, place)}
    backward["gradients of the blocks"] = 4 * size.of_blocks
    return [forward, read, learn, backward]


def _reversible(size: Size, place: Place) -> list[Terms]:
    net, C, T, first = size.network, size.channels, size.tokens, size.reach[0]
    a = 2 if place.half else 4
    streams = {
        "two streams": 2 * T * a * C * size.networks,
        "gradients": 3 * T * a * C,
        "gradients of the blocks": 4 * size.of_blocks,
    }
    embedding = T * 4 * C if place.half else 0
    statistics = 8 * first if net.prenorm else 0
    return [
        {"embedding": embedding + T * a * C, "two streams": 2 * T * a * C, "outputs": T * a * C},
        {
            **streams,
            "one block, computed again": 2 * first * a * C + statistics,
            "of the block before": 2 * first * a * C,
        },
        {
            **streams,
            "one block, computed again": (3 if net.prenorm else 2) * first * a * C + statistics,
            "of the block before": first * a * C,
            **_scratch(size, place),
        },
    ]


def _scratch(size: Size, place: Place) -> Terms:
    """Of one block's backward pass, for the tokens of the first: the hidden layer, and rows of sums."""
    a, tile = 2 if place.half else 4, 64 if place.half else 32
    tokens, hidden = size.reach[0], size.hidden
    if hidden > ops.WIDE:  # by the matrix library, from rotated tokens of its own
        step = 16 // a  # rows are padded to 16 bytes, and hold a one
        wide, rotated = (n // step * step + step for n in (hidden, size.channels))
        copies = 2 if size.network.order == "released" or size.channels % step else 1  # the gradient's is one
        return {"scratch of a backward pass": tokens * a * (2 * wide + copies * rotated)}
    rows = ceil(tokens / tile) + len(size.lengths)
    columns = ceil(size.channels / (64 if place.half else 32)) * ceil(hidden / 128)
    shares = max(1, min(4 * place.processors // columns, tokens // 128))
    sums = 4 * rows * hidden + 4 * shares * (2 * hidden + 1) * size.channels
    return {"scratch of a backward pass": tokens * (2 * a * hidden + 8) + sums}
