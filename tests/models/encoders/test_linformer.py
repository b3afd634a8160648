from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chordmixer.models.encoders.linformer import Linformer, LinformerAttention, LinformerConfig


@torch.no_grad()
def test_is_the_paper_s_formula(rows: Callable[..., Any]) -> None:
    mixer = LinformerAttention(LinformerConfig(20, width=6, heads=2, rank=4)).double()
    values, mask, lengths = rows(6)
    output = mixer(values, mask)
    along_keys, along_values = mixer.projections
    for row, y, length in zip(values, output, lengths, strict=True):
        q, k, v = mixer.qkv(row[:length]).chunk(3, dim=1)
        heads = [
            (q[:, channels] @ (along_keys[:length].T @ k[:, channels]).T / 3**0.5).softmax(1)
            @ (along_values[:length].T @ v[:, channels])
            for channels in (slice(0, 3), slice(3, 6))
        ]
        torch.testing.assert_close(y[:length], mixer.out(torch.cat(heads, dim=1)), rtol=1e-10, atol=1e-10)


def test_parameters_grow_with_the_longest_length() -> None:
    def count(length: int) -> int:
        return sum(p.numel() for p in Linformer(LinformerConfig(length, width=8, layers=3, rank=5)).parameters())

    assert count(101) - count(100) == 2 * 5 * 3
