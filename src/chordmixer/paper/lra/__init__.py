"""The Long Range Arena (Tay et al., 2021): records of one byte a step, made by a rule or read from a release.

Data are made or read once, kept as bytes in the cache folder, and memory-mapped. Of releases with an official test
part, which training records are held out for validation, and where a text is cut, is decided when they are loaded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from chordmixer import files, terminal
from chordmixer.data.columns import SPLITS
from chordmixer.data.leakage import copies, digests
from chordmixer.data.loading import Record
from chordmixer.data.splits import grouped
from chordmixer.data.store_cache import cache_folder
from chordmixer.packed import Packed
from chordmixer.paper.subprocesses import ProcessPool, cores, importable

VALUES, LENGTHS, TARGETS = "values.bin", "lengths.npy", "targets.npy"
KIND = "lra-"  # in the names of folders that are being written
RELEASE = "lra_release.gz of github.com/google-research/long-range-arena"
WORTH = 80.0
"""Seconds of work for one core, times the cores, from which on it is done in processes. Each needs 2 to 3 seconds to
start, which ListOps in threads on two cores does not lose; the more threads there are, the more they wait."""
QUIET = 5.0  # seconds before a bar is shown
PARTS = ("training", "test")
FORMAT = 1  # of the data of releases as they are kept: another way to read them is another number

Part = tuple[ndarray, ndarray, ndarray]
"""Bytes end to end, a length each, a class each."""


class ArenaTask:
    """What the tasks of the Arena share: nothing of their data is kept in a run folder."""

    complement = None
    keeps_validation = False

    def documents(self) -> dict[str, dict[str, Any]]:
        return {}


class BytesRecords:
    """Sequences of one byte a step: token ids, or grey values that are read as one real channel from 0 to 1.

    They are those of a folder that `made_once` gave; or some of them, by `indices`, cut at `longest` bytes.
    """

    def __init__(
        self, folder: Path, split: str, real: bool, indices: ndarray | None = None, longest: int | None = None
    ) -> None:
        self.folder, self.split, self.real = folder, split, real
        self.arguments = (folder, split, real, indices, longest)
        lengths, targets = np.load(folder / LENGTHS), np.load(folder / TARGETS)
        self.values = np.asarray(np.memmap(folder / VALUES, np.uint8, mode="r"))
        if len(self.values) != lengths.sum():
            raise ValueError(
                f"{folder / VALUES} has {len(self.values):,} bytes of {lengths.sum():,}: it is torn; delete its "
                "folder, and it is made anew"
            )
        self.indices = np.arange(len(lengths)) if indices is None else indices
        self.starts, whole = (np.cumsum(lengths) - lengths)[self.indices], lengths[self.indices]
        self.targets = torch.from_numpy(targets if indices is None else targets[indices])
        self.lengths: list[int] = np.minimum(whole, longest or whole.max()).tolist()
        self.cut = int((whole > self.lengths).sum())
        """How many are not whole."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        return Record(self._read(torch.from_numpy(self.bytes(index).copy())), self.targets[index])

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """Travels as bytes and becomes real numbers, where it does, on the device."""
        values = torch.from_numpy(np.concatenate([self.bytes(i) for i in indices])).to(device)
        targets = self.targets[torch.tensor(indices)].to(device, non_blocking=True)
        return Packed.from_lengths(self._read(values), [self.lengths[i] for i in indices]), targets

    def name(self, index: int) -> str:
        """The number in the part that it was read from: validation records may be `training-7` too."""
        return f"{self.split}-{self.indices[index]}"

    def __reduce__(self) -> tuple[type[BytesRecords], tuple[Any, ...]]:
        return BytesRecords, self.arguments

    def bytes(self, index: int) -> ndarray:
        view: ndarray = self.values[self.starts[index] : self.starts[index] + self.lengths[index]]
        return view

    def _read(self, values: Tensor) -> Tensor:
        return values.float().div_(255).unsqueeze(1) if self.real else values


def file_state(path: Path) -> tuple[str, int, int]:
    """What tells one state of a file from another."""
    state = path.stat()
    return str(path.absolute()), state.st_size, state.st_mtime_ns


