"""Reformer: tokens attend to those that a random hash puts near them (Kitaev et al., 2020).

Ours: the rotations are drawn once, when the network is built, and saved with its weights; the number of hash buckets
depends on the length of each sequence, up to a limit; padding is sorted behind all tokens; the first chunk has no
previous one; residuals are plain, not reversible. A token on the edge of two buckets can be rounded to either: only
then does its output depend on the batch. Receptive field: two chunks a hash, from anywhere in the sequence, chosen by
likeness. Cost: N log N time and N (chunk + buckets) memory, times the hashes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from chordmixer.models.encoders import layers

ITSELF = -5e4
"""Score of a token with itself: a token attends to itself only if it sees no other."""


@dataclass(frozen=True)
class ReformerConfig:
    """Width, layers and heads are those of the ChordMixer paper's Adding problem; the other defaults are ours."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 64
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks."""
    heads: int = 2
    """Number of attention heads, which divide the channels."""
    chunk: int = 64
    """Number of sorted tokens that attend to each other and to the previous chunk."""
    hashes: int = 4
    """Number of hash rounds; their results are weighted by the softmax weight that each has seen."""
    buckets: int = 128
    """Maximum number of hash buckets of a sequence; a short one has two per chunk."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each layer's output that is set to zero in training."""

    def __post_init__(self) -> None:
        layers.check_settings(self)
        if self.buckets % 2:
            raise ValueError(f"buckets={self.buckets} is odd: a rotation has two ends; give an even number")


class HashAttention(nn.Module):
    """Attention within two chunks of tokens sorted by (bucket, position), with shared queries and keys, per hash."""

    rotations: Tensor

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.heads, self.chunk = config.heads, config.chunk
        self.qk, self.v, self.out = (nn.Linear(config.width, config.width) for _ in range(3))
        shape = (config.hashes, config.heads, config.width // config.heads, config.buckets // 2)
        self.register_buffer("rotations", torch.randn(shape))

    def forward(self, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        length = values.shape[1]
        spare = -length % self.chunk
        values, mask = F.pad(values, (0, 0, 0, spare)), F.pad(mask, (0, spare))
        q, v = (layers.by_head(linear(values), self.heads) for linear in (self.qk, self.v))
        rounds = [self.attend(q, v, mask, self.buckets(q, mask, rotation)) for rotation in self.rotations]
        out, seen = (torch.stack(parts) for parts in zip(*rounds, strict=True))
        mixed = (out * seen.softmax(0)).sum(0)[:, :, :length]
        joined: Tensor = self.out(mixed.to(values.dtype).transpose(1, 2).flatten(2))
        return joined

    def buckets(
        self, q: Float[Tensor, "B h N d"], mask: Bool[Tensor, "B N"], rotation: Float[Tensor, "h d r"]
    ) -> Int[Tensor, "B h N"]:
        """The nearest of the random directions and their opposites, whose number depends on the sequence's length."""
        projected = q.detach() @ rotation
        directions = -(-mask.sum(1) // self.chunk)
        spare = torch.arange(projected.shape[3], device=q.device) >= directions[:, None]
        signed = torch.stack([projected, -projected], dim=4).masked_fill(spare[:, None, None, :, None], -torch.inf)
        bucket = signed.flatten(3).argmax(3)
        return bucket.masked_fill(~mask[:, None], 2 * projected.shape[3])  # padding has the last bucket

    def attend(
        self,
        q: Float[Tensor, "B h N d"],
        v: Float[Tensor, "B h N d"],
        mask: Bool[Tensor, "B N"],
        bucket: Int[Tensor, "B h N"],
    ) -> tuple[Float[Tensor, "B h N d"], Float[Tensor, "B h N 1"]]:
        """One round's output for every token, and the logarithm of the total weight that it has seen."""
        place = torch.arange(q.shape[2], device=q.device)
        order = (bucket * q.shape[2] + place).argsort(2)

        def chunks(t: Tensor) -> Tensor:
            cut: Tensor = t.take_along_dim(order[..., None], dim=2).unflatten(2, (-1, self.chunk))
            return cut

        def with_previous(t: Tensor) -> Tensor:
            return torch.cat([F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1], t], dim=3)

        q, v, real = chunks(q), with_previous(chunks(v)), with_previous(chunks(mask[:, None, :, None]))
        k = with_previous(F.normalize(q, dim=4))
        scores = q @ k.transpose(3, 4) * q.shape[4] ** -0.5
        itself = torch.eye(self.chunk, 2 * self.chunk, dtype=torch.bool, device=q.device).roll(self.chunk, 1)
        scores = scores.masked_fill(itself, ITSELF).masked_fill(~real.transpose(3, 4), torch.finfo(scores.dtype).min)
        seen = scores.logsumexp(4, keepdim=True)
        out = torch.exp(scores - seen) @ v
        back = order.argsort(2)[..., None]
        return out.flatten(2, 3).take_along_dim(back, dim=2), seen.flatten(2, 3).take_along_dim(back, dim=2)


class Reformer(layers.Stack):
    """Attention among tokens of the same hash.

    >>> from chordmixer import Packed
    >>> encoder = Reformer(ReformerConfig(max_length=100, width=8, chunk=16))
    >>> encoder(Packed.from_list([torch.randn(7, 8), torch.randn(100, 8)])).values.shape
    torch.Size([107, 8])
    """

    Config = ReformerConfig

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config, HashAttention)
