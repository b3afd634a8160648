"""The embedding and the encoder of another model, grown where the new network is built for longer sequences.

A longer `max_length` means more tracks, so that C channels become C', and more blocks. What was learnt stays: on
lengths up to the old maximum the grown encoder computes what the old one did.

- The tracks of the old network are the first ones of the new, with the same rotations. Nothing reads the new channels
  at first: their columns of each `fc1` are zero.
- A sequence passes as many blocks as its own length asks for, so old lengths never meet the added blocks. Those start
  as their residual: `fc2` is zero.
- A layer norm looks at all channels, so new ones would shift it. There each new channel holds the mean of the old
  ones, which residuals keep up, since a mean is linear. The mean of all channels is then the old mean, and their
  variance C / C' times the old one. With all tokens multiplied by s = sqrt(C' / C) the variance is the old one too,
  and what the norm gives is s times the old: its weight is divided by s. Where no norm comes last, the encoder's
  tokens are s times the old ones, which a new head does not mind.

The means hold in the order of the paper, where tokens meet before Mix. In the released order the sum with the
residual is of rotated tokens, whose mean no channel knows; a norm after the sum throws the means away; and the groups
of a group norm follow the width. Such networks are refused. Batch norm works by channel, and grows.
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

MAY_DIFFER = {"max_length", "dropout", "init"}
"""Settings of a network that its weights do not depend on, or can be grown to."""


@torch.no_grad()
def take_over(model: Model, old: Model) -> None:
    """Give a model the embedding, the encoder and the last norm of another one; its head stays as it is.

    Of the other's vocabulary the first ids are taken: what it has beyond, such as a mask, is left out.

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
    """Refuse weights of a model that differs by more than its head and how long its sequences may be."""
    own, other = _settings(model), _settings(old)
    for name, value in own.items():
        if other.get(name) != value:
            raise ValueError(
                f"{name}={value!r} does not fit the weights to start from, which have {other.get(name)!r}: set "
                f"{name}={other.get(name)}"
            )
    spare = 1 if model.config.embedding == "tokens" else 0  # the id of a mask
    if not model.config.inputs <= old.config.inputs <= model.config.inputs + spare:
        raise ValueError(
            f"model.inputs={model.config.inputs} does not fit the weights to start from, which take "
            f"{old.config.inputs}: start from a run with the same tokenizer"
        )


def check_grows(model: Model, old: Model) -> None:
    """Refuse a network that cannot become wider, or would have to become narrower, and stay what it is."""
    network, final_norm = model.config.network, model.config.final_norm
    was: int = old.encoder.config.max_length  # type: ignore[union-attr,assignment]  # with the tokens of a head
    longest = network.max_length
    if int(model.encoder.width) < int(old.encoder.width):  # type: ignore[arg-type]
        raise ValueError(
            f"model.network.max_length={longest} is below the {was} of the weights to start from: a network grows "
            f"and never shrinks; set model.network.max_length={was}"
        )
    if model.stem is not None or model.words is not None:
        raise ValueError(
            f"a network with a stem or words cannot grow from max_length={was} to {longest} and stay the same on old "
            f"lengths: train the run to start from with model.network.max_length={longest}"
        )
    normed = "layer" in (network.prenorm, final_norm)
    means_kept = network.order == "paper" and network.prenorm in (None, "layer") and network.norm is None
    if "group" in (network.prenorm, network.norm) or network.norm == "layer" or (normed and not means_kept):
        norms = f"order={network.order}, prenorm={network.prenorm}, norm={network.norm}, final_norm={final_norm}"
        raise ValueError(
            f"a network of {norms} cannot grow from max_length={was} to {longest} and stay the same on old lengths: "
            f"such norms see all channels; train the run to start from with model.network.max_length={longest}"
        )


