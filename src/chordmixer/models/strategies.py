"""Strategies for sequences of different lengths: how they are padded, cut or split before the encoder.

`packed` is ours, and the only one without padding. The paper used the others for the encoders that it compares with
(section 4.4, and its appendices on the ablation and on padding); here any encoder can. They pad with vectors of zeros
that count as tokens: the encoder mixes them with the rest and the head reads them, as in the paper.
So outputs have known defects, on purpose: with `batch_max` the output of a sequence depends on the batch, with
`truncate` the rest of a sequence is ignored, and with `segment` no information passes between segments.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from chordmixer import ops
from chordmixer.packed import Packed

Name = Literal["packed", "batch_max", "overall_max", "truncate", "segment"]
TRUNCATED, SEGMENT = 16_000, 2_000
"""Number of tokens of a truncated sequence, and of a segment: the paper's psi and beta."""


class Strategy:
    """Leave every sequence as it is: `packed`, and the base of the others."""

    def __init__(self, max_length: int, piece_length: int | None = None) -> None:
        self.longest = max_length
        """Number of tokens of the longest sequence that the encoder reads."""

    def split(self, x: Packed) -> Packed:
        """Turn embedded sequences into the sequences that the encoder reads."""
        return x

    def combine(self, outputs: Float[Tensor, "P outputs"], x: Packed) -> Float[Tensor, "B outputs"]:
        """Combine the outputs of the encoder's sequences into one output for each input sequence."""
        return outputs


class BatchMax(Strategy):
    """Pad every sequence with zeros to the longest of its batch.

    >>> import torch
    >>> BatchMax(100).split(Packed.from_list([torch.ones(3, 8), torch.ones(5, 8)])).lengths
    (5, 5)
    """

    def split(self, x: Packed) -> Packed:
        return pad_to(x, max(x.lengths))


class OverallMax(Strategy):
    """Pad every sequence with zeros to the maximum length of the model.

    >>> import torch
    >>> OverallMax(100).split(Packed.from_list([torch.ones(3, 8), torch.ones(5, 8)])).lengths
    (100, 100)
    """

    def split(self, x: Packed) -> Packed:
        return x if max(x.lengths) > self.longest else pad_to(x, self.longest)  # too long: the encoder refuses it


class Truncate(Strategy):
    """Keep the first tokens of every sequence, and pad shorter ones with zeros.

    >>> import torch
    >>> short = Truncate(100, piece_length=4).split(Packed.from_list([torch.ones(3, 8), torch.ones(9, 8)]))
    >>> short.lengths, int(short.values[:, 0].sum())
    ((4, 4), 7)
    """

    def __init__(self, max_length: int, piece_length: int | None = None) -> None:
        super().__init__(min(max_length, piece_length or TRUNCATED))

    def split(self, x: Packed) -> Packed:
        return pad_to(Packed.from_list([sequence[: self.longest] for sequence in x.to_list()]), self.longest)


class Segment(Strategy):
    """Split every sequence into segments, pad the last one with zeros, and average the segments' outputs.

    >>> import torch
    >>> Segment(100, piece_length=4).split(Packed.from_list([torch.ones(3, 8), torch.ones(9, 8)])).lengths
    (4, 4, 4, 4)
    """

    def __init__(self, max_length: int, piece_length: int | None = None) -> None:
        super().__init__(min(max_length, piece_length or SEGMENT))

    def split(self, x: Packed) -> Packed:
        pieces = [piece for sequence in x.to_list() for piece in sequence.split(self.longest)]
        return pad_to(Packed.from_list(pieces), self.longest)

    def combine(self, outputs: Float[Tensor, "P outputs"], x: Packed) -> Float[Tensor, "B outputs"]:
        segments = Packed.from_lengths(outputs, [-(-n // self.longest) for n in x.lengths])
        return ops.segment_mean(segments.values, segments.offsets)


def pad_to(x: Packed, length: int) -> Packed:
    """Pad every sequence with zeros to `length`; the zeros count as its tokens.

    >>> import torch
    >>> pad_to(Packed.from_list([torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]])]), 3).values.flatten().tolist()
    [1.0, 0.0, 0.0, 2.0, 3.0, 0.0]
    """
    rows = x.to_padded()
    rows = F.pad(rows, (0, 0, 0, length - rows.shape[1]))
    return Packed.from_lengths(rows.flatten(0, 1), [length] * len(x))


STRATEGIES: dict[Name, type[Strategy]] = {
    "packed": Strategy,
    "batch_max": BatchMax,
    "overall_max": OverallMax,
    "truncate": Truncate,
    "segment": Segment,
}


def check_strategy(name: Name, piece_length: int | None, head: str) -> None:
    """Raise a ValueError for an invalid piece length, or a head that does not work with the strategy."""
    if piece_length is not None and piece_length < 1:
        raise ValueError(f"piece_length={piece_length} is too small: give 1 or more")
    reason = None
    if head in ("tokens", "variant") and name != "packed":
        reason = "it reads tokens at their places, where others would stand"
    if head == "pair" and name == "segment":
        reason = "it reads two sequences, of which there would be more"
    if reason:
        raise ValueError(
            f"head={head!r} does not go with strategy={name!r}: {reason}; set strategy=packed, or another head"
        )
