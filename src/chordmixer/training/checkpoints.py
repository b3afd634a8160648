"""Checkpoints, from which a resumed run continues with the same numbers as an uninterrupted one.

A checkpoint is a folder of safetensors and JSON files with a SHA-256 manifest, put in place by one rename; the two
newest are kept. Data order and dropout are functions of (seed, epoch, step), so that no random state is saved.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chordmixer import files
from chordmixer.config import first_difference, from_dict

KEEP = 2
SETTINGS = "settings.json"
"""Settings of the run to which a checkpoint belongs."""
FILES = ("model.safetensors", "best.safetensors", "optimizer.safetensors", "state.json", SETTINGS)
FINISHED = "-finished"
NAME = rf"step-\d{{9,}}({FINISHED})?"
EMA = "average.safetensors"
"""Only in runs with an EMA."""


@dataclass
class State:
    """Progress of a run."""

    step: int = 0
    """Optimiser steps taken."""
    epoch: int = 0
    batch: int = 0
    """Number of batches of this epoch already used."""
    loss_sum: float = 0.0
    """Sum of the losses over this epoch's training sequences so far."""
    sequences: int = 0
    best_loss: float = float("inf")
    """Lowest validation loss."""
    best_score: float = float("-inf")
    """Headline metric of the best weights, or minus their loss if the loss selects them."""
    best_step: int = 0
    waited: int = 0
    """Number of evaluations after `best_step` that count for patience."""
    finished: bool = False
    seconds: float = 0.0
    """Seconds spent on training, if its time is limited."""
    lines: int = 0
    """Number of lines of metrics.jsonl at this point."""
    threads: int = 0
    """CPU threads of the run, on which the last bits of sums depend; 0 if not known."""
    best_weights: dict[str, Tensor] = field(default_factory=dict, repr=False)
    ema: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """The EMA of the weights, in runs that have one."""


def save(folder: Path, state: State, model: nn.Module, optimizer: Optimizer, settings: Mapping[str, Any]) -> Path:
    """Write `checkpoints/step-N` and remove all but the newest checkpoints."""
    numbers = asdict(replace(state, best_weights={}, ema={}))
    del numbers["best_weights"], numbers["ema"]
    for name in ("best_loss", "best_score"):
        if math.isinf(numbers[name]):  # no validation yet: JSON has no infinity, which is the default
            del numbers[name]
    path = folder / "checkpoints" / f"step-{state.step:09d}{FINISHED if state.finished else ''}"
    if path.exists():  # already saved at this step
        return path
    files.write_folder(
        path,
        {
            "model.safetensors": files.tensor_bytes(model.state_dict()),
            "best.safetensors": files.tensor_bytes(state.best_weights),
            **({EMA: files.tensor_bytes(state.ema)} if state.ema else {}),
            "optimizer.safetensors": files.tensor_bytes(_flat(optimizer)),
            "state.json": json.dumps(numbers, indent=2, allow_nan=False).encode(),
            SETTINGS: files.json_bytes(settings),
        },
    )
    for old in newest_first(folder)[KEEP:]:
        if (old / files.MANIFEST).is_file():  # otherwise it is not a checkpoint
            shutil.rmtree(old)
    return path


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    named = (path for path in (folder / "checkpoints").glob("step-*") if re.fullmatch(NAME, path.name))
    return sorted((path for path in named if path.is_dir() and not path.is_symlink()), reverse=True)


def check_settings(path: Path, settings: Mapping[str, Any], unverified: bool = False) -> None:
    """Refuse a checkpoint of another run; the message names the first setting in which the two differ."""
    if not (path / SETTINGS).exists():
        if unverified:
            return
        raise ValueError(f"{path} does not say whose it is: train again, or add --unverified to go on with it")
    if difference := first_difference(json.loads(files.json_bytes(settings)), files.read_json(path / SETTINGS)):
        name, here, there = difference
        raise ValueError(
            f"{path} is a checkpoint of another run: {name} is {here!r} here and {there!r} in the checkpoint; put "
            "the run's own files back, or train again into another folder"
        )


def newest_good(folder: Path) -> tuple[Path | None, list[str]]:
    """Find the newest intact checkpoint; rename newer ones and return the reasons why they were refused."""
    refused: list[str] = []
    for path in newest_first(folder):
        try:
            recorded = files.read_json(path / files.MANIFEST)
            ema = [EMA] if EMA in recorded else []
            files.verify(path, [name for name in FILES if name != SETTINGS or SETTINGS in recorded] + ema)
            if SETTINGS in recorded:
                files.read_json(path / SETTINGS)
            _state(path)
            for name in [*FILES[:3], *ema]:
                files.read_tensors(path / name)
        except ValueError as error:
            refused.append(str(error))
        else:
            for bad in newest_first(folder)[: len(refused)]:
                bad.rename(bad.with_name(f"refused-{time.time_ns()}-{bad.name}"))
            return path, refused
    if refused:
        raise ValueError(f"no checkpoint of {folder} is whole ({refused[0]}): train again into another folder")
    return None, []


def load(path: Path, model: nn.Module, optimizer: Optimizer) -> State:
    """Load a checkpoint into model and optimiser."""
    state = _state(path)
    state.best_weights = files.read_tensors(path / "best.safetensors")
    state.ema = files.read_tensors(path / EMA) if (path / EMA).exists() else {}
    try:
        if state.best_weights:  # check now that they fit; they are needed only at the end of the run
            model.load_state_dict(state.best_weights)
        model.load_state_dict(files.read_tensors(path / "model.safetensors"))
        _restore(optimizer, files.read_tensors(path / "optimizer.safetensors"))
    except (RuntimeError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"{path} is of another network ({reason}): train again into another folder") from None
    return state


def _state(path: Path) -> State:
    """Read state.json; older versions wrote an infinite loss, which is the default, before the first validation."""
    where = path / "state.json"
    state = from_dict(State, {k: v for k, v in files.read_json(where).items() if v != math.inf}, str(where))
    counts = ("step", "epoch", "batch", "sequences", "best_step", "waited", "seconds", "lines")
    if bad := next((name for name in counts if getattr(state, name) < 0), None):
        raise ValueError(f"{where}: {bad}={getattr(state, bad)} is below 0: use another copy")
    return state


def _flat(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimiser state as named tensors; parameters that were never used have no state."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {f"{i}.{name}": torch.as_tensor(value) for i, slots in state.items() for name, value in slots.items()}


def _restore(optimizer: Optimizer, flat: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in flat.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
