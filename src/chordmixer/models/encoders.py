"""Every encoder by name: a literal dictionary, imported when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

ENCODERS = {
    "chordmixer": "chordmixer.models.chordmixer:ChordMixer",
    "pointwise": "chordmixer.models.baselines.pointwise:Pointwise",
}


def build(name: str, config: Any) -> nn.Module:
    """The encoder of this name, built from its config."""
    if name not in ENCODERS:
        raise ValueError(f"encoder {name!r} is not known: choose one of {', '.join(ENCODERS)}")
    module, cls = ENCODERS[name].split(":")
    encoder: nn.Module = getattr(import_module(module), cls)(config)
    return encoder
