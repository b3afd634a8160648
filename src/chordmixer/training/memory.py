"""How much memory a training step takes: a count of the tensors that live at its fullest moments.

Bytes a token, of C channels and H hidden numbers; a is 4, or 2 in bfloat16. `each` block counts the tokens that reach
it, and T all tokens of the batch.

| what | plain torch (a CPU) | kernels (a GPU) |
|---|---|---|
| hidden layers, before and after GELU | 2aH each | computed again |
| what Mix reads, rotated | aC each | computed again |
| inputs of the blocks | 4C each, in the forward pass or for a norm | aC each |
| a layer norm | 8 each | 8 each |
| embedding, outputs, gradients | some 8C to 12C of T | 4C to 12C of T |
| scratch of the backward pass | | 2aH + 8 of T, and rows of sums; 2aH + aC if H > 256 |
| reversible, in place of all these | 44C + 8H of T | 9aC + 2aH of T |
| a frozen encoder, in place of all these: `frozen.py` | 12C to 16C of T | 10C to 16C of T |

On a CPU this is what autograd was seen to keep; the terms of a GPU, in `on_kernels.py`, are read off
`ops/triton_block.py`. The heap of a CPU's C library adds holes, since tensors below 32 MiB fit badly into the room of
freed ones: some four of each kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import torch

from chordmixer import ops
from chordmixer.models.chordmixer import ChordMixerConfig, depth
from chordmixer.models.heads import HEADS
from chordmixer.models.model import Model, ModelConfig, without_memory
from chordmixer.models.strategies import STRATEGIES
from chordmixer.packed import Packed
from chordmixer.training import frozen, on_kernels
from chordmixer.training.on_kernels import of_norm

Terms = dict[str, int]
"""Bytes by what they are for."""
COUNTED = "chordmixer"
"""The encoder whose tensors are counted here."""
MAPPED, HOLES = 32 << 20, 4
"""Larger tensors get memory of their own from the system, and give it back (glibc); of smaller ones, holes in the
heap as large as this many were seen, three to seven at different sizes."""
KEPT = 1.0
"""Freed memory that the heap keeps over batches of many sizes, as a share of a step's: 0.8 to 1.1 were seen."""


@dataclass(frozen=True)
class Place:
    """Where a step runs, as far as memory goes."""

    kernels: bool = False
    """Whether blocks are computed by Triton."""
    half: bool = False
    """Whether in bfloat16."""
    processors: int = 1
    """Of a GPU: each keeps sums of its own."""
    workspace: int = 0
    """What a GPU's matrix library takes for itself."""
    heap: bool = False
    """Whether tensors come from the C library's heap."""

    @staticmethod
    def of(device: torch.device, precision: str) -> Place:
        half = precision == "bf16"
        if device.type != "cuda":
            return Place(half=half, heap=True)
        about = torch.cuda.get_device_properties(device)
        # torch's own choice for cuBLAS, once for each of two threads: that of the forward and of the backward pass
        workspace = 2 * ((32 << 20) if about.major >= 9 else 8320 << 10)
        kernels = ops.on_kernels(torch.empty(0, device=device))
        return Place(kernels, half, about.multi_processor_count, workspace)


