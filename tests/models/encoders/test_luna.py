from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chordmixer.models.encoders.luna import Luna, LunaBlock, LunaConfig


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
    """Softmax attention, a query and a head at a time."""
    size = q.shape[1] // heads
    out = torch.zeros_like(q)
    for head in range(heads):
        channels = slice(head * size, (head + 1) * size)
        for i in range(len(q)):
            weights = torch.stack([q[i, channels] @ k[j, channels] / size**0.5 for j in range(len(k))]).softmax(0)
            out[i, channels] = sum(weights[j] * v[j, channels] for j in range(len(k)))
    return out


def naive(encoder: Luna, x: torch.Tensor) -> torch.Tensor:
    """Ma et al., section 3: pack, unpack, two norms, then the MLP; the rows go on to the next layer."""
    rows = encoder.rows
    for i, block in enumerate(encoder.blocks):
        assert isinstance(block, LunaBlock)
        packed = attention(block.pack_q(rows), *block.pack_kv(x).chunk(2, dim=1), block.heads)
        unpacked = attention(block.unpack_q(x), *block.unpack_kv(packed).chunk(2, dim=1), block.heads)
        x = block.norm1(x + block.out(unpacked))
        x = block.norm2(x + block.mlp(x))
        if i < len(encoder.norms):
            rows = encoder.norms[i](rows + packed)
    return x


@torch.no_grad()
def test_is_the_paper_s_formula(rows: Callable[..., Any]) -> None:
    encoder = Luna(LunaConfig(20, width=6, heads=2, layers=3, rows=4)).double()
    values, mask, lengths = rows(6)
    output = encoder.through(values, mask)
    for row, y, length in zip(values, output, lengths, strict=True):
        torch.testing.assert_close(y[:length], naive(encoder, row[:length]), rtol=1e-10, atol=1e-10)


def test_every_weight_learns() -> None:
    """No weight is left unused after the last layer, where nothing reads the rows."""
    encoder = Luna(LunaConfig(20, width=6, heads=2, layers=2, rows=4))
    encoder.through(torch.randn(2, 5, 6), torch.ones(2, 5, dtype=torch.bool)).square().sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())
