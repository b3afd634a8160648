"""Ranks, the processes of a run started by torchrun or accelerate: process group, collective operations, failures.

The launcher's environment variables (`RANK`, `WORLD_SIZE`) identify a rank. A single process has no process group.
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
"""Maximum wait for another rank, which may be reading files or fitting baselines. Dead ranks are noticed at once."""
FAILURE_TIMEOUT = timedelta(seconds=20)
"""Maximum wait for the store of a rank that fails before it has joined the group."""
POLL_SECONDS = 0.02
LOST_MESSAGES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed")
"""Parts of gloo's error messages when another rank has ended."""

_store: Store | None = None
"""The store of the process group, once this rank has joined it."""


# --- Process group ---


def join() -> None:
    """Join the process group, if there are several ranks and this one has not joined yet."""
    global _store
    if rank_count() == 1 or distributed.is_initialized():
        return
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local < gpus:
        torch.cuda.set_device(local)
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    _store = PrefixStore(_group_name(store, rank, size), store)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"  # objects are sent by gloo, without a wait for the device
    distributed.init_process_group(backend, store=_store, rank=rank, world_size=size, timeout=TIMEOUT)
    atexit.register(_leave)


def _leave() -> None:
    """End the threads of the process group, which may otherwise abort the process at exit."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def end_rank(code: str | int | None) -> None:
    """End this process, if it is one of several ranks, without the interpreter's shutdown.

    During the shutdown a thread of a library sometimes aborts the process, which torchrun takes for a failure: about
    one in 60 ranks did with torch 2.13 and gloo.
    """
    if not distributed.is_initialized():
        return
    _leave()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _group_name(store: Store, rank: int, size: int) -> str:
    """A name for the group of this start, drawn by the first rank and the same on every rank.

    torchrun keeps one store for all restarts, with the addresses of dead processes (pytorch issue 135712), and each
    machine counts its restarts separately. The first rank therefore answers every id in the store, of dead and living
    processes, until each rank has confirmed the new name.
    """
    process_id = uuid4().hex
    store.set(f"visitor/{rank}", process_id)
    if rank > 0:
        name: str = store.get(f"answer/{process_id}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
        return name
    missing, deadline = set(range(1, size)), time.monotonic() + TIMEOUT.total_seconds()
    while missing:
        waiting = [other for other in missing if store.check([f"visitor/{other}"])]
        for other in waiting:
            store.set(f"answer/{store.get(f'visitor/{other}').decode()}", process_id)
        missing -= {other for other in waiting if store.check([f"confirmed/{process_id}/{other}"])}
        if time.monotonic() > deadline:
            raise ValueError(f"ranks {sorted(missing)} of {size} did not start within {TIMEOUT}: see their output")
        time.sleep(POLL_SECONDS)
    return process_id


def this_rank() -> int:
    """The number of this rank; 0 if there is only one."""
    return distributed.get_rank() if distributed.is_initialized() else 0


# --- Collective operations ---


def from_main_rank(decide: Callable[[], T]) -> T:
    """Call `decide` on the main rank and return its result on every rank. An error ends all ranks, shown once."""
    if rank_count() == 1:
        return decide()
    join()
    message: list[Any] = [False, None]
    error: Exception | None = None
    if first_rank():
        try:
            message = [True, decide()]
        except Exception as failed:
            error = failed
    distributed.broadcast_object_list(message, src=0)
    if error is not None:
        raise error
    if not message[0]:
        raise SystemExit(2)
    value: T = message[1]
    return value


def maximum(number: int) -> int:
    """The maximum over all ranks, on every rank, without a wait for the GPU."""
    if not distributed.is_initialized():
        return number
    largest = torch.tensor(number)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    return int(largest)


def total(values: Tensor) -> Tensor:
    """The differentiable sum over all ranks, on every rank."""
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


def gather(value: T) -> list[T]:
    """The values of all ranks, in the order of ranks, on the main rank; an empty list on the others."""
    if not distributed.is_initialized():
        return [value]
    values: list[Any] | None = [None] * distributed.get_world_size() if first_rank() else None
    distributed.gather_object(value, values)
    return values or []


def all_gather(value: T) -> list[T]:
    """The values of all ranks, in the order of ranks, on every rank."""
    if not distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


# --- Failures ---


def first_to_fail() -> bool:
    """Whether no other rank has failed before this one; only the first one prints its error."""
    if rank_count() == 1:
        return True
    try:
        store = _store or next(rendezvous("env://", timeout=FAILURE_TIMEOUT))[0]
        return int(store.add(f"failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", 1)) == 1
    except (RuntimeError, ValueError):  # the process that held the store has ended
        return first_rank()


def is_lost(error: Exception) -> bool:
    """Whether the error says that another rank has ended."""
    return isinstance(error, distributed.DistError) or any(words in str(error) for words in LOST_MESSAGES)
