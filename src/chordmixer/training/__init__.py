"""The only room that steps an optimiser: the loop, checkpoints, evaluation, and what a trained model answers."""

from chordmixer.training.evaluation import Evaluation, evaluate
from chordmixer.training.experiment import Experiment, TrainingConfig
from chordmixer.training.loop import train
from chordmixer.training.prediction import embed, predict
from chordmixer.training.progress import Interrupted

__all__ = ["Evaluation", "Experiment", "Interrupted", "TrainingConfig", "embed", "evaluate", "predict", "train"]
