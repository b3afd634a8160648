from __future__ import annotations

import pytest
import torch

from chordmixer import Model
from chordmixer.config import override
from chordmixer.training import Experiment
from chordmixer.training.optimiser import Optimiser


@pytest.fixture
def model(tiny: Experiment) -> Model:
    torch.manual_seed(0)
    return Model(tiny.model)


def moved(model: Model, optimiser: Optimiser, gradient: float, loss: float = 1.0) -> tuple[float, list[float]]:
    """How far the weights go in one step, and what it says."""
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, gradient)
    result = optimiser.step(torch.tensor(loss), 1e-3)
    after = [p.detach() for p in model.parameters()]
    assert all(p.grad is None for p in model.parameters())
    return max(float((a - b).abs().max()) for a, b in zip(after, before, strict=True)), result.tolist()


def test_gradients_are_clipped_and_their_norm_is_told(tiny: Experiment, model: Model) -> None:
    count = sum(p.numel() for p in model.parameters())
    optimiser = Optimiser(model, tiny.training, longest=64)
    _, (loss, norm) = moved(model, optimiser, 100.0)
    assert loss == 1.0 and norm == pytest.approx(100 * count**0.5, rel=1e-5)
    first = optimiser.adam.state[next(model.parameters())]["exp_avg"]
    torch.testing.assert_close(first, torch.full_like(first, 0.1 / count**0.5))  # a tenth of a gradient of norm one


@pytest.mark.parametrize(("gradient", "loss"), [(float("nan"), 1.0), (1.0, float("inf"))])
def test_nothing_moves_from_the_first_step_on_that_is_not_finite(
    tiny: Experiment, model: Model, gradient: float, loss: float
) -> None:
    optimiser = Optimiser(model, tiny.training, longest=64)
    assert moved(model, optimiser, 1.0)[0] > 0
    assert moved(model, optimiser, gradient, loss)[0] == 0
    assert moved(model, optimiser, 1.0)[0] == 0


def test_shares_of_the_rate(tiny: Experiment, model: Model) -> None:
    optimiser = Optimiser(model, override(tiny, {"training": {"layer_decay": 0.5}}).training, longest=64)
    moved(model, optimiser, 1.0)
    assert [group["lr"] for group in optimiser.adam.param_groups][:3] == pytest.approx([1e-3, 5e-4, 2.5e-4])
