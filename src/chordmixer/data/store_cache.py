"""The cache of stores: files are read and tokenized once, and their store is found by a hash of their content."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path

from chordmixer import files
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import FILES, Policy, Reading, base_name, file_label, read
from chordmixer.data.record_files import class_files
from chordmixer.data.store import ABOUT, BLOCK, CHECKED_BLOCKS, DATA, FILE_NAMES, PREFIX, TOKENS, Store, write_store
from chordmixer.data.tokenizers import TokenizerConfig, make_tokenizer
from chordmixer.files import is_folder

logger = logging.getLogger(__name__)

SAMPLE, SAMPLE_BYTES = 200, 1 << 24
"""Maximum records, and letters, from which a tokenizer is guessed."""
LABEL_SAMPLE, LABEL_BYTES = 20, 1 << 20
"""Maximum records, and letters, of each file that are searched for labels."""
IN_MEMORY = "records in memory"
"""Source name of records that a program passed in memory, instead of paths."""
EVERY_SECONDS = 5.0
"""Seconds between progress messages while reading."""


def cache_folder(folder: str | None = None) -> Path:
    """The folder of stores: the given one, or `chordmixer/stores` in the user's cache folder."""
    if folder:
        return Path(folder).expanduser()
    from platformdirs import user_cache_path

    try:
        return user_cache_path("chordmixer", appauthor=False).expanduser() / "stores"
    except RuntimeError:
        raise ValueError(
            "this user has no home folder to keep read files in: set HOME or XDG_CACHE_HOME to a folder that can be "
            "written, or give --cache"
        ) from None


def gather(
    paths: Sequence[str], reading: Reading, tokenizer: TokenizerConfig, cache: Path, key: str | None = None
) -> tuple[Store, str]:
    """The store of these files and its key. With the key of an earlier run, the files need not exist any more."""
    level = logging.INFO if key is None else logging.DEBUG  # a resumed run without its store reads its files silently

    def build(folder: Path) -> None:
        if key is not None:
            _check_exist(paths, folder)
            if _store_key(paths, reading, tokenizer) != key:
                raise ValueError(
                    f"{_shown(paths)} is not what it was when the run began, and the store {folder} is gone: "
                    "give the files as they were, or train into a new folder"
                )
        logger.log(level, f"reading {_shown(paths)}")
        _write(lambda account: read(paths, reading, account), paths, tokenizer, folder, level)

    if key is not None:
        return cached_store(key, cache, build), key
    new_key = _store_key(paths, reading, tokenizer)
    if new_key is None:
        if tokenizer.name == "characters":
            raise ValueError("a stream is read once, and `characters` reads twice: save it as a file, or use bytes")
        return _named_by_content(build, cache)
    if store_path(cache, new_key).exists():
        logger.info(f"{_shown(paths)}: read before, found in {cache}")
    return cached_store(new_key, cache, build), new_key


def gather_records(records: Sequence[Entry], tokenizer: TokenizerConfig, cache: Path) -> tuple[Store, str]:
    """The store of records in memory, and its key, a hash of its content."""
    return _named_by_content(lambda folder: _write(lambda _: iter(records), [IN_MEMORY], tokenizer, folder), cache)


def with_file_labels(paths: Sequence[str], reading: Reading) -> Reading:
    """Set `labels="files"` if there are several files and their first records have no labels.

    One file per class is the most common form of labels; a record's own label or number takes precedence.
    """
    if reading.labels is not None or len(paths) < 2 or "-" in paths:
        return reading
    for path in paths:
        entries = read([path], replace(reading, on_empty="reject", on_unmatched="reject"), Account())
        if any(e.label is not None or e.target is not None for e in _take(entries, LABEL_SAMPLE, LABEL_BYTES)):
            return reading
    return replace(reading, labels=FILES)


def file_labels_line(paths: Sequence[str]) -> str:
    """The message to the user if `with_file_labels` has set the labels."""
    names = dict.fromkeys(file_label(path) for path in paths)
    return f"the records have no labels of their own, so each file is a class: {', '.join(names)}"


