"""One sequence over several ranks: a ChordMixer or a whole model, each rank with its share of the tokens.

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
from chordmixer.models.embeddings import StartMark, beside_within
from chordmixer.models.exchange import Sharding
from chordmixer.models.heads import StandardHead
from chordmixer.models.model import Model
from chordmixer.models.positions import Positions
from chordmixer.models.reversible import through
from chordmixer.models.shards import Group, Shard, check_ranks, mean, normalise, rotate, shard, with_neighbours

__all__ = ["ContextParallel", "Shard", "reduce_gradients", "shard"]

PLACED = ("class_token", "flat", "last", "variant")
"""Heads that read tokens by their place in the sequence."""


class ContextParallel(nn.Module):
    """A `ChordMixer` or a `Model` on the shares of sequences that the ranks of a group hold.

    An encoder gives a `Shard`, and so does a model with one output a token; other models give (B, outputs), the same
    on all ranks. The weights are those of the group's first rank. After the backward pass `reduce_gradients` makes
    the gradients those of the mean of all ranks' losses.
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
        return _encode(self.module, x) if isinstance(self.module, ChordMixer) else _answer(self.module, x)


def reduce_gradients(module: nn.Module, group: Group = None) -> None:
    """Make all gradients those of the mean of the ranks' losses, on every rank: call it before the optimiser's step.

    With sequences that are shared by some ranks, and batches that differ between such groups, leave out `group`: the
    mean over all ranks is the mean over batches too. A weight that no rank used stays without a gradient.
    """
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    used = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32).to(weights[0].device)
    dist.all_reduce(used, dist.ReduceOp.MAX, group)  # short sequences of one batch leave deep blocks out
    learning = [weight for weight, by_any in zip(weights, used.tolist(), strict=True) if by_any]
    for dtype in dict.fromkeys(weight.dtype for weight in learning):  # in the same order on all ranks
        own = [weight for weight in learning if weight.dtype == dtype]
        joined = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in own])
        dist.all_reduce(joined, group=group)
        joined /= dist.get_world_size(group)
        for weight, part in zip(own, joined.split([weight.numel() for weight in own]), strict=True):
            weight.grad = part.view_as(weight)


def check_module(module: nn.Module) -> None:
    """Refuse a module whose sequences cannot be split over ranks."""
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
    if module.config.head in PLACED:
        raise ValueError(
            f"head={module.config.head!r} reads tokens by their place, which one rank alone would know: set a head "
            "that pools all tokens, such as 'average', or 'tokens'"
        )


def _answer(model: Model, x: Shard) -> Shard | Float[Tensor, "B outputs"]:
    """`Model.forward`."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and not model.frozen):
        tokens, words = _embed(model, x)
        y = _encode(model.encoder, tokens)
        y = y.with_values(normalise(y, model.final_norm.state()))
    if model.decoder is not None:
        y = _encode(model.decoder, y)
        y = y.with_values(normalise(y, model.decoder_norm.state()))
    answers: Shard | Tensor = model.head(y, *words)
    return answers


def _embed(model: Model, x: Shard) -> tuple[Shard, tuple[Tensor, ...]]:
    """`Model._embed`: the encoder's tokens, and the mean of the words where the head reads it."""
    x = beside_within(x) if model.config.within_record else x
    tokens: Shard = model.embedding(x)
    if isinstance(model.start, StartMark):
        tokens = _marked(tokens, model.start)
    if model.positions is not None:
        tokens = _positioned(tokens, model.positions)
    words: tuple[Tensor, ...] = ()
    values = tokens.values
    if model.stem is not None:
        config = model.config.stem
        reach = config.layers * (config.taps // 2)
        wide, own = with_neighbours(tokens if model.config.embedding == "tokens" else x, reach, reach)
        values = values + own(model.stem(wide))
    if model.words is not None:
        wide, own = with_neighbours(x, 0, max(model.config.words.lengths) - 1)
        found, added = (own(part) for part in model.words(wide))
        values = values + added
        words = (mean(x.with_values(found)),) if isinstance(model.head, StandardHead) else ()
    return tokens.with_values(values), words


def _positioned(x: Shard, positions: Positions) -> Shard:
    """`Positions.forward`: positions are those in the whole sequences."""
    starts = [torch.arange(low, high) for low, high in x.sharding.bounds]
    ends = [n - 1 - start for n, start in zip(x.lengths, starts, strict=True)]
    from_start, from_end = (torch.cat(parts).to(x.values.device, non_blocking=True) for parts in (starts, ends))
    return x.with_values(x.values + positions.vectors(from_start, from_end, x.values.dtype))


def _marked(x: Shard, start: StartMark) -> Shard:
    """The mark on the first token of each sequence, where this rank holds it."""
    firsts = [
        offset for offset, (low, high) in zip(x.sharding.offsets, x.sharding.bounds, strict=False) if low < 1 <= high
    ]
    marks = start.vector.to(x.values.dtype).expand(len(firsts), -1)
    at = torch.tensor(firsts, dtype=torch.int64).to(x.values.device, non_blocking=True)
    return x.with_values(x.values.index_add(0, at, marks))


def _encode(encoder: nn.Module, x: Shard) -> Shard:
    """`ChordMixer.forward`: the length of the whole sequence says how deep it goes."""
    assert isinstance(encoder, ChordMixer), "checked at the start"
    check_width(x.values, encoder.config)
    check_lengths(x.lengths, encoder.config)
    depths = [depth(n) for n in x.lengths]
    order = sorted(range(len(x)), key=lambda b: -depths[b])
    ordered = x.select(order)
    ordered = ordered.with_values(ordered.values.to(ops.activations(x.values)))
    staying = [sum(d > i for d in depths) for i in range(max(depths))]
    exits = [(ordered.sharding.offsets[sequences], sequences) for sequences in staying]
    active: list[Block] = list(encoder.blocks[: len(exits)])  # type: ignore[arg-type]  # all are
    blocks = nn.ModuleList(_ShardedBlock(block, ordered.sharding, ordered.group) for block in active)
    values, left = ordered.values, []
    if encoder.config.reversible:
        values = through(blocks, values, ordered.offsets, exits)
    else:
        for block, (tokens, sequences) in zip(blocks, exits, strict=True):
            if tokens < len(values):
                left.append(values[tokens:])
                values = values[:tokens]
            values = block(values, ordered.offsets[: sequences + 1])
    back = sorted(range(len(order)), key=order.__getitem__)
    return ordered.with_values(torch.cat([values, *reversed(left)]) if left else values).select(back)


class _ShardedBlock(nn.Module):
    """A block of the encoder on the shares of a batch's first sequences; called as `Block` is."""

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
        """`ops.reference.block`; never written to `out`, as no caller needs it to be."""
        config, x = self.block.config, Shard(values, self.sharding.first(len(offsets) - 1), self.group)
        z = x.with_values(normalise(x, self.block.prenorm.state()))
        dropout = config.dropout if self.block.training else 0.0
        if config.order == "paper":
            z = z.with_values(z.values.to(_kind_of_products(values)))  # as the product would: half the bytes travel
            branch = ops.mix(F.dropout(rotate(z, config.track_size), dropout), self.block.mlp())
        else:
            mixed = F.dropout(ops.mix(z.values, self.block.mlp()), dropout)
            branch = rotate(z.with_values(mixed), config.track_size)
        made = x.with_values((values if residual is None else residual) + branch)
        return normalise(made, self.block.norm.state())


def _kind_of_products(values: Tensor) -> torch.dtype:
    """The type in which matrix products take these values."""
    device = values.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else values.dtype
