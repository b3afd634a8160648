"""The state of a run on disk: whole, checked, and enough to go on with the same numbers.

A checkpoint is a folder of safetensors and JSON with a SHA-256 manifest, put in place by one rename; the one
before it is kept. Data order and dropout are functions of (seed, epoch, step), so there is no random state to save.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chordmixer import files
from chordmixer.config import from_dict

KEEP = 2
FILES = ("model.safetensors", "best.safetensors", "optimizer.safetensors", "state.json")
AVERAGE = "average.safetensors"
"""Only of runs that keep one."""


@dataclass
class State:
    """Where a run is."""

    step: int = 0
    """Optimiser steps taken."""
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch already used."""
    loss_sum: float = 0.0
    """Over this epoch's training sequences so far."""
    sequences: int = 0
    best_loss: float = float("inf")
    """Lowest validation loss."""
    best_step: int = 0
    waited: int = 0
    """Evaluations since then that count for the patience."""
    finished: bool = False
    seconds: float = 0.0
    """Spent on training, where that is limited."""
    lines: int = 0
    """Of metrics.jsonl at this point."""
    threads: int = 0
    """Of the CPU, that the run computes with: sums depend on their number. 0: not known."""
    best_weights: dict[str, Tensor] = field(default_factory=dict, repr=False)
    average: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """The mean of the last steps' weights, where a run keeps one."""


def save(folder: Path, state: State, model: nn.Module, optimizer: Optimizer) -> Path:
    """Write `checkpoints/step-N` and drop all but the newest."""
    numbers = asdict(replace(state, best_weights={}, average={}))
    del numbers["best_weights"], numbers["average"]
    if math.isinf(state.best_loss):  # before the first validation: JSON has no infinity, and it is the default
        del numbers["best_loss"]
    path = folder / "checkpoints" / f"step-{state.step:09d}{'-finished' if state.finished else ''}"
    if path.exists():  # saved at this step before
        return path
    files.write_folder(
        path,
        {
            "model.safetensors": files.tensor_bytes(model.state_dict()),
            "best.safetensors": files.tensor_bytes(state.best_weights),
            **({AVERAGE: files.tensor_bytes(state.average)} if state.average else {}),
            "optimizer.safetensors": files.tensor_bytes(_flat(optimizer)),
            "state.json": json.dumps(numbers, indent=2, allow_nan=False).encode(),
        },
    )
    for old in found(folder)[KEEP:]:
        shutil.rmtree(old)
    return path


def found(folder: Path) -> list[Path]:
    """Checkpoints of a run, newest first."""
    return sorted((folder / "checkpoints").glob("step-*"), reverse=True)


def newest_good(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and why newer ones were refused; those are renamed out of the way."""
    refused: list[str] = []
    for path in found(folder):
        try:
            averaged = [AVERAGE] if AVERAGE in files.read_json(path / files.MANIFEST) else []
            files.verify(path, [*FILES, *averaged])
            _state(path)
            for name in [*FILES[:3], *averaged]:
                files.read_tensors(path / name)
        except ValueError as error:
            refused.append(str(error))
        else:
            for bad in found(folder)[: len(refused)]:
                bad.rename(bad.with_name(f"refused-{time.time_ns()}-{bad.name}"))
            return path, refused
    if refused:
        raise ValueError(f"no checkpoint of {folder} is whole ({refused[0]}): train again into another folder")
    return None, []


def load(path: Path, model: nn.Module, optimizer: Optimizer) -> State:
    """Put a checkpoint's weights and optimiser state in place."""
    state = _state(path)
    state.best_weights = files.read_tensors(path / "best.safetensors")
    state.average = files.read_tensors(path / AVERAGE) if (path / AVERAGE).exists() else {}
    try:
        model.load_state_dict(files.read_tensors(path / "model.safetensors"))
        _restore(optimizer, files.read_tensors(path / "optimizer.safetensors"))
    except (RuntimeError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"{path} is of another network ({reason}): train again into another folder") from None
    return state


def _state(path: Path) -> State:
    """Where a run was; older versions wrote an infinite loss before the first validation, which is the default."""
    where = path / "state.json"
    state = from_dict(State, {k: v for k, v in files.read_json(where).items() if v != math.inf}, str(where))
    counts = ("step", "epoch", "batch", "sequences", "best_step", "waited", "seconds", "lines")
    if bad := next((name for name in counts if getattr(state, name) < 0), None):
        raise ValueError(f"{where}: {bad}={getattr(state, bad)} is below 0: use another copy")
    return state


def _flat(optimizer: Optimizer) -> dict[str, Tensor]:
    """Optimiser state as named tensors; parameters that were never used have none."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {f"{i}.{name}": torch.as_tensor(value) for i, slots in state.items() for name, value in slots.items()}


def _restore(optimizer: Optimizer, flat: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in flat.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
