"""The cache of stores: files are read and tokenized once, and found again by a hash of their content."""

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
from chordmixer.data.reading import FILES, Policy, Reading, file_label, own_name, read
from chordmixer.data.record_files import class_files
from chordmixer.data.store import ABOUT, BLOCK, DATA, KIND, NAMES, TOKENS, VERIFIED, Store, write_store
from chordmixer.data.tokenizers import TokenizerConfig, make_tokenizer
from chordmixer.files import is_folder

logger = logging.getLogger(__name__)

SAMPLE, SAMPLE_BYTES = 200, 1 << 24
"""Records from which a tokenizer is guessed, and their letters, at most."""
LABEL_SAMPLE, LABEL_BYTES = 20, 1 << 20
"""Records of each file, and their letters, that are searched for labels."""
IN_MEMORY = "records in memory"
"""In place of paths, where a program gave the records."""
EVERY_SECONDS = 5.0
"""Between progress messages while reading."""


def cache_folder(given: str | None = None) -> Path:
    """Where stores are kept: the folder given, or `chordmixer/stores` below the user's cache folder."""
    if given:
        return Path(given).expanduser()
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
    """The store of these files and its key; with a key from before, the files need not exist any more."""
    level = logging.INFO if key is None else logging.DEBUG  # a run whose store is gone reads its files silently

    def build(folder: Path) -> None:
        if key is not None:
            _check_exist(paths, folder)
            if _store_key(paths, reading, tokenizer) != key:
                raise ValueError(
                    f"{_brief(paths)} is not what it was when the run began, and the store {folder} is gone: "
                    "give the files as they were, or train into a new folder"
                )
        logger.log(level, f"reading {_brief(paths)}")
        _write(lambda account: read(paths, reading, account), paths, tokenizer, folder, level)

    if key is not None:
        return cached_store(key, cache, build), key
    found = _store_key(paths, reading, tokenizer)
    if found is None:
        if tokenizer.name == "characters":
            raise ValueError("a stream is read once, and `characters` reads twice: save it as a file, or use bytes")
        return _named_by_content(build, cache)
    if store_path(cache, found).exists():
        logger.info(f"{_brief(paths)}: read before, found in {cache}")
    return cached_store(found, cache, build), found


def gather_records(records: Sequence[Entry], tokenizer: TokenizerConfig, cache: Path) -> tuple[Store, str]:
    """The store of records in memory, and its key: a hash of its content."""
    return _named_by_content(lambda folder: _write(lambda _: iter(records), [IN_MEMORY], tokenizer, folder), cache)


def with_file_labels(paths: Sequence[str], reading: Reading) -> Reading:
    """The same, or `labels="files"` where several files are given and their first records have no labels.

    One file per class is the most common way to have labels; a record's own label or number takes precedence.
    """
    if reading.labels is not None or len(paths) < 2 or "-" in paths:
        return reading
    for path in paths:
        entries = read([path], replace(reading, on_empty="reject", on_unmatched="reject"), Account())
        if any(e.label is not None or e.target is not None for e in _first(entries, LABEL_SAMPLE, LABEL_BYTES)):
            return reading
    return replace(reading, labels=FILES)


def file_labels_line(paths: Sequence[str]) -> str:
    """What to tell the user where `with_file_labels` found that files are classes."""
    names = dict.fromkeys(file_label(path) for path in paths)
    return f"the records have no labels of their own, so each file is a class: {', '.join(names)}"


# --- Keys ---


def store_path(cache: Path, key: str) -> Path:
    """Where the store of a key is kept; a key is a SHA-256, so that none leads out of the cache."""
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"key={key!r} is not the name of a store, 64 digits from 0 to f: leave it out")
    return cache / key


def _store_key(paths: Sequence[str], reading: Reading, tokenizer: TokenizerConfig) -> str | None:
    """A hash of the files' content and of how they are read; None for a stream."""
    content = content_key(paths, reading)
    return None if content is None else _json_hash([content, asdict(tokenizer)])


def content_key(paths: Sequence[Path | str], reading: Reading) -> str | None:
    """A SHA-256 of all that `read` depends on: bytes, names and settings; None for a stream, which is read once.

    Names count without their folders: they are in the ids of records that have none, and may be the labels.
    """
    given = [Path(path) for path in (*paths, *([reading.table] if reading.table is not None else []))]
    if any(str(path) == "-" or _is_stream(path) for path in given):
        return None
    settings = asdict(replace(reading, labels="table") if reading.table is not None else reading)
    if not reading.names:
        del settings["names"]  # so that keys are those of versions without it
    del settings["max_record"]  # what is read, if it is, does not depend on it
    contents = [[name, _sha256(path)] for top in given for name, path in _files(top)]
    return _json_hash([settings, contents])


