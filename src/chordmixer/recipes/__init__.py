"""Settings of runs, as functions that return an `Experiment`; one by name: a literal dictionary, imported lazily."""

from importlib import import_module
from typing import Any

from chordmixer.recipes.files import files

RECIPES = {
    "adding": "chordmixer.paper.recipes:adding",
    "fragments": "chordmixer.paper.recipes:fragments",
    "image": "chordmixer.paper.recipes:image",
    "listops": "chordmixer.paper.recipes:listops",
    "masking": "chordmixer.recipes.masking:masking",
    "pathfinder": "chordmixer.paper.recipes:pathfinder",
    "retrieval": "chordmixer.paper.recipes:retrieval",
    "text": "chordmixer.paper.recipes:text",
    "variants": "chordmixer.recipes.variants:variants",
}
"""What `chordmixer train TASK` starts from: a function of the task's config. `files` is for the user's own."""
TASK_BASELINES = "chordmixer.paper.baselines:compare"
"""What it ends with: baselines of any such task."""

__all__ = ["RECIPES", "TASK_BASELINES", "files", "load"]


def load(path: str) -> Any:
    """What `module:name` stands for, imported now.

    >>> load(RECIPES["masking"]).__name__
    'masking'
    """
    module, name = path.split(":")
    return getattr(import_module(module), name)
