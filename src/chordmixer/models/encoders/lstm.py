"""LSTM: torch's own, layer upon layer (Hochreiter and Schmidhuber 1997).

Sequences are passed as torch's PackedSequence, so there are no steps for padding. The ChordMixer paper
compares with an LSTM and gives no settings: these are ours.
Receptive field: the token and all before it, or the whole sequence with `direction="both"`. Cost: O(N) a layer, in N
sequential steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from chordmixer.models.convolutions import as_products
from chordmixer.models.encoders.layers import check_fits, check_settings
from chordmixer.packed import Packed

MAX_STEPS = 65_535
"""Maximum number of steps of a cuDNN call. Longer sequences are read in stretches, each from the last state."""


@dataclass(frozen=True)
class LstmConfig:
    """Default sizes are ours: the paper gives none."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 128
    """Number of channels per token and of a layer's state."""
    layers: int = 2
    """Number of stacked LSTM layers."""
    direction: Literal["forward", "both"] = "forward"
    """`both`: half of the channels read from the end of the sequence."""
    dropout: float = 0.0
    """Share of the numbers between two layers that are set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.direction == "both" and self.width % 2:
            raise ValueError(
                f"width={self.width} is odd: direction='both' needs a half for each; give {self.width + 1}"
            )


class Lstm(nn.Module):
    """The states of the last layer, one per token.

    >>> encoder = Lstm(LstmConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (100, 1)])).values.shape
    torch.Size([101, 8])
    """

    Config = LstmConfig

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        both = config.direction == "both"
        self.lstm = nn.LSTM(
            config.width,
            config.width // 2 if both else config.width,
            config.layers,
            dropout=config.dropout if config.layers > 1 else 0.0,  # torch warns of dropout with a single layer
            bidirectional=both,
        )

    def forward(self, x: Packed) -> Packed:
        check_fits(x, self.config)
        if max(x.lengths) > MAX_STEPS and self.lstm.bidirectional and x.values.is_cuda:
            raise ValueError(
                f"a sequence of {max(x.lengths):,} tokens is above the {MAX_STEPS:,} that cuDNN reads from both "
                "ends: use direction='forward', or a CPU"
            )
        steps = pack_sequence(x.to_list(), enforce_sorted=False)
        with as_products():
            states = self.lstm(steps)[0].data if self.lstm.bidirectional else self._in_stretches(steps)
        return x.with_values(torch.cat(unpack_sequence(steps._replace(data=states))).to(x.values.dtype))

    def _in_stretches(self, steps: PackedSequence) -> Float[Tensor, "T C"]:
        sizes, states, last = steps.batch_sizes.split(MAX_STEPS), [], None
        for batch_sizes, tokens in zip(sizes, steps.data.split([int(n.sum()) for n in sizes]), strict=True):
            if last is not None:  # sequences are sorted by length: the last ones have ended
                last = tuple(state[:, : batch_sizes[0]].contiguous() for state in last)
            output, last = self.lstm(PackedSequence(tokens, batch_sizes), last)
            states.append(output.data)
        return torch.cat(states)
