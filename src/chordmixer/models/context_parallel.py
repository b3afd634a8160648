"""Context parallelism: a ChordMixer or a complete model on sequences that are split over several ranks.

Outputs and gradients equal those of one rank up to rounding, for any lengths. Rotate exchanges tokens between ranks;
convolutions and words read a few tokens around each share; batch norm, group norm and pooling sum over ranks; all
else is local. Each rank draws its own dropout: with dropout, results are equal in distribution only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from chordmixer import ops
from chordmixer.models.chordmixer import Block, ChordMixer, check_lengths, check_width, depth
from chordmixer.models.embeddings import StartMark, add_standardised
from chordmixer.models.exchange import Sharding
from chordmixer.models.heads import StandardHead, log_lengths
from chordmixer.models.model import Model
from chordmixer.models.positions import PositionEmbedding
from chordmixer.models.reversible import through
from chordmixer.models.shards import Group, Shard, check_ranks, mean, normalise, rotate, shard, with_neighbours

__all__ = ["ContextParallel", "Shard", "reduce_gradients", "shard"]

POSITIONAL_HEADS = ("class_token", "flat", "last", "variant")
"""Heads that read tokens by their position in the sequence."""


class ContextParallel(nn.Module):
    """A `ChordMixer` or a `Model` on the shares of sequences that the ranks of a group hold.

    An encoder returns a `Shard`, and so does a model with one output per token; other models return (B, outputs), the
    same on all ranks. The weights are those of the group's first rank. After the backward pass `reduce_gradients`
    turns the gradients into those of the mean of all ranks' losses.
    """

    def __init__(self, module: ChordMixer | Model, group: Group = None) -> None:
        super().__init__()
        check_ranks()
        check_module(module)
        self.module = module
        for value in [*module.parameters(), *module.buffers()]:
            dist.broadcast(value.data, group_src=0, group=group)

    def forward(self, x: Shard) -> Shard | Float[Tensor, "B outputs"]:
        if not isinstance(x, Shard):
            raise ValueError(
                f"a {type(x).__name__} is not a Shard, which ranks that share sequences take: give "
                "shard(packed, group), or Shard.from_lengths(values, lengths, group) of this rank's tokens"
            )
        return _encode(self.module, x) if isinstance(self.module, ChordMixer) else _forward_model(self.module, x)


def reduce_gradients(module: nn.Module, group: Group = None) -> None:
    """Replace gradients by those of the mean of all ranks' losses. Call it before the optimiser's step.

    If groups of ranks share sequences and each group has its own batch, leave out `group`: the mean over all ranks is
    also the mean over batches. A weight that no rank used keeps no gradient.
    """
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    used = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32).to(weights[0].device)
    dist.all_reduce(used, dist.ReduceOp.MAX, group)  # a batch of short sequences does not reach the deep blocks
    used_weights = [weight for weight, by_any in zip(weights, used.tolist(), strict=True) if by_any]
    for dtype in dict.fromkeys(weight.dtype for weight in used_weights):  # in the same order on all ranks
        chosen = [weight for weight in used_weights if weight.dtype == dtype]
        joined = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in chosen])
        dist.all_reduce(joined, group=group)
        joined /= dist.get_world_size(group)
        for weight, part in zip(chosen, joined.split([weight.numel() for weight in chosen]), strict=True):
            weight.grad = part.view_as(weight)


def check_module(module: nn.Module) -> None:
    """Raise a ValueError for a module whose sequences cannot be split over ranks."""
    if isinstance(module, ChordMixer):
        return
    if not isinstance(module, Model) or not isinstance(module.encoder, ChordMixer):
        kind = f"encoder={module.config.encoder!r}" if isinstance(module, Model) else f"a {type(module).__name__}"
        raise ValueError(
            f"{kind} cannot be split over ranks by tokens: give a ChordMixer, or a Model with encoder='chordmixer'"
        )
    if module.config.strategy != "packed":
        raise ValueError(
            f"strategy={module.config.strategy!r} makes other sequences of those that ranks share: "
            "set strategy='packed'"
        )
    if module.config.head in POSITIONAL_HEADS:
        raise ValueError(
            f"head={module.config.head!r} reads tokens by their place, which one rank alone would know: set a head "
            "that pools all tokens, such as 'average', or 'tokens'"
        )


def _forward_model(model: Model, x: Shard) -> Shard | Float[Tensor, "B outputs"]:
    """`Model.forward` on shares of sequences."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and not model.frozen):
        tokens, further = _embed(model, x)
        y = _encode(model.encoder, tokens)
        y = y.with_values(normalise(y, model.final_norm.state()))
    if model.decoder is not None:
        y = _encode(model.decoder, y)
        y = y.with_values(normalise(y, model.decoder_norm.state()))
    outputs: Shard | Tensor = model.head(y, *further)
    return outputs


