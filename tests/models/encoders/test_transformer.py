from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.encoders import layers
from chordmixer.models.encoders.transformer import SoftmaxAttention, Transformer, TransformerConfig

CONFIG = TransformerConfig(40, width=6, heads=2)


@torch.no_grad()
def test_is_the_paper_s_formula(rows: Callable[..., Any]) -> None:
    mixer = SoftmaxAttention(CONFIG).double()
    values, mask, lengths = rows(6)
    output = mixer(values, mask)
    for row, y, length in zip(values, output, lengths, strict=True):
        q, k, v = mixer.qkv(row[:length]).chunk(3, dim=1)
        heads = [(q[:, s] @ k[:, s].T / 3**0.5).softmax(1) @ v[:, s] for s in (slice(0, 3), slice(3, 6))]
        torch.testing.assert_close(y[:length], mixer.out(torch.cat(heads, dim=1)), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_padded_with_a_mask_as_without(random_batch: Callable[..., Packed]) -> None:
    """A GPU pads many short sequences with a mask; the result must be that of a CPU."""
    encoder = Transformer(CONFIG)
    x = random_batch([40, 31, 35, 3, 4, 4], 6)
    padded = layers.in_buckets(layers.with_positions(x), encoder.through)
    torch.testing.assert_close(padded.values, encoder(x).values, rtol=1e-5, atol=1e-5)


def test_pads_nothing_on_a_cpu(random_batch: Callable[..., Packed], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    attention = layers.F.scaled_dot_product_attention

    def spy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor | None) -> torch.Tensor:
        calls.append((tuple(q.shape[::2]), attn_mask))
        return attention(q, k, v)

    monkeypatch.setattr(layers.F, "scaled_dot_product_attention", spy)
    Transformer(TransformerConfig(40, width=6, heads=2, layers=1))(random_batch([7, 8, 7], 6))
    assert calls == [((1, 8), None), ((2, 7), None)]
