from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer import Packed
from chordmixer.models.encoders.poolformer import Poolformer, PoolformerConfig, window_mean


def naive_mean(tokens: torch.Tensor, pool: int) -> torch.Tensor:
    reach = pool // 2
    return torch.stack([tokens[max(0, n - reach) : n + reach + 1].mean(0) for n in range(len(tokens))])


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4), pool=st.sampled_from([1, 3, 7, 31]))
def test_mean_is_over_real_tokens_only(lengths: list[int], pool: int) -> None:
    x = Packed.from_lengths(torch.randn(sum(lengths), 3, dtype=torch.float64), lengths)
    expected = torch.cat([naive_mean(tokens, pool) for tokens in x.to_list()])
    torch.testing.assert_close(window_mean(x.values, x, pool), expected)


def test_a_block_by_hand() -> None:
    encoder = Poolformer(PoolformerConfig(max_length=20, width=4, layers=1, pool=5, layer_scale=0.3)).double()
    tokens = torch.randn(20, 4, dtype=torch.float64)
    block = encoder.blocks[0]
    normed = block.norm1(tokens)
    expected = tokens + 0.3 * (naive_mean(normed, 5) - normed)
    expected = expected + 0.3 * block.mlp(block.norm2(expected))
    torch.testing.assert_close(encoder(Packed.from_list([tokens])).values, expected, rtol=1e-6, atol=1e-6)


def test_starts_almost_as_nothing() -> None:
    encoder = Poolformer(PoolformerConfig(max_length=20, width=4))
    tokens = torch.randn(20, 4)
    torch.testing.assert_close(encoder(Packed.from_list([tokens])).values, tokens, rtol=0, atol=1e-3)


def test_takes_odd_windows() -> None:
    with pytest.raises(ValueError, match="pool=2 has no middle: a window around a token is odd; give 3"):
        PoolformerConfig(max_length=10, pool=2)
