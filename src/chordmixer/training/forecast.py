"""Forecast of the batches, memory and time of a run before it starts, and a dry run of its largest batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import psutil  # type: ignore[import-untyped]
import torch
from torch import nn

from chordmixer.data import Batch, TokenSampler
from chordmixer.models.chordmixer import depth
from chordmixer.models.heads import HEADS
from chordmixer.models.model import ModelConfig
from chordmixer.tasks import Task
from chordmixer.tasks.targets import Target, target_outputs
from chordmixer.terminal import rank_count
from chordmixer.training import memory, speed
from chordmixer.training.devices import format_bytes, free_bytes
from chordmixer.training.experiment import Experiment, trial_count

logger = logging.getLogger(__name__)

TOLERANCE = {"cuda": 1.2, "cpu": 0.9}
"""A run is refused if its forecast memory is above this many times the free memory."""
KEPT_MEMORY = 2.0
"""Memory of a process that keeps freed memory, at most, as a multiple of the forecast peak (measured: up to 1.65)."""
MAX_PLANNED = 1_000_000
"""Maximum number of records, over all epochs, whose batches are planned to find the largest batch."""
LIBRARY_BYTES = 200 << 20
"""Bytes that libraries allocate in the first steps on a CPU."""
SMALLER = "model.network.reversible=true or a smaller model.network.track_size"
"""Settings that need less memory."""


@dataclass(frozen=True)
class Forecast:
    """The size, memory and time of a training run on a device."""

    device: str
    weights: int
    trainable: int
    """Number of weights that are not frozen."""
    epochs: int
    batches: int
    """Batches per epoch."""
    steps: int
    """Optimiser steps of the whole run."""
    budget: int
    """Maximum number of tokens in a batch."""
    records: tuple[int, ...]
    """Numbers of the training records in the largest batch of the run, longest first."""
    lengths: tuple[int, ...]
    """Lengths of the records in the largest batch."""
    longest: str
    """Id of the longest record in the largest batch."""
    memory: memory.Terms
    """Peak bytes of a step on the largest batch, by purpose."""
    free: int
    """Free bytes of the device."""
    room: int
    """Length of the longest single record that fits into the free memory; 0 without `limits`."""
    too_long: tuple[str, ...]
    """Ids of records longer than `room`, longest first."""
    started: bool = False
    """Whether the run starts from the network of another run, so that the network's settings are fixed."""
    retained: int = 0
    """Bytes of freed memory that the heap of a CPU process retains between steps."""
    resident: int = field(default=0, compare=False)
    """Bytes of the process before the run: Python, torch, other libraries and the data; 0 on a GPU."""
    seconds: float | None = None
    """Approximate seconds of training per epoch; None: not measured."""
    validation: float = 0.0
    """Seconds of all passes over the validation records."""
    test: float = 0.0
    """Seconds of the pass over the test records."""
    trial: float = 0.0
    """Length of all trial runs together, as a share of the training."""
    threads: str = ""
    """A message on the number of CPU threads; empty if none was chosen."""

    @property
    def peak(self) -> int:
        """Peak bytes of a training step."""
        return sum(self.memory.values())

    @property
    def process(self) -> int:
        """Peak bytes of the whole process, on a CPU."""
        return self.peak + self.retained + self.resident

    @property
    def total_seconds(self) -> float | None:
        """Maximum seconds of the run, with validation and test; None: not measured."""
        if self.seconds is None:
            return None
        return self.seconds * self.epochs * (1 + self.trial) + self.validation + self.test

    @property
    def fits(self) -> bool:
        return self.peak + self.retained <= self.free