@lru_cache(maxsize=256)
def weights(model: ModelConfig, freeze: bool = False) -> int:
    """Numbers that a model learns; with `freeze`, those behind the encoder.

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
    model: ModelConfig, lengths: Sequence[int], place: Place, accumulate: int = 1, freeze: bool = False
) -> Terms:
    """The terms of the fullest moment of a training step over records of these lengths.

    >>> model = ModelConfig(inputs=6, outputs=2, network=ChordMixerConfig(max_length=1024, track_size=16))
    >>> {name: f"{size >> 20} MB" for name, size in peak(model, [1000] * 64, Place()).items() if size >> 20}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'weights': '1 MB', 'moments of AdamW': '3 MB', 'hidden layers': '625 MB', 'what Mix reads': '429 MB',
     'inputs of the blocks': '42 MB', 'outputs': '128 MB'}
    """
    moments = step(model, lengths, place, accumulate, freeze)
    return max(moments, key=lambda terms: sum(terms.values()))


def kept(model: ModelConfig, lengths: Sequence[int], place: Place, terms: Terms) -> int:
    """Bytes of freed tensors that the C library's heap keeps, once steps over batches of other sizes were taken too.

    `terms` are the peak of the largest batch, whose lengths these are. No freed room fits the next batch's tensors
    quite, and so the heap grows; tensors above `MAPPED` are given back.
    """
    if not place.heap:
        return 0
    tokens = sum(_read(model, sequences(model, lengths)))
    rows = {"hidden layers": (2 if place.half else 4) * model.network.hidden}
    stay = {"weights", "moments of AdamW", "gradients of the weights", "inputs"}
    heap = (
        number
        for name, number in terms.items()
        if name not in stay and tokens * rows.get(name, 4 * model.network.width) < MAPPED
    )
    return int(KEPT * sum(heap))


def step(
    model: ModelConfig, lengths: Sequence[int], place: Place, accumulate: int = 1, freeze: bool = False
) -> list[Terms]:
    """The moments of a step that may be its fullest: the ends of its passes, and the optimiser's turn."""
    if model.encoder != COUNTED:
        raise ValueError(
            f"encoder {model.encoder!r} has no count of its memory: only {COUNTED} has one; "
            f"set model.encoder={COUNTED}"
        )
    own, extra = weights(model), HEADS[model.head].extra
    learning = weights(model, freeze) if freeze else own
    parts = [n + extra for n in _read(model, sequences(model, lengths))]
    network = replace(model.network, max_length=model.network.max_length + extra)
    size = Size(network, parts, networks=2 if model.decoder and not freeze else 1)
    always = {"weights": 4 * own, "moments of AdamW": 8 * learning, "workspace of cuBLAS": place.workspace}
    passing = {**always, "gradients of the weights": 4 * learning if accumulate > 1 else 0}
    passing |= {} if freeze else _local(model, size)
    passing["answers for the tokens"] = 12 * sum(parts) * model.outputs if model.head == "tokens" else 0
    passing["inputs"] = sum(lengths) * (9 if model.embedding == "tokens" else 4 * model.inputs)
    if not place.kernels:
        passing["weights in bfloat16"] = 2 * learning if place.half else 0
        passing["holes in the heap"] = _holes(size, place) if place.heap else 0
    moments = _learning(size, place, model)
    if freeze:
        still = {"tokens of the encoder": 4 * size.tokens * size.channels}
        behind = [{**still, **terms} for terms in moments] if model.decoder else []
        alone = [{"holes in the heap": 0, **terms} for terms in frozen.moments(size, place, model)]
        moments = [*alone, *behind]
    turn = {**always, "gradients of the weights": 4 * learning}
    return [turn, *({**passing, **terms} for terms in moments)]


def _local(model: ModelConfig, size: Size) -> Terms:
    """What stem and words keep for their gradients; each convolution its input, its output and the norm's."""
    stem, words, tokens, width = model.stem, model.words, size.tokens, size.channels
    inner = [stem.width] * (stem.layers - 1)
    first = width if model.embedding == "tokens" else model.inputs * (2 if model.within_record else 1)
    numbers = sum(4 * a + 8 * b for a, b in pairwise([first, *inner, width])) if stem.layers else 0
    found = len(words.lengths) * (8 + 1 + 8 * words.width) + 4 * (words.width + width) if words.lengths else 0
    return {"stem": tokens * numbers, "words": tokens * found}


def _learning(size: Size, place: Place, model: ModelConfig) -> list[Terms]:
    """Of networks that gradients go through."""
    if place.kernels:
        return on_kernels.moments(size, place, model)
    return _plain_reversible(size, place) if model.network.reversible else _plain(size, place, model)


