from __future__ import annotations

from math import sqrt

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.encoders.enformer import (
    FEATURES,
    Enformer,
    EnformerConfig,
    RelativeAttention,
    Stage,
    features,
)

CONFIG = EnformerConfig(max_length=100, width=8, layers=1, heads=2, halvings=2)


def test_tokens_of_a_bin_come_out_alike() -> None:
    encoder = Enformer(CONFIG).eval()
    y = encoder(Packed.from_lengths(torch.randn(17, 8), [10, 7])).values
    bins = [slice(0, 4), slice(4, 8), slice(8, 10), slice(10, 14), slice(14, 17)]
    assert all(torch.equal(y[b], y[b][:1].expand_as(y[b])) for b in bins)
    assert len(y.unique(dim=0)) == len(bins)


def test_bins_have_128_tokens() -> None:
    config = EnformerConfig(max_length=196_608)
    assert config.bins == 1536 and 2**config.halvings == 128


def test_pooling_is_a_softmax_over_pairs() -> None:
    stage = Stage(8, taps=5, first=False).double()
    x = Packed.from_lengths(torch.randn(5, 8, dtype=torch.float64), [5])
    values = stage.wide(stage.enter(x.values), x)
    values = values + stage.point(values)
    expected = [(torch.softmax(2 * values[pair], dim=0) * values[pair]).sum(0) for pair in ([0, 1], [2, 3], [4])]
    torch.testing.assert_close(stage(x).values, torch.stack(expected))


@pytest.mark.parametrize("length", [1, 2, 9])
def test_attention_is_its_formula(length: int) -> None:
    attention = RelativeAttention(CONFIG).double()
    with torch.no_grad():
        attention.content_bias.normal_()
        attention.distance_bias.normal_()
    q, k, v = torch.randn(3, 1, 2, length + 1, 4, dtype=torch.float64)
    mask = torch.tensor([[True] * length + [False]])
    actual = attention.attend(q, k, v, mask)
    for head in range(2):
        for i in range(length):
            scores = []
            for j in range(length):
                distance = features(torch.tensor([float(j - i)], dtype=torch.float64), CONFIG.bins)
                r = attention.distance(distance).view(2, 4)[head]
                content = (q[0, head, i] + attention.content_bias[head, 0]) @ k[0, head, j]
                scores.append((content + (q[0, head, i] + attention.distance_bias[head, 0]) @ r) / sqrt(4))
            expected = torch.softmax(torch.stack(scores), dim=0) @ v[0, head, :length]
            torch.testing.assert_close(actual[0, head, i], expected)


def test_features_tell_distances_and_sides_apart() -> None:
    encoding = features(torch.arange(-1535.0, 1536.0), bins=1536)
    assert encoding.shape == (3071, 4 * FEATURES) and encoding.isfinite().all() and encoding.abs().max() <= 1
    assert torch.pdist(encoding).min() > 1e-4
    torch.testing.assert_close(encoding[1535 + 1536 // 2, 0] ** 2, torch.tensor(0.5))  # half of a half-life of 1,536
