"""Optimiser: steps, learning rates, the budget of a run, and the evaluated weights (EMA, running statistics)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer.data import Loader, TokenSampler, draws
from chordmixer.models import Model
from chordmixer.models.chordmixer import ChordMixer, depth
from chordmixer.models.norms import Standard
from chordmixer.training.checkpoints import State
from chordmixer.training.experiment import TrainingConfig
from chordmixer.training.ranks import from_main_rank

NAMED_RECORDS = 8
"""Maximum number of records that an error message names."""
STATISTICS_RECORDS = 256
"""Training records for `update_statistics`; the error of a mean is then a sixteenth of the standard deviation."""


class Optimiser:
    """AdamW without waits for the device: its step clips gradients, and changes nothing if they are not finite."""

    def __init__(self, model: Model, config: TrainingConfig, longest: int) -> None:
        """`longest` is the length of the longest training record."""
        self.config = config
        groups = parameter_groups(model, config, longest)
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        self.adam = torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=(0.9, config.beta2),
            fused=True,
            capturable=self.parameters[0].is_cuda,  # in CUDA graphs
        )
        self.bad = torch.zeros((), device=self.parameters[0].device)
        """1 from the first step whose loss or gradient was not finite, else 0."""

    def learning_rate(self, done: float) -> float:
        """The learning rate of the head when this share of the run is done."""
        return self.config.learning_rate * schedule(done, self.config.warmup)

    def step(self, loss: Float[Tensor, ""], learning_rate: float | Float[Tensor, ""]) -> Float[Tensor, "2"]:
        """Update the weights; returns the loss and the gradient norm, still on the device.

        Once one of the two is not finite, this step and all later ones change nothing. In a CUDA graph the learning
        rate is a tensor on the device, since it changes from step to step.
        """
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        result = torch.stack([loss, norm])
        torch.maximum(self.bad, (~torch.isfinite(result)).any().float(), out=self.bad)
        self.adam.found_inf = self.bad  # type: ignore[attr-defined]  # the fused step does nothing if this is 1
        self.adam.grad_scale = (norm / self.config.clip).clamp_(min=1)  # type: ignore[attr-defined]  # and clips
        for group in self.adam.param_groups:
            group["lr"] = learning_rate * group["lr_scale"]
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return result


def schedule(done: float, warmup: float) -> float:
    """The learning rate factor: linear warm-up, then a cosine to zero; `done` is the finished share of the run.

    >>> [round(schedule(d, 0.1), 2) for d in (0.05, 0.1, 0.55, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if done < warmup:
        return done / warmup
    return 0.5 + 0.5 * math.cos(math.pi * (done - warmup) / (1 - warmup))


def parameter_groups(model: Model, config: TrainingConfig, longest: int) -> list[dict[str, Any]]:
    """The trainable parameters in groups, each with its weight decay and its scale of the learning rate.

    With `layer_decay` d the scale is 1 for the head, d for the last block, d^2 for the block before it, and smallest
    for the embedding. The last block is the last one that the longest record passes; later ones are not trained.
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    scales = dict.fromkeys((name for name, _ in trainable), 1.0)
    if config.layer_decay != 1:
        if not isinstance(model.encoder, ChordMixer):
            raise ValueError(
                f"layer_decay={config.layer_decay} counts the blocks of a chordmixer, and this encoder is "
                f"{model.config.encoder}: set training.layer_decay=1"
            )
        blocks = min(depth(longest + model.head.extra), len(model.encoder.blocks))
        scales = {name: config.layer_decay ** _blocks_from_head(name, blocks) for name in scales}
        trainable.sort(key=lambda named: -scales[named[0]])
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in trainable:
        decay = config.words_decay if name == "words.table" else config.weight_decay
        groups.setdefault((scales[name], decay), []).append(parameter)
    return [{"params": group, "lr_scale": scale, "weight_decay": decay} for (scale, decay), group in groups.items()]


def _blocks_from_head(name: str, blocks: int) -> int:
    """The number of blocks between the head and a parameter.

    >>> names = ("head.linear.bias", "encoder.blocks.2.fc1.bias", "embedding.table", "start.vector")
    >>> [_blocks_from_head(name, 3) for name in names]
    [0, 1, 4, 4]
    """
    if name.startswith(("embedding.", "start.", "stem.", "words.")):
        return blocks + 1
    return max(1, blocks - int(name.split(".")[2])) if name.startswith("encoder.blocks.") else 0


class PendingStep(NamedTuple):
    """A step whose result may not have arrived from the device yet."""

    step: int
    """Number of steps before it."""
    batch: int
    """Batches of the epoch that were used before it."""
    done: float
    learning_rate: float
    records: list[int]
    tokens: int
    result: Float[Tensor, "2"]
    """Sum of the losses, and gradient norm."""

    def not_finite(self, loss: float, names: Sequence[str], precision: str) -> str:
        """The error message for a step with this sum of losses; the learning rate is not the cause in the first."""
        shown = ", ".join(names[:NAMED_RECORDS]) + (
            f" and {len(names) - NAMED_RECORDS} more" if len(names) > NAMED_RECORDS else ""
        )
        at_first = "try training.precision=fp32" if precision == "bf16" else "at their targets"
        cure = f"lower the learning rate of {self.learning_rate:.2g}" if self.step else at_first
        return (
            f"loss {loss / len(names)} or its gradient is not finite at step {self.step + 1}, records {shown}: "
            f"weights stay as after step {self.step}; look at these records or {cure}"
        )


class Budget:
    """Limit on the steps or minutes of training, without validation, checkpoints and test set.

    Checkpoints have the seconds, so that the time before an interruption counts.
    """

    def __init__(self, config: TrainingConfig, state: State) -> None:
        self.steps, self.seconds, self.state = config.steps, 60 * config.minutes, state

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Add the time of the block by the main rank's clock. Without a time limit nothing is measured, so that the
        files of two equal runs are identical."""
        start = time.monotonic()
        yield
        if self.seconds:
            self.state.seconds = from_main_rank(lambda: self.state.seconds + time.monotonic() - start)

    @property
    def spent(self) -> float:
        """The spent share of the budget, at most 1; 0 without a limit."""
        if self.steps:
            return self.after(self.state.step)
        return min(self.state.seconds / self.seconds, 1.0) if self.seconds else 0.0

    def after(self, step: int) -> float:
        """The share of the budget spent after this number of steps; 0 if steps are not limited."""
        return min(step / self.steps, 1.0) if self.steps else 0.0

    def messages(self) -> Iterator[str]:
        """Messages for the user at the start."""
        if self.steps:
            yield f"training for at most {self.steps:,} steps, {self.state.step:,} done"
        if self.seconds:
            yield f"training for at most {self.seconds / 60:g} min, {self.state.seconds / 60:.1f} done"


class Ema:
    """Exponential moving average of a model's weights and running statistics over about `horizon` steps.

    Over the first `horizon` steps it is the arithmetic mean. At a high learning rate the weights circle around an
    optimum; their average is close to its centre, as if the learning rate had already decayed.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> ema = Ema(model, horizon=10)
    >>> for step in (1, 2, 3):
    ...     _ = model.weight.data.fill_(step)
    ...     ema.update(ema.weight(step))
    >>> with ema.in_place():
    ...     model.weight.item()
    2.0
    >>> model.weight.item()
    3.0
    """

    def __init__(self, model: nn.Module, horizon: float, values: dict[str, Tensor] | None = None) -> None:
        """`values` are those of a resumed run."""
        self.horizon = max(1.0, horizon)
        self.live = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        start = values or self.live
        self.values = {name: start[name].to(value.device, copy=True) for name, value in self.live.items()}

    def weight(self, step: int) -> float:
        """The weight in the average of the model after this step, counted from 1."""
        return 1 / min(step, self.horizon)

    def update(self, weight: float | Float[Tensor, ""]) -> None:
        """Add the current weights to the average; in a CUDA graph `weight` is a tensor on the device."""
        average, live = [*self.values.values()], [*self.live.values()]
        if isinstance(weight, float):
            torch._foreach_lerp_(average, live, weight)
            return
        change = torch._foreach_sub(live, average)
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(average, change)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average into the model for the block, then restore the model's own values exactly."""
        saved = {name: value.clone() for name, value in self.live.items()}
        torch._foreach_copy_([*self.live.values()], [*self.values.values()])
        try:
            yield
        finally:
            torch._foreach_copy_([*self.live.values()], [*saved.values()])


def update_statistics(model: nn.Module, loader: Loader, epoch: int, half: bool) -> None:
    """Set mean and variance of `Standard` layers for the current weights, from the same records on every rank."""
    standards = [module for module in model.modules() if isinstance(module, Standard)]
    if not standards:
        return
    sampler = loader.sampler
    order: list[int] = draws.permutation(draws.key(sampler.seed, "standard"), len(sampler.lengths)).tolist()
    chosen = order[:STATISTICS_RECORDS]
    batches = TokenSampler([sampler.lengths[i] for i in chosen], sampler.tokens, sampler.sequences, shuffle=False)
    model.eval()
    for standard in standards:
        standard.collect()
    with torch.inference_mode(), torch.autocast(loader.device.type, torch.bfloat16, enabled=half):
        for batch in batches:
            model(loader.batch([chosen[i] for i in batch], epoch).inputs)
    for standard in standards:
        standard.settle()
