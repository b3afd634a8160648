"""Ranks: the processes of one run that torchrun or accelerate has started. How they meet, agree, add up and fail.

A rank is known by the launcher's environment variables (`RANK`, `WORLD_SIZE`). With one process nothing is started.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
from torch import Tensor, distributed
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from chordmixer.terminal import first_rank, rank_count

T = TypeVar("T")

TIMEOUT = timedelta(hours=2)
"""Longest wait for another rank, which may be reading files or fitting baselines. A death is noticed at once."""
FAILING = timedelta(seconds=20)
"""Longest wait of a rank that fails before it has met the others."""
POLL_SECONDS = 0.02
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed")
"""Words of gloo's errors when another rank has ended."""

_store: Store | None = None
"""Shared by the ranks once they have met."""


# --- Meeting ---


def join() -> None:
    """Join the other ranks, if there are any and this process has not."""
    global _store
    if rank_count() == 1 or distributed.is_initialized():
        return
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local < gpus:
        torch.cuda.set_device(local)
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    _store = PrefixStore(_meeting_name(store, rank, size), store)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"  # objects travel by the CPU, without a wait for the device
    distributed.init_process_group(backend, store=_store, rank=rank, world_size=size, timeout=TIMEOUT)
    atexit.register(_leave)


def _leave() -> None:
    """End the threads of the group, which otherwise may abort the process as it exits."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def end_rank(code: str | int | None) -> None:
    """End this process, if it is one of several ranks, without what the interpreter does at its own end.

    There a thread that a library left sometimes aborts the process: about one of 60 ranks did with torch 2.13 and
    gloo, and torchrun takes that for a failure.
    """
    if not distributed.is_initialized():
        return
    _leave()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _meeting_name(store: Store, rank: int, size: int) -> str:
    """A name that the first rank draws for this start, on every rank.

    torchrun keeps one store for all restarts, with the addresses of dead processes (pytorch issue 135712), and counts
    restarts on each machine by itself. The first rank therefore answers every visitor that it finds in the store,
    dead or alive, until each rank has confirmed the new name.
    """
    own = uuid4().hex
    store.set(f"visitor/{rank}", own)
    if rank > 0:
        name: str = store.get(f"answer/{own}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
        return name
    missing, deadline = set(range(1, size)), time.monotonic() + TIMEOUT.total_seconds()
    while missing:
        here = [other for other in missing if store.check([f"visitor/{other}"])]
        for other in here:
            store.set(f"answer/{store.get(f'visitor/{other}').decode()}", own)
        missing -= {other for other in here if store.check([f"confirmed/{own}/{other}"])}
        if time.monotonic() > deadline:
            raise ValueError(f"ranks {sorted(missing)} of {size} did not start within {TIMEOUT}: see their output")
        time.sleep(POLL_SECONDS)
    return own


def own() -> int:
    """The number of this rank; 0 where there is one."""
    return distributed.get_rank() if distributed.is_initialized() else 0


# --- Agreeing and adding up ---


def from_main_rank(decide: Callable[[], T]) -> T:
    """The result of `decide` on the main rank, on every rank. An error there ends all ranks, and is shown once."""
    if rank_count() == 1:
        return decide()
    join()
    told: list[Any] = [False, None]
    error: Exception | None = None
    if first_rank():
        try:
            told = [True, decide()]
        except Exception as failed:
            error = failed
    distributed.broadcast_object_list(told, src=0)
    if error is not None:
        raise error
    if not told[0]:
        raise SystemExit(2)
    value: T = told[1]
    return value


def maximum(number: int) -> int:
    """The largest of the numbers of all ranks, on every rank; nothing waits for a GPU."""
    if not distributed.is_initialized():
        return number
    found = torch.tensor(number)
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return int(found)


def total(values: Tensor) -> Tensor:
    """The sum over all ranks, on every rank, with its gradient."""
    if not distributed.is_initialized():
        return values
    summed: Tensor = _Total.apply(values)
    return summed


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        summed = values.detach().clone()
        distributed.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return total(gradient.contiguous())


def gathered(thing: T) -> list[T]:
    """The things of all ranks, in the ranks' order, on the main rank; elsewhere nothing."""
    if not distributed.is_initialized():
        return [thing]
    found: list[Any] | None = [None] * distributed.get_world_size() if first_rank() else None
    distributed.gather_object(thing, found)
    return found or []


def gathered_everywhere(thing: T) -> list[T]:
    """The things of all ranks, in the ranks' order, on every rank."""
    if not distributed.is_initialized():
        return [thing]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, thing)
    return found


# --- Failing ---


def first_to_fail() -> bool:
    """Whether no other rank has failed before this one: only the first prints why."""
    if rank_count() == 1:
        return True
    try:
        store = _store or next(rendezvous("env://", timeout=FAILING))[0]
        return int(store.add(f"failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", 1)) == 1
    except (RuntimeError, ValueError):  # whoever held the store is gone
        return first_rank()


def is_lost(error: Exception) -> bool:
    """Whether the error says that another rank has ended."""
    return isinstance(error, distributed.DistError) or any(words in str(error) for words in LOST)
