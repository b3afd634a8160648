"""Load the authors' released weights into our model: parameters are renamed, outputs are the same."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from chordmixer.models.chordmixer import ChordMixerConfig
from chordmixer.models.model import Model, ModelConfig

_NAMES = {
    r"embedding\.(weight|bias)": r"embedding.{embedding}.\1",
    r"encoder\.chordmixer_blocks\.(\d+)\.mix\.(fc[12])\.(weight|bias)": r"encoder.blocks.\1.\2.\3",
    r"encoder\.chordmixer_blocks\.(\d+)\.(prenorm|norm)\.(?:[bg]n\.)?(weight|bias)": r"encoder.blocks.\1.\2.\3",
    r"encoder\.chordmixer_blocks\.(\d+)\.(prenorm|norm)\.bn\.running_mean": r"encoder.blocks.\1.\2.mean",
    r"encoder\.chordmixer_blocks\.(\d+)\.(prenorm|norm)\.bn\.running_var": r"encoder.blocks.\1.\2.variance",
    r"encoder\.chordmixer_blocks\.(\d+)\.(prenorm|norm)\.bn\.num_batches_tracked": None,
    r"decoder\.decoder\.(weight|bias)": r"head.linear.\1",
}
"""The authors' parameter names and ours; None for those without a counterpart here."""


def load_released(
    state_dict: Mapping[str, Tensor],
    *,
    max_length: int,
    track_size: int,
    hidden: int,
    prenorm: str | None = None,
    norm: str | None = None,
) -> Model:
    """Build a `Model` that computes the same as the authors' released code with these parameters.

    The kind of embedding and the number of outputs follow from the shapes; norms are named as in `ChordMixerConfig`
    (the authors write LN, BN, GN).
    """
    for name in ("embedding.weight", "decoder.decoder.weight"):
        if name not in state_dict:
            raise ValueError(f"released parameters have no {name!r}: give the model's own, whole state dict")
    real = "embedding.bias" in state_dict
    config = ModelConfig(
        inputs=state_dict["embedding.weight"].shape[1 if real else 0],
        outputs=state_dict["decoder.decoder.weight"].shape[0],
        embedding="real" if real else "tokens",
        network=ChordMixerConfig(max_length, track_size, hidden, order="released", prenorm=prenorm, norm=norm),  # type: ignore[arg-type]
    )
    model = Model(config)
    renamed = {_our_name(name, real): value for name, value in state_dict.items()}
    renamed.pop("", None)
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    shapes = {name: tuple(value.shape) for name, value in renamed.items()}
    if expected != shapes:
        mismatch = sorted(expected.items() ^ shapes.items())[0]
        raise ValueError(
            f"released parameters do not fit this network, first at {mismatch[0]} {mismatch[1]}: max_length, "
            "track_size, hidden, prenorm and norm must be those of the training run; check them against its config"
        )
    model.load_state_dict(renamed)
    return model.eval()


def _our_name(name: str, real: bool) -> str:
    for theirs, ours in _NAMES.items():
        if match := re.fullmatch(theirs, name):
            return match.expand(ours).replace("{embedding}", "linear" if real else "table") if ours else ""
    raise ValueError(
        f"parameter {name!r} is not one of the released ChordMixer's: names are embedding.*, "
        "encoder.chordmixer_blocks.*, decoder.decoder.*; give the model's own state dict"
    )
