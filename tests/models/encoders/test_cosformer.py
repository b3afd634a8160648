from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Any

import torch

from chordmixer.models.encoders.cosformer import CosformerConfig, CosineAttention


def naive(mixer: CosineAttention, x: torch.Tensor) -> torch.Tensor:
    """Equations 8 to 10 of Qin et al. by their definition: a weight for each pair of tokens, then a weighted mean."""
    q, k, v = mixer.qkv(x).chunk(3, dim=1)
    size, length = x.shape[1] // mixer.heads, len(x)
    out = torch.zeros_like(x)
    for head in range(mixer.heads):
        channels = slice(head * size, (head + 1) * size)
        for i in range(length):
            weights = [
                (q[i, channels].relu() @ k[j, channels].relu()) * cos(pi / 2 * (i - j) / length)
                for j in range(length)
            ]
            total = max(sum(weights).item(), 1e-6)
            out[i, channels] = sum(weights[j] * v[j, channels] for j in range(length)) / total
    return mixer.out(out)


@torch.no_grad()
def test_is_the_paper_s_formula(rows: Callable[..., Any]) -> None:
    mixer = CosineAttention(CosformerConfig(20, width=6, heads=2)).double()
    values, mask, lengths = rows(6)
    output = mixer(values, mask)
    for row, y, length in zip(values, output, lengths, strict=True):
        torch.testing.assert_close(y[:length], naive(mixer, row[:length]), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_token_with_zero_weights_has_a_finite_answer() -> None:
    """All weights zero: the smallest divisor keeps the answer finite."""
    mixer = CosineAttention(CosformerConfig(20, width=4, heads=1))
    mixer.qkv.bias[:4] = -100.0
    output = mixer(torch.randn(1, 5, 4), torch.ones(1, 5, dtype=torch.bool))
    torch.testing.assert_close(output, mixer.out.bias.expand(1, 5, 4))