# --- Keys ---


def store_path(cache: Path, key: str) -> Path:
    """The folder of a key's store. A key must be a SHA-256, so that no key is a path outside the cache."""
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"key={key!r} is not the name of a store, 64 digits from 0 to f: leave it out")
    return cache / key


def _store_key(paths: Sequence[str], reading: Reading, tokenizer: TokenizerConfig) -> str | None:
    """A hash of the files' content and the settings of reading and tokenization; None for a stream."""
    content = content_key(paths, reading)
    return None if content is None else _json_hash([content, asdict(tokenizer)])


def content_key(paths: Sequence[Path | str], reading: Reading) -> str | None:
    """A SHA-256 of all that `read` depends on: bytes, names and settings; None for a stream, which is read once.

    Names count without their folders: they become ids of records without a name, and may be the labels.
    """
    inputs = [Path(path) for path in (*paths, *([reading.table] if reading.table is not None else []))]
    if any(str(path) == "-" or _is_stream(path) for path in inputs):
        return None
    settings = asdict(replace(reading, labels="table") if reading.table is not None else reading)
    if not reading.names:
        del settings["names"]  # for the same keys as in versions without this setting
    del settings["max_record"]  # it does not change the content of records that can be read
    contents = [[name, _sha256(path)] for top in inputs for name, path in _files(top)]
    return _json_hash([settings, contents])


