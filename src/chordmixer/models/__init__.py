"""Networks: `Packed` in, `Packed` out. Owns every weight."""

from chordmixer.models.chordmixer import ChordMixer, ChordMixerConfig
from chordmixer.models.encoders import ENCODERS
from chordmixer.models.model import Model, ModelConfig

__all__ = ["ENCODERS", "ChordMixer", "ChordMixerConfig", "Model", "ModelConfig"]
