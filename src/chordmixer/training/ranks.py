"""Devices, precision and ranks, through Accelerate; processes that were restarted meet again."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from torch import distributed

from chordmixer.data import Loader, TokenSampler
from chordmixer.data.loading import Records
from chordmixer.training.experiment import TrainingConfig

T = TypeVar("T")


def start(config: TrainingConfig) -> Accelerator:
    """The devices and ranks of a run, as its settings and its launcher (torchrun, accelerate) have them."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no GPU: use --device auto or cpu")
    if not distributed.is_initialized():  # an earlier run of this process may have had other settings
        AcceleratorState._reset_state(reset_partial_state=True)
        _meet(config)
    several = os.environ.get("WORLD_SIZE", "1") != "1"  # without a GPU, Accelerate forgets the others unless told
    return Accelerator(
        cpu=config.device == "cpu" or (several and not torch.cuda.is_available()),
        mixed_precision="bf16" if config.precision == "bf16" else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )


def greatest(accelerator: Accelerator, number: int) -> int:
    """Of the numbers of all ranks, on every rank."""
    if accelerator.num_processes == 1:
        return number
    return int(accelerator.gather(torch.tensor([number], device=accelerator.device)).max())


def decided(accelerator: Accelerator, decide: Callable[[], T]) -> T:
    """What the first rank decides, on every rank. Where it fails all of them end, and it alone says why."""
    outcome, error = None, None
    if accelerator.is_main_process:
        try:
            outcome = decide()
        except Exception as failed:
            error = failed
    (failed_there, told) = broadcast_object_list([error is not None, outcome])
    if error is not None:
        raise error
    if failed_there:
        raise SystemExit(2)
    return told


def _meet(config: TrainingConfig) -> None:
    """Meet the other ranks of this machine under a name of this life's own.

    torchrun keeps one store for all restarts, in which the addresses of dead processes stand (pytorch issue 135712).
    """
    ranks, here = os.environ.get("WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE")
    if ranks == "1" or ranks != here or "TORCHELASTIC_RESTART_COUNT" not in os.environ:
        return
    store, rank, size = next(distributed.rendezvous("env://"))
    store = distributed.PrefixStore(f"life-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    backend = "nccl" if config.device != "cpu" and torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)


def loader(training: Records, config: TrainingConfig, accelerator: Accelerator) -> Loader:
    """This rank's share of the training batches, on its device."""
    sampler = TokenSampler(
        training.lengths,
        config.tokens_for(training.lengths),
        config.batch_sequences,
        seed=config.seed,
        rank=accelerator.process_index,
        ranks=accelerator.num_processes,
    )
    return Loader(training, sampler, config.workers, accelerator.device, drawing=True)
