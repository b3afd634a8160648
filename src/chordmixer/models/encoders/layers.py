"""Layers that the other encoders share: residual block, attention projections, positions, padding, config checks.

An encoder that cannot work on packed tokens pads here, and only sequences of similar length together. Its mixer must
mask the padding: no output may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from chordmixer.config import LONGEST, check_numbers
from chordmixer.packed import Layout, Packed

MAX_BY_NAME = {"max_length": LONGEST, "layers": 1000, "halvings": 40}
"""Upper limits of a config's integers, by name."""
MAX_COUNT = 1 << 20
"""Upper limit of all other integers of a config, such as channels and heads."""
MIN_FILL = 0.75
"""Share of its row that a sequence must fill to be padded together with longer ones."""
MAX_EMPTY = 1 << 17
"""Number of padded positions up to which sequences share a bucket on a GPU whatever their fill: launching the kernels
of another bucket takes longer than computing the padding."""
ROW_MULTIPLE = 8
"""Rows are padded to a multiple of this length, so that a GPU's matrix units can load 16 bytes at once."""

# --- Checks ---------------------------------------------------------------------------------------------


def check_settings(config: Any) -> None:
    """Check a config in `__post_init__`: integers within limits, `dropout` below 1, `heads` divide `width`."""
    counts = [field.name for field in fields(config) if type(getattr(config, field.name)) is int]
    check_numbers(config, **{name: (1, MAX_BY_NAME.get(name, MAX_COUNT)) for name in counts})
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout={config.dropout} is not a share: give 0 or more, and less than 1")
    if hasattr(config, "heads") and config.width % config.heads:
        raise ValueError(
            f"heads={config.heads} do not divide width={config.width}: every head takes the same number of channels; "
            f"give a width that is a multiple of {config.heads}"
        )


def check_fits(x: Packed, config: Any) -> None:
    """Raise a ValueError unless tokens have `config.width` channels and no sequence exceeds `config.max_length`."""
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


def buckets(lengths: Sequence[int], full: float = MIN_FILL, spare: int = 0) -> list[list[int]]:
    """Group sequences for padding, longest first: each fills `full` of its row, or up to `spare` places are empty.

    >>> buckets([100, 9, 80, 10])
    [[0, 2], [3, 1]]
    >>> buckets([100, 9, 80, 10], spare=110)
    [[0, 2, 3], [1]]
    """
    groups: list[list[int]] = []
    empty = 0
    for sequence in sorted(range(len(lengths)), key=lambda b: -lengths[b]):
        longest = lengths[groups[-1][0]] if groups else 0
        empty += longest - lengths[sequence]
        if not groups or (lengths[sequence] < full * longest and empty > spare):
            groups.append([])
            empty = 0
        groups[-1].append(sequence)
    return groups


def padded(x: Packed, groups: Sequence[Sequence[int]], lengths: Sequence[int]) -> tuple[Float[Tensor, "P C"], Layout]:
    """The rows of all buckets end to end, padded with zeros to `lengths`, and the layout of the sequences.

    >>> rows, layout = padded(Packed.from_list([torch.ones(1, 1), torch.ones(3, 1)]), [[1, 0]], [3])
    >>> rows.flatten().tolist(), layout.starts
    ([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [3, 0])
    """
    starts, end = [0] * len(x), 0
    for group, length in zip(groups, lengths, strict=True):
        for sequence in group:
            starts[sequence] = end
            end += length
    layout = Layout(x.lengths, starts, end, x.device)
    return layout.put(x.values), layout


def in_buckets(
    x: Packed,
    run: Callable[[Float[Tensor, "b n C"], Bool[Tensor, "b n"]], Float[Tensor, "b n C"]],
    mixed: bool = True,
) -> Packed:
    """Call `run(values, mask)` on each bucket of padded sequences of similar length; the order of `x` is kept.

    With `mixed=False` only sequences of equal length share a bucket, so that nothing is padded.

    >>> x = Packed.from_list([torch.ones(2, 4), torch.ones(90, 4)])
    >>> in_buckets(x, lambda values, mask: 2 * values).values.unique()
    tensor([2.])
    """
    spare = MAX_EMPTY if x.values.is_cuda else 0
    groups = buckets(x.lengths, MIN_FILL, spare) if mixed else buckets(x.lengths, full=1.0)
    step = ROW_MULTIPLE if mixed else 1
    lengths = [-(-x.lengths[group[0]] // step) * step for group in groups]
    rows, layout = padded(x, groups, lengths)
    real = layout.put(torch.ones(x.tokens, dtype=torch.bool, device=x.device))
    shapes = [(len(group), length) for group, length in zip(groups, lengths, strict=True)]
    sizes = [count * length for count, length in shapes]
    outputs = [
        run(values.unflatten(0, shape), mask.unflatten(0, shape)).flatten(0, 1)
        for values, mask, shape in zip(rows.split(sizes), real.split(sizes), shapes, strict=True)
    ]
    return x.with_values(layout.take(torch.cat(outputs)))


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
    """Add to each token the encoding of its position in its sequence, for any lengths."""
    return x.with_values(x.values + positions(x.places(), x.values.shape[1]).to(x.values.dtype))


# --- Layers ---------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """The block of most encoders: norm, mixer, residual, norm, MLP, residual.

    Tokens may be packed or padded; further arguments are passed to the mixer.

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
        mixed: Tensor = values + self.dropout(self.mlp(self.norm2(values)))
        return mixed


def mlp(width: int, expansion: int) -> nn.Sequential:
    """Two linear maps with a GELU between them, the hidden layer `expansion` times as wide."""
    return nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))


