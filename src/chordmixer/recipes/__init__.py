"""The paper's runs, and ours, as functions that return an `Experiment`."""

from collections.abc import Callable
from typing import Any

from chordmixer.recipes.adding import adding
from chordmixer.recipes.demo import demo
from chordmixer.recipes.files import files
from chordmixer.recipes.lra import listops, pathfinder
from chordmixer.training import Experiment

RECIPES: dict[str, Callable[[Any], Experiment]] = {"adding": adding, "listops": listops, "pathfinder": pathfinder}
"""What `chordmixer train TASK` starts from: a function of the task's config. `files` is for the user's own."""

__all__ = ["RECIPES", "adding", "demo", "files", "listops", "pathfinder"]
