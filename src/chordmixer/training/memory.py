"""Memory of a training step: a count of the tensors that are alive at its fullest moments.

Bytes per token, for C channels and H hidden units; a is 4, or 2 in bfloat16. `each` means once for each block that a
token reaches; T means once for each token of the batch.

| tensors | CPU | torch, other blocks | kernels (GPU) |
|---|---|---|---|
| hidden layers | aH each | 2aH each, before and after GELU | recomputed |
| inputs of Mix | aC each, not rotated | aC each, rotated | recomputed |
| dropout | aC each | 4C each | recomputed |
| inputs of the blocks | | 4C each, in the forward pass or for a norm | aC each |
| layer norm | 4 each | 8 each | 8 each |
| embedding, outputs, gradients | 8C + aC of T | 8C to 12C of T | 4C to 12C of T |
| scratch of the backward pass | a tile, 8M of T | | 2aH + 8 of T, and rows of sums; 2aH + aC if H > 256 |
| reversible network, instead of all these | | 44C + 8H of T | 9aC + 2aH of T |
| frozen encoder, instead of all these | 8C + 2aC to 16C of T | 12C to 16C of T | 10C to 16C of T |

The terms of a CPU follow from `ops/cpu_blocks.py`, which takes blocks of the paper's order with layer norms or none;
those of other blocks are what autograd was measured to keep; those of a GPU follow from `ops/triton_block.py`. The C
library's heap on a CPU adds holes, since tensors below 32 MiB rarely fit into freed space: about four of each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil

import torch

from chordmixer import ops
from chordmixer.models.chordmixer import ChordMixerConfig, depth
from chordmixer.models.heads import HEADS
from chordmixer.models.model import Model, ModelConfig, without_memory
from chordmixer.models.strategies import STRATEGIES
from chordmixer.packed import Packed

Terms = dict[str, int]
"""Bytes by purpose."""
COUNTED = "chordmixer"
"""The encoder whose tensors are counted here."""
MAPPED, HOLES = 32 << 20, 4
"""Bytes from which glibc maps a tensor separately and returns it to the system; smaller tensors leave holes in the
heap of this many times their size (three to seven were measured)."""
KEPT = 1.0
"""Freed memory that the heap retains over batches of many sizes, as a share of a step's (measured: 0.8 to 1.1)."""
SLICED = 2_048
"""Tokens of a sequence from which on a CPU rotates it without an index."""
TILE, GPU_TILE = 4_096, 1 << 17
"""Tokens that a frozen block computes at a time in torch, on a CPU and on a GPU."""


@dataclass(frozen=True)
class Hardware:
    """The properties of a device that its memory use depends on."""

    kernels: bool = False
    """Whether blocks are computed by Triton."""
    half: bool = False
    """Whether in bfloat16."""
    processors: int = 1
    """Multiprocessors of a GPU; each has its own partial sums."""
    workspace: int = 0
    """Bytes that a GPU's matrix library reserves."""
    heap: bool = False
    """Whether tensors come from the C library's heap."""

    @staticmethod
    def of(device: torch.device, precision: str) -> Hardware:
        half = precision == "bf16"
        if device.type != "cuda":
            return Hardware(half=half, heap=True)
        properties = torch.cuda.get_device_properties(device)
        # torch's default for cuBLAS, once for the thread of the forward pass and once for that of the backward pass
        workspace = 2 * ((32 << 20) if properties.major >= 9 else 8320 << 10)
        kernels = ops.on_kernels(torch.empty(0, device=device))
        return Hardware(kernels, half, properties.multi_processor_count, workspace)


@lru_cache(maxsize=256)
def weights(model: ModelConfig, freeze: bool = False) -> int:
    """Number of trainable weights; with `freeze`, of those behind the encoder.

    >>> model = ModelConfig(inputs=6, outputs=2, network=ChordMixerConfig(max_length=1024, track_size=16))
    >>> weights(model), weights(model, freeze=True)
    (455010, 354)
    """
    with without_memory():
        built = Model(model)
        if freeze:
            built.freeze()
        return sum(p.numel() for p in built.parameters() if p.requires_grad)


