"""Longformer: attention within a sliding window, and one global token (Beltagy et al., 2020).

Ours: the first token is the global one, whatever it holds; no window is dilated. Receptive field: `window` tokens to
either side a layer, and through the first token, in two layers, the whole sequence. Cost: N w time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chordmixer.models.encoders import layers


@dataclass(frozen=True)
class LongformerConfig:
    """The ChordMixer paper gives no settings for it: all defaults are ours; the window is the authors' of 512."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 128
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks; with one, only the first token sees the whole sequence."""
    heads: int = 2
    """Number of attention heads, which divide the channels."""
    window: int = 256
    """w, the number of tokens that are seen on either side."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each layer's output that is set to zero in training."""

    def __post_init__(self) -> None:
        layers.check_settings(self)


class WindowAttention(layers.Attention):
    """Every token attends to its window and to the first token; the first has its own weights and attends to all."""

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__(config)
        self.window = config.window
        self.global_qkv = nn.Linear(config.width, 3 * config.width)

    def forward(self, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        q, k, v = (layers.by_head(part, self.heads) for part in self.qkv(values).chunk(3, dim=2))
        first_q, all_k, all_v = (layers.by_head(part, self.heads) for part in self.global_qkv(values).chunk(3, dim=2))
        first = layers.softmax_attention(first_q[:, :, :1], all_k, all_v, mask=mask[:, None, None])
        out = torch.cat([first, self.attend(q, k, v, mask)[:, :, 1:]], dim=2)
        joined: Tensor = self.out(out.transpose(1, 2).flatten(2))
        return joined

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attend from chunks of w queries to the keys of three chunks, preceded by the first token's key."""
        batch, _, length, _ = q.shape
        w = min(self.window, length)
        chunks = -(-length // w)
        spare = chunks * w - length

        def around(keys: Tensor) -> Tensor:
            return F.pad(keys, (0, 0, w, w + spare)).unfold(2, 3 * w, w).movedim(-1, 3)

        k, v = (torch.cat([t[:, :, None, :1].expand(-1, -1, chunks, -1, -1), around(t)], dim=3) for t in (k, v))
        real = mask.clone()
        real[:, 0] = False  # its key is already before the window
        seen = F.pad(real, (w, w + spare)).unfold(1, 3 * w, w)[:, :, None]
        query, key = torch.arange(w, device=q.device)[:, None], torch.arange(3 * w, device=q.device)
        seen = F.pad(seen & (query <= key) & (key <= query + 2 * w), (1, 0), value=True)
        q = F.pad(q, (0, 0, 0, spare)).unflatten(2, (chunks, w))
        q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))  # every chunk is a sequence to the kernel
        out = layers.softmax_attention(q, k, v, mask=seen.flatten(0, 1)[:, None])
        joined: Tensor = out.unflatten(0, (batch, chunks)).transpose(1, 2).flatten(2, 3)[:, :, :length]
        return joined


class Longformer(layers.Stack):
    """Sliding windows, and the first token as a global one.

    >>> from chordmixer import Packed
    >>> encoder = Longformer(LongformerConfig(max_length=100, width=8, window=16))
    >>> encoder(Packed.from_list([torch.randn(7, 8), torch.randn(100, 8)])).values.shape
    torch.Size([107, 8])
    """

    Config = LongformerConfig

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__(config, WindowAttention)
