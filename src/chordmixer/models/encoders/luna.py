"""Luna: a few learned rows read the tokens, the tokens read those rows, linear in the length (Ma et al., 2021).

As in the original, norms follow the residuals, and the rows are passed from layer to layer. Ours: a GELU.
Receptive field: the whole sequence in one layer. Cost: N p time and memory for p rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chordmixer.models.encoders import layers
from chordmixer.packed import Packed


@dataclass(frozen=True)
class LunaConfig:
    """Width and layers are those of the ChordMixer paper's Adding problem; the other defaults are ours."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 32
    """Number of channels per token."""
    layers: int = 4
    """Number of blocks."""
    heads: int = 1
    """Number of attention heads, which divide the channels. The paper's table gives none."""
    rows: int = 16
    """p, learned rows that the sequence is packed into."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each layer's output that is set to zero in training."""

    def __post_init__(self) -> None:
        layers.check_settings(self)


class LunaBlock(nn.Module):
    """Pack the tokens into the rows, unpack the rows into the tokens, then an MLP on every token.

    Returns the tokens and the packed rows.
    """

    def __init__(self, config: LunaConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.pack_q, self.pack_kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.unpack_q, self.unpack_kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.mlp = layers.mlp(width, config.expansion)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def attend(self, q: Tensor, kv: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (layers.by_head(part, self.heads) for part in (q, *kv.chunk(2, dim=2)))
        return layers.softmax_attention(q, k, v, mask=mask).transpose(1, 2).flatten(2)

    def forward(
        self, x: Float[Tensor, "B N C"], rows: Float[Tensor, "B p C"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B p C"]]:
        packed = self.attend(self.pack_q(rows), self.pack_kv(x), mask[:, None, None])
        unpacked = self.out(self.attend(self.unpack_q(x), self.unpack_kv(packed)))
        x = self.norm1(x + self.dropout(unpacked))
        x = self.norm2(x + self.dropout(self.mlp(x)))
        return x, self.dropout(packed)


class Luna(nn.Module):
    """Attention to and from a few learned rows.

    >>> encoder = Luna(LunaConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(7, 8), torch.randn(100, 8)])).values.shape
    torch.Size([107, 8])
    """

    Config = LunaConfig

    def __init__(self, config: LunaConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.rows = nn.Parameter(torch.randn(config.rows, config.width))
        self.blocks = nn.ModuleList(LunaBlock(config) for _ in range(config.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(config.layers - 1))

    def through(self, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        rows = self.rows.to(values.dtype).expand(len(values), -1, -1)
        values, packed = self.blocks[0](values, rows, mask)
        for norm, block in zip(self.norms, self.blocks[1:], strict=True):  # the last block's packed rows are not used
            rows = norm(rows + packed)
            values, packed = block(values, rows, mask)
        return values

    def forward(self, x: Packed) -> Packed:
        layers.check_fits(x, self.config)
        return layers.in_buckets(layers.with_positions(x), self.through)