def made_once(cache: str | None, name: str, what: Iterable[Any], parts: Callable[[], Iterator[Part]]) -> Path:
    """The folder of these data: found in the cache, or written there part by part.

    `what` says all that the data follow from; two processes may write the same at once, and one puts it in place.
    """
    digest = blake2b("\x1f".join(map(repr, what)).encode(), digest_size=8).hexdigest()
    folder = (Path(cache).expanduser() if cache else cache_folder().with_name("lra")) / f"{name}-{digest}"
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
        apart = workers > 1 and seconds * workers > WORTH and importable(make)
        pool = ProcessPool(workers) if apart else ThreadPoolExecutor(workers)
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


# --- Releases with an official test part ---


class ReleaseLayout(NamedTuple):
    """How a user keeps a data set."""

    place: Path  # for messages
    files: list[Path]  # all that is read, so that a change is seen
    read: Callable[[str], Iterator[Part]]  # the records of `training` or of `test`


class ReleaseTask(ArenaTask):
    """A task whose records come from a release; its validation records are drawn from the training part."""

    name: str
    labels: tuple[str, ...]
    cure: str  # the end of an error
    embedding: str
    max_length: int

    def __init__(self, config: Any, layout: Callable[[str | None], ReleaseLayout]) -> None:
        """`layout` tells how the release lies at `config.source` by what is found."""
        self.config, self.layout = config, layout

    @cached_property
    def folders(self) -> dict[str, Path]:
        """Of the official parts, uncut."""
        return read_once(self.layout(self.config.source), self.config.cache, self.name, self.labels, self.cure)

    def records(self, split: str) -> BytesRecords:
        own, real = self.config, self.embedding == "real"
        return chosen(self.folders, split, own.validation, own.seed, real=real, longest=self.max_length)


def read_once(
    layout: ReleaseLayout, cache: str | None, name: str, labels: Sequence[str], cure: str
) -> dict[str, Path]:
    """The folder of each official part: found in the cache, or read from the files; `cure` ends an error."""
    states = [file_state(path) for path in layout.files]
    return {
        part: made_once(cache, name, (FORMAT, part, states), partial(_whole, layout, part, labels, cure))
        for part in PARTS
    }


def chosen(
    folders: Mapping[str, Path], split: str, validation: int, seed: int, *, real: bool, longest: int
) -> BytesRecords:
    """The records of `training`, `validation` or `test`, of what `read_once` gave.

    Validation is drawn from the official training part by the seed, classes in proportion; of records that are there
    twice, both are on one side.
    """
    if split == "test":
        return BytesRecords(folders["test"], "test", real, longest=longest)
    whole = BytesRecords(folders["training"], "training", real=False)
    if validation >= len(whole):
        raise ValueError(
            f"validation={validation:,} of {len(whole):,} training records leaves none to train on: give fewer"
        )
    same = copies(digests(np.split(whole.values, whole.starts[1:]), canonical=False))
    share = validation / len(whole)
    kept, held = grouped(same.tolist(), whole.targets.tolist(), [1 - share, share], seed)
    own = np.array(kept if split == "training" else held)
    return BytesRecords(folders["training"], "training", real, own, longest)


# --- For readers ---


def class_of(value: Any, labels: Sequence[str], place: str) -> int:
    """A class by its name, or by its number where a copy of the data has numbers."""
    word = str(value).strip()
    if word in labels:
        return labels.index(word)
    if word.isdecimal() and int(word) < len(labels):
        return int(word)
    raise ValueError(
        f"{place}: class {word[:40]!r} is none of {', '.join(labels)}, nor the number of one: correct it"
    )


def part_of(word: Any, place: str) -> str:
    """The official part that a table names."""
    part = SPLITS.get(str(word).strip().casefold())
    if part not in PARTS:
        raise ValueError(
            f"{place}: split {str(word)[:40]!r} is not train or test: validation records are drawn from train; "
            "name them so"
        )
    return part


def load(path: Path) -> bytes:
    """A file's bytes."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): mend that, or use another copy") from None


def _whole(layout: ReleaseLayout, part: str, labels: Sequence[str], cure: str) -> Iterator[Part]:
    """The records of a part, once it is sure that none are missing: official classes are equally large."""
    counts = np.zeros(len(labels), dtype=np.int64)
    for values, lengths, targets in layout.read(part):
        counts += np.bincount(targets, minlength=len(labels))
        yield values, lengths, targets
    few, many = int(counts.argmin()), int(counts.argmax())
    if counts[few] < max(counts[many], 1):
        raise ValueError(
            f"{layout.place} has {counts[few]:,} {part} records of {labels[few]} and {counts[many]:,} of "
            f"{labels[many]}: there are equally many of each, so it is not whole; {cure}"
        )
