"""The Long Range Arena (Tay et al., 2021): data that a rule makes or a release holds, made once and memory-mapped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from chordmixer import files, terminal
from chordmixer.data.gathering import default_cache
from chordmixer.data.records import Record
from chordmixer.packed import Packed
from chordmixer.paper.lra.processes import Processes, cores, travels

VALUES, LENGTHS, TARGETS = "values.bin", "lengths.npy", "targets.npy"
KIND = "lra-"
"""In the names of folders that are being written."""
RELEASE = "lra_release.gz of github.com/google-research/long-range-arena"
WORTH = 80.0
"""Seconds of work for one core, times the cores, from which on it is done in processes. Each needs 2 to 3 seconds to
start, which ListOps in threads on two cores does not lose; the more threads there are, the more they wait."""
QUIET = 5.0
"""Seconds before a bar is shown."""

Part = tuple[ndarray, ndarray, ndarray]
"""Bytes end to end, a length each, a class each."""


class BytesRecords:
    """Sequences of one byte a step: token ids, or grey values that are read as one real channel from 0 to 1."""

    def __init__(self, folder: Path, split: str, real: bool) -> None:
        """Of a folder that `made_once` gave."""
        self.folder, self.split, self.real = folder, split, real
        lengths = np.load(folder / LENGTHS)
        self.lengths: list[int] = lengths.tolist()
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.targets = torch.from_numpy(np.load(folder / TARGETS))
        self.values = np.asarray(np.memmap(folder / VALUES, np.uint8, mode="r"))
        if len(self.values) != self.offsets[-1]:
            raise ValueError(
                f"{folder / VALUES} has {len(self.values):,} bytes of {self.offsets[-1]:,}: it is torn; delete its "
                "folder, and it is made anew"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        return Record(self._read(torch.from_numpy(self._bytes(index).copy())), self.targets[index])

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """Travels as bytes and becomes real numbers, where it does, on the device."""
        values = torch.from_numpy(np.concatenate([self._bytes(i) for i in indices])).to(device)
        targets = self.targets[torch.tensor(indices)].to(device, non_blocking=True)
        return Packed.from_lengths(self._read(values), [self.lengths[i] for i in indices]), targets

    def name(self, index: int) -> str:
        return f"{self.split}-{index}"

    def __reduce__(self) -> tuple[type[BytesRecords], tuple[Path, str, bool]]:
        return BytesRecords, (self.folder, self.split, self.real)

    def _bytes(self, index: int) -> ndarray:
        view: ndarray = self.values[self.offsets[index] : self.offsets[index + 1]]
        return view

    def _read(self, values: Tensor) -> Tensor:
        return values.float().div_(255).unsqueeze(1) if self.real else values


def made_once(cache: str | None, name: str, what: Iterable[Any], parts: Callable[[], Iterator[Part]]) -> Path:
    """The folder of these data: found in the cache, or written there part by part.

    `what` says all that the data follow from; two processes may write the same at once, and one puts it in place.
    """
    digest = blake2b("\x1f".join(map(repr, what)).encode(), digest_size=8).hexdigest()
    folder = (Path(cache).expanduser() if cache else default_cache().with_name("lra")) / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    with files.explaining_no_room(folder, "more", ""):
        folder.parent.mkdir(parents=True, exist_ok=True)
        files.sweep(folder.parent, KIND)
        with files.temporary_folder(folder.parent, KIND) as new:
            _write(new, parts())
            try:
                new.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder


def in_chunks(make: Callable[[ndarray], Part], count: int, chunk: int) -> Iterator[Part]:
    """Numbers 0 to count - 1 through `make`, some at a time, in order, on all cores; on a terminal, with a bar.

    The first chunk is made here and timed. The others are made in threads; or in processes, where that is worth their
    start and they can find `make`.
    """
    chunks = [np.arange(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    workers = max(1, min(cores(), len(chunks) - 1))
    waiting: deque[Future[Part]] = deque()
    with _bar(count) as passed:
        began = time.thread_time()  # of the processor: on a busy machine, time says nothing of the work
        first = [make(own) for own in chunks[:1]]
        seconds = (time.thread_time() - began) * (len(chunks) - 1)
        yield from map(passed, first)
        apart = workers > 1 and seconds * workers > WORTH and travels(make)
        pool = Processes(workers) if apart else ThreadPoolExecutor(workers)
        try:
            for own in chunks[1:]:
                waiting.append(pool.submit(make, own))
                if len(waiting) == 4 * workers:  # not all at once: parts wait in memory to be written
                    yield passed(waiting.popleft().result())
            while waiting:
                yield passed(waiting.popleft().result())
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _bar(count: int) -> Iterator[Callable[[Part], Part]]:
    """A function to pass parts through; on a terminal it shows how far they are, once some seconds have gone."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console, began = terminal.console(stderr=True), time.monotonic()
    columns = ("making data", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "left")
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_interactive)
    line = bar.add_task("", total=count)

    def passed(part: Part) -> Part:
        bar.advance(line, len(part[1]))
        if time.monotonic() - began > QUIET:
            bar.start()
        return part

    try:
        yield passed
    finally:
        bar.stop()


def _write(folder: Path, parts: Iterator[Part]) -> None:
    lengths, targets = [], []
    with (folder / VALUES).open("xb") as file, closing(parts) if isinstance(parts, Generator) else nullcontext():
        for values, own_lengths, own_targets in parts:
            file.write(np.ascontiguousarray(values, dtype=np.uint8).data)
            lengths.append(own_lengths)
            targets.append(own_targets)
    np.save(folder / LENGTHS, np.concatenate(lengths).astype(np.int64))
    np.save(folder / TARGETS, np.concatenate(targets).astype(np.int64))
    for name in (VALUES, LENGTHS, TARGETS):
        files.flush(folder / name)
