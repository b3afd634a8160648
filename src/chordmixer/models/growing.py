"""Copy the embedding and encoder of a trained model into another one, which may be built for longer sequences.

A longer `max_length` means more tracks, so that C channels become C', and more blocks. On lengths up to the old
maximum the grown encoder computes the same as the old one.

- The tracks of the old network are the first ones of the new, with the same rotations. The new channels are not read
  at first: their columns of each `fc1` are zero.
- The number of blocks that a sequence passes depends on its length, so old lengths never reach the added blocks.
  Those start as their residual: `fc2` is zero.
- A layer norm depends on all channels, so new ones would shift it. With layer norms, each new channel therefore holds
  the mean of the old ones, which residual sums preserve, since a mean is linear. The mean of all channels is then the
  old mean, and their variance C / C' times the old one. All tokens are multiplied by s = sqrt(C' / C), so that the
  variance is the old one too; the norm's output is then s times the old, and its weight is divided by s. Without a
  final norm, the encoder's tokens are s times the old ones, which does not matter for a new head.

The means are preserved in the order of the paper, where Rotate comes before Mix. In the released order the residual
is added to rotated tokens, whose mean no channel holds; a norm after the sum changes the means; and the groups of a
group norm depend on the width. Such networks are refused. Batch norm works by channel, so it can grow.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from chordmixer.models.chordmixer import Block, ChordMixer
from chordmixer.models.embeddings import RealEmbedding, StartMark, TokenEmbedding
from chordmixer.models.model import Model
from chordmixer.models.norms import Norm

FREE_SETTINGS = {"max_length", "dropout", "init"}
"""Settings of a network that may differ: its weights do not depend on them, or can grow."""


@torch.no_grad()
def take_over(model: Model, old: Model) -> None:
    """Copy the embedding, encoder and final norm of `old` into a model; the model's head is not changed.

    Of the vocabulary of `old` the first ids are copied; additional ones, such as a mask, are left out.

    >>> from chordmixer import ChordMixerConfig, Packed
    >>> from chordmixer.models import ModelConfig
    >>> small, large = (
    ...     Model(ModelConfig(inputs=5, outputs=2, network=ChordMixerConfig(n, track_size=2, hidden=8))).eval()
    ...     for n in (16, 1000)
    ... )
    >>> take_over(large, small)
    >>> x = Packed.from_list([torch.tensor([0, 3, 1]), torch.tensor([4] * 16)])
    >>> torch.allclose(large.encode(x).values[:, : small.encoder.width], small.encode(x).values, atol=1e-6)
    True
    """
    check_fits(model, old)
    if not isinstance(model.encoder, ChordMixer) or model.encoder.width == old.encoder.width:
        _copy(model, old)
        return
    check_grows(model, old)
    scaled = model.config.final_norm == "layer" or model.config.network.prenorm == "layer"
    _Growth(model, old, scaled).grow()


def check_fits(model: Model, old: Model) -> None:
    """Raise a ValueError if the models differ in more than the head and the maximum length."""
    settings, theirs = _settings(model), _settings(old)
    for name, value in settings.items():
        if theirs.get(name) != value:
            raise ValueError(
                f"{name}={value!r} does not fit the weights to start from, which have {theirs.get(name)!r}: set "
                f"{name}={theirs.get(name)}"
            )
    mask_ids = 1 if model.config.embedding == "tokens" else 0  # `old` may have the id of a mask
    if not model.config.inputs <= old.config.inputs <= model.config.inputs + mask_ids:
        raise ValueError(
            f"model.inputs={model.config.inputs} does not fit the weights to start from, which take "
            f"{old.config.inputs}: start from a run with the same tokenizer"
        )


def check_grows(model: Model, old: Model) -> None:
    """Raise a ValueError if the network would shrink, or cannot grow and compute the same on old lengths."""
    network, final_norm = model.config.network, model.config.final_norm
    limit: int = old.encoder.config.max_length  # type: ignore[union-attr,assignment]  # including a head's extra tokens
    longest = network.max_length
    if int(model.encoder.width) < int(old.encoder.width):  # type: ignore[arg-type]
        raise ValueError(
            f"model.network.max_length={longest} is below the {limit} of the weights to start from: a network "
            f"grows and never shrinks; set model.network.max_length={limit}"
        )
    if model.stem is not None or model.words is not None:
        raise ValueError(
            f"a network with a stem or words cannot grow from max_length={limit} to {longest} and stay the same on "
            f"old lengths: train the run to start from with model.network.max_length={longest}"
        )
    normed = "layer" in (network.prenorm, final_norm)
    means_kept = network.order == "paper" and network.prenorm in (None, "layer") and network.norm is None
    if "group" in (network.prenorm, network.norm) or network.norm == "layer" or (normed and not means_kept):
        norms = f"order={network.order}, prenorm={network.prenorm}, norm={network.norm}, final_norm={final_norm}"
        raise ValueError(
            f"a network of {norms} cannot grow from max_length={limit} to {longest} and stay the same on old "
            "lengths: such norms see all channels; "
            f"train the run to start from with model.network.max_length={longest}"
        )


def _settings(model: Model) -> dict[str, Any]:
    """The settings that two models must have in common, by the names that a user sets."""
    config = model.config
    network = {name: value for name, value in vars(config.network).items() if name not in FREE_SETTINGS}
    return {
        "model.encoder": config.encoder,
        "model.embedding": config.embedding,
        "model.mark_start": config.mark_start,
        "model.positions": config.positions,
        "model.within_record": config.within_record,
        "model.stem": config.stem,
        "model.words": config.words,
        "model.final_norm": config.final_norm,
        **{f"model.network.{name}": value for name, value in network.items()},
    }


def _copy(model: Model, old: Model) -> None:
    """Copy weights between networks of the same width."""
    for name in ("encoder", "embedding", "start", "positions", "stem", "words", "final_norm"):
        if getattr(model, name) is None:
            continue
        state, theirs = getattr(model, name).state_dict(), getattr(old, name).state_dict()
        if name == "embedding" and model.config.embedding == "tokens":
            theirs = {key: value[: model.config.inputs] for key, value in theirs.items()}
        if odd := [key for key, value in state.items() if key not in theirs or value.shape != theirs[key].shape]:
            raise ValueError(
                f"{name}.{odd[0]} has another shape in the weights to start from: only chordmixer networks grow; "
                f"set model.network.max_length={old.config.network.max_length}"
            )
        getattr(model, name).load_state_dict(theirs)


class _Growth:
    """Copies weights from C to C' channels; if `scaled`, new channels are means of old ones, and all are scaled."""

    def __init__(self, model: Model, old: Model, scaled: bool) -> None:
        assert isinstance(model.encoder, ChordMixer) and isinstance(old.encoder, ChordMixer)
        self.model, self.old = model, old
        self.blocks, self.old_blocks = list(model.encoder.blocks), list(old.encoder.blocks)
        self.channels, self.scaled = old.encoder.width, scaled
        self.scale = sqrt(model.encoder.width / old.encoder.width) if scaled else 1.0

    def grow(self) -> None:
        embedding, old_embedding = self.model.embedding, self.old.embedding
        if isinstance(embedding, TokenEmbedding) and isinstance(old_embedding, TokenEmbedding):
            self.tokens(embedding.table.weight.T, old_embedding.table.weight[: embedding.table.num_embeddings].T)
        if isinstance(embedding, RealEmbedding) and isinstance(old_embedding, RealEmbedding):
            self.linear_to_tokens(embedding.linear, old_embedding.linear)
        if isinstance(self.model.start, StartMark) and isinstance(self.old.start, StartMark):
            self.tokens(self.model.start.vector, self.old.start.vector)
        if self.model.positions is not None and self.old.positions is not None:
            self.tokens(self.model.positions.table.movedim(-1, 0), self.old.positions.table.movedim(-1, 0))
        self.norm(self.model.final_norm, self.old.final_norm)
        for block, old_block in zip(self.blocks, self.old_blocks, strict=False):
            self.block(block, old_block)  # type: ignore[arg-type]  # all are Blocks
        for added in self.blocks[len(self.old_blocks) :]:
            nn.init.zeros_(added.fc2.weight)  # type: ignore[union-attr,arg-type]
            nn.init.zeros_(added.fc2.bias)  # type: ignore[union-attr,arg-type]

    def block(self, block: Block, old: Block) -> None:
        reads_tokens = block.prenorm.kind is None
        block.fc1.weight.zero_()
        block.fc1.weight[:, : self.channels] = old.fc1.weight / (self.scale if reads_tokens else 1.0)
        block.fc1.bias.copy_(old.fc1.bias)
        self.linear_to_tokens(block.fc2, old.fc2)
        self.norm(block.prenorm, old.prenorm)
        self.norm(block.norm, old.norm)

    def linear_to_tokens(self, linear: nn.Linear, old: nn.Linear) -> None:
        """Copy a linear map whose outputs are tokens."""
        self.tokens(linear.weight, old.weight)
        self.tokens(linear.bias, old.bias)

    def tokens(self, new: Tensor, old: Tensor) -> None:
        """Copy rows, one per channel of tokens; rows of new channels keep their initial values unless `scaled`."""
        new[: self.channels] = self.scale * old
        if self.scaled:
            new[self.channels :] = self.scale * old.mean(0)

    def norm(self, norm: Norm, old: Norm) -> None:
        """Copy a norm; new channels keep their initial values."""
        for (name, values), old_values in zip(norm.state_dict().items(), old.state_dict().values(), strict=True):
            divided = norm.kind == "layer" and name == "weight"
            values[: self.channels] = old_values / self.scale if divided else old_values
