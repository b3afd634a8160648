from __future__ import annotations

import pytest
import torch
from torch import nn

from chordmixer.training.averaging import Average


class Counted(nn.Module):
    """A weight, a running statistic and a whole number."""

    weight: torch.Tensor
    running: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("running", torch.zeros(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


def walk(model: Counted, average: Average, steps: range) -> None:
    for step in steps:
        model.weight.data.fill_(step)
        model.running.fill_(-step)
        average.update(step)


def test_a_plain_mean_then_a_fading_one() -> None:
    model = Counted()
    average = Average(model, horizon=4)
    walk(model, average, range(1, 5))
    assert average.values["weight"].tolist() == [2.5] * 3
    assert average.values["running"].tolist() == [-2.5] * 2
    walk(model, average, range(5, 6))
    assert average.values["weight"].tolist() == pytest.approx([2.5 + 2.5 / 4] * 3)
    assert set(average.values) == {"weight", "running"}


def test_it_is_there_for_a_while_and_leaves_every_bit_as_it_was() -> None:
    model = Counted()
    average = Average(model, horizon=100)
    walk(model, average, range(1, 4))
    with pytest.raises(RuntimeError), average.in_place():
        assert model.weight.tolist() == [2.0] * 3 and model.running.tolist() == [-2.0] * 2
        raise RuntimeError
    assert model.weight.tolist() == [3.0] * 3 and model.running.tolist() == [-3.0] * 2


def test_it_goes_on_from_kept_values() -> None:
    model, again = Counted(), Counted()
    whole = Average(model, horizon=3)
    walk(model, whole, range(1, 4))
    resumed = Average(again, horizon=3, values=whole.values)
    walk(model, whole, range(4, 8))
    walk(again, resumed, range(4, 8))
    assert all(torch.equal(whole.values[name], resumed.values[name]) for name in whole.values)
