"""The only room that steps an optimiser: the loop, checkpoints, evaluation."""

from chordmixer.training.evaluation import Evaluation, evaluate
from chordmixer.training.experiment import Experiment, TrainingConfig
from chordmixer.training.interrupts import Interrupted
from chordmixer.training.loop import train

__all__ = ["Evaluation", "Experiment", "Interrupted", "TrainingConfig", "evaluate", "train"]
