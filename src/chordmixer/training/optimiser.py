"""AdamW that never waits for the device: its step itself clips gradients, and leaves out what is not finite."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from chordmixer.models import Model
from chordmixer.training import starting
from chordmixer.training.experiment import TrainingConfig


class Optimiser:
    """The steps of a run: their rate over its course, and the weights that they move."""

    def __init__(self, model: Model, config: TrainingConfig, longest: int) -> None:
        """`longest` is the length of the longest training record."""
        self.config = config
        learning = starting.groups(model, config, longest)
        self.parameters = [parameter for group in learning for parameter in group["params"]]
        self.adam = torch.optim.AdamW(learning, lr=config.learning_rate, betas=(0.9, config.beta2), fused=True)
        self.bad = torch.zeros((), device=self.parameters[0].device)
        """One from the first step on whose loss or gradient was not finite."""

    def rate(self, done: float) -> float:
        """Of the head, after this share of the run."""
        return self.config.learning_rate * schedule(done, self.config.warmup)

    def step(self, loss: Float[Tensor, ""], rate: float) -> Float[Tensor, "2"]:
        """Move the weights by their gradients; gives the loss and the norm of the gradient, still on the device.

        Once one of the two is not finite, this step and all later ones are left out.
        """
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        result = torch.stack([loss, norm])
        self.bad = torch.maximum(self.bad, (~torch.isfinite(result)).any().float())
        self.adam.found_inf = self.bad  # type: ignore[attr-defined]  # the fused step does nothing where this is one
        self.adam.grad_scale = (norm / self.config.clip).clamp_(min=1)  # type: ignore[attr-defined]  # and clips
        for settings in self.adam.param_groups:
            settings["lr"] = rate * settings["share"]
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return result


def schedule(done: float, warmup: float) -> float:
    """Up in a line, down along a cosine; `done` is the share of the run.

    >>> [round(schedule(d, 0.1), 2) for d in (0.05, 0.1, 0.55, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if done < warmup:
        return done / warmup
    return 0.5 + 0.5 * math.cos(math.pi * (done - warmup) / (1 - warmup))
