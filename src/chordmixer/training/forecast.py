"""What a run will take, said before it starts: batches, memory, time; and its largest batch, tried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch
from torch import nn

from chordmixer.data import Batch, TokenSampler
from chordmixer.models.chordmixer import depth
from chordmixer.models.heads import HEADS
from chordmixer.models.model import ModelConfig
from chordmixer.tasks.targets import Target
from chordmixer.training import memory, pace
from chordmixer.training.experiment import Experiment, TrainingConfig

TOLERANCE = 1.2
"""How far a forecast is believed: a step that needs this many times the free memory is refused."""
PLANNED = 1_000_000
"""Records whose places in batches are worked out, over as many epochs as that is."""
OTHER_NETWORK = "model.network.reversible=true or a smaller model.network.track_size"
"""What to set where memory is short."""


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
    """Tokens of the longest single record that fits into them."""
    too_long: tuple[str, ...]
    """Ids of the records that do not, longest first."""
    seconds: float | None = None
    """Of an epoch, about, without validation; None: not measured."""
    started: bool = False
    """Whether the network is that of another run, and has to stay as it is."""

    @property
    def peak(self) -> int:
        """Bytes of a training step."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.peak <= self.free


def forecast(
    experiment: Experiment,
    lengths: Sequence[int],
    device: torch.device,
    name: Callable[[int], str] = str,
    *,
    timed: bool = False,
) -> Forecast:
    """What training on records of these lengths takes on one device; `name` gives a record's id by its number.

    Memory is counted (`memory.peak`) for the largest batch that the sampler plans; validation needs no more. With
    `timed`, a few steps on made-up records of the same lengths are measured, in some five seconds, or half a minute
    where kernels have to be compiled.
    """
    config, place = experiment.training, memory.Place.of(device, experiment.training.precision)
    sampler = TokenSampler(lengths, config.tokens_for(lengths), config.batch_sequences, seed=config.seed)
    free, batches = free_bytes(device), len(sampler)
    an_epoch = -(-batches // config.accumulate)
    epochs = min(config.epochs, -(-config.steps // an_epoch) or config.epochs)
    room = longest_that_fits(experiment.model, place, free, config.freeze)
    over = sorted((i for i, n in enumerate(lengths) if n > room), key=lambda i: -lengths[i])
    seconds = pace.seconds(experiment, sampler, device, place, free) if timed else None
    records = largest(sampler, epochs)
    of_batch = tuple(int(lengths[i]) for i in records)
    return Forecast(
        device=device.type,
        weights=memory.weights(experiment.model),
        learning=memory.weights(experiment.model, config.freeze),
        epochs=epochs,
        batches=batches,
        steps=min(an_epoch * epochs, config.steps or an_epoch * epochs),
        budget=sampler.tokens,
        records=tuple(records),
        lengths=of_batch,
        longest=name(records[0]),
        memory=memory.peak(experiment.model, of_batch, place, config.accumulate, config.freeze),
        free=free,
        room=room,
        too_long=tuple(name(i) for i in over),
        seconds=seconds,
        started=config.start is not None,
    )


def check_fits(forecast: Forecast) -> None:
    """Refuse a run whose largest batch needs far more memory than there is."""
    if forecast.peak > TOLERANCE * forecast.free:
        freeze = "" if forecast.learning < forecast.weights else "training.freeze=true or "
        other = f"{freeze}--from a run with a smaller network" if forecast.started else OTHER_NETWORK
        raise ValueError(
            f"a training step needs about {size(forecast.peak)} of memory, and {forecast.device} has "
            f"{size(forecast.free)} free: {_remedies(forecast.lengths, forecast.longest, other)}"
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


def longest_that_fits(model: ModelConfig, place: memory.Place, free: int, freeze: bool = False) -> int:
    """Tokens of the longest record that a step can learn from, with a network that is built for it."""

    def fits(length: int) -> bool:
        room = max(model.network.max_length, 1 << (length - 1).bit_length())
        wide = replace(model, network=replace(model.network, max_length=room))
        return sum(memory.peak(wide, [length], place, freeze=freeze).values()) <= free

    low, high = 0, 1
    while high < 1 << 40 and fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@contextmanager
def explained(lengths: Sequence[int], device: torch.device, longest: str = "") -> Iterator[None]:
    """Within it, memory that runs out is a `ValueError` that says what to do."""
    try:
        yield
    except RuntimeError as error:  # a GPU's own kind is one, a CPU's is told by its words
        if not (isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)):
            raise
        tokens, sequences = sum(lengths), len(lengths)
        raise ValueError(
            f"the memory of {device.type} ran out over a batch of {tokens:,} tokens in {sequences:,} "
            f"record{'s' if sequences > 1 else ''}: {_remedies(lengths, longest)}"
        ) from None


def _remedies(lengths: Sequence[int], longest: str, other: str = OTHER_NETWORK) -> str:
    several = "a smaller training.batch_tokens, " if len(lengths) > 1 else ""
    return f"its longest record{f' {longest}' if longest else ''} has {max(lengths):,} tokens; set {several}{other}"


def rehearse(model: nn.Module, batch: Batch, target: Target, longest: str = "") -> None:
    """Forward and backward over a batch as in training, with room for the optimiser; nothing of it stays.

    Over the largest batch of a run this lets memory run out at once, not in the middle of the night.
    """
    device, training = batch.inputs.device, model.training
    parameters = [p for p in model.parameters() if p.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]  # running statistics
    model.train()
    try:
        with (
            explained(batch.lengths, device, longest),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            moments = [torch.empty_like(p) for p in parameters for _ in range(2)]
            losses = target.losses(model(batch.inputs), batch.targets)
            torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
            del moments
    finally:
        model.train(training)
        for buffer, before in buffers:
            buffer.copy_(before)


def size(number: float) -> str:
    """Bytes for people.

    >>> size(3_400_000), size(21_900_000_000)
    ('3 MB', '21.9 GB')
    """
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