def _embed(model: Model, x: Shard) -> tuple[Shard, tuple[Tensor, ...]]:
    """`Model._embed` on shares: the encoder's input, and further features of the sequences if the head reads any."""
    x = add_standardised(x) if model.config.within_record else x
    tokens: Shard = model.embedding(x)
    if isinstance(model.start, StartMark):
        tokens = _with_start_mark(tokens, model.start)
    if model.positions is not None:
        tokens = _with_positions(tokens, model.positions)
    reads_further = isinstance(model.head, StandardHead)
    further: list[Tensor] = []
    values = tokens.values
    if model.stem is not None:
        config = model.config.stem
        reach = config.layers * (config.taps // 2)
        wide, trim = with_neighbours(tokens if model.config.embedding == "tokens" else x, reach, reach)
        values = values + trim(model.stem(wide))
    if model.words is not None:
        wide, trim = with_neighbours(x, 0, max(model.config.words.lengths) - 1)
        vectors, added = (trim(part) for part in model.words(wide))
        values = values + added
        if reads_further:
            further.append(mean(x.with_values(vectors)))
    if model.config.length and reads_further:
        further.append(log_lengths(torch.tensor(x.lengths, device=values.device)))
    return tokens.with_values(values), (torch.cat(further, dim=1),) if further else ()


def _with_positions(x: Shard, positions: PositionEmbedding) -> Shard:
    """`PositionEmbedding.forward` on shares: positions are those in the complete sequences."""
    starts = [torch.arange(low, high) for low, high in x.sharding.bounds]
    ends = [n - 1 - start for n, start in zip(x.lengths, starts, strict=True)]
    from_start, from_end = (torch.cat(parts).to(x.values.device, non_blocking=True) for parts in (starts, ends))
    return x.with_values(x.values + positions.vectors(from_start, from_end, x.values.dtype))


def _with_start_mark(x: Shard, start: StartMark) -> Shard:
    """Add the start mark to the first token of each sequence that this rank holds."""
    firsts = [
        offset for offset, (low, high) in zip(x.sharding.offsets, x.sharding.bounds, strict=False) if low < 1 <= high
    ]
    marks = start.vector.to(x.values.dtype).expand(len(firsts), -1)
    index = torch.tensor(firsts, dtype=torch.int64).to(x.values.device, non_blocking=True)
    return x.with_values(x.values.index_add(0, index, marks))


def _encode(encoder: nn.Module, x: Shard) -> Shard:
    """`ChordMixer.forward` on shares: the length of the complete sequence determines its depth."""
    assert isinstance(encoder, ChordMixer), "checked at the start"
    check_width(x.values, encoder.config)
    check_lengths(x.lengths, encoder.config)
    depths = [depth(n) for n in x.lengths]
    order = sorted(range(len(x)), key=lambda b: -depths[b])
    ordered = x.select(order)
    ordered = ordered.with_values(ordered.values.to(ops.activations(x.values)))
    counts = [sum(d > i for d in depths) for i in range(max(depths))]
    exits = [(ordered.sharding.offsets[sequences], sequences) for sequences in counts]
    active: list[Block] = list(encoder.blocks[: len(exits)])  # type: ignore[arg-type]  # all are
    blocks = nn.ModuleList(_ShardedBlock(block, ordered.sharding, ordered.group) for block in active)
    values, finished = ordered.values, []
    if encoder.config.reversible:
        values = through(blocks, values, ordered.offsets, exits)
    else:
        for block, (tokens, sequences) in zip(blocks, exits, strict=True):
            if tokens < len(values):
                finished.append(values[tokens:])
                values = values[:tokens]
            values = block(values, ordered.offsets[: sequences + 1])
    back = sorted(range(len(order)), key=order.__getitem__)
    return ordered.with_values(torch.cat([values, *reversed(finished)]) if finished else values).select(back)


class _ShardedBlock(nn.Module):
    """A block of the encoder on the shares of a batch's first sequences, with the call signature of `Block`."""

    def __init__(self, block: Block, sharding: Sharding, group: Group) -> None:
        super().__init__()
        self.block, self.sharding, self.group = block, sharding, group

    def forward(
        self,
        values: Float[Tensor, "T C"],
        offsets: Int[Tensor, "B+1"],
        residual: Float[Tensor, "T C"] | None = None,
        out: Any = None,
    ) -> Float[Tensor, "T C"]:
        """`ops.reference.block`. `out` is ignored: no caller needs it here."""
        config, x = self.block.config, Shard(values, self.sharding.first(len(offsets) - 1), self.group)
        z = x.with_values(normalise(x, self.block.prenorm.state()))
        dropout = config.dropout if self.block.training else 0.0
        if config.order == "paper":
            z = z.with_values(z.values.to(_product_dtype(values)))  # the product's dtype: sends half the bytes
            branch = ops.mix(F.dropout(rotate(z, config.track_size), dropout), self.block.mlp())
        else:
            mixed = F.dropout(ops.mix(z.values, self.block.mlp()), dropout)
            branch = rotate(z.with_values(mixed), config.track_size)
        total = x.with_values((values if residual is None else residual) + branch)
        return normalise(total, self.block.norm.state())


def _product_dtype(values: Tensor) -> torch.dtype:
    """The dtype of matrix products of these values, under the current autocast."""
    device = values.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else values.dtype
