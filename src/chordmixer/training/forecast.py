"""What a run will take, said before it starts: batches, memory, time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch

from chordmixer.data import TokenSampler
from chordmixer.models.chordmixer import depth
from chordmixer.models.heads import HEADS
from chordmixer.models.model import ModelConfig
from chordmixer.tasks import Task
from chordmixer.training import memory, pace
from chordmixer.training.experiment import Experiment, TrainingConfig
from chordmixer.training.rehearsal import OTHER_NETWORK, remedies

TOLERANCE = 1.2
"""How far a forecast is believed: a step that needs this many times the free memory is refused."""
PLANNED = 1_000_000
"""Records whose places in batches are worked out, over as many epochs as that is."""
LOADED = 200 << 20
"""Bytes of libraries that come with the first steps on a CPU, and of what they keep for each size of a batch."""


@dataclass(frozen=True)
class Forecast:
    """What a training run takes on a device."""

    device: str
    weights: int
    learning: int
    """Of the weights, those that are not frozen."""
    epochs: int
    batches: int
    """An epoch."""
    steps: int
    """Of the optimiser, in the whole run."""
    budget: int
    """Most tokens in a batch."""
    records: tuple[int, ...]
    """The training records of the largest batch of the run, longest first."""
    lengths: tuple[int, ...]
    """And their lengths."""
    longest: str
    """The id of the longest of them."""
    memory: memory.Terms
    """Bytes at the fullest moment of a step of that batch, by what they are for."""
    free: int
    """Bytes of the device that a run may have."""
    room: int
    """Tokens of the longest single record that fits into them; 0 without `limits`."""
    too_long: tuple[str, ...]
    """Ids of the records that do not, longest first."""
    started: bool = False
    """Whether the network is that of another run, and has to stay as it is."""
    kept: int = 0
    """Bytes of freed memory that the heap of a CPU's process keeps between steps."""
    resident: int = field(default=0, compare=False)
    """Bytes that the process has before the run: Python, torch, other libraries and the data; 0: on a GPU."""
    seconds: float | None = None
    """Of training for an epoch, about; None: not measured."""
    validation: float = 0.0
    """Seconds of all passes over the validation records."""
    test: float = 0.0
    """Seconds of the pass over the test records."""
    trial: float = 0.0
    """Share of the training that each of the two short runs takes which come before it."""
    threads: str = ""
    """What a user is told of the number of threads; empty: nothing was chosen."""

    @property
    def peak(self) -> int:
        """Bytes of a training step."""
        return sum(self.memory.values())

    @property
    def process(self) -> int:
        """Bytes of the whole process at its peak, of a run on a CPU."""
        return self.peak + self.kept + self.resident

    @property
    def whole(self) -> float | None:
        """Seconds of the run at most, with validation and test; None: not measured."""
        if self.seconds is None:
            return None
        return self.seconds * self.epochs * (1 + 2 * self.trial) + self.validation + self.test

    @property
    def fits(self) -> bool:
        return self.peak + self.kept <= self.free


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
    """What training on records of these lengths takes on one device; `name` gives a record's id by its number.

    Memory is counted (`memory.peak`) for the largest batch that the sampler plans; validation needs no more. With
    `timed`, a few steps on made-up records of the same lengths are measured, in some five seconds, or half a minute
    where kernels have to be compiled; before that the number of threads is chosen, as a run chooses it. `scored` has
    the lengths of the validation and test records (`scored_lengths`), whose passes are then timed too. Without
    `limits`, `room` and `too_long` stay empty: finding them takes as long as all else.
    """
    resident = resident_bytes() + LOADED if device.type == "cpu" else 0
    config, hardware = experiment.training, memory.Hardware.of(device, experiment.training.precision)
    sampler = TokenSampler(lengths, config.tokens_for(lengths), config.batch_sequences, seed=config.seed)
    free, batches = free_bytes(device), len(sampler)
    an_epoch = -(-batches // config.accumulate)
    epochs = min(config.epochs, -(-config.steps // an_epoch) or config.epochs)
    steps = min(an_epoch * epochs, config.steps or an_epoch * epochs)
    room = longest_that_fits(experiment.model, hardware, free, config.freeze) if limits else 0
    over = sorted((i for i, n in enumerate(lengths) if limits and n > room), key=lambda i: -lengths[i])
    records = largest(sampler, epochs)
    of_batch = tuple(int(lengths[i]) for i in records)
    terms = memory.peak(experiment.model, of_batch, hardware, config.accumulate, config.freeze)
    made = Forecast(
        device=device.type,
        weights=memory.weights(experiment.model),
        learning=memory.weights(experiment.model, config.freeze),
        epochs=epochs,
        batches=batches,
        steps=steps,
        budget=sampler.tokens,
        records=tuple(records),
        lengths=of_batch,
        longest=name(records[0]),
        memory=terms,
        kept=memory.retained(experiment.model, of_batch, hardware, terms) if batches > 1 else 0,
        free=free,
        room=room,
        too_long=tuple(name(i) for i in over),
        started=config.start is not None,
        resident=resident,
        trial=config.trial if experiment.model.words.lengths else 0.0,
    )
    return with_times(made, experiment, lengths, device, scored or {}) if timed else made


def with_times(
    made: Forecast,
    experiment: Experiment,
    lengths: Sequence[int],
    device: torch.device,
    scored: Mapping[str, Sequence[int]],
) -> Forecast:
    """The same with the times of training, validation and test, from a few steps that are taken now.

    The experiment may have another encoder than the one whose memory was counted.
    """
    config, model = experiment.training, experiment.model
    sampler = TokenSampler(lengths, config.tokens_for(lengths), config.batch_sequences, seed=config.seed)
    threads = pace.choose_threads(experiment, sampler, device)
    speed = pace.speed(experiment, sampler, device, memory.Hardware.of(device, config.precision), made.free)
    epoch = speed.training * pace.work(model, sampler.lengths)
    limit = 60 * config.minutes / made.epochs if config.minutes else epoch
    a_pass = {part: speed.answering * pace.work(model, own) for part, own in scored.items()}
    validations = -(-made.epochs // config.evaluate_epochs) + 1  # with the best weights once more
    validations += made.steps // config.evaluate_every if config.evaluate_every else 0
    return replace(
        made,
        seconds=min(epoch, limit),
        validation=validations * a_pass.get("validation", 0.0),
        test=a_pass.get("test", 0.0),
        threads=threads.line,
    )


def scored_lengths(task: Task) -> dict[str, list[int]]:
    """The lengths of the validation and test records, twice where both strands of each are read."""
    strands = 1 if task.complement is None else 2
    return {part: strands * list(task.records(part).lengths) for part in ("validation", "test")}


def check_room(
    experiment: Experiment, lengths: Sequence[int], device: torch.device, name: Callable[[int], str]
) -> None:
    """Refuse a run that needs far more memory than there is, before any of it is taken.

    Of encoders without a count of their memory, only weights, gradients and moments are counted.
    """
    if experiment.model.encoder == memory.COUNTED:
        check_fits(forecast(experiment, lengths, device, name, limits=False))
        return
    needed, free = 16 * memory.weights(experiment.model), free_bytes(device)
    if needed > TOLERANCE * free:
        raise ValueError(
            f"the weights of this {experiment.model.encoder} need about {size(needed)} of memory in training, and "
            f"{device.type} has {size(free)} free: give smaller numbers in model.network"
        )


def check_fits(forecast: Forecast) -> None:
    """Refuse a run whose largest batch needs far more memory than there is."""
    if forecast.peak > TOLERANCE * forecast.free:
        freeze = "" if forecast.learning < forecast.weights else "training.freeze=true or "
        other = f"{freeze}--from a run with a smaller network" if forecast.started else OTHER_NETWORK
        raise ValueError(
            f"a training step needs about {size(forecast.peak)} of memory, and {forecast.device} has "
            f"{size(forecast.free)} free: {remedies(forecast.lengths, forecast.longest, other)}"
        )


def largest(sampler: TokenSampler, epochs: int) -> list[int]:
    """The records of the batch of this rank that works most in any epoch, longest first.

    >>> largest(TokenSampler([5, 3, 9, 4], tokens=10, sequences=2, shuffle=False), epochs=3)
    [2]
    """
    work = [n * depth(n) for n in sampler.lengths]
    epoch, start = sampler.epoch, sampler.start
    found: list[int] = []
    for number in range(max(1, min(epochs, PLANNED // len(work)))):
        sampler.set_epoch(number)
        found = max([found, *sampler], key=lambda batch: sum(work[i] for i in batch))
    sampler.set_epoch(epoch, start)
    return sorted(found, key=lambda i: -sampler.lengths[i])


def cures(
    experiment: Experiment, lengths: Sequence[int], device: torch.device, longest: int = 0
) -> dict[str, Forecast]:
    """Settings that need less memory, each with its forecast; `longest` is that of all parts of the data.

    The network of a run to start from stays as it is; but it can be frozen.
    """
    config, model = experiment.training, experiment.model
    network, found = model.network, {}
    budget, least = config.tokens_for(lengths), max(longest, *lengths)
    while budget > least:
        budget = max(least, budget // 2)
        less = replace(experiment, training=replace(config, batch_tokens=budget))
        found = {f"training.batch_tokens={budget}": forecast(less, lengths, device)}
        if all(made.fits for made in found.values()):
            break
    others: dict[str, Experiment] = {}
    if config.start is None and not network.reversible and network.norm is None:
        lean = replace(model, network=replace(network, reversible=True))
        others["model.network.reversible=true"] = replace(experiment, model=lean)
    if config.start is None and (half := network.track_size // 2) > 0:
        narrow = replace(model, network=replace(network, track_size=half))
        others[f"model.network.track_size={half}"] = replace(experiment, model=narrow)
    if model.decoder is not None:
        others["model.decoder=none"] = replace(experiment, model=replace(model, decoder=None))
    if config.start is not None and not config.freeze and not HEADS[model.head].extra:
        others["training.freeze=true"] = replace(experiment, training=replace(config, freeze=True))
    return found | {setting: forecast(other, lengths, device) for setting, other in others.items()}


# --- Memory ---


def device_of(config: TrainingConfig) -> torch.device:
    """Where a run with these settings would compute."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no GPU: use --device auto or cpu")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def resident_bytes() -> int:
    """What this process has in memory now."""
    return int(psutil.Process().memory_info().rss)


def free_bytes(device: torch.device) -> int:
    """What the device has left: of a CPU, what the system and the container allow."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return min(int(psutil.virtual_memory().available), _of_container(Path("/sys/fs/cgroup")))


def _of_container(folder: Path) -> int:
    """What a control group leaves; its files may be missing, or say `max`."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        stale = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError, KeyError):
        return 1 << 62
    return max(0, limit - used + int(stale))


def longest_that_fits(model: ModelConfig, hardware: memory.Hardware, free: int, freeze: bool = False) -> int:
    """Tokens of the longest record that a step can learn from, with a network that is built for it."""

    def fits(length: int) -> bool:
        room = max(model.network.max_length, 1 << (length - 1).bit_length())
        wide = replace(model, network=replace(model.network, max_length=room))
        return sum(memory.peak(wide, [length], hardware, freeze=freeze).values()) <= free

    low, high = 0, 1
    while high < 1 << 40 and fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def size(number: float) -> str:
    """Bytes for people.

    >>> size(3_400_000), size(21_900_000_000)
    ('3 MB', '21.9 GB')
    """
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