def peak(
    model: ModelConfig, lengths: Sequence[int], hardware: Hardware, accumulate: int = 1, freeze: bool = False
) -> Terms:
    """The bytes at the fullest moment of a training step on records of these lengths.

    >>> model = ModelConfig(inputs=6, outputs=2, network=ChordMixerConfig(max_length=1024, track_size=16))
    >>> {name: f"{size >> 20} MB" for name, size in peak(model, [1000] * 64, Hardware()).items() if size >> 20}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'weights': '1 MB', 'moments of AdamW': '3 MB', 'hidden layers': '312 MB', 'what Mix reads': '429 MB',
     'gradients': '128 MB', 'gradients of the blocks': '1 MB', 'a tile of a block': '6 MB',
     'indices of Rotate': '5 MB'}
    """
    return max(moments(model, lengths, hardware, accumulate, freeze), key=lambda terms: sum(terms.values()))


def retained(model: ModelConfig, lengths: Sequence[int], hardware: Hardware, terms: Terms) -> int:
    """Bytes of freed tensors that the C library's heap retains after steps on batches of other sizes.

    `terms` are the peak of the largest batch, which has these lengths. Freed space rarely fits the next batch's
    tensors, so that the heap grows; tensors above `MAPPED` are returned to the system.
    """
    if not hardware.heap:
        return 0
    tokens = sum(_encoder_lengths(model, sequence_lengths(model, lengths)))
    number = 2 if hardware.half else 4
    rows = {"hidden layers": number * model.network.hidden, "what Mix reads": number * model.network.width}
    permanent = {"weights", "moments of AdamW", "gradients of the weights", "inputs"}
    heap = (
        size
        for name, size in terms.items()
        if name not in permanent and tokens * rows.get(name, 4 * model.network.width) < MAPPED
    )
    return int(KEPT * sum(heap))


def moments(
    model: ModelConfig, lengths: Sequence[int], hardware: Hardware, accumulate: int = 1, freeze: bool = False
) -> list[Terms]:
    """The moments of a step that may be its fullest: the optimiser's update, then those of the passes."""
    if model.encoder != COUNTED:
        raise ValueError(
            f"encoder {model.encoder!r} has no count of its memory: only {COUNTED} has one; "
            f"set model.encoder={COUNTED}"
        )
    trainable = weights(model, freeze)
    step = _Step(model, lengths, hardware, networks=2 if model.decoder and not freeze else 1)
    always = {"weights": 4 * weights(model), "moments of AdamW": 8 * trainable}
    always["workspace of cuBLAS"] = hardware.workspace
    passing = {**always, "gradients of the weights": 4 * trainable if accumulate > 1 else 0}
    passing |= {} if freeze else _stem_and_words(step)
    passing["answers for the tokens"] = 12 * step.tokens * model.outputs if model.head == "tokens" else 0
    passing["inputs"] = sum(lengths) * (9 if model.embedding == "tokens" else 4 * model.inputs)
    if not hardware.kernels:
        passing["weights in bfloat16"] = 2 * trainable if hardware.half else 0
        passing["holes in the heap"] = step.holes() if hardware.heap else 0
    passes = _trained(step)
    if freeze:
        encoded = {"tokens of the encoder": step.tokens * step.full}
        decoding = [{**encoded, **terms} for terms in passes] if model.decoder else []
        passes = [*({"holes in the heap": 0, **terms} for terms in _frozen(step)), *decoding]
    update = {**always, "gradients of the weights": 4 * trainable}
    return [update, *({**passing, **terms} for terms in passes)]


