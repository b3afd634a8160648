"""The paper's runs, and ours, as functions that return an `Experiment`."""

from chordmixer.recipes.adding import adding
from chordmixer.recipes.demo import demo
from chordmixer.recipes.files import files

RECIPES = {"adding": adding}
"""What `chordmixer train TASK` starts from: a function of the task's config. `files` is for the user's own."""

__all__ = ["RECIPES", "adding", "demo", "files"]
