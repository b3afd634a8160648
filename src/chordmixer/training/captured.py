"""Training steps as CUDA graphs: the host starts a step with one call, and the GPU never waits for it.

A step on short sequences is hundreds of small kernels, which the host launches more slowly than the GPU runs them. A
graph launches all of them at once, but takes the same tensors of the same sizes each time: batches are therefore
copied into buffers whose size is rounded up, and a filler, which counts nowhere, takes the room that is left
(`StaticPacked`). Optimiser, clipping and EMA are part of the graph.

The first step of a size is taken without a graph, since kernels are compiled in it, but by the very same operations;
the second is recorded, and all later ones are replayed. Before the first graph of a run, one step has to show that
nothing in it waits for the device.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy import ndarray
from torch import Tensor

from chordmixer import ops
from chordmixer.data import Batch
from chordmixer.models import Model
from chordmixer.models.chordmixer import ChordMixer, depth
from chordmixer.models.heads import AverageHead
from chordmixer.packed import LengthsUnknownError, Packed, StaticPacked
from chordmixer.tasks.targets import TokenTarget
from chordmixer.training.experiment import TrainingConfig
from chordmixer.training.optimiser import Ema, Optimiser

logger = logging.getLogger(__name__)

LARGEST = 1 << 17
"""Tokens of a batch from which on the GPU takes longer than the host, so that a graph gains nothing."""
SIZES = 64
"""Sizes of batches that have a graph, at most; each costs memory."""


class StepSize(NamedTuple):
    """What batches have in common that share a graph."""

    tokens: int
    """Room for tokens, the filler's among them."""
    sequences: int
    blocks: int
    """That the longest sequence passes."""


@dataclass
class Buffers:
    """The tensors of a graph."""

    values: Shaped[Tensor, "T *C"]
    offsets: Int[Tensor, "B+2"]
    targets: Shaped[Tensor, "B *K"]
    weights: Float[Tensor, "B"] | None
    """Of the records in the loss."""
    words: Int[Tensor, "W"]
    """What the host computes for a step, in 32 bits each: counts, then learning rate and weight in the EMA."""
    result: Float[Tensor, "2"] | None = None
    graph: torch.cuda.CUDAGraph | None = field(default=None, repr=False)

    @property
    def counts(self) -> Int[Tensor, "D 4"]:
        return self.words[:-2].view(-1, 4)

    @property
    def rates(self) -> Float[Tensor, "2"]:
        return self.words[-2:].view(torch.float32)

    @staticmethod
    def like(batch: Batch, size: StepSize) -> Buffers:
        values, device = batch.inputs.values, batch.inputs.device
        return Buffers(
            values.new_zeros(size.tokens, *values.shape[1:]),
            torch.full((size.sequences + 2,), size.tokens, device=device),
            torch.empty_like(batch.targets),
            None if batch.weights is None else torch.empty_like(batch.weights),
            torch.empty(4 * size.blocks + 2, dtype=torch.int32, device=device),
        )

    def fill(self, batch: Batch, words: ndarray) -> None:
        """Copy a batch; nothing waits for the device."""
        tokens = batch.inputs.tokens
        self.values[:tokens].copy_(batch.inputs.values)
        self.values[tokens:].zero_()
        self.offsets[:-1].copy_(batch.inputs.offsets)
        self.targets.copy_(batch.targets)
        if self.weights is not None and batch.weights is not None:
            self.weights.copy_(batch.weights)
        host = torch.from_numpy(words)
        self.words.copy_(host.pin_memory() if self.words.is_cuda else host, non_blocking=True)


