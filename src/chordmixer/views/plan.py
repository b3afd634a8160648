"""Lines of `chordmixer plan`: a forecast of a run, and settings that need less memory if it would not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from chordmixer.tasks.masking import Masking
from chordmixer.training import ensemble, fine_tuning
from chordmixer.training import forecast as forecasts
from chordmixer.training.devices import choose_device, format_bytes
from chordmixer.training.experiment import check_lengths
from chordmixer.training.forecast import Forecast
from chordmixer.views.metrics import counted, duration

if TYPE_CHECKING:
    from chordmixer.data.store import Store
    from chordmixer.tasks.files import Files
    from chordmixer.training import Experiment

SHORT_OF_MEMORY = 0.8  # fraction of the free memory above which settings that need less are shown
LONG_RUN = 7_200.0  # duration of a run, in seconds, above which a shorter one is suggested
MIN_TERM = 0.01  # fraction of the peak below which a term is not shown separately
MAX_NAMES = 5  # maximum number of names in a list


def plan_lines(experiment: Experiment, timed: bool = True) -> Iterator[str]:
    """Describe what a run would need on this machine; `timed` measures a few steps."""
    task: Any = experiment.build_task()
    for part in ("training", "validation", "test"):
        check_lengths(task.records(part), experiment.model.network.max_length, experiment.training)
    training, device = task.records("training"), choose_device(experiment.training)
    scored = forecasts.scored_lengths(task)
    forecast = forecasts.forecast(experiment, training.lengths, device, training.name, timed=timed, scored=scored)
    cures = forecasts.cures(experiment, training.lengths, device, task.max_length) if near(forecast) else {}
    yield from lines(experiment, task, forecast, cures)
    if members := ensemble.kind_and_size(experiment):
        yield f"{members[1]} members: this is what one of them takes, and they are trained one after the other"


def near(forecast: Forecast) -> bool:
    """Whether the run needs most of the free memory, or records are too long for it."""
    return forecast.peak + forecast.retained > SHORT_OF_MEMORY * forecast.free or bool(forecast.too_long)


def lines(
    experiment: Experiment, task: Files | Masking, forecast: Forecast, cures: Mapping[str, Forecast]
) -> Iterator[str]:
    """The lines of the plan, for a terminal of 80 columns or more."""
    yield "Data"
    yield from (f"  {line}" for line in task.account.lines())
    yield from _masked(task) if isinstance(task, Masking) else _labelled(task)
    yield from _model(experiment, forecast)
    yield from _batches(experiment, forecast)
    yield from _memory(forecast)
    if forecast.seconds is not None and forecast.total_seconds is not None:
        yield from _time(forecast, forecast.seconds, forecast.total_seconds)
    if cures:
        yield "To need less memory, add one of these, here and to the run"
        for setting, cheaper in cures.items():
            yield f"  --set {setting:<34}{format_bytes(cheaper.peak):>8}{'' if cheaper.fits else ', still too much'}"


def _labelled(task: Files) -> Iterator[str]:
    names, kind = task.question.names, task.question.kind
    target = "a number to learn" if kind == "number" else f"{len(names):,} {kind}: {_some(names)}"
    yield f"{_tokens(task.store, task.question.records)}; {target}"
    yield f"  split ({task.split.method}): {_parts(task.split.parts)}"


def _masked(task: Masking) -> Iterator[str]:
    parts = task.ranges
    records = np.unique(np.concatenate([ranges.records for ranges in parts.values()]))
    yield f"{_tokens(task.store, records)}; {100 * task.config.share:g} % masked"
    yield f"  split ({task.method}): {_parts({part: ranges.starts for part, ranges in parts.items()})}"
    if task.segmented:
        yield f"  in segments of {task.config.shortest:,} to {task.max_length:,} tokens:"
        yield f"  {_parts({part: task.records(part) for part in parts})}"


def _tokens(store: Store, records: ndarray) -> str:
    lengths = store.lengths[records]
    between = f"{int(lengths.min()):,} to {int(lengths.max()):,} a record"
    return f"  {int(lengths.sum()):,} tokens ({store.tokenizer.name}), {between}"


def _parts(parts: Mapping[str, Sized]) -> str:
    return ", ".join(f"{len(records):,} for {part}" for part, records in parts.items())


def _model(experiment: Experiment, forecast: Forecast) -> Iterator[str]:
    model, network = experiment.model, experiment.model.network
    kind = f"{network.prenorm} norm" if network.prenorm else "no norm"
    yield "Model"
    yield (
        f"  {model.encoder} for up to {network.max_length:,} tokens: {network.depth} blocks, {kind}"
        f"{', reversible' if network.reversible else ''}"
    )
    yield (
        f"  {network.tracks} tracks x {network.track_size} = {network.width:,} channels, {network.hidden} hidden, "
        f"{forecast.weights:,} weights"
    )
    if model.decoder:
        yield "  half of them are the decoder's, a network with the same settings"
    yield from (f"  {line}" for line in fine_tuning.messages(experiment.training))
    if forecast.trainable < forecast.weights:
        yield f"  {counted(forecast.trainable, 'weight')} to learn"


def _batches(experiment: Experiment, forecast: Forecast) -> Iterator[str]:
    config = experiment.training
    accumulated = f", {config.accumulate} to a step" if config.accumulate > 1 else ""
    yield "Run"
    yield (
        f"  {counted(forecast.epochs, 'epoch')} of {counted(forecast.batches, 'batch', 'batches')}{accumulated}: "
        f"{counted(forecast.steps, 'step')} at most"
    )
    yield f"  a batch has up to {counted(config.batch_sequences, 'record')} and {forecast.budget:,} tokens"
    lengths, longest = forecast.lengths, forecast.longest
    if len(lengths) == 1:
        yield f"  the largest: {longest} alone, {lengths[0]:,} tokens"
    else:
        total = f"{len(lengths):,} records, {sum(lengths):,} tokens"
        yield f"  the largest: {total}, of which {longest} has {lengths[0]:,}"


def _memory(forecast: Forecast) -> Iterator[str]:
    yield f"Memory of a training step over the largest batch, on {forecast.device}"
    terms = {name: number for name, number in forecast.memory.items() if number >= MIN_TERM * forecast.peak}
    if (rest := forecast.peak - sum(terms.values())) > 500_000:  # else it would be shown as nothing
        terms["the rest"] = rest
    for name, number in sorted(terms.items(), key=lambda term: -term[1]):
        yield f"  {name:<28}{format_bytes(number):>10}"
    verdict = "fits" if forecast.fits else "does not fit"
    free = format_bytes(forecast.free)
    yield f"  {'together, about':<28}{format_bytes(forecast.peak):>10} of {free} free: {verdict}"
    if forecast.resident:
        yield f"  {'freed, kept by the heap':<28}{format_bytes(forecast.retained):>10}"
        yield f"  {'Python, torch and the data':<28}{format_bytes(forecast.resident):>10}"
        yield f"  {'the whole process, about':<28}{format_bytes(forecast.process):>10} at its peak, without baselines"
    step = int(10 ** max(0, len(str(forecast.room)) - 2))  # to two figures, downwards
    yield f"  a single record may have up to about {forecast.room // step * step:,} tokens"
    if forecast.too_long:
        yield f"  {counted(len(forecast.too_long), 'record')} would not fit: {_some(list(forecast.too_long))}"


def _time(forecast: Forecast, seconds: float, total: float) -> Iterator[str]:
    yield "Time, from a few steps just measured"
    if forecast.threads:
        yield f"  {forecast.threads}"
    an_epoch = seconds + forecast.validation / forecast.epochs
    yield (
        f"  about {duration(an_epoch)} an epoch with validation, {duration(total)} for "
        f"{counted(forecast.epochs, 'epoch')} and the test"
    )
    yield "  baselines are not counted; the run ends earlier if it stops getting better"
    if total > LONG_RUN:
        fewer = max(1, int(LONG_RUN / 2 / an_epoch))
        yield f"  less, if it need not be as good: --set training.epochs={fewer}, about {duration(fewer * an_epoch)}"


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")
