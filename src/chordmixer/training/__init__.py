"""The only room that steps an optimiser: the loop, checkpoints, evaluation, and what a trained model answers."""

from chordmixer.training.experiment import Experiment, TrainingConfig

__all__ = ["Experiment", "TrainingConfig"]