def _json_hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a path, under the names that `read` sees."""
    if is_folder(path):
        inside = (file for file, _ in class_files(path, Account()))
        yield from ((f"{own_name(path)}/{file.relative_to(path).as_posix()}", file) for file in inside)
    else:
        yield own_name(path), path


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

    A store that was changed is built again with a warning; if that fails, it stays as it is. Two processes may build
    the same store at once: one of them puts it in place, both use it.
    """
    folder = store_path(cache, key)
    if not folder.exists() and not folder.is_symlink():
        _build_unless_there(folder, build)
        return Store.open(folder)
    try:
        return _verified(folder)
    except ValueError as error:
        _check_ours(folder)
        logger.warning(f"{error}; doing so", extra={"stderr": True})
    with files.temporary_folder(cache, KIND) as aside:
        with suppress(OSError):  # another process was quicker
            folder.rename(aside / key)
        try:
            _build_unless_there(folder, build)
        except BaseException:
            with suppress(OSError):
                (aside / key).rename(folder)
            raise
    return _verified(folder)


def _build_unless_there(folder: Path, build: Callable[[Path], object]) -> None:
    try:
        build(folder)
    except ValueError:
        if not folder.exists():
            raise


def _check_ours(folder: Path) -> None:
    """Refuse to replace a folder that is not a store."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() and not folder.is_symlink() else {""}
    if not there <= {*NAMES} or not any(_marks(folder / name) for name in (ABOUT, files.MANIFEST)):
        raise ValueError(f"{folder} is not a store of chordmixer: move it, or give another --cache")


def _marks(path: Path) -> bool:
    """Whether this is, perhaps damaged, the description or manifest of a store."""
    with suppress(ValueError):
        return not {"tokenizer", TOKENS}.isdisjoint(files.read_json(path))
    return False


def _verified(folder: Path) -> Store:
    """Open a store after comparing its bytes with their checksums: all, or `VERIFIED` blocks of a large file."""
    store = Store.open(folder)
    sums = files.read_json(folder / ABOUT).get("sums", {})
    for name in DATA:
        if not (_sampled(folder / name, sums[name]) if name in sums else files.matches(folder, name)):
            raise ValueError(f"{folder / name} was changed or damaged since it was written: rebuild it")
    return store


def _sampled(path: Path, sums: Sequence[int]) -> bool:
    """Whether the first block, the last and some random others have their checksums."""
    chosen = {0, len(sums) - 1, *random.SystemRandom().sample(range(len(sums)), min(VERIFIED, len(sums)))}
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
    """Write entries as they come; a tokenizer that needs all of them first reads them twice."""
    began, account = time.monotonic(), Account()
    reading = entries(account)
    sample = list(_first(reading, SAMPLE, SAMPLE_BYTES))
    if not sample:
        raise ValueError(f"{_brief(sources)} holds no record that can be used: see above why; give other files")
    tokenizer = make_tokenizer(config, sample, lambda: entries(Account()))
    on_bad: Policy = "reject" if config.on_bad == "reject" else "error"
    store = write_store(_reported(chain(sample, reading), level), tokenizer, folder, account, sources, on_bad)
    logger.log(
        level,
        f"read {len(store):,} records, {len(store.values):,} tokens ({tokenizer.name}) "
        f"in {time.monotonic() - began:.1f} s; kept in {folder.parent}",
    )


def _named_by_content(build: Callable[[Path], object], cache: Path) -> tuple[Store, str]:
    """A store of a stream or of records in memory: its key is a hash of what was written."""
    folder = cache / f"stream-{secrets.token_hex(8)}"
    build(folder)
    key = hashlib.sha256((folder / files.MANIFEST).read_bytes()).hexdigest()

    def put(place: Path) -> None:
        with suppress(OSError):  # the same content was put there meanwhile
            folder.rename(place)

    store = cached_store(key, cache, put)
    shutil.rmtree(folder, ignore_errors=True)  # the same content was stored before
    return store, key


def _first(entries: Iterator[Entry], count: int, letters: int) -> Iterator[Entry]:
    """The first `count` entries, or fewer where they have more than so many letters."""
    for entry in islice(entries, count):
        yield entry
        letters -= entry.length
        if letters < 0:
            return


def _reported(entries: Iterable[Entry], level: int) -> Iterator[Entry]:
    """The same entries, with a progress message every few seconds."""
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
    gone = [path for path in paths if path == "-" or not Path(path).exists()]
    if gone:
        raise ValueError(
            f"neither the files of this run nor their store are here: {_brief(gone)} and {folder} do not exist; put "
            "one of them back, or name the files where they are now: chordmixer train FILES --out RUN --resume"
        )


def _brief(paths: Sequence[str]) -> str:
    """A few names."""
    shown = ", ".join(map(str, paths[:3]))
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown
