from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer.models.encoders.longformer import LongformerConfig, WindowAttention


def naive(mixer: WindowAttention, x: torch.Tensor) -> torch.Tensor:
    """A softmax over the tokens that each token sees; the first token sees all, with separate weights."""
    size, length = x.shape[1] // mixer.heads, len(x)
    out = torch.zeros_like(x)
    for i in range(length):
        q, k, v = (mixer.global_qkv if i == 0 else mixer.qkv)(x).chunk(3, dim=1)
        visible = [j for j in range(length) if i == 0 or j == 0 or abs(i - j) <= mixer.window]
        for head in range(mixer.heads):
            channels = slice(head * size, (head + 1) * size)
            out[i, channels] = (k[visible, channels] @ q[i, channels] / size**0.5).softmax(0) @ v[visible, channels]
    return mixer.out(out)


@torch.no_grad()
@pytest.mark.parametrize("window", [1, 2, 3, 4, 11, 50])
def test_is_attention_to_a_window_and_the_first_token(window: int, rows: Callable[..., Any]) -> None:
    mixer = WindowAttention(LongformerConfig(20, width=6, heads=2, window=window)).double()
    values, mask, lengths = rows(6)
    output = mixer(values, mask)
    for row, y, length in zip(values, output, lengths, strict=True):
        torch.testing.assert_close(y[:length], naive(mixer, row[:length]), rtol=1e-10, atol=1e-10)
