from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer import Packed
from chordmixer.models.encoders.packed_layers import SMALL_TRANSFORM, _transform_size, long_convolution

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@given(lengths=LENGTHS)
def test_long_convolution_is_a_sum_over_the_past(lengths: list[int]) -> None:
    x = Packed.from_lengths(torch.randn(sum(lengths), 2, dtype=torch.float64), lengths)
    kernel = torch.randn(max(lengths), 2, dtype=torch.float64)
    expected = [
        torch.stack([sum(kernel[n - m] * tokens[m] for m in range(n + 1)) for n in range(len(tokens))])
        for tokens in x.to_list()
    ]
    torch.testing.assert_close(long_convolution(x, kernel), torch.cat(expected))


def test_long_convolution_of_bfloat16() -> None:
    x = Packed.from_lengths(torch.randn(9, 2), [4, 5])
    kernel = torch.randn(5, 2)
    half = long_convolution(x.to(dtype=torch.bfloat16), kernel)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), long_convolution(x, kernel), rtol=0.05, atol=0.05)


@given(minimum=st.integers(2, 10**7))
def test_transforms_are_little_larger_than_they_must_be(minimum: int) -> None:
    size = _transform_size(minimum)
    assert minimum <= size <= (minimum * 9 / 8 if minimum > SMALL_TRANSFORM else 2 * minimum - 2)
    assert minimum > SMALL_TRANSFORM or size.bit_count() == 1
    while size % 2 == 0:
        size //= 2
    assert size < 16