class CapturedSteps:
    """Takes the steps of a training run on one GPU, those that it can."""

    def __init__(
        self, model: Model, wrapped: Callable[[Packed], Tensor], target: Any, optimiser: Optimiser, ema: Ema | None
    ) -> None:
        """`wrapped` is the model as the run calls it, under autocast or not; `target` has the losses."""
        self.model, self.wrapped, self.target, self.optimiser, self.ema = model, wrapped, target, optimiser, ema
        self.known: dict[StepSize, Buffers] = {}
        self.stream: torch.cuda.Stream | None = None
        """On which graphs are recorded."""
        self.stepped = False
        """Whether the step under way has come to the optimiser."""
        self.proven = False
        """Whether a step was taken in which nothing waited for the device, which would ruin a graph and the run."""
        self.reason = _why_not(model, target)
        """Why no step is taken here; empty: they are."""
        if self.reason:
            logger.debug(f"training steps are not CUDA graphs: {self.reason}")

    def step(self, batch: Batch, learning_rate: float, number: int) -> Float[Tensor, "2"] | None:
        """Take the step with this number, counted from 1, after the generators were seeded for it.

        Returns the loss and the gradient norm as the optimiser does; None: this step is to be taken as usual.
        """
        size = self._size(batch)
        if size is None or (size not in self.known and len(self.known) >= SIZES):
            return None
        new = size not in self.known
        buffers = self.known.setdefault(size, Buffers.like(batch, size) if new else self.known[size])
        weight = self.ema.weight(number) if self.ema else 0.0
        buffers.fill(batch, _words(batch.inputs.lengths, size, self._dropout, learning_rate, weight))
        self.stepped, taken = False, new or not self.proven or not buffers.values.is_cuda
        try:
            if taken:
                return self._take(buffers) if new or not buffers.values.is_cuda else self._prove(buffers)
            if buffers.graph is None:
                self._record(buffers, size)
        except (LengthsUnknownError, RuntimeError) as error:  # the latter: an operation that waits, or memory
            if taken and self.stepped:  # weights may have changed; what is only recorded changes nothing
                raise
            self.stop(str(error).splitlines()[0])
            return None
        return self._replayed(buffers)

    def _size(self, batch: Batch) -> StepSize | None:
        """The size to which a batch is rounded up; None where a graph is no help, or impossible."""
        tokens, depths = batch.inputs.tokens, [depth(n) for n in batch.inputs.lengths]
        if self.reason or tokens >= LARGEST or any(a < b for a, b in pairwise(depths)):
            return None
        return StepSize(room_for(tokens), len(depths), depths[0])

    @property
    def _dropout(self) -> bool:
        return bool(self.model.config.network.dropout)

    def stop(self, reason: str) -> None:
        """Take no more steps, and free the memory of graphs."""
        self.reason = reason
        logger.debug(f"training steps are not CUDA graphs from here on: {reason}")
        self._forget_graphs()
        self.known.clear()
        self.optimiser.adam.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            with suppress(RuntimeError):  # of the memory of a graph that was not recorded to its end
                torch.cuda.empty_cache()

    def _prove(self, buffers: Buffers) -> Float[Tensor, "2"]:
        """Take a step in which waiting for the device is an error."""
        before = torch.cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings():  # that this mode is a prototype
                warnings.simplefilter("ignore", UserWarning)
                torch.cuda.set_sync_debug_mode("error")
            result = self._take(buffers)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        self.proven = True
        return result

    def _forget_graphs(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for buffers in self.known.values():
            buffers.graph = buffers.result = None

    def _record(self, buffers: Buffers, size: StepSize) -> None:
        """Graphs share memory, in which smaller ones find room where a larger one was recorded before them: where the
        largest comes last, those before are forgotten, to be recorded again when they are needed."""
        recorded = {own: kept.graph for own, kept in self.known.items() if kept.graph}
        if recorded and size.tokens > max(own.tokens for own in recorded):
            recorded.clear()
            self._forget_graphs()
            torch.cuda.empty_cache()
        self.stream = self.stream or torch.cuda.Stream()  # memory is kept for each stream apart
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            graph.capture_begin(
                pool=next((own.pool() for own in recorded.values()), None), capture_error_mode="thread_local"
            )
            try:
                result = self._take(buffers)
            finally:
                graph.capture_end()
        current.wait_stream(self.stream)
        buffers.graph, buffers.result = graph, result

    def _replayed(self, buffers: Buffers) -> Float[Tensor, "2"]:
        assert buffers.graph is not None and buffers.result is not None, "it was recorded"
        buffers.graph.replay()
        return buffers.result.clone()  # the graph's own tensor is written to again

    def _take(self, buffers: Buffers) -> Float[Tensor, "2"]:
        """The operations of a step."""
        rows = self.wrapped(StaticPacked(buffers.values, buffers.offsets, counts=buffers.counts))
        losses = self.target.losses(rows, buffers.targets)
        losses = losses if buffers.weights is None else losses * buffers.weights
        (losses.sum() / len(losses)).backward()
        learning_rate, weight = buffers.rates.unbind()
        self.stepped = True
        result = self.optimiser.step(losses.detach().sum(), learning_rate)
        if self.ema:
            self.ema.update(weight)
        return result


def possible(config: TrainingConfig, device: torch.device, ranks: int) -> bool:
    """Whether the settings of a run allow graphs at all."""
    return (
        config.cuda_graphs and device.type == "cuda" and ranks == 1 and config.accumulate == 1 and not config.freeze
    )


def _why_not(model: Model, target: Any) -> str:
    """What of a model or target has no static form; empty: all of it has one."""
    encoder = model.encoder
    if not isinstance(encoder, ChordMixer) or encoder.config.hidden > ops.FUSED_HIDDEN or encoder.config.reversible:
        return f"the encoder is no chordmixer of at most {ops.FUSED_HIDDEN} hidden units, or a reversible one"
    if not isinstance(model.head, AverageHead) or model.config.strategy != "packed" or model.decoder:
        return f"the head is {model.config.head}, with strategy={model.config.strategy}"
    return "the target is of tokens" if isinstance(target, TokenTarget) else ""


def room_for(tokens: int) -> int:
    """More than so many tokens, by at most an eighth: eight sizes per doubling.

    >>> room_for(1000), room_for(1023), room_for(1024)
    (1024, 1024, 1152)
    """
    step = max(64, (1 << tokens.bit_length()) >> 4)
    return (tokens // step + 1) * step


def _words(lengths: tuple[int, ...], size: StepSize, dropout: bool, learning_rate: float, weight: float) -> ndarray:
    """What the host computes for a step, see `Buffers.words`; seeds are drawn as the encoder draws them."""
    words = np.zeros(4 * size.blocks + 2, dtype=np.int32)
    counts = words[:-2].reshape(-1, 4)
    depths = np.array([depth(n) for n in lengths])
    counts[:, 1] = (depths[:, None] > np.arange(size.blocks)).sum(0)
    counts[:, 0] = np.cumsum(lengths)[counts[:, 1] - 1]
    counts[0, :2] = size.tokens, size.sequences + 1  # the filler passes this block, too
    if dropout:
        counts[:, 2] = torch.randint(1 << 31, (size.blocks,)).numpy()
    words[-2:].view(np.float32)[:] = learning_rate, weight
    return words
