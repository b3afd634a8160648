"""Learning from long sequences of very different lengths, without padding.

>>> import torch
>>> from chordmixer import ChordMixer, ChordMixerConfig, Packed
>>> encoder = ChordMixer(ChordMixerConfig(max_length=2000, track_size=4, hidden=16))
>>> x = Packed.from_list([torch.randn(n, encoder.width) for n in (40, 1006)])
>>> encoder(x).to_list()[1].shape
torch.Size([1006, 48])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chordmixer.version import __version__

if TYPE_CHECKING:
    from chordmixer.models import ChordMixer, ChordMixerConfig, Model, ModelConfig, load_released
    from chordmixer.ops import rotate
    from chordmixer.packed import Packed
    from chordmixer.training import Experiment, embed, evaluate, predict, train

_HOMES = {
    "ChordMixer": "chordmixer.models",
    "ChordMixerConfig": "chordmixer.models",
    "Experiment": "chordmixer.training",
    "Model": "chordmixer.models",
    "ModelConfig": "chordmixer.models",
    "Packed": "chordmixer.packed",
    "embed": "chordmixer.training",
    "evaluate": "chordmixer.training",
    "load_released": "chordmixer.models",
    "predict": "chordmixer.training",
    "rotate": "chordmixer.ops",
    "train": "chordmixer.training",
}
"""Public names, imported when first asked for, so that `chordmixer --help` need not wait for torch."""

__all__ = [
    "ChordMixer",
    "ChordMixerConfig",
    "Experiment",
    "Model",
    "ModelConfig",
    "Packed",
    "__version__",
    "embed",
    "evaluate",
    "load_released",
    "predict",
    "rotate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'chordmixer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
