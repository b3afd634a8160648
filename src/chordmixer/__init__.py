"""Learning from long sequences of very different lengths, without padding.

>>> import torch
>>> from chordmixer import ChordMixer, Packed
>>> encoder = ChordMixer(max_length=2000, track_size=4, hidden=16)
>>> x = Packed.from_list([torch.randn(n, encoder.width) for n in (40, 1006)])
>>> encoder(x).to_list()[1].shape
torch.Size([1006, 48])
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from chordmixer.version import __version__

if TYPE_CHECKING:
    from chordmixer.dataset import Dataset
    from chordmixer.estimators import ChordMixerClassifier, ChordMixerRegressor
    from chordmixer.fitting import fit
    from chordmixer.models import ChordMixer, ChordMixerConfig, Model, ModelConfig
    from chordmixer.models.released import load_released
    from chordmixer.ops import rotate
    from chordmixer.packed import Packed
    from chordmixer.predictor import Predictor
    from chordmixer.training import Experiment
    from chordmixer.training.loop import train

logging.getLogger(__name__).addHandler(logging.NullHandler())  # no output unless the program configures logging

_MODULES = {
    "ChordMixer": "chordmixer.models",
    "ChordMixerClassifier": "chordmixer.estimators",
    "ChordMixerConfig": "chordmixer.models",
    "ChordMixerRegressor": "chordmixer.estimators",
    "Dataset": "chordmixer.dataset",
    "Experiment": "chordmixer.training",
    "Model": "chordmixer.models",
    "ModelConfig": "chordmixer.models",
    "Packed": "chordmixer.packed",
    "Predictor": "chordmixer.predictor",
    "fit": "chordmixer.fitting",
    "load_released": "chordmixer.models.released",
    "rotate": "chordmixer.ops",
    "train": "chordmixer.training.loop",
}
"""Public names, imported on first use, so that `chordmixer --help` does not wait for torch."""

__all__ = [
    "ChordMixer",
    "ChordMixerClassifier",
    "ChordMixerConfig",
    "ChordMixerRegressor",
    "Dataset",
    "Experiment",
    "Model",
    "ModelConfig",
    "Packed",
    "Predictor",
    "__version__",
    "fit",
    "load_released",
    "rotate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'chordmixer' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
