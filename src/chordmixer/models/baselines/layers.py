"""What the rivals share: a residual block, attention's projections, positions, padding, and the checks of settings.

A rival that cannot work on packed tokens pads here, and only among sequences of similar length: what stands in the
padding is for its mixer to hide, and no answer may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from math import log
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chordmixer.packed import Packed

FULL = 0.75
"""Sequences are padded together if each fills at least this share of its row."""

# --- Checks ---------------------------------------------------------------------------------------------


def check_settings(config: Any) -> None:
    """Whole numbers are 1 or more, `dropout` is a share, `heads` divide `width`: for a config's `__post_init__`."""
    for field in fields(config):
        value = getattr(config, field.name)
        if type(value) is int and value < 1:
            raise ValueError(f"{field.name}={value} is too small: give 1 or more")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout={config.dropout} is not a share: give 0 or more, and less than 1")
    if hasattr(config, "heads") and config.width % config.heads:
        raise ValueError(
            f"heads={config.heads} do not divide width={config.width}: every head takes the same number of channels; "
            f"give a width that is a multiple of {config.heads}"
        )


def check_fits(x: Packed, config: Any) -> None:
    """Tokens have `config.width` channels, and no sequence is above `config.max_length`."""
    if x.values.shape[1:] != (config.width,):
        raise ValueError(
            f"tokens of shape {tuple(x.values.shape[1:])} do not fit an encoder of width {config.width}: "
            f"embed them to {config.width} channels first"
        )
    longest = max(x.lengths)
    if longest > config.max_length:
        raise ValueError(
            f"sequence {x.lengths.index(longest)} of the batch has {longest:,} tokens, above this network's "
            f"max_length={config.max_length:,}: build it with max_length={longest} or more"
        )


# --- Padding --------------------------------------------------------------------------------------------


def padded(x: Packed) -> tuple[Float[Tensor, "B N C"], Bool[Tensor, "B N"]]:
    """Rows as long as the longest sequence, and which of their places hold tokens.

    >>> values, mask = padded(Packed.from_list([torch.ones(1, 8), torch.ones(3, 8)]))
    >>> values.shape, mask.int().tolist()
    (torch.Size([2, 3, 8]), [[1, 0, 0], [1, 1, 1]])
    """
    place = torch.arange(max(x.lengths), device=x.device)
    return x.to_padded(), place < x.offsets.diff()[:, None]


def unpadded(values: Float[Tensor, "B N C"], lengths: Iterable[int]) -> Float[Tensor, "T C"]:
    """The tokens of padded rows, end to end; the lengths are on the host, so nothing waits for a device."""
    return torch.cat([row[:length] for row, length in zip(values, lengths, strict=True)])


def buckets(lengths: Sequence[int], full: float = FULL) -> list[list[int]]:
    """Which sequences are padded together, longest first: none leaves more than 1 - `full` of its row empty.

    >>> buckets([100, 9, 80, 10])
    [[0, 2], [3, 1]]
    """
    groups: list[list[int]] = []
    for sequence in sorted(range(len(lengths)), key=lambda b: -lengths[b]):
        if not groups or lengths[sequence] < full * lengths[groups[-1][0]]:
            groups.append([])
        groups[-1].append(sequence)
    return groups


def in_buckets(
    x: Packed,
    run: Callable[[Float[Tensor, "b n C"], Bool[Tensor, "b n"]], Float[Tensor, "b n C"]],
    full: float = FULL,
) -> Packed:
    """`run(values, mask)` on padded sequences of similar length, a bucket at a time; the caller's order comes back.

    >>> x = Packed.from_list([torch.ones(2, 4), torch.ones(90, 4)])
    >>> in_buckets(x, lambda values, mask: 2 * values).values.unique()
    tensor([2.])
    """
    groups = buckets(x.lengths, full)
    order = [sequence for group in groups for sequence in group]
    done = []
    for group in groups:
        some = x.select(group)
        done.append(unpadded(run(*padded(some)), some.lengths))
    ordered = Packed.from_lengths(torch.cat(done), [x.lengths[b] for b in order])
    return ordered.select(sorted(range(len(order)), key=order.__getitem__))


# --- Positions ------------------------------------------------------------------------------------------


def positions(place: Tensor, width: int) -> Float[Tensor, "T C"]:
    """Sines in the even channels, cosines in the odd ones: wavelengths from 2 pi to 20,000 pi (Vaswani et al., 2017).

    >>> positions(torch.arange(3), width=2).round(decimals=2)
    tensor([[ 0.0000,  1.0000],
            [ 0.8400,  0.5400],
            [ 0.9100, -0.4200]])
    """
    frequency = torch.exp(torch.arange(0, width, 2, device=place.device) * (-log(10_000) / width))
    angle = place[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :width]


def with_positions(x: Packed) -> Packed:
    """Each token with its position in its own sequence added; any length will do."""
    return x.with_values(x.values + positions(x.places(), x.values.shape[1]).to(x.values.dtype))


# --- Layers ---------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """The block of every rival that does not say otherwise: norm, mixer, residual, norm, MLP, residual.

    Tokens may be packed or padded: what else the mixer needs is handed through.

    >>> block = Residual(8, nn.Identity())
    >>> block(torch.randn(5, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(self, width: int, mixer: nn.Module, expansion: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.mixer = mixer
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, expansion)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Float[Tensor, "*T C"], *where: Any) -> Float[Tensor, "*T C"]:
        values = values + self.dropout(self.mixer(self.norm1(values), *where))
        return values + self.dropout(self.mlp(self.norm2(values)))


def mlp(width: int, expansion: int) -> nn.Sequential:
    """Two linear maps with a GELU between them, the hidden layer `expansion` times as wide."""
    return nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))


class Attention(nn.Module):
    """Queries, keys and values by head, and the way back: a rival says in `attend` what happens between."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def attend(
        self,
        q: Float[Tensor, "B h N d"],
        k: Float[Tensor, "B h N d"],
        v: Float[Tensor, "B h N d"],
        mask: Bool[Tensor, "B N"],
    ) -> Float[Tensor, "B h N d"]:
        raise NotImplementedError

    def forward(self, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        q, k, v = (by_head(part, self.heads) for part in self.qkv(values).chunk(3, dim=2))
        out: Tensor = self.out(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))
        return out


def by_head(values: Float[Tensor, "B N C"], heads: int) -> Float[Tensor, "B h N d"]:
    """The channels shared out among the heads."""
    return values.unflatten(2, (heads, -1)).transpose(1, 2)


def hide(values: Float[Tensor, "B h N d"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B h N d"]:
    """Zeros where no token is."""
    return values.masked_fill(~mask[:, None, :, None], 0.0)


class Stack(nn.Module):
    """An encoder but for its mixer: positions, then residual blocks over padded buckets."""

    def __init__(self, config: Any, mixer: Callable[[Any], nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.blocks = nn.ModuleList(
            Residual(config.width, mixer(config), config.expansion, config.dropout) for _ in range(config.layers)
        )

    def through(self, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B N C"]:
        for block in self.blocks:
            values = block(values, mask)
        return values

    def forward(self, x: Packed) -> Packed:
        check_fits(x, self.config)
        return in_buckets(with_positions(x), self.through)
