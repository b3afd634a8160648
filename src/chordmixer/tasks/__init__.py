"""Tasks: records, target, loss and metrics. They are registered by name and imported on demand."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from numpy import ndarray

from chordmixer.data.loading import Records
from chordmixer.tasks.targets import Target

TASKS = {
    "adding": "chordmixer.paper.adding:Adding",
    "files": "chordmixer.tasks.files:Files",
    "fragments": "chordmixer.paper.fragments:Fragments",
    "image": "chordmixer.paper.lra.image:Image",
    "listops": "chordmixer.paper.lra.listops:ListOps",
    "masking": "chordmixer.tasks.masking:Masking",
    "pathfinder": "chordmixer.paper.lra.pathfinder:Pathfinder",
    "retrieval": "chordmixer.paper.lra.retrieval:Retrieval",
    "text": "chordmixer.paper.lra.text:Text",
    "variants": "chordmixer.tasks.variants:Variants",
}


class Task(Protocol):
    """The interface between a task and the training loop."""

    embedding: str
    """`tokens` or `real`."""
    inputs: int
    """Vocabulary size, or channels."""
    max_length: int
    """Length of the longest sequence of any part."""
    target: Target
    complement: ndarray | None
    """The complement of each id, if predictions are the mean over both strands; None: only one strand is read."""
    keeps_validation: bool
    """Whether a run saves its predictions on the validation set, for calibration."""

    def records(self, split: str) -> Records:
        """The records of `training`, `validation` or `test`."""
        ...

    def documents(self) -> dict[str, dict[str, Any]]:
        """The contents, by file name, of the JSON files in a run folder that describe the data."""
        ...


def task_class(name: str) -> Any:
    """The class of a task; its attribute `Config` is the class of its config."""
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task {name!r} is not known: choose one of {', '.join(TASKS)}")
    module, cls = TASKS[name].split(":")
    return getattr(import_module(module), cls)
