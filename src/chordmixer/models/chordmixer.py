"""ChordMixer: Rotate and Mix, log2 N times (Khalitov et al., ICLR 2023, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from chordmixer import ops
from chordmixer.config import LONGEST, check_numbers, from_dict
from chordmixer.models.norms import Norm
from chordmixer.packed import LengthsUnknownError, Packed, StaticPacked, check_packed


@dataclass(frozen=True)
class ChordMixerConfig:
    """Settings of the encoder: width and depth follow from the first two. The defaults are the paper's."""

    max_length: int = 1_500_000
    """N_max, the longest sequence that the network is built for."""
    track_size: int = 16
    """S, channels of a track."""
    hidden: int = 128
    """H, width of the hidden layer of each block's MLP."""
    dropout: float = 0.0
    """Dropout between Rotate and Mix: the share of numbers that are set to zero in training."""
    order: Literal["paper", "released"] = "paper"
    """Rotate before Mix, as in the paper, or after it, as in the authors' released code."""
    prenorm: Literal["layer", "batch", "group"] | None = None
    """Normalisation of the input of Rotate and Mix; the residual is not normalised."""
    norm: Literal["layer", "batch", "group"] | None = None
    """Normalisation of the sum with the residual."""
    init: Literal["xavier", "identity"] = "xavier"
    """`identity`: the second linear map of each block starts at zero, so each block starts as its residual."""
    reversible: bool = False
    """Recompute activations from the outputs: training memory does not grow with depth."""

    def __post_init__(self) -> None:
        check_numbers(self, max_length=(1, LONGEST), track_size=(1, 1 << 16), hidden=(1, 1 << 20))
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} is not a share: give 0 or more, and less than 1")
        if self.reversible and self.norm:
            raise ValueError(
                f"norm={self.norm!r} after the residual cannot be undone: a reversible network takes prenorm only; "
                "set norm=None or reversible=False"
            )

    @property
    def depth(self) -> int:
        """Blocks of the network."""
        return depth(self.max_length)

    @property
    def tracks(self) -> int:
        """M = ceil(log2 N_max) + 1."""
        return (self.max_length - 1).bit_length() + 1

    @property
    def width(self) -> int:
        """C, channels of a token."""
        return self.tracks * self.track_size


def depth(length: int) -> int:
    """Blocks that a sequence of this length passes: ceil(log2 N), at least one.

    >>> [depth(n) for n in (1, 2, 3, 4, 5, 1024, 1025)]
    [1, 1, 2, 2, 3, 10, 11]
    """
    return max(1, (length - 1).bit_length())


class Block(nn.Module):
    """One block: each token takes tracks of those 1, 2, 4, ... positions ahead (Rotate); an MLP mixes them (Mix)."""

    def __init__(self, config: ChordMixerConfig) -> None:
        super().__init__()
        self.config = config
        self.fc1 = nn.Linear(config.width, config.hidden)
        self.fc2 = nn.Linear(config.hidden, config.width)
        self.prenorm = Norm(config.prenorm, config.width, groups=config.track_size)
        self.norm = Norm(config.norm, config.width, groups=config.track_size)
        for linear in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        if config.init == "identity":
            nn.init.zeros_(self.fc2.weight)

    def mlp(self) -> ops.Mlp:
        return ops.Mlp(self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias)

    def forward(
        self,
        x: Float[Tensor, "T C"],
        offsets: Int[Tensor, "B+1"],
        residual: Float[Tensor, "T C"] | None = None,
        out: Float[Tensor, "T C"] | None = None,
        spare: Float[Tensor, "T C"] | None = None,
    ) -> Float[Tensor, "T C"]:
        """Equations 1 to 3 and the residual connection; `ops/reference.py` defines the arithmetic.

        `spare` is an optional buffer for the layer norm before them, of all tokens at once.
        """
        prenorm = self.prenorm.state()
        if spare is not None and prenorm is not None:
            residual = x if residual is None else residual
            x, prenorm = ops.layer_norm(x, prenorm, spare), None
        return ops.block(
            x,
            offsets,
            self.config.track_size,
            self.mlp(),
            order=self.config.order,
            prenorm=prenorm,
            norm=self.norm.state(),
            dropout=self.config.dropout if self.training else 0.0,
            residual=residual,
            out=out,
        )


