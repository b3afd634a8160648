from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from chordmixer.models.encoders.nystromformer import (
    NystromAttention,
    NystromformerConfig,
    Smoothing,
    averages,
    pseudo_inverse,
)


def naive(mixer: NystromAttention, x: torch.Tensor) -> torch.Tensor:
    """One head and one sequence at a time, without padding, landmark by landmark."""
    q, k, v = mixer.qkv(x).chunk(3, dim=1)
    size, length = x.shape[1] // mixer.heads, len(x)
    landmarks = min(mixer.landmarks, length)
    stretches = [[n for n in range(length) if n * landmarks // length == m] for m in range(landmarks)]
    out = torch.zeros_like(x)
    for head in range(mixer.heads):
        channels = slice(head * size, (head + 1) * size)
        qh, kh, vh = q[:, channels] / size**0.25, k[:, channels] / size**0.25, v[:, channels]
        ql = torch.stack([sum(qh[n] for n in stretch) / len(stretch) for stretch in stretches])
        kl = torch.stack([sum(kh[n] for n in stretch) / len(stretch) for stretch in stretches])
        f1, f2, f3 = (scores.softmax(1) for scores in (qh @ kl.T, ql @ kl.T, ql @ kh.T))
        identity, z = torch.eye(landmarks, dtype=x.dtype), f2.T / max(f2[:, j].sum() for j in range(landmarks))
        for _ in range(6):
            z = z / 4 @ (13 * identity - f2 @ z @ (15 * identity - f2 @ z @ (7 * identity - f2 @ z)))
        out[:, channels] = f1 @ z @ (f3 @ vh)
        for n in range(length):
            for tap in range(33):
                if 0 <= n + tap - 16 < length:
                    out[n, channels] += mixer.conv.weight[head, tap] * vh[n + tap - 16]
    return mixer.out(out)


@torch.no_grad()
@pytest.mark.parametrize("landmarks", [1, 5, 12, 64])
def test_is_the_paper_s_formula(landmarks: int, rows: Callable[..., Any]) -> None:
    mixer = NystromAttention(NystromformerConfig(20, width=6, heads=2, landmarks=landmarks)).double()
    values, mask, lengths = rows(6)
    output = mixer(values, mask)
    for row, y, length in zip(values, output, lengths, strict=True):
        torch.testing.assert_close(y[:length], naive(mixer, row[:length]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [1, 30, 64, 65, 200])
def test_smoothing_is_a_convolution(length: int) -> None:
    """Outputs and gradients, for lengths below, at and above the length of a stretch."""
    smooth = Smoothing(heads=2).double()
    plain = nn.Conv2d(2, 2, (33, 1), padding=(16, 0), groups=2, bias=False).double()
    plain.weight.data.copy_(smooth.weight[:, None, :, None])
    v = torch.randn(3, 2, length, 4, dtype=torch.float64, requires_grad=True)
    expected, actual = plain(v), smooth(v)
    torch.testing.assert_close(actual, expected)
    grad_output = torch.randn_like(actual)
    expected_gradients = torch.autograd.grad(expected, (v, plain.weight), grad_output)
    gradients = torch.autograd.grad(actual, (v, smooth.weight), grad_output)
    torch.testing.assert_close(gradients[0], expected_gradients[0])
    torch.testing.assert_close(gradients[1], expected_gradients[1][:, 0, :, 0])


def test_inverse() -> None:
    """After six steps it is an inverse to four digits; each head has its own starting point."""
    a = (3 * torch.eye(6) + torch.randn(2, 3, 6, 6)).softmax(3)
    torch.testing.assert_close(pseudo_inverse(a)[1, 2], pseudo_inverse(a[1, 2]))
    easy = (9 * torch.eye(6)).softmax(1)
    torch.testing.assert_close(pseudo_inverse(easy) @ easy, torch.eye(6), atol=1e-4, rtol=0)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 9])
def test_stretches_are_even_and_hold_every_token_once(length: int) -> None:
    means = averages(torch.arange(9)[None] < length, landmarks=4)[0]
    sizes = (means > 0).sum(1)[: min(4, length)]
    assert sizes.min() >= 1 and sizes.max() - sizes.min() <= 1 and sizes.sum() == length
    torch.testing.assert_close(means.sum(1), (torch.arange(4) < length).float())
    assert not means[:, length:].any()
