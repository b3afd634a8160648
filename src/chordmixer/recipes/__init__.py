"""Recipes, functions that return an `Experiment`, and a dictionary of them by name, imported lazily."""

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
"""Recipes of `chordmixer train TASK`, functions of the task's config. `files` is for a user's own files."""
TASK_BASELINES = "chordmixer.paper.baselines:compare"
"""The function that compares a run of any of these tasks with baselines."""

__all__ = ["RECIPES", "TASK_BASELINES", "files", "load"]


def load(path: str) -> Any:
    """Import an object given as `module:name`.

    >>> load(RECIPES["masking"]).__name__
    'masking'
    """
    module, name = path.split(":")
    return getattr(import_module(module), name)
