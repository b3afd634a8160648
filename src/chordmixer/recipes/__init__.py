"""The paper's runs, and ours, as functions that return an `Experiment`."""

from chordmixer.recipes.adding import adding
from chordmixer.recipes.demo import demo

RECIPES = {"adding": adding}
"""What `chordmixer train TASK` starts from: a function of the task's config."""

__all__ = ["RECIPES", "adding", "demo"]