def _json_hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a path, with the names that `read` uses."""
    if is_folder(path):
        inside = (file for file, _ in class_files(path, Account()))
        yield from ((f"{base_name(path)}/{file.relative_to(path).as_posix()}", file) for file in inside)
    else:
        yield base_name(path), path


def _is_stream(path: Path) -> bool:
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except (OSError, ValueError):
        return False


def _sha256(path: Path) -> str:
    try:
        return files.sha256(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the path of a file") from None


# --- The cache ---


def cached_store(key: str, cache: Path, build: Callable[[Path], object]) -> Store:
    """Open the store of this key, or build it; `build` receives the folder to write.

    A changed store is rebuilt with a warning; if that fails, it is restored. If two processes build the same store at
    once, one of them puts it in place and both use it.
    """
    folder = store_path(cache, key)
    if not folder.exists() and not folder.is_symlink():
        _build_unless_there(folder, build)
        return Store.open(folder)
    try:
        return _open_verified(folder)
    except ValueError as error:
        _check_is_store(folder)
        logger.warning(f"{error}; doing so", extra={"stderr": True})
    with files.temporary_folder(cache, PREFIX) as backup:
        with suppress(OSError):  # another process was faster
            folder.rename(backup / key)
        try:
            _build_unless_there(folder, build)
        except BaseException:
            with suppress(OSError):
                (backup / key).rename(folder)
            raise
    return _open_verified(folder)


def _build_unless_there(folder: Path, build: Callable[[Path], object]) -> None:
    try:
        build(folder)
    except ValueError:
        if not folder.exists():
            raise


def _check_is_store(folder: Path) -> None:
    """Raise an error if a folder to be replaced is not a store."""
    contents = {path.name for path in folder.iterdir()} if folder.is_dir() and not folder.is_symlink() else {""}
    if not contents <= {*FILE_NAMES} or not any(_is_store_file(folder / name) for name in (ABOUT, files.MANIFEST)):
        raise ValueError(f"{folder} is not a store of chordmixer: move it, or give another --cache")


def _is_store_file(path: Path) -> bool:
    """Whether a file is the description or manifest of a store, possibly damaged."""
    with suppress(ValueError):
        return not {"tokenizer", TOKENS}.isdisjoint(files.read_json(path))
    return False


def _open_verified(folder: Path) -> Store:
    """Open a store and compare its bytes with their checksums: all, or `CHECKED_BLOCKS` blocks of a large file."""
    store = Store.open(folder)
    sums = files.read_json(folder / ABOUT).get("sums", {})
    for name in DATA:
        if not (_sample_matches(folder / name, sums[name]) if name in sums else files.matches(folder, name)):
            raise ValueError(f"{folder / name} was changed or damaged since it was written: rebuild it")
    return store


def _sample_matches(path: Path, sums: Sequence[int]) -> bool:
    """Whether the first block, the last and some random others match their checksums."""
    chosen = {0, len(sums) - 1, *random.SystemRandom().sample(range(len(sums)), min(CHECKED_BLOCKS, len(sums)))}
    with path.open("rb") as file:
        for number in sorted(chosen):
            file.seek(number * BLOCK)
            if zlib.crc32(file.read(BLOCK)) != sums[number]:
                return False
    return True


# --- Building ---


def _write(
    entries: Callable[[Account], Iterator[Entry]],
    sources: Sequence[str],
    config: TokenizerConfig,
    folder: Path,
    level: int = logging.INFO,
) -> None:
    """Write entries into a store as a stream; they are read twice if the tokenizer needs all of them first."""
    began, account = time.monotonic(), Account()
    reading = entries(account)
    sample = list(_take(reading, SAMPLE, SAMPLE_BYTES))
    if not sample:
        raise ValueError(f"{_shown(sources)} holds no record that can be used: see above why; give other files")
    tokenizer = make_tokenizer(config, sample, lambda: entries(Account()))
    on_bad: Policy = "reject" if config.on_bad == "reject" else "error"
    store = write_store(_with_progress(chain(sample, reading), level), tokenizer, folder, account, sources, on_bad)
    logger.log(
        level,
        f"read {len(store):,} records, {len(store.values):,} tokens ({tokenizer.name}) "
        f"in {time.monotonic() - began:.1f} s; kept in {folder.parent}",
    )


def _named_by_content(build: Callable[[Path], object], cache: Path) -> tuple[Store, str]:
    """Build the store of a stream or of records in memory; its key is a hash of what was written."""
    folder = cache / f"stream-{secrets.token_hex(8)}"
    build(folder)
    key = hashlib.sha256((folder / files.MANIFEST).read_bytes()).hexdigest()

    def move_to(place: Path) -> None:
        with suppress(OSError):  # another process has stored the same content meanwhile
            folder.rename(place)

    store = cached_store(key, cache, move_to)
    shutil.rmtree(folder, ignore_errors=True)  # it remains if the same content was stored before
    return store, key


def _take(entries: Iterator[Entry], count: int, letters: int) -> Iterator[Entry]:
    """The first `count` entries, or fewer, up to the entry that exceeds the number of `letters`."""
    for entry in islice(entries, count):
        yield entry
        letters -= entry.length
        if letters < 0:
            return


def _with_progress(entries: Iterable[Entry], level: int) -> Iterator[Entry]:
    """Yield the entries, and log a progress message every few seconds."""
    last, letters = time.monotonic(), 0
    for count, entry in enumerate(entries):
        if count % 1024 == 0 and time.monotonic() - last > EVERY_SECONDS:
            last = time.monotonic()
            logger.log(level, f"  {count:,} records, {letters:,} letters so far")
        letters += entry.length
        yield entry


def _check_exist(paths: Sequence[str], folder: Path) -> None:
    if IN_MEMORY in paths:
        raise ValueError(
            f"the store {folder} of this run is gone, and its records were in the memory of a program: call fit with "
            "the same records, out=RUN and resume=True"
        )
    lost = [path for path in paths if path == "-" or not Path(path).exists()]
    if lost:
        raise ValueError(
            f"neither the files of this run nor their store are here: {_shown(lost)} and {folder} do not exist; put "
            "one of them back, or name the files where they are now: chordmixer train FILES --out RUN --resume"
        )


def _shown(paths: Sequence[str]) -> str:
    """The first three paths and the number of others, for messages."""
    shown = ", ".join(map(str, paths[:3]))
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown
