"""Measured speed on this device: seconds of a step, and the fastest precision and number of CPU threads.

More threads are not always faster: with other programs running, or on short sequences, each of thousands of small
parallel regions waits for a thread without a core. The last bits of sums depend on the number of threads, so that a
run keeps the number that it started with (`checkpoints.State.threads`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor

from chordmixer.data import Batch, Loader, Records, TokenSampler
from chordmixer.models.chordmixer import depth
from chordmixer.models.model import Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.terminal import first_rank, rank_count
from chordmixer.training import captured, memory
from chordmixer.training.devices import choose_device, native_bf16
from chordmixer.training.experiment import Experiment, TrainingConfig
from chordmixer.training.optimiser import Optimiser
from chordmixer.training.run_folder import stored_precision

logger = logging.getLogger(__name__)

PROBE_SECONDS, PROBE_TOKENS = 1.2, 4_000
"""Approximate seconds of a measured step, and tokens of a first short step that determines its size."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads; if one is set, threads are not measured."""
THREADS_SPEEDUP = 1.4
"""Fewer threads are preferred unless more are this many times as fast: on short steps, many threads become twenty
times slower as soon as another program needs a core."""
SAME_SPEED = 1.05
"""Ratio of times below which two numbers of threads are said to be as fast as each other."""
LOADED_BATCHES = 4
"""Maximum number of batches from which the time to load a batch is measured."""
ROUNDS, ROUND_SECONDS = 3, 2.0
"""Measurements of each number of threads; no further round starts after this many seconds."""
PRECISION_TOKENS, BF16_SPEEDUP = 4_000, 1.15
"""Tokens of a step on which precisions are compared, and the speedup from which bf16 is chosen."""
THREAD_TOKENS, THREAD_LENGTH = 8_000, 500
"""Maximum tokens of a batch on which threads are measured, and the length of its records for a trained model."""


# --- Seconds of a step ---


class Speed(NamedTuple):
    """Seconds per unit of `work`."""

    training: float
    """Seconds per unit of work of a training step."""
    inference: float
    """Seconds per unit of work of a forward pass, as in validation and test."""


def work(model: ModelConfig, lengths: Sequence[int]) -> int:
    """The work to which time is proportional: tokens, for ChordMixer counted once for each block that they pass."""
    return sum(n * depth(n) for n in lengths) if model.encoder == memory.COUNTED_ENCODER else sum(lengths)


def measure(experiment: Experiment, sampler: TokenSampler, device: torch.device, free: int) -> Speed:
    """Measure a typical batch, reduced so that a step takes about a second and at most half of the `free` bytes."""
    model, typical = experiment.model, _typical(experiment.model, sampler)
    hardware = memory.Hardware.of(device, experiment.training.precision)

    def needed(lengths: Sequence[int]) -> int:
        """Bytes of a step; 0 for encoders without a count, since a step of a second is assumed to fit."""
        if model.encoder != memory.COUNTED_ENCODER:
            return 0
        return sum(memory.peak(model, lengths, hardware, freeze=experiment.training.freeze).values())

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        step = _experiment_stepper(experiment, device)
        lengths = _reduced(model, typical, PROBE_TOKENS / sum(typical))
        step(lengths)  # loads libraries, or compiles kernels
        seconds = min(step(lengths), step(lengths))  # other programs may interfere once
        probe = _reduced(model, typical, PROBE_SECONDS / seconds * sum(lengths) / sum(typical))
        while probe != lengths and needed(probe) > free / 2:
            probe = max(_reduced(model, probe, 0.5), lengths, key=sum)
        if sum(probe) > sum(lengths):
            lengths, seconds = probe, min(step(probe) for _ in range(3))  # the first allocates memory, or is recorded
        forward = min(step(lengths, True), step(lengths, True))
    return Speed(seconds / work(model, lengths), forward / work(model, lengths))


def random_inputs(config: ModelConfig, lengths: Sequence[int]) -> Packed:
    """Random inputs of a model, in sequences of these lengths; the random state is not changed."""
    tokens = sum(lengths)
    with torch.random.fork_rng([]):
        values: Tensor = (
            torch.randint(config.inputs, (tokens,))
            if config.embedding == "tokens"
            else torch.randn(tokens, config.inputs)
        )
    return Packed.from_lengths(values, lengths)


def _typical(model: ModelConfig, sampler: TokenSampler) -> list[int]:
    """The lengths in the batch of an epoch with the median work, longest first."""
    batches = sorted(([sampler.lengths[i] for i in batch] for batch in sampler), key=lambda batch: work(model, batch))
    return sorted(batches[len(batches) // 2], reverse=True)


def _reduced(model: ModelConfig, lengths: Sequence[int], share: float) -> list[int]:
    """About this share of a batch: shorter sequences for ChordMixer, fewer sequences for other encoders.

    The time of other encoders may grow with the square of a length; even so, a single sequence is shortened.
    """
    if model.encoder == memory.COUNTED_ENCODER or share >= 1 or len(lengths) == 1:
        return _shorter(lengths, share)
    count = max(1, int(len(lengths) * share))
    chosen = [lengths[(2 * k + 1) * len(lengths) // (2 * count)] for k in range(count)]
    return _shorter(chosen, share * sum(lengths) / sum(chosen)) if count == 1 else chosen


def _shorter(lengths: Sequence[int], share: float) -> list[int]:
    """All lengths multiplied by the same share, if it is below 1.

    >>> _shorter([100, 3], 0.1), _shorter([100, 3], 4)
    ([10, 1], [100, 3])
    """
    return [max(1, int(n * min(share, 1))) for n in lengths]


def _experiment_stepper(experiment: Experiment, device: torch.device) -> Callable[..., float]:
    training = settle_precision(experiment).training
    eager = _stepper(experiment.model, training.precision == "bf16", training.freeze, device)
    if not captured.possible(training, device, rank_count()):
        return eager
    return _captured_stepper(experiment.model, training, device, eager)


def _captured_stepper(
    config: ModelConfig, training: TrainingConfig, device: torch.device, eager: Callable[..., float]
) -> Callable[..., float]:
    """A stepper that uses CUDA graphs if possible, else `eager`."""
    model = Model(config).to(device).train()

    def autocast_model(x: Packed) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16"):
            outputs: Tensor = model(x)
        return outputs

    optimiser = Optimiser(model, training, config.network.max_length)
    steps = captured.CapturedSteps(model, autocast_model, _Squares(), optimiser, None)

    def step(lengths: Sequence[int], forward: bool = False) -> float:
        if forward or steps.reason:
            return eager(lengths, forward)
        inputs = random_inputs(config, sorted(lengths, reverse=True)).to(device)
        batch = Batch(inputs, torch.zeros(len(inputs), device=device), [*range(len(inputs))])
        _wait(device)
        start = time.perf_counter()
        result = steps.step(batch, training.learning_rate, 1)
        _wait(device)
        return eager(lengths) if result is None else time.perf_counter() - start

    return step


class _Squares:
    """A target with a simple loss, for steps that are only timed."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.float().square().sum(1)


def loading_seconds(records: Records, sampler: TokenSampler, device: torch.device) -> float:
    """Seconds that the host takes to load a batch; on a GPU this overlaps with the previous step."""
    batches = Loader(records, sampler, device=device, drawing=True).epoch()
    next(batches)  # opens files
    measured = islice(batches, LOADED_BATCHES)
    start = time.perf_counter()
    count = sum(1 for _ in measured)
    return (time.perf_counter() - start) / max(count, 1)


def _stepper(config: ModelConfig, half: bool, freeze: bool, device: torch.device) -> Callable[..., float]:
    """A function that runs a training step, or only a forward pass, on random records, and returns the seconds."""
    model = Model(config).to(device)
    if freeze:
        model.freeze()
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)

    def step(lengths: Sequence[int], forward: bool = False) -> float:
        inputs = random_inputs(config, memory.sequence_lengths(config, lengths)).to(device)
        _wait(device)
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=half), torch.set_grad_enabled(not forward):
            outputs = model(inputs)
        if not forward:
            values = outputs.values if isinstance(outputs, Packed) else outputs
            values.float().square().sum().backward()
            adam.step()
            adam.zero_grad(set_to_none=True)
        _wait(device)
        return time.perf_counter() - start

    return step


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- Precision ---


def settle_precision(experiment: Experiment, folder: Path | None = None, measured: bool = True) -> Experiment:
    """Replace precision `auto` by fp32 or bf16: that of the run in `folder`, or else the faster one on this device.

    With several ranks, which have to agree, or unless `measured`, the processor type decides without a measurement.
    """
    config = experiment.training
    if config.precision != "auto":
        return experiment
    on_cpu, stored = choose_device(config).type == "cpu", stored_precision(folder) if folder else None
    unsettled, stored = stored == "auto", None if stored == "auto" else stored
    half = not on_cpu or native_bf16() if stored is None else stored == "bf16"
    if measured and on_cpu and stored is None and half and os.environ.get("WORLD_SIZE", "1") == "1":
        ratio = bf16_speedup(experiment.model, config.freeze)
        half = ratio >= BF16_SPEEDUP
        logger.info(f"precision: {'bf16' if half else 'fp32'}; a step in bf16 was measured {ratio:.1f} times as fast")
    settled = replace(experiment, training=replace(config, precision="bf16" if half else "fp32"))
    if unsettled and folder and first_rank():  # the settings were saved before the run began
        settled.save(folder)
    return settled


@lru_cache(maxsize=64)
def bf16_speedup(model: ModelConfig, freeze: bool = False) -> float:
    """Speedup of a training step in bf16 over fp32 on this CPU, measured in about a second."""
    length = min(THREAD_LENGTH, model.network.max_length)
    lengths = [length] * max(2, PRECISION_TOKENS // length // 2 * 2)  # even, for heads of pairs
    seconds: dict[str, list[float]] = {"fp32": [], "bf16": []}
    with torch.random.fork_rng([]):
        steps = {half: _stepper(model, half == "bf16", freeze, torch.device("cpu")) for half in seconds}
        for round_number in range(ROUNDS + 1):
            for precision, measured in seconds.items():
                elapsed = steps[precision](lengths)
                measured += [elapsed] if round_number else []  # the first round loads libraries
            if round_number and sum(map(sum, seconds.values())) > ROUND_SECONDS:
                break
    return min(seconds["fp32"]) / min(seconds["bf16"])


# --- CPU threads ---


class ThreadChoice(NamedTuple):
    """The chosen number of CPU threads, and the reason."""

    threads: int
    """Number of threads; 0 if none was chosen, as on a GPU."""
    default: int
    """Number of threads that torch uses by default."""
    why: str = ""
    """Reason for the choice; empty if there was nothing to choose."""

    @property
    def line(self) -> str:
        """A message for the user; empty if there was nothing to choose.

        >>> ThreadChoice(1, 2, "measured 2.1 times as fast as 2").line
        'threads: 1 of 2, measured 2.1 times as fast as 2'
        """
        return f"threads: {self.threads} of {self.default}, {self.why}" if self.why else ""


_chosen: ThreadChoice | None = None
"""The choice in effect in this process."""


def choose_training_threads(
    experiment: Experiment, sampler: TokenSampler, device: torch.device, stored: int = 0
) -> ThreadChoice:
    """Set the number of CPU threads by measured steps on a typical batch, or to `stored` of a resumed run."""
    if device.type != "cpu":
        return ThreadChoice(0, 0)
    typical = _typical(experiment.model, sampler)
    lengths = _reduced(experiment.model, typical, THREAD_TOKENS / sum(typical))
    stepper = cache(lambda: _experiment_stepper(experiment, device))  # built only if something is measured
    with torch.random.fork_rng([]):
        return choose_threads(lambda: stepper()(lengths), stored)


def choose_inference_threads(model: Model) -> ThreadChoice:
    """Set the number of CPU threads by measured forward passes of a trained model."""
    if next(model.parameters()).device.type != "cpu":
        return ThreadChoice(0, 0)
    length = min(THREAD_LENGTH, model.config.network.max_length)
    count = max(2, THREAD_TOKENS // length // 2 * 2)  # even, for heads of pairs
    inputs = random_inputs(model.config, [length] * count)

    def forward() -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            model(inputs)
        return time.perf_counter() - start

    return choose_threads(forward)


def choose_threads(step: Callable[[], float], stored: int = 0) -> ThreadChoice:
    """Choose and set the number of threads; `step` does some typical work and returns its seconds.

    The number `stored` by a resumed run is used again. A number that the environment, `torch.set_num_threads` or a
    launcher of several processes has set is not changed.
    """
    default = _default_threads()
    if default is None or default == 1:
        now = torch.get_num_threads()
        changed = f"as set; the run had {stored} so far, so that its last digits may differ" if stored != now else ""
        return ThreadChoice(now, now, changed if stored else "")
    if 0 < stored <= default:
        return _adopt(ThreadChoice(stored, default, "as this run began"))
    seconds = _measured(step, sorted({1, max(1, default // 2), default}))
    fastest = min(seconds, key=lambda n: seconds[n])
    threads = next(n for n, measured in seconds.items() if measured <= THREADS_SPEEDUP * seconds[fastest])
    return _adopt(ThreadChoice(threads, default, _comparison(seconds, threads, fastest, default)))


def _comparison(seconds: Mapping[int, float], threads: int, fastest: int, default: int) -> str:
    """The reason for a number of threads: how fast another number is."""
    gain = seconds[threads] / seconds[fastest]
    if gain >= SAME_SPEED:
        return (
            f"since {fastest} are only {gain:.1f} times as fast, and slow as soon as other programs run: "
            f"OMP_NUM_THREADS={fastest} uses them"
        )
    other = default if threads < default else 1
    ratio = seconds[other] / seconds[threads]
    return f"measured {f'{ratio:.1f} times ' if ratio >= SAME_SPEED else ''}as fast as {other}"


@contextmanager
def single_threaded_host(device: torch.device) -> Iterator[None]:
    """Use one CPU thread while a GPU trains, unless the user has set a number.

    The host only makes batches and starts kernels. Idle threads of OpenMP spin: with 16 for each of eleven runs on
    one machine, the steps of all of them took many times as long.
    """
    now = torch.get_num_threads()
    if device.type == "cpu" or _default_threads() is None:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(now)


def restore_threads(threads: int) -> None:
    """Use the number of threads of an earlier process, if this machine has as many."""
    default = _default_threads()
    if default is not None and 0 < threads <= default:
        _adopt(ThreadChoice(threads, default, "as before"))


def threads_line() -> str:
    """A message on the number of threads in use; empty if none was chosen."""
    return _chosen.line if _chosen is not None and _chosen.threads == torch.get_num_threads() else ""


def _default_threads() -> int | None:
    """The number of threads that torch uses by default; None if the number was set explicitly."""
    now = torch.get_num_threads()
    if any(os.environ.get(name) for name in VARIABLES) or rank_count() > 1:
        return None
    if _chosen is not None and _chosen.threads == now:
        return _chosen.default
    return now if now in _cores() else None


def _cores() -> set[int]:
    """Torch's possible defaults: the logical cores, the physical cores, and the cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return {os.cpu_count() or 1, psutil.cpu_count(logical=False) or 1, usable}


def _measured(step: Callable[[], float], numbers: Sequence[int]) -> dict[int, float]:
    """The median seconds with each number of threads, measured in alternation, since other programs interfere."""
    seconds: dict[int, list[float]] = {n: [] for n in numbers}
    for round_number in range(ROUNDS + 1):
        for n, measured in seconds.items():
            torch.set_num_threads(n)
            elapsed = step()
            measured += [elapsed] if round_number else []  # the first round loads libraries
        if round_number and sum(map(sum, seconds.values())) > ROUND_SECONDS:
            break
    return {n: median(measured) for n, measured in seconds.items()}


def _adopt(choice: ThreadChoice) -> ThreadChoice:
    global _chosen
    torch.set_num_threads(choice.threads)
    _chosen = choice
    return choice
