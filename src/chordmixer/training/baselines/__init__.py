"""Simple models beside a network: fitted on the same split, chosen on its validation part, saved without pickle."""

from chordmixer.training.baselines.fitting import Baseline, fit_baselines
from chordmixer.training.baselines.stored import FittedBaseline, load

__all__ = ["Baseline", "FittedBaseline", "fit_baselines", "load"]
