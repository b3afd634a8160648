from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer.models.encoders.reformer import HashAttention, ReformerConfig


def naive(mixer: HashAttention, x: torch.Tensor) -> torch.Tensor:
    """Sort, cut into chunks, attend: token by token, round by round."""
    size, length = x.shape[1] // mixer.heads, len(x)
    qk, v = mixer.qk(x), mixer.v(x)
    out = torch.zeros_like(x)
    for head in range(mixer.heads):
        q, values = (t[:, head * size : (head + 1) * size] for t in (qk, v))
        rounds: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(length)]
        for rotation in mixer.rotations[:, head]:
            directions = rotation[:, : -(-length // mixer.chunk)].T
            ends = [end for direction in directions for end in (direction, -direction)]
            bucket = [max(range(len(ends)), key=lambda b: (q[n] @ ends[b]).item()) for n in range(length)]
            order = sorted(range(length), key=lambda n: (bucket[n], n))
            for rank, n in enumerate(order):
                chunk = rank // mixer.chunk
                neighbours = order[max(0, chunk - 1) * mixer.chunk : (chunk + 1) * mixer.chunk]
                neighbours = [m for m in neighbours if m != n] or [n]
                scores = torch.stack([q[n] @ q[m] / q[m].norm() / size**0.5 for m in neighbours])
                scores = scores if neighbours != [n] else scores * 0 - 5e4
                rounds[n].append((scores.logsumexp(0), scores.softmax(0) @ values[neighbours]))
        for n in range(length):
            weights = torch.stack([total for total, _ in rounds[n]]).softmax(0)
            out[n, head * size : (head + 1) * size] = sum(
                w * answer for w, (_, answer) in zip(weights, rounds[n], strict=True)
            )
    return mixer.out(out)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("hashes", [1, 3])
def test_is_the_paper_s_formula(chunk: int, hashes: int, rows: Callable[..., Any]) -> None:
    mixer = HashAttention(ReformerConfig(20, width=6, heads=2, chunk=chunk, hashes=hashes, buckets=6)).double()
    values, mask, lengths = rows(6)
    output = mixer(values, mask)
    for row, y, length in zip(values, output, lengths, strict=True):
        torch.testing.assert_close(y[:length], naive(mixer, row[:length]), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_like_tokens_share_a_bucket_and_padding_has_its_own() -> None:
    mixer = HashAttention(ReformerConfig(20, width=4, heads=1, chunk=2, buckets=8))
    q = torch.randn(1, 1, 9, 4)
    q[..., 5, :] = 3 * q[..., 2, :]
    bucket = mixer.buckets(q, torch.arange(9)[None] < 8, mixer.rotations[0])[0, 0].tolist()
    assert bucket[5] == bucket[2] and bucket[8] == 8 and max(bucket[:8]) < 8


def test_buckets_come_in_pairs() -> None:
    with pytest.raises(ValueError, match=r"^buckets=7 is odd: a rotation has two ends; give an even number$"):
        ReformerConfig(20, buckets=7)
