"""How Rotate is carried out: one operation for autograd and the compiler, a gather inside.

Seen as rows of S channels, (T, C) is (T * M, S), and row (j, t) of the result is row (source(j, t), t) of the input:
one `index_select`, whatever the lengths. Long inputs go through in tiles of tokens that stay in the cache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

SLICED = 2048
"""Tokens a sequence from which on a CPU copies slices faster than it gathers by index."""


def rotate(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], track_size: int, reverse: bool = False
) -> Float[Tensor, "T C"]:
    """`reference.rotate`."""
    rotated: Tensor = torch.ops.chordmixer.rotate(values, offsets, track_size, reverse)
    return rotated


@torch.library.custom_op("chordmixer::rotate", mutates_args=())
def _rotate(values: Tensor, offsets: Tensor, track_size: int, reverse: bool) -> Tensor:
    rotation = Rotation(values, offsets, values.shape[1] // track_size, reverse)
    rotated = torch.empty_like(values, memory_format=torch.contiguous_format)
    for lo, hi in tiles(values):
        rotation.gather(values, lo, hi, out=rotated[lo:hi])
    return rotated


@_rotate.register_fake
def _(values: Tensor, offsets: Tensor, track_size: int, reverse: bool) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _rotate_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, offsets, ctx.track_size, ctx.reverse = inputs
    ctx.save_for_backward(offsets)


def _rotate_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    """A permutation's gradient is the reverse permutation."""
    (offsets,) = ctx.saved_tensors
    return rotate(gradient, offsets, ctx.track_size, not ctx.reverse), None, None, None


_rotate.register_autograd(_rotate_backward, setup_context=_rotate_context)


class Rotation:
    """Where the tracks of each token come from, worked out for one tile of tokens at a time."""

    def __init__(
        self,
        values: Float[Tensor, "T C"],
        offsets: Int[Tensor, "B+1"],
        tracks: int,
        reverse: bool = False,
        keeps: bool = False,
    ) -> None:
        """With `keeps` the rows of each tile are kept for the next block, whose tokens are the same or a prefix."""
        shifts = [0] + [1 << t for t in range(tracks - 1)]
        lengths = offsets.diff()[:, None]
        steps = torch.tensor(shifts, device=offsets.device) % lengths
        kind = torch.int32 if len(values) * tracks < 1 << 31 else torch.int64
        self.steps = ((lengths - steps) % lengths if reverse else steps).to(kind)
        self.offsets = offsets.to(kind)
        self.bounds = offsets.tolist() if offsets.device.type == "cpu" else []
        self.kept: dict[int, Tensor] | None = {} if keeps else None

    def _range(self, stop: int, start: int = 0) -> Int[Tensor, "t"]:
        return torch.arange(start, stop, dtype=self.offsets.dtype, device=self.offsets.device)

    def sequences(self, lo: int, hi: int) -> Int[Tensor, "t"]:
        """The sequence that each token from lo to hi belongs to."""
        small = self.offsets.dtype == torch.int32
        return torch.searchsorted(self.offsets, self._range(hi, lo), right=True, out_int32=small).sub_(1)

    def sources(self, lo: int, hi: int) -> Int[Tensor, "t M"]:
        """The token that each track of the tokens from lo to hi reads."""
        sequence = self.sequences(lo, hi)
        end = self.offsets.index_select(0, sequence + 1)
        length = end - self.offsets.index_select(0, sequence)
        source = self.steps.index_select(0, sequence).add_(self._range(hi, lo)[:, None])
        return source.sub_((source >= end[:, None]) * length[:, None])

    def rows(self, lo: int, hi: int) -> Int[Tensor, "t*M"]:
        """The same as rows of the (T * M, S) view."""
        tracks = self.steps.shape[1]
        if self.kept is not None and lo in self.kept and len(self.kept[lo]) >= (hi - lo) * tracks:
            return self.kept[lo][: (hi - lo) * tracks]
        found = self.sources(lo, hi).mul_(tracks).add_(self._range(tracks)).flatten()
        if self.kept is not None:
            self.kept[lo] = found
        return found

    def gather(self, values: Float[Tensor, "T C"], lo: int, hi: int, out: Float[Tensor, "t C"]) -> Tensor:
        """The rotated tokens from lo to hi: two slices a track in long sequences, an index among short ones."""
        tracks = self.steps.shape[1]
        first, last = bisect_right(self.bounds, lo) - 1, bisect_left(self.bounds, hi)
        if not self.bounds or hi - lo < SLICED * (last - first):
            rows = values.reshape(len(values) * tracks, -1)
            torch.index_select(rows, 0, self.rows(lo, hi), out=out.view(-1, rows.shape[1]))
            return out
        source, target = values.unflatten(1, (tracks, -1)), out.unflatten(1, (tracks, -1))
        for start, end, steps in zip(
            self.bounds[first:last], self.bounds[first + 1 :], self.steps[first:last].tolist(), strict=False
        ):
            begin, stop = max(lo, start), min(hi, end)
            for track, step in enumerate(steps):
                read = begin + step if begin + step < end else begin + step - (end - start)
                turn = begin - lo + min(stop - begin, end - read)
                target[begin - lo : turn, track] = source[read : read + turn - (begin - lo), track]
                target[turn : stop - lo, track] = source[start : start + stop - lo - turn, track]
        return out


def tiles(values: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of tokens: on a CPU as many as stay in its cache, elsewhere enough to fill the device."""
    size = 4096 if values.device.type == "cpu" else 1 << 17
    return ((lo, min(lo + size, len(values))) for lo in range(0, len(values), size))
