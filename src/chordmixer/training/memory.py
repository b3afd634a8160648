"""Peak memory of a training step, counted from the tensors that are alive at the moments of highest use.

Bytes per token, for C channels and H hidden units; a is 4 bytes, or 2 in bfloat16. `each` means once for each block
that a token passes; T means once for each token of the batch.

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

The CPU terms follow from `ops/cpu_blocks.py`, which computes blocks in the paper's order with layer norm or no norm.
The terms of other blocks are what autograd was measured to keep. The GPU terms follow from `ops/triton_block.py`.
The C library's heap on a CPU adds holes, about four of each tensor size below 32 MiB, since such tensors rarely fit
into freed space.
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
COUNTED_ENCODER = "chordmixer"
"""Name of the only encoder whose memory is counted."""
MMAP_BYTES, HOLES = 32 << 20, 4
"""Bytes from which glibc maps a tensor separately and returns it to the system; smaller tensors leave holes in the
heap of this many times their size (three to seven were measured)."""
RETAINED_SHARE = 1.0
"""Freed memory that the heap retains after batches of many sizes, as a share of a step's (measured: 0.8 to 1.1)."""
SLICED_LENGTH = 2_048
"""Sequence length from which Rotate on a CPU takes slices instead of an index."""
TILE, GPU_TILE = 4_096, 1 << 17
"""Tokens that a frozen block in torch computes at a time, on a CPU and on a GPU."""


@dataclass(frozen=True)
class Hardware:
    """The properties of a device that its memory use depends on."""

    kernels: bool = False
    """Whether Triton kernels compute the blocks."""
    half: bool = False
    """Whether matrix products are in bfloat16."""
    processors: int = 1
    """Number of multiprocessors of a GPU, each of which has its own partial sums; 1 on a CPU."""
    workspace: int = 0
    """Bytes that a GPU's matrix library reserves."""
    heap: bool = False
    """Whether tensors are allocated on the C library's heap, as on a CPU."""

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
    """Number of trainable weights; with `freeze`, without those of embedding and encoder.

    >>> model = ModelConfig(inputs=6, outputs=2, network=ChordMixerConfig(max_length=1024, track_size=16))
    >>> weights(model), weights(model, freeze=True)
    (455010, 354)
    """
    with without_memory():
        module = Model(model)
        if freeze:
            module.freeze()
        return sum(p.numel() for p in module.parameters() if p.requires_grad)


def peak(
    model: ModelConfig, lengths: Sequence[int], hardware: Hardware, accumulate: int = 1, freeze: bool = False
) -> Terms:
    """Peak bytes of a training step on records of these lengths, by purpose.

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

    `terms` are the peak of the largest batch, which has these lengths. The next batch's tensors rarely fit into freed
    space, so that the heap grows; tensors of at least `MMAP_BYTES` are returned to the system.
    """
    if not hardware.heap:
        return 0
    tokens = sum(_encoder_lengths(model, sequence_lengths(model, lengths)))
    number = 2 if hardware.half else 4
    rows = {"hidden layers": number * model.network.hidden, "what Mix reads": number * model.network.width}
    allocated_once = {"weights", "moments of AdamW", "gradients of the weights", "inputs"}
    heap = (
        size
        for name, size in terms.items()
        if name not in allocated_once and tokens * rows.get(name, 4 * model.network.width) < MMAP_BYTES
    )
    return int(RETAINED_SHARE * sum(heap))


def moments(
    model: ModelConfig, lengths: Sequence[int], hardware: Hardware, accumulate: int = 1, freeze: bool = False
) -> list[Terms]:
    """Memory at each moment of a step that may be its peak: the optimiser's update, then the passes."""
    if model.encoder != COUNTED_ENCODER:
        raise ValueError(
            f"encoder {model.encoder!r} has no count of its memory: only {COUNTED_ENCODER} has one; "
            f"set model.encoder={COUNTED_ENCODER}"
        )
    trainable = weights(model, freeze)
    step = _Step(model, lengths, hardware, networks=2 if model.decoder and not freeze else 1)
    always = {"weights": 4 * weights(model), "moments of AdamW": 8 * trainable}
    always["workspace of cuBLAS"] = hardware.workspace
    during_passes = {**always, "gradients of the weights": 4 * trainable if accumulate > 1 else 0}
    during_passes |= {} if freeze else _stem_and_words(step)
    during_passes["answers for the tokens"] = 12 * step.tokens * model.outputs if model.head == "tokens" else 0
    during_passes["inputs"] = sum(lengths) * (9 if model.embedding == "tokens" else 4 * model.inputs)
    if not hardware.kernels:
        during_passes["weights in bfloat16"] = 2 * trainable if hardware.half else 0
        during_passes["holes in the heap"] = step.holes() if hardware.heap else 0
    passes = _trained(step)
    if freeze:
        encoded = {"tokens of the encoder": step.tokens * step.full}
        decoding = [{**encoded, **terms} for terms in passes] if model.decoder else []
        passes = [*({"holes in the heap": 0, **terms} for terms in _frozen(step)), *decoding]
    update = {**always, "gradients of the weights": 4 * trainable}
    return [update, *({**during_passes, **terms} for terms in passes)]


