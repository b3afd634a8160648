"""How many CPU threads torch computes with: the number that a short measurement finds to be fastest here.

More threads are not always faster: beside other programs, or on short sequences, each of thousands of small parallel
regions waits for a thread that has no core. Sums depend on the number of threads in their last bits, so a run keeps
the number that it began with (`checkpoints.State.threads`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor

from chordmixer.models.model import Model, ModelConfig
from chordmixer.packed import Packed

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Of the environment: where one is set, nothing is measured."""
FEWER = 1.1
"""Fewer threads are taken unless more are this many times as fast."""
TIMES, SECONDS = 3, 2.0
"""Measurements of each number of threads; no further round begins after so many seconds."""
TOKENS, LENGTH = 8_000, 500
"""Of a measured batch at most, and of each made-up record where a trained model is measured."""


class ThreadChoice(NamedTuple):
    """How many threads, of how many, and why."""

    threads: int
    """0: none were chosen, as on a GPU."""
    most: int
    """What torch takes by itself."""
    why: str = ""
    """In words; empty: there was nothing to choose."""

    @property
    def line(self) -> str:
        """What a user is told; empty where there was nothing to choose.

        >>> ThreadChoice(1, 2, "measured 2.1 times as fast as 2").line
        'threads: 1 of 2, measured 2.1 times as fast as 2'
        """
        return f"threads: {self.threads} of {self.most}, {self.why}" if self.why else ""


_chosen: ThreadChoice | None = None
"""What this process computes with by our choice."""


def choose(take: Callable[[], float], kept: int = 0) -> ThreadChoice:
    """Choose the number of threads and set it; `take` does some work as it will be done, and tells the seconds.

    A number that a run has `kept` is used again. One that the user has set stays: by the environment, by
    `torch.set_num_threads`, or by a launcher of several processes.
    """
    most = _most()
    if most is None or most == 1:
        now = torch.get_num_threads()
        changed = f"as set; the run had {kept} so far, so that its last digits may differ" if kept != now else ""
        return ThreadChoice(now, now, changed if kept else "")
    if 0 < kept <= most:
        return _adopt(ThreadChoice(kept, most, "as this run began"))
    seconds = _measured(take, sorted({1, max(1, most // 2), most}))
    best = min(seconds.values())
    threads = next(n for n, own in seconds.items() if own <= FEWER * best)
    other = most if threads < most else 1
    ratio = seconds[other] / seconds[threads]
    speed = f"{ratio:.1f} times as fast as" if ratio >= 1.05 else "as fast as"
    return _adopt(ThreadChoice(threads, most, f"measured {speed} {other}"))


def choose_for_answers(model: Model) -> ThreadChoice:
    """Choose for a trained model that is to answer, by its forward pass; on a GPU nothing is chosen."""
    if next(model.parameters()).device.type != "cpu":
        return ThreadChoice(0, 0)
    length = min(LENGTH, model.config.network.max_length)
    inputs = made_up(
        model.config, [length] * max(2, TOKENS // length // 2 * 2)
    )  # a head of pairs takes two at a time

    def take() -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            model(inputs)
        return time.perf_counter() - start

    return choose(take)


def keep(threads: int) -> None:
    """Go on with the number of threads that an earlier process has begun with, as far as there are so many."""
    most = _most()
    if most is not None and 0 < threads <= most:
        _adopt(ThreadChoice(threads, most, "as before"))


def line() -> str:
    """What a user is told of the number in use; empty where nothing was chosen."""
    return _chosen.line if _chosen is not None and _chosen.threads == torch.get_num_threads() else ""


def made_up(config: ModelConfig, lengths: Sequence[int]) -> Packed:
    """Random inputs of a model, of sequences of these lengths; the random state stays as it was."""
    tokens = sum(lengths)
    with torch.random.fork_rng([]):
        values: Tensor = (
            torch.randint(config.inputs, (tokens,))
            if config.embedding == "tokens"
            else torch.randn(tokens, config.inputs)
        )
    return Packed.from_lengths(values, lengths)


def _most() -> int | None:
    """The threads that torch would take by itself; None: someone else has decided."""
    now = torch.get_num_threads()
    if any(os.environ.get(name) for name in VARIABLES) or os.environ.get("WORLD_SIZE", "1") != "1":
        return None
    if _chosen is not None and _chosen.threads == now:
        return _chosen.most
    return now if now in _cores() else None


def _cores() -> set[int]:
    """Logical and physical ones, and those that this process may use: torch's own numbers."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return {os.cpu_count() or 1, psutil.cpu_count(logical=False) or 1, able}


def _measured(take: Callable[[], float], numbers: Sequence[int]) -> dict[int, float]:
    """The median seconds with each number of threads; they take turns, since other programs come and go."""
    seconds: dict[int, list[float]] = {n: [] for n in numbers}
    for turn in range(TIMES + 1):
        for n, own in seconds.items():
            torch.set_num_threads(n)
            taken = take()
            own += [taken] if turn else []  # the first loads libraries
        if turn and sum(map(sum, seconds.values())) > SECONDS:
            break
    return {n: median(own) for n, own in seconds.items()}


def _adopt(choice: ThreadChoice) -> ThreadChoice:
    global _chosen
    torch.set_num_threads(choice.threads)
    _chosen = choice
    return choice
