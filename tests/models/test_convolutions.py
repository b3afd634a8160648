from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer import Packed
from chordmixer.models import convolutions
from chordmixer.models.convolutions import Convolution, spaced

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def naive(convolution: Convolution, tokens: torch.Tensor) -> torch.Tensor:
    """The convolution of one sequence, tap by tap and token by token."""
    taps, step = convolution.kernel_size[0], convolution.dilation[0]
    middle = taps - 1 if convolution.causal else taps // 2
    out = convolution.bias.repeat(len(tokens), 1)
    for n in range(len(tokens)):
        for tap in range(taps):
            if 0 <= n + (tap - middle) * step < len(tokens):
                out[n] += convolution.weight[:, :, tap] @ tokens[n + (tap - middle) * step]
    return out


@given(
    lengths=LENGTHS, taps=st.sampled_from([1, 3, 5]), dilation=st.sampled_from([1, 2, 16, 64]), causal=st.booleans()
)
def test_convolution_is_that_of_each_sequence(lengths: list[int], taps: int, dilation: int, causal: bool) -> None:
    convolution = Convolution(3, 2, taps, dilation, causal=causal).double()
    x = Packed.from_lengths(torch.randn(sum(lengths), 3, dtype=torch.float64), lengths)
    expected = torch.cat([naive(convolution, tokens) for tokens in x.to_list()])
    torch.testing.assert_close(convolution(x.values, x), expected)


@given(lengths=LENGTHS, taps=st.sampled_from([1, 3, 4]), dilation=st.sampled_from([1, 2, 16]))
def test_depthwise_convolution(lengths: list[int], taps: int, dilation: int) -> None:
    """Outputs and gradients are those of a dense convolution whose weights between channels are zero."""
    depthwise = Convolution(3, 3, taps, dilation, groups=3, causal=True).double()
    dense = Convolution(3, 3, taps, dilation, causal=True).double()
    dense.weight.data.copy_(torch.eye(3)[:, :, None] * depthwise.weight)
    dense.bias.data.copy_(depthwise.bias)
    x = Packed.from_lengths(torch.randn(sum(lengths), 3, dtype=torch.float64, requires_grad=True), lengths)
    actual, expected = depthwise(x.values, x), dense(x.values, x)
    torch.testing.assert_close(actual, expected)
    grad_output = torch.randn_like(actual)
    gradients = torch.autograd.grad(actual, (x.values, depthwise.weight, depthwise.bias), grad_output)
    expected_gradients = torch.autograd.grad(expected, (x.values, dense.weight, dense.bias), grad_output)
    torch.testing.assert_close(gradients[0], expected_gradients[0])
    torch.testing.assert_close(gradients[1][:, 0], expected_gradients[1].diagonal().T)
    torch.testing.assert_close(gradients[2], expected_gradients[2])


def test_far_taps_cost_no_memory(peak_bytes) -> None:  # type: ignore[no-untyped-def]
    """The dilation is far above all lengths; if its taps were not cut, the gaps alone would take 100 MB."""
    convolution = Convolution(4, 4, taps=3, dilation=2**20, causal=True)
    x = Packed.from_lengths(torch.randn(30, 4), [3] * 10)
    assert peak_bytes(lambda: convolution(x.values, x)) < 100_000


def test_a_window_around_a_token_has_a_middle() -> None:
    with pytest.raises(AssertionError, match="has a middle"):
        Convolution(2, 2, taps=4)


def test_gaps_are_zero() -> None:
    x = Packed.from_lengths(torch.ones(6, 2), [1, 2, 3])
    row, layout = spaced(x.values, x, gap=4, before=3, after=2)
    assert row.shape == (3 + 14 + 2, 2) and row.sum() == 12 and bool(row[3 + layout.index].all())
    assert layout.size == 14 and layout.take(row[3:-2]).sum() == 12


@pytest.mark.parametrize(("precision", "rounds"), [("highest", False), ("high", True)])
def test_convolutions_are_as_exact_as_products(monkeypatch: pytest.MonkeyPatch, precision: str, rounds: bool) -> None:
    allowed = []
    convolve = convolutions.F.conv2d
    monkeypatch.setattr(
        convolutions.F,
        "conv2d",
        lambda *args, **kwargs: (allowed.append(torch.backends.cudnn.allow_tf32), convolve(*args, **kwargs))[1],
    )
    before, x = torch.backends.cudnn.allow_tf32, Packed.from_lengths(torch.ones(6, 1), [4, 2])
    torch.set_float32_matmul_precision(precision)
    try:
        convolutions.Convolution(1, 1, taps=3)(x.values, x)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert allowed == [rounds] and torch.backends.cudnn.allow_tf32 == before