def sequence_lengths(model: ModelConfig, lengths: Sequence[int]) -> list[int]:
    """The lengths of the sequences in records of these lengths.

    The two sequences of a pair are taken as equally long, which changes a depth by one block at most.

    >>> sequence_lengths(ModelConfig(inputs=256, outputs=2, head="pair"), [100, 7])
    [50, 50, 4, 3]
    """
    each = HEADS[model.head].sequences
    return [max(1, (n + each - 1 - part) // each) for n in lengths for part in range(each)]


def _encoder_lengths(model: ModelConfig, lengths: Sequence[int]) -> list[int]:
    """The lengths of the encoder's inputs, including padding if the model pads.

    >>> _encoder_lengths(ModelConfig(inputs=5, outputs=2, strategy="segment", piece_length=4), [3, 9])
    [4, 4, 4, 4]
    """
    strategy = STRATEGIES[model.strategy](model.network.max_length, model.piece_length)
    return list(strategy.split(Packed.from_lengths(torch.empty(sum(lengths), 0), lengths)).lengths)


class _Step:
    """The sizes of a step on which its memory depends."""

    def __init__(self, model: ModelConfig, lengths: Sequence[int], hardware: Hardware, networks: int) -> None:
        """`networks` is the number of encoders and decoders that gradients pass through."""
        extra = HEADS[model.head].extra
        self.model, self.hardware, self.networks = model, hardware, networks
        self.network: ChordMixerConfig = replace(model.network, max_length=model.network.max_length + extra)
        self.lengths = [n + extra for n in _encoder_lengths(model, sequence_lengths(model, lengths))]
        self.tokens, self.hidden, self.channels = sum(self.lengths), self.network.hidden, self.network.width
        self.number = 2 if hardware.half else 4
        """Bytes per number in the precision of the matrix products."""
        self.full, self.short = 4 * self.channels, self.number * self.channels
        """Bytes per token in float32, and in the precision of the matrix products."""
        depths = [depth(n) for n in self.lengths]
        reach = [sum(n for n, d in zip(self.lengths, depths, strict=True) if d > i) for i in range(max(depths))]
        self.reach = networks * reach
        """Number of tokens that reach each block."""
        self.passes = sum(self.reach)
        """Number of tokens, each counted once for every block that it passes."""
        self.left = sum(before for before, now in pairwise(self.reach) if now < before)
        """Tokens of blocks after which some sequences end: all outputs of such a block are kept to the last block."""
        net = self.network
        supported = (
            net.order == "paper" and net.prenorm in (None, "layer") and net.norm is None and not net.reversible
        )
        self.joined = supported and not hardware.kernels and hardware.processors == 1
        """Whether all blocks are a single autograd operation, as on a CPU."""
        self.block_weights = len(self.reach) * (2 * self.hidden * self.channels + self.channels + self.hidden)
        """Number of weights of the blocks in use."""

    def holes(self) -> int:
        """Bytes of the holes that freed tensors leave in the heap."""
        rows: tuple[int, int] = (self.full, self.number * self.hidden)
        return self.networks * sum(HOLES * self.tokens * row for row in rows if self.tokens * row < MMAP_BYTES)


def _stem_and_words(step: _Step) -> Terms:
    """Bytes that stem and words keep for gradients: of each convolution its input, output and normalised output."""
    model, stem, words, width = step.model, step.model.stem, step.model.words, step.channels
    inner = [stem.width] * (stem.layers - 1)
    first = width if model.embedding == "tokens" else model.inputs * (2 if model.within_record else 1)
    numbers = sum(4 * a + 8 * b for a, b in pairwise([first, *inner, width])) if stem.layers else 0
    per_token = len(words.lengths) * (8 + 1 + 8 * words.width) + 4 * (words.width + width) if words.lengths else 0
    return {"stem": step.tokens * numbers, "words": step.tokens * per_token}


def _trained(step: _Step) -> list[Terms]:
    """Memory at the moments of a step whose gradients pass through the blocks."""
    if step.hardware.kernels:
        return _kernels_reversible(step) if step.network.reversible else _kernels(step)
    if step.joined:
        return _joined(step)
    return _torch_reversible(step) if step.network.reversible else _torch(step)


def _norm_bytes(kind: str | None, channels: int) -> int:
    """Bytes per token that autograd keeps for a norm: float32 in any precision."""
    return {None: 0, "layer": 4 * channels + 8, "batch": 4 * channels, "group": 16 * channels + 24}[kind]


# --- A CPU, all blocks as one operation ---


def _joined(step: _Step) -> list[Terms]:
    net, T, full, short = step.network, step.tokens, step.full, step.short
    folded = bool(net.prenorm or net.dropout)  # the scales of norm and dropout, into the weights of the first layer
    saved = {
        "hidden layers": step.passes * step.number * step.hidden,
        "what Mix reads": step.passes * short,
        "inputs of the norms": step.passes * 4 if net.prenorm else 0,
        "dropout": step.passes * short if net.dropout else 0,
        "weights for the products": 4 * len(step.reach) * step.hidden * step.channels if folded else 0,
    }
    forward = {**saved, "embedding": T * full, "outputs": T * full, **_joined_tile(step, backward=False)}
    gradients = {"gradients": 2 * T * full + T * short, "gradients of the blocks": 4 * step.block_weights}
    backward = {**saved, **gradients, **_joined_tile(step, backward=True)}
    if step.model.final_norm:
        final_norm = {**saved, "last norm": T * _norm_bytes("layer", step.channels), "gradients": 2 * T * full}
        return [forward, final_norm, backward]
    return [forward, backward]


def _joined_tile(step: _Step, backward: bool) -> Terms:
    """Bytes of one tile of a block, in its precision and in float32, and of the row indices of Rotate."""
    net, half, passes = step.network, step.hardware.half, 2 if backward else 1
    row = (2 if half else 1) * step.short + passes * step.number * step.hidden
    if net.prenorm:
        row += (3 if half and backward else 1) * step.full
    elif half:
        row += step.full
    indices = sum(n for n in step.lengths if n < SLICED_LENGTH)
    return {
        "a tile of a block": row * min(step.tokens, TILE),
        "indices of Rotate": passes * 4 * net.tracks * indices,
    }


# --- torch ---


def _torch(step: _Step) -> list[Terms]:
    net, C, T, full, last = step.network, step.channels, step.tokens, step.full, step.reach[-1]
    half = step.hardware.half
    reads_input = net.order == "released" and net.prenorm is None and not half  # Mix reads the block's input itself
    saved = {
        "hidden layers": step.passes * 2 * step.number * step.hidden,
        "what Mix reads": step.passes * step.short,
        "inputs of the norms": step.passes * (_norm_bytes(net.prenorm, C) + _norm_bytes(net.norm, C)),
        "dropout": step.passes * (full if net.order == "paper" else step.short) if net.dropout else 0,
    }
    already_saved = reads_input or net.prenorm in ("layer", "batch")  # a block's input, by what reads it first
    inputs = 0 if already_saved else (T + step.left) * full
    last_input = 0 if already_saved or step.reach[-2:-1] != [last] else full  # of the last block, not in `inputs`
    residual_sum = last * (last_input + full + step.short + (full if half else 0) + (full if net.prenorm else 0))
    concatenation = (T + last if last < T else T) * full
    forward = {**saved, "inputs of the blocks": inputs, "outputs": max(residual_sum, concatenation)}
    if step.model.final_norm:
        backward = {**saved, "last norm": T * _norm_bytes("layer", C), "gradients": 2 * T * full}
    else:
        backward = {**saved, "gradients": T * full + last * (full + step.number * step.hidden)}
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
            "gradients of the blocks": 4 * step.block_weights,
            "one block, computed again": first * (block + full),
            "of the block before": 2 * first * full,
        }
    ]


