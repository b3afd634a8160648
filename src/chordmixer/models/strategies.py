"""What a model makes of sequences of different lengths before its encoder reads them.

`packed` is ours, and the only one without padding. The paper used the others for the encoders that it compares with
(section 4.4, and its appendices on the ablation and on padding); here any encoder can. They pad with vectors of zeros
that count as tokens: the encoder mixes them with the rest and the head reads them, as in the paper.
So they break our promise on purpose: with `batch_max` the answer to a sequence changes with its neighbours, with
`truncate` it knows nothing of what was cut off, and with `segment` no part of a sequence knows of another.
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
"""Tokens of what is left of a sequence, and of a segment: the paper's psi and beta."""


class Whole:
    """Every sequence as it is."""

    def __init__(self, max_length: int, piece_length: int | None = None) -> None:
        self.longest = max_length
        """Tokens of the longest sequence that the encoder will see."""

    def parts(self, x: Packed) -> Packed:
        """What the encoder reads of embedded sequences."""
        return x

    def together(self, answers: Float[Tensor, "P outputs"], x: Packed) -> Float[Tensor, "B outputs"]:
        """One answer for each sequence, from those for its parts."""
        return answers


class BatchMax(Whole):
    """Every sequence with zeros behind it, up to the longest of its batch.

    >>> import torch
    >>> BatchMax(100).parts(Packed.from_list([torch.ones(3, 8), torch.ones(5, 8)])).lengths
    (5, 5)
    """

    def parts(self, x: Packed) -> Packed:
        return filled(x, max(x.lengths))


class OverallMax(Whole):
    """Every sequence with zeros behind it, up to the longest that the model takes.

    >>> import torch
    >>> OverallMax(100).parts(Packed.from_list([torch.ones(3, 8), torch.ones(5, 8)])).lengths
    (100, 100)
    """

    def parts(self, x: Packed) -> Packed:
        return x if max(x.lengths) > self.longest else filled(x, self.longest)  # the encoder refuses the former


class Truncate(Whole):
    """The first tokens of every sequence, with zeros behind one that is shorter.

    >>> import torch
    >>> short = Truncate(100, piece_length=4).parts(Packed.from_list([torch.ones(3, 8), torch.ones(9, 8)]))
    >>> short.lengths, int(short.values[:, 0].sum())
    ((4, 4), 7)
    """

    def __init__(self, max_length: int, piece_length: int | None = None) -> None:
        super().__init__(min(max_length, piece_length or TRUNCATED))

    def parts(self, x: Packed) -> Packed:
        return filled(Packed.from_list([sequence[: self.longest] for sequence in x.to_list()]), self.longest)


class Segment(Whole):
    """Every sequence in segments, each read and answered alone, with zeros behind the last; the answers' mean.

    >>> import torch
    >>> Segment(100, piece_length=4).parts(Packed.from_list([torch.ones(3, 8), torch.ones(9, 8)])).lengths
    (4, 4, 4, 4)
    """

    def __init__(self, max_length: int, piece_length: int | None = None) -> None:
        super().__init__(min(max_length, piece_length or SEGMENT))

    def parts(self, x: Packed) -> Packed:
        pieces = [piece for sequence in x.to_list() for piece in sequence.split(self.longest)]
        return filled(Packed.from_list(pieces), self.longest)

    def together(self, answers: Float[Tensor, "P outputs"], x: Packed) -> Float[Tensor, "B outputs"]:
        own = Packed.from_lengths(answers, [-(-n // self.longest) for n in x.lengths])
        return ops.segment_mean(own.values, own.offsets)


def filled(x: Packed, length: int) -> Packed:
    """Every sequence with zeros behind it up to `length`; they count as its tokens.

    >>> import torch
    >>> filled(Packed.from_list([torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]])]), 3).values.flatten().tolist()
    [1.0, 0.0, 0.0, 2.0, 3.0, 0.0]
    """
    rows = x.to_padded()
    rows = F.pad(rows, (0, 0, 0, length - rows.shape[1]))
    return Packed.from_lengths(rows.flatten(0, 1), [length] * len(x))


STRATEGIES: dict[Name, type[Whole]] = {
    "packed": Whole,
    "batch_max": BatchMax,
    "overall_max": OverallMax,
    "truncate": Truncate,
    "segment": Segment,
}


def check_strategy(name: Name, piece_length: int | None, head: str) -> None:
    """Refuse pieces of no length, and a head that would not find its tokens or sequences."""
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
