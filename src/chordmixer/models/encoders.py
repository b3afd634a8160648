"""Every encoder by name: a literal dictionary, imported when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

ENCODERS = {
    "chordmixer": "chordmixer.models.chordmixer:ChordMixer",
    "pointwise": "chordmixer.models.baselines.pointwise:Pointwise",
    "transformer": "chordmixer.models.baselines.transformer:Transformer",
    "linformer": "chordmixer.models.baselines.linformer:Linformer",
    "reformer": "chordmixer.models.baselines.reformer:Reformer",
    "nystromformer": "chordmixer.models.baselines.nystromformer:Nystromformer",
    "luna": "chordmixer.models.baselines.luna:Luna",
    "longformer": "chordmixer.models.baselines.longformer:Longformer",
    "cosformer": "chordmixer.models.baselines.cosformer:Cosformer",
    "performer": "chordmixer.models.baselines.performer:Performer",
    "poolformer": "chordmixer.models.baselines.poolformer:Poolformer",
    "s4d": "chordmixer.models.baselines.s4d:S4d",
    "mamba2": "chordmixer.models.baselines.mamba2:Mamba2",
    "hyena": "chordmixer.models.baselines.hyena:Hyena",
    "enformer": "chordmixer.models.baselines.enformer:Enformer",
    "lstm": "chordmixer.models.baselines.lstm:Lstm",
    "tree_lstm": "chordmixer.models.baselines.tree_lstm:TreeLstm",
    "cnn": "chordmixer.models.baselines.cnn:Cnn",
    "tcn": "chordmixer.models.baselines.tcn:Tcn",
    "none": "chordmixer.models.baselines.none:NoEncoder",
}


def encoder_class(name: str) -> Any:
    """The class of this name, which holds its config's class as `Config`."""
    if not isinstance(name, str) or name not in ENCODERS:
        raise ValueError(f"encoder {name!r} is not known: choose one of {', '.join(ENCODERS)}")
    module, cls = ENCODERS[name].split(":")
    return getattr(import_module(module), cls)


def build(name: str, config: Any) -> nn.Module:
    """The encoder of this name, built from its config."""
    encoder: nn.Module = encoder_class(name)(config)
    return encoder
