from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chordmixer.models.encoders.performer import (
    EPSILON,
    PerformerConfig,
    RandomFeatureAttention,
    orthogonal_gaussian,
)


def naive(mixer: RandomFeatureAttention, x: torch.Tensor) -> torch.Tensor:
    """Every feature of every token by its definition; attention as a sum over pairs."""
    q, k, v = mixer.qkv(x).chunk(3, dim=1)
    size, length, r = x.shape[1] // mixer.heads, len(x), len(mixer.projection)
    out = torch.zeros_like(x)
    for head in range(mixer.heads):
        channels = slice(head * size, (head + 1) * size)

        def exponents(u: torch.Tensor) -> torch.Tensor:
            u = u / size**0.25
            return torch.stack([w @ u - u @ u / 2 for w in mixer.projection])

        key_exponents = [exponents(k[j, channels]) for j in range(length)]
        largest = max(e.max() for e in key_exponents)
        phi_k = [(torch.exp(e - largest) + EPSILON) / r**0.5 for e in key_exponents]
        for i in range(length):
            query_exponents = exponents(q[i, channels])
            phi_q = (torch.exp(query_exponents - query_exponents.max()) + EPSILON) / r**0.5
            weights = [phi_q @ phi for phi in phi_k]
            out[i, channels] = sum(weights[j] * v[j, channels] for j in range(length)) / sum(weights)
    return mixer.out(out)


@torch.no_grad()
def test_is_the_paper_s_formula(rows: Callable[..., Any]) -> None:
    mixer = RandomFeatureAttention(PerformerConfig(20, width=6, heads=2, features=7)).double()
    values, mask, lengths = rows(6)
    output = mixer(values, mask)
    for row, y, length in zip(values, output, lengths, strict=True):
        torch.testing.assert_close(y[:length], naive(mixer, row[:length]), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_comes_near_softmax_attention(rows: Callable[..., Any]) -> None:
    """With many features the estimate converges to softmax attention."""
    mixer = RandomFeatureAttention(PerformerConfig(20, width=6, heads=2, features=20_000)).double()
    values, mask, _ = rows(6)
    q, k, v = (part.unflatten(2, (2, 3)).transpose(1, 2) for part in mixer.qkv(values).chunk(3, dim=2))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
    assert (mixer.attend(q, k, v, mask) - exact)[mask[:, None].expand(-1, 2, -1)].abs().max() < 0.02


def test_features_are_orthogonal_and_as_long_as_gaussian_ones() -> None:
    w = orthogonal_gaussian(4000, 4)
    for group in w.view(1000, 4, 4)[:5]:
        products = group @ group.T
        torch.testing.assert_close(products, torch.diag(products.diag()), atol=1e-5, rtol=0)
    assert abs(w.square().sum(1).mean() - 4) < 0.2 and w.mean(0).abs().max() < 0.1
    assert len(orthogonal_gaussian(6, 4)) == 6