def sequence_lengths(model: ModelConfig, lengths: Sequence[int]) -> list[int]:
    """The lengths of the sequences of such records; the two of a pair count as equal, which is one block off at most.

    >>> sequence_lengths(ModelConfig(inputs=256, outputs=2, head="pair"), [100, 7])
    [50, 50, 4, 3]
    """
    each = HEADS[model.head].sequences
    return [max(1, (n + each - 1 - part) // each) for n in lengths for part in range(each)]


def _encoder_lengths(model: ModelConfig, lengths: Sequence[int]) -> list[int]:
    """The lengths that the encoder reads, with padding where the model pads.

    >>> _encoder_lengths(ModelConfig(inputs=5, outputs=2, strategy="segment", piece_length=4), [3, 9])
    [4, 4, 4, 4]
    """
    strategy = STRATEGIES[model.strategy](model.network.max_length, model.piece_length)
    return list(strategy.split(Packed.from_lengths(torch.empty(sum(lengths), 0), lengths)).lengths)


class _Step:
    """The dimensions of a step that memory is counted in."""

    def __init__(self, model: ModelConfig, lengths: Sequence[int], hardware: Hardware, networks: int) -> None:
        """`networks` is the number of encoders and decoders that gradients pass through."""
        extra = HEADS[model.head].extra
        self.model, self.hardware, self.networks = model, hardware, networks
        self.network: ChordMixerConfig = replace(model.network, max_length=model.network.max_length + extra)
        self.lengths = [n + extra for n in _encoder_lengths(model, sequence_lengths(model, lengths))]
        self.tokens, self.hidden, self.channels = sum(self.lengths), self.network.hidden, self.network.width
        self.number = 2 if hardware.half else 4
        """Bytes of a number in the precision of the matrix products."""
        self.full, self.short = 4 * self.channels, self.number * self.channels
        """Bytes of a token in float32, and in that precision."""
        depths = [depth(n) for n in self.lengths]
        reach = [sum(n for n, d in zip(self.lengths, depths, strict=True) if d > i) for i in range(max(depths))]
        self.reach = networks * reach
        """Tokens that reach each block."""
        self.passes = sum(self.reach)
        """Tokens, counted once for each block that they pass."""
        self.left = sum(before for before, now in pairwise(self.reach) if now < before)
        """Tokens of blocks after which some sequences end: the whole block is kept until the others are done."""
        net = self.network
        known = net.order == "paper" and net.prenorm in (None, "layer") and net.norm is None and not net.reversible
        self.joined = known and not hardware.kernels and hardware.processors == 1
        """Whether all blocks are one operation on a CPU."""
        self.of_blocks = len(self.reach) * (2 * self.hidden * self.channels + self.channels + self.hidden)
        """Weights of the blocks in use."""

    def holes(self) -> int:
        rows: tuple[int, int] = (self.full, self.number * self.hidden)
        return self.networks * sum(HOLES * self.tokens * row for row in rows if self.tokens * row < MAPPED)


def _stem_and_words(step: _Step) -> Terms:
    """What stem and words keep for their gradients; each convolution its input, its output and that of the norm."""
    model, stem, words, width = step.model, step.model.stem, step.model.words, step.channels
    inner = [stem.width] * (stem.layers - 1)
    first = width if model.embedding == "tokens" else model.inputs * (2 if model.within_record else 1)
    numbers = sum(4 * a + 8 * b for a, b in pairwise([first, *inner, width])) if stem.layers else 0
    found = len(words.lengths) * (8 + 1 + 8 * words.width) + 4 * (words.width + width) if words.lengths else 0
    return {"stem": step.tokens * numbers, "words": step.tokens * found}


def _trained(step: _Step) -> list[Terms]:
    """Networks that gradients pass through."""
    if step.hardware.kernels:
        return _kernels_reversible(step) if step.network.reversible else _kernels(step)
    if step.joined:
        return _joined(step)
    return _torch_reversible(step) if step.network.reversible else _torch(step)


def _norm_bytes(kind: str | None, channels: int) -> int:
    """What autograd keeps for a norm, in bytes per token: float32 in any precision."""
    return {None: 0, "layer": 4 * channels + 8, "batch": 4 * channels, "group": 16 * channels + 24}[kind]


# --- A CPU, all blocks as one operation ---


def _joined(step: _Step) -> list[Terms]:
    net, T, full, short = step.network, step.tokens, step.full, step.short
    folded = bool(net.prenorm or net.dropout)  # first layers with what a norm and dropout multiply
    kept = {
        "hidden layers": step.passes * step.number * step.hidden,
        "what Mix reads": step.passes * short,
        "inputs of the norms": step.passes * 4 if net.prenorm else 0,
        "dropout": step.passes * short if net.dropout else 0,
        "weights for the products": 4 * len(step.reach) * step.hidden * step.channels if folded else 0,
    }
    forward = {**kept, "embedding": T * full, "outputs": T * full, **_joined_tile(step, backward=False)}
    gradients = {"gradients": 2 * T * full + T * short, "gradients of the blocks": 4 * step.of_blocks}
    backward = {**kept, **gradients, **_joined_tile(step, backward=True)}
    if step.model.final_norm:
        learn = {**kept, "last norm": T * _norm_bytes("layer", step.channels), "gradients": 2 * T * full}
        return [forward, learn, backward]
    return [forward, backward]


def _joined_tile(step: _Step, backward: bool) -> Terms:
    """Numbers around a block for one tile, in its type and in float32, and which rows of the batch Rotate reads."""
    net, half, passes = step.network, step.hardware.half, 2 if backward else 1
    row = (2 if half else 1) * step.short + passes * step.number * step.hidden
    if net.prenorm:
        row += (3 if half and backward else 1) * step.full
    elif half:
        row += step.full
    indices = sum(n for n in step.lengths if n < SLICED)
    return {
        "a tile of a block": row * min(step.tokens, TILE),
        "indices of Rotate": passes * 4 * net.tracks * indices,
    }


# --- torch ---


def _torch(step: _Step) -> list[Terms]:
    net, C, T, full, last = step.network, step.channels, step.tokens, step.full, step.reach[-1]
    half = step.hardware.half
    unchanged = net.order == "released" and net.prenorm is None and not half  # Mix reads the block's input
    kept = {
        "hidden layers": step.passes * 2 * step.number * step.hidden,
        "what Mix reads": step.passes * step.short,
        "inputs of the norms": step.passes * (_norm_bytes(net.prenorm, C) + _norm_bytes(net.norm, C)),
        "dropout": step.passes * (full if net.order == "paper" else step.short) if net.dropout else 0,
    }
    kept_anyway = unchanged or net.prenorm in ("layer", "batch")  # a block's input, by what reads it first
    held = 0 if kept_anyway else (T + step.left) * full
    own = 0 if kept_anyway or step.reach[-2:-1] != [last] else full  # of the last block, which is not held
    adding = last * (own + full + step.short + (full if half else 0) + (full if net.prenorm else 0))
    together = (T + last if last < T else T) * full
    forward = {**kept, "inputs of the blocks": held, "outputs": max(adding, together)}
    if step.model.final_norm:
        backward = {**kept, "last norm": T * _norm_bytes("layer", C), "gradients": 2 * T * full}
    else:
        backward = {**kept, "gradients": T * full + last * (full + step.number * step.hidden)}
    return [forward, backward]


def _torch_reversible(step: _Step) -> list[Terms]:
    net, T, full, first = step.network, step.tokens, step.full, step.reach[0]
    block = 2 * step.short + full + 2 * step.number * step.hidden  # inputs and outputs of Mix, the sum, hidden layers
    block += full if step.hardware.half else 0
    block += full + 8 if net.prenorm else 0
    block += full if net.dropout else 0
    return [
        {
            "two streams": 2 * T * full * step.networks,
            "gradients": 3 * T * full,
            "gradients of the blocks": 4 * step.of_blocks,
            "one block, computed again": first * (block + full),
            "of the block before": 2 * first * full,
        }
    ]


# --- Kernels, which compute hidden layers again ---


def _kernels(step: _Step) -> list[Terms]:
    net, C, T, full, short = step.network, step.channels, step.tokens, step.full, step.short
    half, normed = step.hardware.half, net.prenorm == "layer"
    folded = net.prenorm == "batch" and not (net.dropout and net.order == "paper")  # into the first layer
    after = short if net.norm == "batch" else _norm_bytes(net.norm, C)
    separate = after + (0 if normed or folded else _norm_bytes(net.prenorm, C))
    kept = {
        "inputs of the blocks": (step.passes + (T + step.left if net.prenorm == "group" else 0)) * short,
        "inputs of the norms": step.passes * (separate + (8 if normed else 0)),
        "weights for the kernels": step.of_blocks * (step.number + (2 if normed else 0)),
    }
    embedding = T * full if half else 0  # in float32, beside the copy that the blocks read
    left = T * short if step.reach[-1] < T else 0  # sequences that end early are copied behind the others
    forward = {**kept, "embedding": embedding, "outputs": step.reach[-1] * short + left}
    forward["weights for the kernels"] += 4 * step.of_blocks if half else 0  # before their conversion to bfloat16
    read = {**kept, "outputs": T * short}
    if step.model.final_norm:
        read |= {"last norm": (T * full if half else 0) + T * (full + 8)}
        learn = {**kept, "last norm": T * _norm_bytes("layer", C), "gradients": 2 * T * full}
    else:
        learn = {**kept, "gradients": T * short}
    buffers = T * short * ((3 if separate == 0 else 2) + (1 if normed else 0))  # with other norms, block by block
    backward = {**kept, "gradients": buffers, **_scratch(step)}
    backward["gradients of the blocks"] = 4 * step.of_blocks
    return [forward, read, learn, backward]


def _kernels_reversible(step: _Step) -> list[Terms]:
    net, T, short, first = step.network, step.tokens, step.short, step.reach[0]
    streams = {
        "two streams": 2 * T * short * step.networks,
        "gradients": 3 * T * short,
        "gradients of the blocks": 4 * step.of_blocks,
    }
    embedding = T * step.full if step.hardware.half else 0
    statistics = 8 * first if net.prenorm else 0
    return [
        {"embedding": embedding + T * short, "two streams": 2 * T * short, "outputs": T * short},
        {
            **streams,
            "one block, computed again": 2 * first * short + statistics,
            "of the block before": 2 * first * short,
        },
        {
            **streams,
            "one block, computed again": (3 if net.prenorm else 2) * first * short + statistics,
            "of the block before": first * short,
            **_scratch(step),
        },
    ]


def _scratch(step: _Step) -> Terms:
    """Of the backward pass of the first block: the hidden layer, and rows of sums."""
    half, a, tokens, hidden, channels = step.hardware.half, step.number, step.reach[0], step.hidden, step.channels
    if hidden > ops.FUSED_HIDDEN:  # by the matrix library, from rotated copies of the tokens
        unit = 16 // a  # rows are padded to 16 bytes, and end with a one
        wide, rotated = (n // unit * unit + unit for n in (hidden, channels))
        copies = 2 if step.network.order == "released" or channels % unit else 1  # one is the gradient's
        return {"scratch of a backward pass": tokens * a * (2 * wide + copies * rotated)}
    tile = 64 if half else 32
    rows = ceil(tokens / tile) + len(step.lengths)
    columns = ceil(channels / tile) * ceil(hidden / 128)
    shares = max(1, min(4 * step.hardware.processors // columns, tokens // 128))
    sums = 4 * rows * hidden + 4 * shares * (2 * hidden + 1) * channels
    return {"scratch of a backward pass": tokens * (2 * a * hidden + 8) + sums}


# --- A frozen encoder, which keeps nothing for gradients ---


def _frozen(step: _Step) -> list[Terms]:
    """Its forward pass, in the blocks, at their end and in the last norm: a few tokens' worth at any depth.

    Tokens move between two buffers; torch computes a block in tiles. Every step asks for the same few tensors, and so
    no holes were measured in the heap of a CPU, but for some 40 MB of a reversible network.
    """
    net, T, full, kernels = step.network, step.tokens, step.full, step.hardware.kernels
    short = kernels and step.hardware.half  # tokens are bfloat16, and the embedding is not
    stream = T * full // (2 if short else 1)
    embedding = {"embedding": T * full + (stream if short else 0)}
    if step.joined:
        return _frozen_joined(step)
    third = net.prenorm == "layer" and not net.reversible and not kernels  # a third buffer, for the norm
    buffers = {**embedding, "tokens around a block": stream * (min(2, len(step.reach)) + third)}
    block = {**buffers, **(_frozen_kernel(step) if kernels else _frozen_tile(step, third))}
    end = {**embedding, "tokens around a block": 2 * stream, "outputs": stream} if net.reversible else {}
    last = {"outputs": stream, "last norm": T * full * (2 if short else 1)} if step.model.final_norm else {}
    return [block, end, last]


def _frozen_joined(step: _Step) -> list[Terms]:
    """Two buffers take turns; another type or a norm takes one more."""
    net, T, full = step.network, step.tokens, step.full
    apart = step.hardware.half or bool(net.prenorm)
    buffers = min(2, len(step.reach)) * T * step.short + (T * full if apart else 0)
    folded = 4 * len(step.reach) * step.hidden * step.channels if net.prenorm else 0
    block = {
        "embedding": T * full,
        "tokens around a block": buffers,
        "weights for the products": folded,
        **_joined_tile(step, backward=False),
    }
    last = {"outputs": T * full, "last norm": T * full} if step.model.final_norm else {}
    return [block, last]


def _frozen_tile(step: _Step, third: bool) -> Terms:
    """Inputs and hidden layer of Mix; more where a norm or another precision comes between."""
    net, full = step.network, step.full
    lean = net.order == "paper" and not net.norm and (third or net.prenorm is None)
    more = (full + step.short if step.hardware.half else 12 * net.tracks) if lean else 2 * full
    row = full + step.number * step.hidden + more
    return {"a tile of a block": row * min(step.tokens, TILE if step.hardware.processors == 1 else GPU_TILE)}


def _frozen_kernel(step: _Step) -> Terms:
    """A block's weights as its kernel reads them, and norms that no kernel computes."""
    net, full, first, half = step.network, step.full, step.reach[0], step.hardware.half
    normed = net.prenorm == "layer"
    others = [kind for kind in (net.norm, net.prenorm if net.prenorm == "group" else None) if kind]
    rows = sum(4 * full if kind == "group" else full for kind in others) + (8 if normed else 0)
    wide = (step.channels + step.hidden) * step.number if step.hidden > ops.FUSED_HIDDEN else 0
    block = step.of_blocks // len(step.reach)
    return {
        "hidden layer": first * wide,
        "norms of a block": first * rows,
        "weights for the kernels": block * ((2 if half else 0) + (2 if normed else 0)),
    }
