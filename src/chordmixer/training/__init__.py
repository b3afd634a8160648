"""Training and use of models: the training loop, checkpoints, evaluation, prediction and explanation."""

from chordmixer.training.experiment import Experiment, TrainingConfig

__all__ = ["Experiment", "TrainingConfig"]