def sequences(model: ModelConfig, lengths: Sequence[int]) -> list[int]:
    """The lengths of the sequences of such records; of a pair, as if both were equal, which is a block off at most.

    >>> sequences(ModelConfig(inputs=256, outputs=2, head="pair"), [100, 7])
    [50, 50, 4, 3]
    """
    each = HEADS[model.head].sequences
    return [max(1, (n + each - 1 - part) // each) for n in lengths for part in range(each)]


def _read(model: ModelConfig, lengths: Sequence[int]) -> list[int]:
    """The lengths that the encoder reads of such sequences, with padding where the model pads.

    >>> _read(ModelConfig(inputs=5, outputs=2, strategy="segment", piece_length=4), [3, 9])
    [4, 4, 4, 4]
    """
    strategy = STRATEGIES[model.strategy](model.network.max_length, model.piece_length)
    return list(strategy.parts(Packed.from_lengths(torch.empty(sum(lengths), 0), lengths)).lengths)


class Size:
    """The numbers that memory is counted in."""

    def __init__(self, network: ChordMixerConfig, lengths: Sequence[int], networks: int = 1) -> None:
        """`networks` of this config, one behind the other."""
        self.network, self.lengths, self.networks = network, lengths, networks
        self.channels, self.hidden = network.width, network.hidden
        self.tokens = sum(lengths)
        depths = [depth(n) for n in lengths]
        reach = [sum(n for n, d in zip(lengths, depths, strict=True) if d > i) for i in range(max(depths))]
        self.reach = networks * reach
        """Tokens that reach each block."""
        self.of_blocks = len(self.reach) * (2 * self.hidden * self.channels + self.channels + self.hidden)
        """Weights of the blocks in use."""

    @property
    def passes(self) -> int:
        """Tokens, once for each block that they pass."""
        return sum(self.reach)

    @property
    def left(self) -> int:
        """Tokens behind blocks that some leave: they wait there for the others, and all of a block with them."""
        return sum(before for before, now in pairwise(self.reach) if now < before)


# --- Plain torch ---


def _holes(size: Size, place: Place) -> int:
    wide = (4 * size.channels, (2 if place.half else 4) * size.hidden)
    return size.networks * sum(HOLES * size.tokens * row for row in wide if size.tokens * row < MAPPED)


def _plain(size: Size, place: Place, model: ModelConfig) -> list[Terms]:
    net, C, H, T = size.network, size.channels, size.hidden, size.tokens
    a, full, last = 2 if place.half else 4, 4 * C, size.reach[-1]
    as_it_is = net.order == "released" and net.prenorm is None and not place.half  # Mix reads the block's input
    kept = {
        "hidden layers": size.passes * 2 * a * H,
        "what Mix reads": size.passes * a * C,
        "inputs of the norms": size.passes * (of_norm(net.prenorm, C) + of_norm(net.norm, C)),
        "dropout": size.passes * (full if net.order == "paper" else a * C) if net.dropout else 0,
    }
    kept_anyway = as_it_is or net.prenorm in ("layer", "batch")  # a block's input, by what reads it first
    held = 0 if kept_anyway else (T + size.left) * full
    own = 0 if kept_anyway or size.reach[-2:-1] != [last] else full  # of the last block, which is not held
    adding = last * (own + full + a * C + (full if place.half else 0) + (full if net.prenorm else 0))
    together = (T + last if last < T else T) * full
    forward = {**kept, "inputs of the blocks": held, "outputs": max(adding, together)}
    if model.final_norm:
        backward = {**kept, "last norm": T * of_norm("layer", C), "gradients": 2 * T * full}
    else:
        backward = {**kept, "gradients": T * full + last * (full + a * H)}
    return [forward, backward]


def _plain_reversible(size: Size, place: Place) -> list[Terms]:
    net, C, H, T = size.network, size.channels, size.hidden, size.tokens
    a, full, first = 2 if place.half else 4, 4 * C, size.reach[0]
    block = 2 * a * C + full + 2 * a * H + (full if place.half else 0)  # what Mix reads and gives, the sum, hidden
    block += full + 8 if net.prenorm else 0
    block += full if net.dropout else 0
    return [
        {
            "two streams": 2 * T * full * size.networks,
            "gradients": 3 * T * full,
            "gradients of the blocks": 4 * size.of_blocks,
            "one block, computed again": first * (block + full),
            "of the block before": 2 * first * full,
        }
    ]
