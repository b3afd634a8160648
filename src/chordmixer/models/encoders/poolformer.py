"""PoolFormer in one dimension: tokens are mixed by local means only (Yu et al. 2022).

Mixer: mean of the `pool` tokens around a token, minus the token itself; the mean is over real tokens only, fewer at
the ends of a sequence. Each part of a block has a learned scale per channel, which starts at 1e-5.
Ours: a layer norm of each token where the image model normalises over all tokens, one stage with no downsampling.
Layers and width are the ChordMixer paper's for its Adding runs; the heads of its table have no meaning here, and it
does not state the window: ours is that of the image model, 3.
Receptive field: layers * (pool - 1) + 1 tokens. Cost: O(N) a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer.models.convolutions import spaced
from chordmixer.models.encoders.layers import check_settings, mlp
from chordmixer.models.encoders.packed_layers import PackedStack
from chordmixer.packed import Packed


@dataclass(frozen=True)
class PoolformerConfig:
    """The defaults are the paper's for the Adding problem, but for the window."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 128
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks."""
    pool: int = 3
    """Number of tokens of a mean, an odd number."""
    layer_scale: float = 1e-5
    """Initial value of the learned scale of each part's output."""
    expansion: int = 4
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each part's output that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.pool % 2 == 0:
            raise ValueError(f"pool={self.pool} has no middle: a window around a token is odd; give {self.pool + 1}")

    @property
    def receptive_field(self) -> int:
        """Number of tokens that can change one token's output."""
        return self.layers * (self.pool - 1) + 1


def window_mean(values: Float[Tensor, "T C"], x: Packed, pool: int) -> Float[Tensor, "T C"]:
    """The mean of up to `pool` tokens around each token, of its own sequence only.

    >>> x = Packed.from_lengths(torch.tensor([[0.0], [2.0], [7.0], [9.0]]), [3, 1])
    >>> window_mean(x.values, x, pool=3).flatten().tolist()
    [1.0, 3.0, 4.5, 9.0]
    """
    reach = pool // 2
    row, layout = spaced(values, x, reach, reach, reach)
    image = row[None, None].permute(0, 3, 1, 2)
    mean = layout.take(F.avg_pool2d(image, (1, pool), stride=1).permute(0, 2, 3, 1).flatten(0, 2))
    before = x.places()
    after = x.offsets.diff().index_select(0, x.owners()) - 1 - before
    real = before.clamp(max=reach) + after.clamp(max=reach) + 1
    return mean * (pool / real)[:, None]


class PoolformerBlock(nn.Module):
    """Norm, pooling, residual, norm, MLP, residual, each part scaled."""

    def __init__(self, config: PoolformerConfig) -> None:
        super().__init__()
        self.pool = config.pool
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.scale1, self.scale2 = (nn.Parameter(torch.full((config.width,), config.layer_scale)) for _ in range(2))
        self.mlp = mlp(config.width, config.expansion)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T C"]:
        normed = self.norm1(values)
        values = values + self.scale1 * self.dropout(window_mean(normed, x, self.pool) - normed)
        mixed: Tensor = values + self.scale2 * self.dropout(self.mlp(self.norm2(values)))
        return mixed


class Poolformer(PackedStack):
    """Means over the tokens around each token.

    >>> encoder = Poolformer(PoolformerConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (100, 1)])).values.shape
    torch.Size([101, 8])
    """

    Config = PoolformerConfig

    def __init__(self, config: PoolformerConfig) -> None:
        super().__init__(config, (PoolformerBlock(config) for _ in range(config.layers)))