class Attention(nn.Module):
    """Projections of multi-head attention; subclasses define `attend` on queries, keys and values by head."""

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
        outputs: Tensor = self.out(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))
        return outputs


KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
CUDNN_PAIRS = 1 << 36
"""Number of query-key pairs from which cuDNN's attention is preferred. It is planned for every new shape, and mixed
lengths rarely repeat a shape; planning takes 100 ms on an H200, less than it saves from 262,144 tokens on."""

MAX_FEW, MIN_MANY, STRETCH = 64, 1 << 14, 1 << 12
"""Up to `MAX_FEW` queries and at least `MIN_MANY` keys, or the reverse, use one matrix product per stretch of
`STRETCH` tokens. A fused kernel or a single product would use only one or two of a GPU's multiprocessors."""


def softmax_attention(
    q: Float[Tensor, "B h N d"],
    k: Float[Tensor, "B h K d"],
    v: Float[Tensor, "B h K d"],
    mask: Shaped[Tensor, "#B #h #N K"] | None = None,
) -> Float[Tensor, "B h N d"]:
    """softmax(q k^T / sqrt(d)) v by torch's kernels; a mask is boolean (true: seen) or is added to the scores."""
    few, many = sorted((q.shape[2], k.shape[2]))
    if few <= MAX_FEW and many >= MIN_MANY:
        return _few_queries(q, k, v, mask) if q.shape[2] == few else _few_keys(q, k, v, mask)
    kernels = [SDPBackend.CUDNN_ATTENTION, *KERNELS] if few * many >= CUDNN_PAIRS else KERNELS
    with sdpa_kernel(kernels, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _few_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Float[Tensor, "B h N d"]:
    """Attend to each stretch of keys separately, then add up the results of all stretches."""
    seen = torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool, device=k.device) if mask is None else mask
    spare = -k.shape[2] % STRETCH
    fill = 0 if seen.dtype == torch.bool else -torch.inf
    seen = F.pad(seen, (0, spare), value=fill).unflatten(3, (-1, STRETCH)).transpose(2, 3)
    k, v = (F.pad(t, (0, 0, 0, spare)).unflatten(2, (-1, STRETCH)) for t in (k, v))
    scores = _masked(q[:, :, None] * q.shape[3] ** -0.5 @ k.mT, seen)
    weights = torch.exp(scores - scores.amax((2, 4), keepdim=True))
    outputs = (weights.to(v.dtype) @ v).sum(2, dtype=weights.dtype)
    return (outputs / weights.sum((2, 4))[..., None]).to(q.dtype)


def _few_keys(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Float[Tensor, "B h N d"]:
    """Attend from each stretch of queries to the same keys."""
    queries = q.shape[2]
    spare = -queries % STRETCH

    def stretched(t: Tensor) -> Tensor:
        if t.shape[2] < queries:  # a mask that is the same for all queries
            return t[:, :, None]
        padded = F.pad(t, (0, 0, 0, spare), value=t.dtype == torch.bool)  # a query without any key would be NaN
        stretches: Tensor = padded.unflatten(2, (-1, STRETCH))
        return stretches

    scores = stretched(q) * q.shape[3] ** -0.5 @ k[:, :, None].mT
    weights = _masked(scores, None if mask is None else stretched(mask)).softmax(4)
    return (weights.to(v.dtype) @ v[:, :, None]).flatten(2, 3)[:, :, :queries]


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores in float32 or better, with the mask added, or minus infinity where it is false."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def by_head(values: Float[Tensor, "B N C"], heads: int) -> Float[Tensor, "B h N d"]:
    """Split the channels into heads."""
    split: Tensor = values.unflatten(2, (heads, -1)).transpose(1, 2)
    return split


def hide(values: Float[Tensor, "B h N d"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B h N d"]:
    """Set padded positions to zero."""
    return values.masked_fill(~mask[:, None, :, None], 0.0)


class Stack(nn.Module):
    """An encoder with any mixer: positions, then residual blocks over padded buckets."""

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
