"""The same time for every model: each trains as many steps as it makes alone on this device in so many minutes.

Steps are measured once, before anything trains, by the loop itself on the data themselves, and kept beside the runs.
So runs are the same to the byte after a kill, as others are, and several may share a device, which changes when they
end and not how far they come.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from chordmixer import files, terminal
from chordmixer.config import to_dict
from chordmixer.paper.reproduction.entry_experiments import model_of
from chordmixer.training import Experiment
from chordmixer.training.devices import choose_device, device_name
from chordmixer.training.loop import TrainingRun
from chordmixer.version import __version__

FILE = "pace.json"
"""Beside the run folders: the pace of each model, and a print of the settings, device and versions that it is of."""
WARM, TIMED, LEAST = 1.0, 3.0, 5
"""Seconds before anything is counted, seconds that are, and the fewest steps of either."""


def paced(
    experiments: Mapping[str, Experiment], minutes: float, out: Path, say: Callable[[str], None]
) -> dict[str, Experiment]:
    """Those of `each` with the steps that each makes in so many minutes, and epochs enough for them.

    What the file in `out` has of the same settings, device and versions is not measured again.
    """
    for experiment in experiments.values():
        check(experiment, minutes)
    paces = dict[str, StepPace]()
    for name, experiment in experiments.items():
        model = model_of(name)
        if model not in paces:
            paces[model] = _pace(model, experiment, out / FILE)
            own = paces[model]
            say(f"{model}: {own.milliseconds:.3g} ms a step alone, {own.steps(minutes):,} in {minutes:g} min")
    return {name: _limited(own, paces[model_of(name)], minutes) for name, own in experiments.items()}


def check(experiment: Experiment, minutes: float) -> None:
    """Refuse what no number of steps stands for."""
    training = experiment.training
    if not 0 < minutes < float("inf"):
        raise ValueError(f"--minutes {minutes:g} is not a time to train for: give a number above 0, such as 1")
    if training.steps or training.minutes:
        name = "steps" if training.steps else "minutes"
        raise ValueError(
            f"--minutes {minutes:g} and training.{name}={getattr(training, name):g} are both the end of a run: leave "
            "one of them out"
        )
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ValueError(f"--minutes {minutes:g} on {ranks} processes is not possible: use one")


def _pace(model: str, experiment: Experiment, path: Path) -> StepPace:
    wanted = _print(experiment)
    if found := _known(path, model, wanted):
        return found
    try:
        measured = pace(experiment)
    except ValueError as error:  # memory that ran out, a loss that is not finite
        raise ValueError(f"{model} cannot be measured: {error}") from error
    own = {model: {**measured._asdict(), "of": wanted}}
    files.update_json(path, lambda before: {"format": 1, "models": before.get("models", {}) | own})
    return measured


def _known(path: Path, model: str, wanted: str) -> StepPace | None:
    """What was measured of the same settings."""
    if not path.exists():
        return None
    try:
        own = files.read_json(path)["models"].get(model, {"of": ""})
        return StepPace(float(own["milliseconds"]), int(own["an_epoch"])) if own["of"] == wanted else None
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} holds no paces of models: remove it, and they are measured again") from None


def _limited(experiment: Experiment, pace: StepPace, minutes: float) -> Experiment:
    training, steps = experiment.training, pace.steps(minutes)
    epochs = max(training.epochs, -(-steps // pace.an_epoch) + 1)  # one more, since some have a few steps less
    return replace(experiment, training=replace(training, steps=steps, epochs=epochs))


def _print(experiment: Experiment) -> str:
    """Of all but seed and rate, which do not change a pace."""
    settings = to_dict(replace(experiment, training=replace(experiment.training, seed=0, learning_rate=1.0)))
    place = [device_name(choose_device(experiment.training)), torch.__version__, __version__]
    return hashlib.sha256(json.dumps([settings, *place], sort_keys=True).encode()).hexdigest()


# --- What is measured ---


class StepPace(NamedTuple):
    """Of a run that has the device for itself."""

    milliseconds: float
    """Of a step, its batch included."""
    an_epoch: int
    """Steps of the first one; others may have a few more or less."""

    def steps(self, minutes: float) -> int:
        """Within so many minutes, at least one.

        >>> StepPace(30.0, 781).steps(0.5), StepPace(1e6, 781).steps(0.5)
        (1000, 1)
        """
        return max(1, round(60_000 * minutes / self.milliseconds))


def pace(experiment: Experiment) -> StepPace:
    """Measured on a device that should do nothing else; kernels are loaded or compiled before it begins."""
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(experiment, Path(folder) / "run", resume=False, console=terminal.console(quiet=True))
        an_epoch = -(-len(run.loader.sampler.steps) // experiment.training.accumulate)
        steps = _steps(run)
        with run.display:
            _take(run, steps, 0.0, 1)
            _take(run, steps, WARM, LEAST)
            measured = StepPace(1e3 * _take(run, steps, TIMED, LEAST), an_epoch)
        run.folder.close()
        del run, steps
        gc.collect()  # its memory is not the next one's
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return measured


def _steps(run: TrainingRun) -> Iterator[None]:
    """One after the other, over the epochs."""
    run.wrapped.train()
    while True:
        batches = run.loader.epoch(run.state.epoch)
        while run.state.batch < len(run.loader.sampler.steps):
            run.advance(batches)
            yield
        run.state.epoch, run.state.batch = run.state.epoch + 1, 0


def _take(run: TrainingRun, steps: Iterator[None], seconds: float, least: int) -> float:
    """Steps for so many seconds; the seconds of each."""
    start, first = time.perf_counter(), run.state.step
    while run.state.step < first + least or time.perf_counter() < start + seconds:
        next(steps)
    run.settle()  # waits for the device
    return (time.perf_counter() - start) / (run.state.step - first)
