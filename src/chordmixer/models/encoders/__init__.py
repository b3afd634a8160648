"""All encoders by name: a dictionary of classes, which are imported on first use. Each encoder has its own file."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

ENCODERS = {
    "chordmixer": "chordmixer.models.chordmixer:ChordMixer",
    "pointwise": "chordmixer.models.encoders.pointwise:Pointwise",
    "transformer": "chordmixer.models.encoders.transformer:Transformer",
    "linformer": "chordmixer.models.encoders.linformer:Linformer",
    "reformer": "chordmixer.models.encoders.reformer:Reformer",
    "nystromformer": "chordmixer.models.encoders.nystromformer:Nystromformer",
    "luna": "chordmixer.models.encoders.luna:Luna",
    "longformer": "chordmixer.models.encoders.longformer:Longformer",
    "cosformer": "chordmixer.models.encoders.cosformer:Cosformer",
    "performer": "chordmixer.models.encoders.performer:Performer",
    "poolformer": "chordmixer.models.encoders.poolformer:Poolformer",
    "s4d": "chordmixer.models.encoders.s4d:S4d",
    "mamba2": "chordmixer.models.encoders.mamba2:Mamba2",
    "hyena": "chordmixer.models.encoders.hyena:Hyena",
    "enformer": "chordmixer.models.encoders.enformer:Enformer",
    "lstm": "chordmixer.models.encoders.lstm:Lstm",
    "tree_lstm": "chordmixer.models.encoders.tree_lstm:TreeLstm",
    "cnn": "chordmixer.models.encoders.cnn:Cnn",
    "tcn": "chordmixer.models.encoders.tcn:Tcn",
    "none": "chordmixer.models.encoders.none:NoEncoder",
}


def encoder_class(name: str) -> Any:
    """The encoder class with this name; its attribute `Config` is the class of its config."""
    if not isinstance(name, str) or name not in ENCODERS:
        raise ValueError(f"encoder {name!r} is not known: choose one of {', '.join(ENCODERS)}")
    module, cls = ENCODERS[name].split(":")
    return getattr(import_module(module), cls)


def build(name: str, config: Any) -> nn.Module:
    """Build the encoder with this name from its config."""
    encoder: nn.Module = encoder_class(name)(config)
    return encoder