# --- Triton kernels, which recompute hidden layers in the backward pass ---


def _kernels(step: _Step) -> list[Terms]:
    net, C, T, full, short = step.network, step.channels, step.tokens, step.full, step.short
    half, normed = step.hardware.half, net.prenorm == "layer"
    folded = net.prenorm == "batch" and not (net.dropout and net.order == "paper")  # norm, into the first layer
    after = short if net.norm == "batch" else _norm_bytes(net.norm, C)
    separate = after + (0 if normed or folded else _norm_bytes(net.prenorm, C))
    saved = {
        "inputs of the blocks": (step.passes + (T + step.left if net.prenorm == "group" else 0)) * short,
        "inputs of the norms": step.passes * (separate + (8 if normed else 0)),
        "weights for the kernels": step.block_weights * (step.number + (2 if normed else 0)),
    }
    embedding = T * full if half else 0  # in float32, in addition to the copy that the blocks read
    left = T * short if step.reach[-1] < T else 0  # sequences that end early are copied after the others
    forward = {**saved, "embedding": embedding, "outputs": step.reach[-1] * short + left}
    forward["weights for the kernels"] += 4 * step.block_weights if half else 0  # before their conversion to bfloat16
    read = {**saved, "outputs": T * short}
    if step.model.final_norm:
        read |= {"last norm": (T * full if half else 0) + T * (full + 8)}
        final_norm = {**saved, "last norm": T * _norm_bytes("layer", C), "gradients": 2 * T * full}
    else:
        final_norm = {**saved, "gradients": T * short}
    buffers = T * short * ((3 if separate == 0 else 2) + (1 if normed else 0))  # other norms work block by block
    backward = {**saved, "gradients": buffers, **_scratch(step)}
    backward["gradients of the blocks"] = 4 * step.block_weights
    return [forward, read, final_norm, backward]


