"""Training steps as CUDA graphs: the host launches a whole step with one call, so that the GPU never waits for it.

A step on short sequences is hundreds of small kernels, which the host launches more slowly than the GPU runs them. A
graph launches all of them at once, but always on the same tensors of the same sizes: batches are therefore copied
into buffers whose size is rounded up, and the rest of a buffer is a filler sequence without any effect
(`StaticPacked`). Optimiser, clipping and EMA are part of the graph.

The first step of a size runs the same operations without a graph, since kernels are compiled in it; the second is
recorded, and all later ones are replayed. Before the first graph of a run is recorded, one step has to prove that
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

LARGE_BATCH = 1 << 26
"""Tokens times channels of a batch from which the GPU takes longer than the host, so that a graph gains nothing."""
MAX_SIZES = 64
"""Maximum number of batch sizes with a graph; each costs memory."""


class StepSize(NamedTuple):
    """The rounded size of a batch; batches of the same size share a graph."""

    tokens: int
    """Tokens that the buffer holds, including the filler."""
    sequences: int
    blocks: int
    """Blocks that the longest sequence passes."""


@dataclass
class Buffers:
    """The tensors of a graph."""

    values: Shaped[Tensor, "T *C"]
    offsets: Int[Tensor, "B+2"]
    targets: Shaped[Tensor, "B *K"]
    weights: Float[Tensor, "B"] | None
    """Weights of the records in the loss."""
    host_values: Int[Tensor, "W"]
    """Values that the host computes for a step, 32 bits each: counts, then learning rate and EMA weight."""
    result: Float[Tensor, "2"] | None = None
    graph: torch.cuda.CUDAGraph | None = field(default=None, repr=False)

    @property
    def counts(self) -> Int[Tensor, "D 4"]:
        return self.host_values[:-2].view(-1, 4)

    @property
    def rates(self) -> Float[Tensor, "2"]:
        return self.host_values[-2:].view(torch.float32)

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

    def fill(self, batch: Batch, host_values: ndarray) -> None:
        """Copy a batch into the buffers, without a wait for the device."""
        tokens = batch.inputs.tokens
        self.values[:tokens].copy_(batch.inputs.values)
        self.values[tokens:].zero_()
        self.offsets[:-1].copy_(batch.inputs.offsets)
        self.targets.copy_(batch.targets)
        if self.weights is not None and batch.weights is not None:
            self.weights.copy_(batch.weights)
        host = torch.from_numpy(host_values)
        self.host_values.copy_(host.pin_memory() if self.host_values.is_cuda else host, non_blocking=True)


class CapturedSteps:
    """Takes the steps of a training run on one GPU as CUDA graphs, where that is possible."""

    def __init__(
        self, model: Model, wrapped: Callable[[Packed], Tensor], target: Any, optimiser: Optimiser, ema: Ema | None
    ) -> None:
        """`wrapped` is the model as the run calls it, with or without autocast; `target` computes the losses."""
        self.model, self.wrapped, self.target, self.optimiser, self.ema = model, wrapped, target, optimiser, ema
        self.buffers: dict[StepSize, Buffers] = {}
        self.stream: torch.cuda.Stream | None = None
        """The stream on which graphs are recorded."""
        self.stepped = False
        """Whether the current step has reached the optimiser."""
        self.proven = False
        """Whether a step has run in which nothing waited for the device; a wait would ruin a graph and the run."""
        self.reason = _why_not(model, target)
        """Why steps are not taken as graphs; empty if they are."""
        if self.reason:
            logger.debug(f"training steps are not CUDA graphs: {self.reason}")

    def step(self, batch: Batch, learning_rate: float, number: int) -> Float[Tensor, "2"] | None:
        """Take the step with this number, counted from 1, for which the generators are already seeded.

        Returns the loss and the gradient norm as the optimiser does, or None if the caller has to take the step.
        """
        size = self._size(batch)
        if size is None or (size not in self.buffers and len(self.buffers) >= MAX_SIZES):
            return None
        new = size not in self.buffers
        buffers = self.buffers.setdefault(size, Buffers.like(batch, size) if new else self.buffers[size])
        weight = self.ema.weight(number) if self.ema else 0.0
        buffers.fill(batch, _host_values(batch.inputs.lengths, size, self._dropout, learning_rate, weight))
        self.stepped, eager = False, new or not self.proven or not buffers.values.is_cuda
        try:
            if eager:
                return self._take(buffers) if new or not buffers.values.is_cuda else self._prove(buffers)
            if buffers.graph is None:
                self._record(buffers, size)
        except (LengthsUnknownError, RuntimeError) as error:  # RuntimeError: a wait for the device, or out of memory
            if eager and self.stepped:  # weights may have changed; recording alone changes nothing
                raise
            self.stop(str(error).splitlines()[0])
            return None
        return self._replayed(buffers)

    def _size(self, batch: Batch) -> StepSize | None:
        """The size to which a batch is rounded up; None if a graph is no faster, or impossible."""
        tokens, depths = batch.inputs.tokens, [depth(n) for n in batch.inputs.lengths]
        if self.reason or tokens * self.model.config.network.width >= LARGE_BATCH:
            return None
        if any(a < b for a, b in pairwise(depths)):
            return None
        return StepSize(buffer_tokens(tokens), len(depths), depths[0])

    @property
    def _dropout(self) -> bool:
        return bool(self.model.config.network.dropout)

    def stop(self, reason: str) -> None:
        """Stop taking steps as graphs, for this reason, and free the memory of the graphs."""
        self.reason = reason
        logger.debug(f"training steps are not CUDA graphs from here on: {reason}")
        self._forget_graphs()
        self.buffers.clear()
        self.optimiser.adam.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            with suppress(RuntimeError):  # raised for the memory of a graph whose recording failed
                torch.cuda.empty_cache()

    def _prove(self, buffers: Buffers) -> Float[Tensor, "2"]:
        """Take a step in which waiting for the device is an error."""
        before = torch.cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings():  # torch warns that this mode is a prototype
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
        for buffers in self.buffers.values():
            buffers.graph = buffers.result = None

    def _record(self, buffers: Buffers, size: StepSize) -> None:
        """Record the graph of a step.

        Graphs share a memory pool, into which a graph fits if a larger one was recorded before it. Before the largest
        graph is recorded, all others are dropped; they are recorded again when they are needed.
        """
        recorded = {other: filled.graph for other, filled in self.buffers.items() if filled.graph}
        if recorded and size.tokens > max(other.tokens for other in recorded):
            recorded.clear()
            self._forget_graphs()
            torch.cuda.empty_cache()
        self.stream = self.stream or torch.cuda.Stream()  # each stream has its own memory pool
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            graph.capture_begin(
                pool=next((other.pool() for other in recorded.values()), None), capture_error_mode="thread_local"
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
        return buffers.result.clone()  # the next replay overwrites the graph's own tensor

    def _take(self, buffers: Buffers) -> Float[Tensor, "2"]:
        """Run the operations of a step."""
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
    """Whether the settings of a run allow CUDA graphs."""
    return (
        config.cuda_graphs and device.type == "cuda" and ranks == 1 and config.accumulate == 1 and not config.freeze
    )


def _why_not(model: Model, target: Any) -> str:
    """The part of a model or target that does not support static shapes; empty if there is none."""
    encoder = model.encoder
    if not isinstance(encoder, ChordMixer) or encoder.config.hidden > ops.FUSED_HIDDEN or encoder.config.reversible:
        return f"the encoder is no chordmixer of at most {ops.FUSED_HIDDEN} hidden units, or a reversible one"
    if not isinstance(model.head, AverageHead) or model.config.strategy != "packed" or model.decoder:
        return f"the head is {model.config.head}, with strategy={model.config.strategy}"
    return "the target is of tokens" if isinstance(target, TokenTarget) else ""


def buffer_tokens(tokens: int) -> int:
    """The size of a buffer for so many tokens and a filler, at most an eighth larger: eight sizes per doubling.

    >>> buffer_tokens(1000), buffer_tokens(1023), buffer_tokens(1024)
    (1024, 1024, 1152)
    """
    step = max(64, (1 << tokens.bit_length()) >> 4)
    return (tokens // step + 1) * step


def _host_values(
    lengths: tuple[int, ...], size: StepSize, dropout: bool, learning_rate: float, weight: float
) -> ndarray:
    """`Buffers.host_values` for a step; dropout seeds are drawn as the encoder draws them."""
    values = np.zeros(4 * size.blocks + 2, dtype=np.int32)
    counts = values[:-2].reshape(-1, 4)
    depths = np.array([depth(n) for n in lengths])
    counts[:, 1] = (depths[:, None] > np.arange(size.blocks)).sum(0)
    counts[:, 0] = np.cumsum(lengths)[counts[:, 1] - 1]
    counts[0, :2] = size.tokens, size.sequences + 1  # the filler passes the first block too
    if dropout:
        counts[:, 2] = torch.randint(1 << 31, (size.blocks,)).numpy()
    values[-2:].view(np.float32)[:] = learning_rate, weight
    return values