def forecast(
    experiment: Experiment,
    lengths: Sequence[int],
    device: torch.device,
    name: Callable[[int], str] = str,
    *,
    timed: bool = False,
    scored: Mapping[str, Sequence[int]] | None = None,
    limits: bool = True,
) -> Forecast:
    """Forecast training on records of these lengths on the device of one rank; `name` maps record numbers to ids.

    Memory is counted (`memory.peak`) for the largest batch that the sampler plans; validation needs no more. With
    `timed`, the number of threads is chosen and a few steps on random records of the same lengths are measured, which
    takes about five seconds, or half a minute if kernels have to be compiled. `scored` has the lengths of the
    validation and test records (`scored_lengths`), whose passes are then timed too. Without `limits`, which take half
    of the time, `room` and `too_long` stay empty.
    """
    experiment = speed.settle_precision(experiment)
    resident = psutil.Process().memory_info().rss + LIBRARY_BYTES if device.type == "cpu" else 0
    config, hardware = experiment.training, memory.Hardware.of(device, experiment.training.precision)
    sampler = config.sampler(lengths, ranks=rank_count())
    free, batches = free_bytes(device), len(sampler)
    epoch_steps = -(-batches // config.accumulate)
    epochs = min(config.epochs, -(-config.steps // epoch_steps) or config.epochs)
    steps = min(epoch_steps * epochs, config.steps or epoch_steps * epochs)
    room = longest_that_fits(experiment.model, hardware, free, config.freeze) if limits else 0
    too_long = sorted((i for i, n in enumerate(lengths) if limits and n > room), key=lambda i: -lengths[i])
    records = largest_batch(sampler, epochs)
    batch_lengths = tuple(int(lengths[i]) for i in records)
    terms = memory.peak(experiment.model, batch_lengths, hardware, config.accumulate, config.freeze)
    untimed = Forecast(
        device=device.type,
        weights=memory.weights(experiment.model),
        trainable=memory.weights(experiment.model, config.freeze),
        epochs=epochs,
        batches=batches,
        steps=steps,
        budget=sampler.tokens,
        records=tuple(records),
        lengths=batch_lengths,
        longest=name(records[0]),
        memory=terms,
        retained=memory.retained(experiment.model, batch_lengths, hardware, terms) if batches > 1 else 0,
        free=free,
        room=room,
        too_long=tuple(name(i) for i in too_long),
        started=config.start is not None,
        resident=resident,
        trial=config.trial * trial_count(experiment.model),
    )
    return with_times(untimed, experiment, lengths, device, scored or {}) if timed else untimed


def with_times(
    untimed: Forecast,
    experiment: Experiment,
    lengths: Sequence[int],
    device: torch.device,
    scored: Mapping[str, Sequence[int]],
) -> Forecast:
    """Measure a few steps, and add the times of training, validation and test to the forecast.

    The experiment may have another encoder than the one whose memory was counted.
    """
    config, model = experiment.training, experiment.model
    sampler = config.sampler(lengths, ranks=rank_count())
    threads = speed.choose_training_threads(experiment, sampler, device)
    measured = speed.measure(experiment, sampler, device, untimed.free)
    epoch = measured.training * speed.work(model, sampler.lengths) / sampler.ranks
    limit = 60 * config.minutes / untimed.epochs if config.minutes else epoch
    passes = {part: measured.inference * speed.work(model, n) / sampler.ranks for part, n in scored.items()}
    validations = -(-untimed.epochs // config.evaluate_epochs) + 1  # one more with the best weights
    validations += untimed.steps // config.evaluate_every if config.evaluate_every else 0
    return replace(
        untimed,
        seconds=min(epoch, limit),
        validation=validations * passes.get("validation", 0.0),
        test=passes.get("test", 0.0),
        threads=threads.line,
    )


def scored_lengths(task: Task) -> dict[str, list[int]]:
    """The lengths of the validation and test records, twice if both strands are read."""
    strands = 1 if task.complement is None else 2
    return {part: strands * list(task.records(part).lengths) for part in ("validation", "test")}


def check_memory(
    experiment: Experiment, lengths: Sequence[int], device: torch.device, name: Callable[[int], str]
) -> None:
    """Refuse a run that needs far more memory than is free, before any is allocated.

    Only weights, gradients and optimiser moments are counted for encoders without a memory count, and if ranks split
    sequences.
    """
    split = experiment.training.context_parallel > 1
    if split:
        logger.info("memory: not forecast for sequences split over ranks; the largest batch is tried before training")
    elif experiment.model.encoder == memory.COUNTED_ENCODER:
        check_fits(forecast(experiment, lengths, device, name, limits=False))
        return
    needed, free = 16 * memory.weights(experiment.model), free_bytes(device)
    if needed > TOLERANCE[device.type] * free:
        raise ValueError(
            f"the weights of this {experiment.model.encoder} need about {format_bytes(needed)} of memory in "
            f"training, and {device.type} has {format_bytes(free)} free: give smaller numbers in model.network"
        )


def check_fits(forecast: Forecast) -> None:
    """Refuse a run whose largest batch needs far more memory than is free."""
    if forecast.peak > TOLERANCE[forecast.device] * forecast.free:
        freeze = "" if forecast.trainable < forecast.weights else "training.freeze=true or "
        other = f"{freeze}--from a run with a smaller network" if forecast.started else SMALLER
        raise ValueError(
            f"a training step needs about {format_bytes(forecast.peak)} of memory, and {forecast.device} has "
            f"{format_bytes(forecast.free)} free: {_remedies(forecast.lengths, forecast.longest, other)}"
        )


def peak_bytes(experiment: Experiment, lengths: Sequence[int], device: torch.device) -> int:
    """Upper bound of the peak bytes of a step, for the fullest batch; precision `auto` counts as fp32."""
    training = experiment.training
    budget, longest = training.tokens_for(lengths), max(lengths)
    hardware = memory.Hardware.of(device, training.precision.replace("auto", "fp32"))
    fullest = [longest] * max(1, budget // longest) + ([budget % longest] if budget % longest else [])
    return sum(memory.peak(experiment.model, fullest, hardware, training.accumulate).values())


def may_keep_memory(experiment: Experiment, lengths: Sequence[int], device: torch.device) -> bool:
    """Whether a run on a CPU has memory to spare for `keep_freed_memory`."""
    counted = device.type == "cpu" and experiment.model.encoder == memory.COUNTED_ENCODER
    return counted and KEPT_MEMORY * peak_bytes(experiment, lengths, device) <= free_bytes(device)


def largest_batch(sampler: TokenSampler, epochs: int) -> list[int]:
    """The records in the batch of this rank with the most work in any epoch, longest first.

    >>> largest_batch(TokenSampler([5, 3, 9, 4], tokens=10, sequences=2, shuffle=False), epochs=3)
    [2]
    """
    work = [n * depth(n) for n in sampler.lengths]
    epoch, start = sampler.epoch, sampler.start
    largest: list[int] = []
    for number in range(max(1, min(epochs, MAX_PLANNED // len(work)))):
        sampler.set_epoch(number)
        largest = max([largest, *sampler], key=lambda batch: sum(work[i] for i in batch))
    sampler.set_epoch(epoch, start)
    return sorted(largest, key=lambda i: -sampler.lengths[i])


def cures(
    experiment: Experiment, lengths: Sequence[int], device: torch.device, longest: int = 0
) -> dict[str, Forecast]:
    """Settings that need less memory, each with its forecast; `longest` is the longest record of all parts.

    The network of another run, from which this run starts, cannot be changed, but it can be frozen.
    """
    experiment = speed.settle_precision(experiment)  # the same for all forecasts
    config, model = experiment.training, experiment.model
    network, forecasts = model.network, {}
    budget, smallest = config.tokens_for(lengths), max(longest, *lengths)
    while budget > smallest:
        budget = max(smallest, budget // 2)
        less = replace(experiment, training=replace(config, batch_tokens=budget))
        forecasts = {f"training.batch_tokens={budget}": forecast(less, lengths, device)}
        if all(result.fits for result in forecasts.values()):
            break
    others: dict[str, Experiment] = {}
    if config.start is None and not network.reversible and network.norm is None:
        reversible = replace(model, network=replace(network, reversible=True))
        others["model.network.reversible=true"] = replace(experiment, model=reversible)
    if config.start is None and (half := network.track_size // 2) > 0:
        narrow = replace(model, network=replace(network, track_size=half))
        others[f"model.network.track_size={half}"] = replace(experiment, model=narrow)
    if model.decoder is not None:
        others["model.decoder=none"] = replace(experiment, model=replace(model, decoder=None))
    if config.start is not None and not config.freeze and not HEADS[model.head].extra:
        others["training.freeze=true"] = replace(experiment, training=replace(config, freeze=True))
    return forecasts | {setting: forecast(other, lengths, device) for setting, other in others.items()}


def longest_that_fits(model: ModelConfig, hardware: memory.Hardware, free: int, freeze: bool = False) -> int:
    """Length of the longest record that fits into a step of a network for that length."""

    def fits(length: int) -> bool:
        max_length = max(model.network.max_length, 1 << (length - 1).bit_length())
        longer = replace(model, network=replace(model.network, max_length=max_length))
        return sum(memory.peak(longer, [length], hardware, freeze=freeze).values()) <= free

    low, high = 0, 1
    while high < 1 << 40 and fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# --- Out of memory ---


@contextmanager
def explaining_out_of_memory(lengths: Sequence[int], device: torch.device, longest: str = "") -> Iterator[None]:
    """Turn an out-of-memory error on a batch of these lengths into a `ValueError` that names a remedy."""
    try:
        yield
    except RuntimeError as error:  # on a CPU only the message identifies the error
        if not (isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)):
            raise
        tokens, sequences = sum(lengths), len(lengths)
        raise ValueError(
            f"the memory of {device.type} ran out over a batch of {tokens:,} tokens in {sequences:,} "
            f"record{'s' if sequences > 1 else ''}: {_remedies(lengths, longest)}"
        ) from None


def _remedies(lengths: Sequence[int], longest: str, other: str = SMALLER) -> str:
    smaller = "a smaller training.batch_tokens, " if len(lengths) > 1 else ""
    return f"its longest record{f' {longest}' if longest else ''} has {max(lengths):,} tokens; set {smaller}{other}"


def dry_run(model: nn.Module, batch: Batch, target: Target, longest: str = "") -> None:
    """Run forward and backward pass on a batch, with memory for the optimiser, and leave the model unchanged.

    With the largest batch of a run, too little memory shows at once rather than hours later.
    """
    device, training = batch.inputs.device, model.training
    parameters = [p for p in model.parameters() if p.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]  # running statistics
    model.train()
    try:
        with (
            explaining_out_of_memory(batch.lengths, device, longest),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            moments = [torch.empty_like(p) for p in parameters for _ in range(2)]
            outputs = target_outputs(target, model, batch.inputs, batch.targets)
            torch.autograd.grad(target.losses(outputs, batch.targets).sum(), parameters, allow_unused=True)
            del moments
    finally:
        model.train(training)
        for buffer, before in buffers:
            buffer.copy_(before)