def _kernels_reversible(step: _Step) -> list[Terms]:
    net, T, short, first = step.network, step.tokens, step.short, step.reach[0]
    streams = {
        "two streams": 2 * T * short * step.networks,
        "gradients": 3 * T * short,
        "gradients of the blocks": 4 * step.block_weights,
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
    """Scratch memory of the backward pass of the first block: the hidden layer, and partial sums."""
    half, a, tokens, hidden, channels = step.hardware.half, step.number, step.reach[0], step.hidden, step.channels
    if hidden > ops.FUSED_HIDDEN:  # cuBLAS computes it, from rotated copies of the tokens
        unit = 16 // a  # rows are padded to 16 bytes and end with a 1
        wide, rotated = (n // unit * unit + unit for n in (hidden, channels))
        copies = 2 if step.network.order == "released" or channels % unit else 1  # one for the gradient
        return {"scratch of a backward pass": tokens * a * (2 * wide + copies * rotated)}
    tile = 64 if half else 32
    rows = ceil(tokens / tile) + len(step.lengths)
    columns = ceil(channels / tile) * ceil(hidden / 128)
    shares = max(1, min(4 * step.hardware.processors // columns, tokens // 128))
    sums = 4 * rows * hidden + 4 * shares * (2 * hidden + 1) * channels
    return {"scratch of a backward pass": tokens * (2 * a * hidden + 8) + sums}


# --- A frozen encoder, which saves nothing for the backward pass ---


def _frozen(step: _Step) -> list[Terms]:
    """Memory of its forward pass in a block, after the last block and in the final norm; independent of the depth.

    Tokens move between two buffers; torch computes a block in tiles. Every step allocates the same few tensors, so
    that no holes were measured in the heap of a CPU, except about 40 MB for a reversible network.
    """
    net, T, full, kernels = step.network, step.tokens, step.full, step.hardware.kernels
    short = kernels and step.hardware.half  # tokens are bfloat16, the embedding is float32
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
    """Memory of blocks that are one operation: two alternating buffers, and a third for a norm or bfloat16."""
    net, T, full = step.network, step.tokens, step.full
    third = step.hardware.half or bool(net.prenorm)
    buffers = min(2, len(step.reach)) * T * step.short + (T * full if third else 0)
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
    """Bytes of a tile: inputs and hidden layer of Mix, and copies for a norm or another precision."""
    net, full = step.network, step.full
    lean = net.order == "paper" and not net.norm and (third or net.prenorm is None)
    more = (full + step.short if step.hardware.half else 12 * net.tracks) if lean else 2 * full
    row = full + step.number * step.hidden + more
    return {"a tile of a block": row * min(step.tokens, TILE if step.hardware.processors == 1 else GPU_TILE)}


def _frozen_kernel(step: _Step) -> Terms:
    """Bytes of a block's weights in the kernel's layout, and of norms without a kernel."""
    net, full, first, half = step.network, step.full, step.reach[0], step.hardware.half
    normed = net.prenorm == "layer"
    others = [kind for kind in (net.norm, net.prenorm if net.prenorm == "group" else None) if kind]
    rows = sum(4 * full if kind == "group" else full for kind in others) + (8 if normed else 0)
    wide = (step.channels + step.hidden) * step.number if step.hidden > ops.FUSED_HIDDEN else 0
    block = step.block_weights // len(step.reach)
    return {
        "hidden layer": first * wide,
        "norms of a block": first * rows,
        "weights for the kernels": block * ((2 if half else 0) + (2 if normed else 0)),
    }