class ChordMixer(nn.Module):
    """The backbone: packed sequences in, packed sequences of the same shape and order out.

    Settings come as a `ChordMixerConfig`, or as its fields.

    >>> encoder = ChordMixer(max_length=1000, track_size=4, hidden=16)
    >>> x = Packed.from_list([torch.randn(n, encoder.width) for n in (40, 1, 1000)])
    >>> [tuple(y.shape) for y in encoder(x).to_list()]
    [(40, 44), (1, 44), (1000, 44)]
    """

    Config = ChordMixerConfig

    def __init__(self, config: ChordMixerConfig | None = None, **settings: Any) -> None:
        super().__init__()
        if isinstance(config, ChordMixerConfig) and settings:
            raise ValueError(f"{next(iter(settings))} stands beside a config: give settings, or a config, not both")
        self.config = config or from_dict(ChordMixerConfig, settings, "ChordMixer")
        self.width = self.config.width
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(self.config.depth))

    def forward(self, x: Packed) -> Packed:
        """Encode. Sequences are sorted by depth: block i works on a prefix, and short sequences exit early."""
        check_packed(x)
        check_width(x.values, self.config)
        if torch.compiler.is_compiling():
            from chordmixer.models.compiled import encode  # a single operator for the compiler

            return encode(self, x)
        if isinstance(x, StaticPacked):
            return self._run_static(x)
        check_lengths(x.lengths, self.config)
        depths = [depth(n) for n in x.lengths]
        order = sorted(range(len(x)), key=lambda b: -depths[b])
        ordered = x.select(order).to(dtype=ops.activations(x.values))
        ends = list(accumulate(ordered.lengths))
        counts = [sum(d > i for d in depths) for i in range(max(depths))]
        exits = [(ends[sequences - 1], sequences) for sequences in counts]
        if self.config.reversible:
            from chordmixer.models.reversible import through  # it depends on blocks, not the reverse

            values = through(self.blocks, ordered.values, ordered.offsets, exits)
        elif torch.is_grad_enabled() or self.training or self._is_tiled(ordered):
            values = self._run_blocks(ordered, exits)
        else:
            values = self._run_in_two_buffers(ordered, exits)
        original_order = sorted(range(len(order)), key=order.__getitem__)
        return ordered.with_values(values).select(original_order)

    def _run_blocks(self, x: Packed, exits: ops.Exits) -> Float[Tensor, "T C"]:
        values, finished = x.values, []
        if self._can_fuse(values):
            return self._fused(x, exits)
        for block, (tokens, sequences) in zip(self.blocks, exits, strict=False):
            if tokens < len(values):  # slicing all tokens would cost a copy of the gradient
                finished.append(values[tokens:])
                values = values[:tokens]
            values = block(values, x.offsets[: sequences + 1])
        return torch.cat([values, *reversed(finished)]) if finished else values

    def _is_tiled(self, x: Packed) -> bool:
        """Whether all blocks are fused into one operation on a CPU, which has its own buffers."""
        return self._can_fuse(x.values) and not ops.on_kernels(x.values)

    def _can_fuse(self, values: Float[Tensor, "T C"]) -> bool:
        """Whether all blocks can be fused into one operation: only supported norms, and no hooks on a block."""
        known = self.config.prenorm in (None, "layer") and self.config.norm is None
        watched = any(block._forward_hooks or block._forward_pre_hooks for block in self.blocks)
        return known and not watched and ops.joins(values, self.config.order)

    def _run_static(self, x: StaticPacked) -> Packed:
        """Run all blocks as one operation whose kernel launches do not depend on lengths."""
        fused = self._can_fuse(x.values) and ops.on_kernels(x.values) and self.config.hidden <= ops.FUSED_HIDDEN
        if self.config.reversible or not fused:
            raise LengthsUnknownError("only the fused kernels take a StaticPacked: give a Packed")
        cast = x.to(dtype=ops.activations(x.values))
        exits = [(x.tokens, len(x.offsets) - 1)] * len(x.counts)
        return cast.with_values(self._fused(cast, exits, x.counts))

    def _fused(self, x: Packed, exits: ops.Exits, counts: Int[Tensor, "D 4"] | None = None) -> Float[Tensor, "T C"]:
        used_blocks: list[Block] = list(self.blocks[: len(exits)])  # type: ignore[arg-type]  # all are
        return ops.blocks(
            x.values,
            x.offsets,
            exits,
            self.config.track_size,
            [block.mlp() for block in used_blocks],
            order=self.config.order,
            prenorms=[block.prenorm.state() for block in used_blocks],
            dropout=self.config.dropout if self.training else 0.0,
            counts=counts,
        )

    def _run_in_two_buffers(self, x: Packed, exits: ops.Exits) -> Float[Tensor, "T C"]:
        """Run blocks without gradients in two alternating buffers: new memory would cost more than the arithmetic.

        Plain torch uses a third buffer for the layer norm, which takes as long as all the rest if done in tiles.
        """
        values = x.values
        buffers = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in exits[:2]]
        norm_first = self.config.prenorm == "layer" and not ops.on_kernels(values)
        spare = torch.empty_like(buffers[0]) if norm_first else None
        for i, (block, (tokens, sequences)) in enumerate(zip(self.blocks, exits, strict=False)):
            spare_rows = None if spare is None else spare[:tokens]
            values = block(values[:tokens], x.offsets[: sequences + 1], out=buffers[i % 2][:tokens], spare=spare_rows)
        last = buffers[(len(exits) - 1) % 2]
        for i in range(len(exits) - 2, -1, -2):  # sequences whose last block wrote to the other buffer
            finished = slice(exits[i + 1][0], exits[i][0])
            last[finished] = buffers[i % 2][finished]
        return last


def check_width(values: Tensor, config: ChordMixerConfig) -> None:
    """Raise a ValueError for tokens of another width."""
    if values.shape[1:] != (config.width,):
        raise ValueError(
            f"tokens of shape {tuple(values.shape[1:])} do not fit an encoder of width {config.width}: "
            f"embed them to {config.tracks} tracks x {config.track_size} channels first"
        )


def check_lengths(lengths: Sequence[int], config: ChordMixerConfig) -> None:
    """Raise a ValueError for sequences that are too long."""
    longest = max(lengths)
    if longest > config.max_length:
        raise ValueError(
            f"sequence {lengths.index(longest)} of the batch has {longest:,} tokens, above this network's "
            f"max_length={config.max_length:,}: build it with max_length={longest} or more"
        )