def _settings(model: Model) -> dict[str, Any]:
    """What two models must have in common, by the names that a user sets."""
    config = model.config
    network = {name: value for name, value in vars(config.network).items() if name not in MAY_DIFFER}
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
    """Of the same width: as they are."""
    for name in ("encoder", "embedding", "start", "positions", "stem", "words", "final_norm"):
        if getattr(model, name) is None:
            continue
        own, other = getattr(model, name).state_dict(), getattr(old, name).state_dict()
        if name == "embedding" and model.config.embedding == "tokens":
            other = {key: value[: model.config.inputs] for key, value in other.items()}
        if odd := [key for key, value in own.items() if key not in other or value.shape != other[key].shape]:
            raise ValueError(
                f"{name}.{odd[0]} has another shape in the weights to start from: only chordmixer networks grow; set "
                f"model.network.max_length={old.config.network.max_length}"
            )
        getattr(model, name).load_state_dict(other)


class _Growth:
    """From C channels to C'; where `scaled`, new channels hold the mean of the old ones, and all are multiplied."""

    def __init__(self, model: Model, old: Model, scaled: bool) -> None:
        assert isinstance(model.encoder, ChordMixer) and isinstance(old.encoder, ChordMixer)
        self.model, self.old = model, old
        self.blocks, self.old_blocks = list(model.encoder.blocks), list(old.encoder.blocks)
        self.channels, self.scaled = old.encoder.width, scaled
        self.scale = sqrt(model.encoder.width / old.encoder.width) if scaled else 1.0

    def grow(self) -> None:
        new, was = self.model.embedding, self.old.embedding
        if isinstance(new, TokenEmbedding) and isinstance(was, TokenEmbedding):
            self.tokens(new.table.weight.T, was.table.weight[: new.table.num_embeddings].T)
        if isinstance(new, RealEmbedding) and isinstance(was, RealEmbedding):
            self.maker(new.linear, was.linear)
        if isinstance(self.model.start, StartMark) and isinstance(self.old.start, StartMark):
            self.tokens(self.model.start.vector, self.old.start.vector)
        if self.model.positions is not None and self.old.positions is not None:
            self.tokens(self.model.positions.table.movedim(-1, 0), self.old.positions.table.movedim(-1, 0))
        self.norm(self.model.final_norm, self.old.final_norm)
        for block, before in zip(self.blocks, self.old_blocks, strict=False):
            self.block(block, before)  # type: ignore[arg-type]  # all are Blocks
        for added in self.blocks[len(self.old_blocks) :]:
            nn.init.zeros_(added.fc2.weight)  # type: ignore[union-attr,arg-type]
            nn.init.zeros_(added.fc2.bias)  # type: ignore[union-attr,arg-type]

    def block(self, block: Block, old: Block) -> None:
        reads_tokens = block.prenorm.kind is None
        block.fc1.weight.zero_()
        block.fc1.weight[:, : self.channels] = old.fc1.weight / (self.scale if reads_tokens else 1.0)
        block.fc1.bias.copy_(old.fc1.bias)
        self.maker(block.fc2, old.fc2)
        self.norm(block.prenorm, old.prenorm)
        self.norm(block.norm, old.norm)

    def maker(self, linear: nn.Linear, old: nn.Linear) -> None:
        """A linear map that makes tokens."""
        self.tokens(linear.weight, old.weight)
        self.tokens(linear.bias, old.bias)

    def tokens(self, new: Tensor, old: Tensor) -> None:
        """Numbers by channel, of which tokens are made; the rows of new channels stay fresh unless they are means."""
        new[: self.channels] = self.scale * old
        if self.scaled:
            new[self.channels :] = self.scale * old.mean(0)

    def norm(self, norm: Norm, old: Norm) -> None:
        """What is new stays fresh."""
        for (name, new), was in zip(norm.state_dict().items(), old.state_dict().values(), strict=True):
            divided = norm.kind == "layer" and name == "weight"
            new[: self.channels] = was / self.scale if divided else was
