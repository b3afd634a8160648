"""A model is three parts: an embedding, an encoder, a head. Every encoder shares the other two."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer import files, ops
from chordmixer.config import from_dict, to_dict
from chordmixer.models import encoders
from chordmixer.models.chordmixer import ChordMixerConfig
from chordmixer.models.embeddings import EMBEDDINGS
from chordmixer.models.heads import HEADS
from chordmixer.models.norms import Norm
from chordmixer.packed import Packed

FORMAT = 1
"""Of config.json and the weights' names; a reader refuses any other."""


@dataclass(frozen=True)
class ModelConfig:
    """What a model is made of."""

    inputs: int
    """Vocabulary size for `tokens`, channels a token for `real`."""
    outputs: int
    """Numbers that the head gives: classes, or 1 for a regression."""
    embedding: Literal["tokens", "real"] = "tokens"
    """What the inputs are."""
    head: Literal["average", "class_token", "last", "tokens"] = "average"
    """How the answer is read from the encoder's tokens."""
    encoder: str = "chordmixer"
    """A name in `chordmixer.models.ENCODERS`."""
    final_norm: Literal["layer"] | None = None
    """Normalisation of the encoder's tokens before the head."""
    network: ChordMixerConfig = field(default_factory=ChordMixerConfig)
    """The encoder's own settings; `max_length` counts the user's tokens."""


class Model(nn.Module, PyTorchModelHubMixin, library_name="chordmixer", license="mit"):  # type: ignore[call-arg]
    """Embedding, encoder, head: `model(packed)` is (B, outputs) for pooled heads, a `Packed` for per-token ones.

    >>> network = ChordMixerConfig(max_length=100, track_size=4, hidden=16)
    >>> model = Model(ModelConfig(inputs=5, outputs=2, network=network))
    >>> model(Packed.from_list([torch.tensor([0, 1, 2]), torch.tensor([4])])).shape
    torch.Size([2, 2])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        head = HEADS[config.head]
        room = replace(config.network, max_length=config.network.max_length + head.extra)
        self.encoder = encoders.build(config.encoder, room)
        width = int(self.encoder.width)  # type: ignore[arg-type]  # every encoder has one
        self.embedding = EMBEDDINGS[config.embedding](config.inputs, width)
        self.final_norm = Norm(config.final_norm, width)
        self.head = head(width, config.outputs)

    def encode(self, x: Packed) -> Packed:
        """The encoder's tokens, before the head."""
        y = self.encoder(self.head.prepare(self.embedding(x)))
        return y.with_values(ops.normalise(y.values, y.offsets, self.final_norm.state()))

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"] | Packed:
        answers: Tensor | Packed = self.head(self.encode(x))
        return answers

    def _save_pretrained(self, save_directory: Path) -> None:
        """The hub mixin's hook: weights as safetensors, the config beside them, each written whole or not at all."""
        files.write_tensors(save_directory / "model.safetensors", self.state_dict())
        files.write_json(save_directory / "config.json", {"format": FORMAT, "model": to_dict(self.config)})
        files.write_manifest(save_directory, ["config.json", "model.safetensors"])

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str = "cpu", **hub: Any) -> Model:
        """A trained model, ready for evaluation, from a run folder or a repository of the Hugging Face hub."""
        folder = Path(source) if Path(source).is_dir() else _download(str(source), hub)
        if (folder / files.MANIFEST).exists():
            files.verify(folder, ["config.json", "model.safetensors"])
        config = read_config(folder)
        model = cls(from_dict(ModelConfig, config["model"], f"{folder / 'config.json'}: model"))
        weights = files.read_tensors(folder / "model.safetensors")
        shapes = {name: value.shape for name, value in model.state_dict().items()}
        if odd := sorted(shapes.items() ^ {name: value.shape for name, value in weights.items()}.items()):
            raise ValueError(
                f"{folder / 'model.safetensors'} does not fit its config.json, first at {odd[0][0]}: "
                "use the two files of one run"
            )
        model.load_state_dict(weights)
        return model.to(torch.device(device)).eval()


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model or run folder, refused if another version wrote it."""
    config = files.read_json(folder / "config.json")
    if config.get("format") != FORMAT or "model" not in config:
        raise ValueError(
            f"{folder / 'config.json'} has format {config.get('format')!r}: this version of chordmixer reads "
            f"format {FORMAT}; use the version that wrote it, or train again"
        )
    return config


def _download(repository: str, hub: dict[str, Any]) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["config.json", "model.safetensors", files.MANIFEST]
    try:
        return Path(snapshot_download(repository, allow_patterns=wanted, **hub))
    except (ValueError, OSError) as error:  # the hub's own errors are of these kinds
        raise ValueError(
            f"{repository} is neither a folder nor a repository that can be reached: give a run folder or a "
            "Hugging Face repository id"
        ) from error
