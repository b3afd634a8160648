from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from chordmixer import Packed
from chordmixer.models.stem import Stem, StemConfig


def naive(stem: Stem, tokens: torch.Tensor) -> torch.Tensor:
    """The stem of one sequence, with torch's convolution and zero padding."""
    for convolution, norm in zip(stem.convolutions, stem.norms, strict=True):
        taps = convolution.weight.shape[-1]
        mixed = F.conv1d(tokens.T[None], convolution.weight, convolution.bias, padding=taps // 2)[0].T
        tokens = F.gelu(norm(mixed))
    return tokens


@pytest.mark.parametrize("layers", [1, 3])
def test_a_sequence_does_not_depend_on_its_neighbours(random_batch: Callable[..., Any], layers: int) -> None:
    """Values and gradients, against each sequence alone; some are shorter than the window."""
    stem = Stem(StemConfig(layers=layers, taps=7, width=5), inputs=3, width=4).double()
    x = random_batch([1, 2, 60, 7], 3, torch.float64)
    x.values.requires_grad_()
    actual, expected = stem(x), torch.cat([naive(stem, sequence) for sequence in x.to_list()])
    torch.testing.assert_close(actual, expected)
    grad_output, variables = torch.randn_like(actual), [x.values, *stem.parameters()]
    gradients, expected_gradients = (torch.autograd.grad(y, variables, grad_output) for y in (actual, expected))
    torch.testing.assert_close(gradients, expected_gradients)


def test_it_knows_where_a_sequence_starts() -> None:
    stem = Stem(StemConfig(layers=1, taps=3), inputs=1, width=2)
    first, middle, *_ = stem(Packed.from_lengths(torch.ones(5, 1), [5]))
    assert not torch.allclose(first, middle)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": -1}, r"^layers=-1 is too small: give 0 or more"),
        ({"taps": 4}, r"^taps=4 of a stem is not an odd number: give 7 or 9"),
        ({"width": 0}, r"^width=0 is too small: give 1 or more"),
    ],
)
def test_settings_that_make_no_stem(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StemConfig(**settings)
