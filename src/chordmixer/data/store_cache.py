"""The cache of stores: files are read and tokenized once, and found again by a hash of their content."""

from __future__ import annotations

import hashlib
import json
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
from stat import S_ISDIR, S_ISREG

from chordmixer import files, terminal
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import FILES, Reading, file_label, own_name, read
from chordmixer.data.record_files import class_files
from chordmixer.data.store import ABOUT, BLOCK, DATA, KIND, NAMES, TOKENS, VERIFIED, Store, write_store
from chordmixer.data.tokenizers import (
    TokenizerConfig,
    make_tokenizer,
)
from chordmixer.files import is_folder

SAMPLE = 200
"""Records from which a tokenizer is guessed."""
SAMPLE_BYTES = 1 << 24
"""Of them, at most: a few genomes are sample enough."""
LOOK, LOOK_BYTES = 20, 1 << 20
"""Records of each file, and their letters, that are looked at for labels."""
IN_MEMORY = "records in memory"
"""What stands in place of paths where a program gave the records."""
EVERY_SECONDS = 5.0
"""Between lines that say how far reading is."""

Say = Callable[[str], None]


def cache_folder(given: str | None = None) -> Path:
    """Where stores are kept: the folder given, or `chordmixer/stores` below the user's cache folder."""
    from platformdirs import user_cache_path

    if given:
        return Path(given).expanduser()
    try:
        return user_cache_path("chordmixer", appauthor=False).expanduser() / "stores"
    except RuntimeError:
        raise ValueError(
            "this user has no home folder to keep read files in: set HOME or XDG_CACHE_HOME to a folder that can be "
            "written, or give --cache"
        ) from None


def gather(
    paths: Sequence[str],
    reading: Reading,
    tokenizer: TokenizerConfig,
    cache: Path,
    say: Say,
    key: str | None = None,
) -> tuple[Store, str]:
    """The store of these files and its key; with the key of an earlier time, the files need not be there any more."""
    if key is not None:
        return cached_store(key, cache, lambda folder: _build_again(paths, reading, tokenizer, folder, say)), key
    found = _key(paths, reading, tokenizer)
    if found is None:
        return _stream(paths, reading, tokenizer, cache, say)
    if place(cache, found).exists():
        say(f"{_brief(paths)}: read before, found in {cache}")
    return cached_store(found, cache, lambda folder: _build(paths, reading, tokenizer, folder, say)), found


def gather_records(records: Sequence[Entry], tokenizer: TokenizerConfig, cache: Path, say: Say) -> tuple[Store, str]:
    """The store of records that are in memory, and its key: a hash of what was stored."""

    def build(folder: Path) -> None:
        _store(iter(records), lambda: records, [IN_MEMORY], Account(), tokenizer, folder, say)

    return _named_by_content(build, cache)


def place(cache: Path, key: str) -> Path:
    """Where the store of a key is kept; a key is a SHA-256, so that none leads out of the cache."""
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"key={key!r} is not the name of a store, 64 digits from 0 to f: leave it out")
    return cache / key


def cached_store(key: str, cache: Path, build: Callable[[Path], object]) -> Store:
    """The store of this key, opened where a whole one is there, else built; `build` is given the folder to write.

    One that was changed is built again, and a line says so; where that fails, it stays as it is. Two processes may
    build the same at once: one of them puts it in place, both use it.
    """
    folder = place(cache, key)
    if not folder.exists() and not folder.is_symlink():
        _build_unless_there(folder, build)
        return Store.open(folder)
    try:
        return _verified(folder)
    except ValueError as error:
        _check_ours(folder)
        terminal.tell(f"warning: {error}; doing so", stderr=True)
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
    """Refuse to replace what is not a store of ours, whoever named it."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() and not folder.is_symlink() else {""}
    if not there <= {*NAMES} or not any(_marks(folder / name) for name in (ABOUT, files.MANIFEST)):
        raise ValueError(
            f"{folder} is not a store of chordmixer and stays as it is: move it, or give another --cache"
        )


def _marks(path: Path) -> bool:
    """Whether a store's own file is what we wrote, or nearly so."""
    with suppress(ValueError):
        return not {"tokenizer", TOKENS}.isdisjoint(files.read_json(path))
    return False


def _verified(folder: Path) -> Store:
    """Opened, once its bytes are those that were written: all of them, or `VERIFIED` blocks of a large file."""
    store = Store.open(folder)
    sums = files.read_json(folder / ABOUT).get("sums", {})
    for name in DATA:
        whole = _sampled(folder / name, sums[name]) if name in sums else files.matches(folder, name)
        if not whole:
            raise ValueError(f"{folder / name} was changed or damaged since it was written: make it anew")
    return store


def _sampled(path: Path, sums: Sequence[int]) -> bool:
    """Whether the first block, the last and some others, each time other ones, are what they were."""
    chosen = {0, len(sums) - 1, *random.SystemRandom().sample(range(len(sums)), min(VERIFIED, len(sums)))}
    with path.open("rb") as file:
        for number in sorted(chosen):
            file.seek(number * BLOCK)
            if zlib.crc32(file.read(BLOCK)) != sums[number]:
                return False
    return True


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
    return hashlib.sha256(json.dumps([settings, contents], sort_keys=True).encode()).hexdigest()


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a path, under the names that `read` sees."""
    if is_folder(path):
        inside = (file for file, _ in class_files(path, Account()))
        yield from ((f"{own_name(path)}/{file.relative_to(path).as_posix()}", file) for file in inside)
    else:
        yield own_name(path), path


def _is_stream(path: Path) -> bool:
    """Neither a file nor a folder, but there."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (S_ISREG(mode) or S_ISDIR(mode))


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the path of a file") from None


def labelled(paths: Sequence[str], reading: Reading, say: Say) -> Reading:
    """The same, or `labels="files"` where several files are given and their first records have no labels.

    A file for each class is the most common way to have labels; a record's own label or number goes before it.
    """
    if reading.labels is not None or len(paths) < 2 or "-" in paths:
        return reading
    for path in paths:
        entries = read([path], replace(reading, on_empty="reject", on_unmatched="reject"), Account())
        if any(e.label is not None or e.target is not None for e in _first(entries, LOOK, LOOK_BYTES)):
            return reading
    names = [file_label(path) for path in paths]
    say(f"the records have no labels of their own, so each file is a class: {', '.join(dict.fromkeys(names))}")
    return replace(reading, labels=FILES)


# --- Building ---


def _key(paths: Sequence[str], reading: Reading, tokenizer: TokenizerConfig) -> str | None:
    """Of what the files hold and how they are read; None: they can be read only once."""
    content = content_key(paths, reading)
    if content is None:
        return None
    return hashlib.sha256(json.dumps([content, asdict(tokenizer)], sort_keys=True).encode()).hexdigest()


def _build_again(paths: Sequence[str], reading: Reading, tokenizer: TokenizerConfig, folder: Path, say: Say) -> Store:
    """Into a folder that is named after the files as they were."""
    _check_there(paths, folder)
    if _key(paths, reading, tokenizer) != folder.name:
        raise ValueError(
            f"{_brief(paths)} is not what it was when the run began, and the store {folder} is gone: "
            "give the files as they were, or train into a new folder"
        )
    return _build(paths, reading, tokenizer, folder, say)


def _build(paths: Sequence[str], reading: Reading, config: TokenizerConfig, folder: Path, say: Say) -> Store:
    account = Account()
    say(f"reading {_brief(paths)}")
    return _store(read(paths, reading, account), lambda: _again(paths, reading), paths, account, config, folder, say)


def _store(
    entries: Iterator[Entry],
    again: Callable[[], Iterable[Entry]],
    sources: Sequence[str],
    account: Account,
    config: TokenizerConfig,
    folder: Path,
    say: Say,
) -> Store:
    """Write entries as they come; `again` gives them once more to a tokenizer that reads all of them first."""
    began = time.monotonic()
    sample = list(_first(entries, SAMPLE, SAMPLE_BYTES))
    if not sample:
        raise ValueError(f"{_brief(sources)} holds no record that can be used: see above why; give other files")
    tokenizer = make_tokenizer(config, sample, again)
    store = write_store(
        _watched(chain(sample, entries), say),
        tokenizer,
        folder,
        account,
        sources=[str(source) for source in sources],
        on_bad="reject" if config.on_bad == "reject" else "error",
    )
    say(
        f"read {len(store):,} records, {len(store.values):,} tokens ({tokenizer.name}) "
        f"in {time.monotonic() - began:.1f} s; kept in {folder.parent}"
    )
    return store


def _stream(
    paths: Sequence[str], reading: Reading, config: TokenizerConfig, cache: Path, say: Say
) -> tuple[Store, str]:
    if config.name == "characters":
        raise ValueError("a stream is read once, and `characters` reads twice: save it as a file, or use bytes")
    return _named_by_content(lambda folder: _build(paths, reading, config, folder, say), cache)


def _named_by_content(build: Callable[[Path], object], cache: Path) -> tuple[Store, str]:
    """What can be read only once, or is in memory, is known by its content after it was stored."""
    folder = cache / f"stream-{secrets.token_hex(8)}"
    build(folder)
    key = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()

    def put(place: Path) -> None:
        with suppress(OSError):  # the same content was put there meanwhile
            folder.rename(place)

    store = cached_store(key, cache, put)
    shutil.rmtree(folder, ignore_errors=True)  # the same content was stored before
    return store, key


def _first(entries: Iterator[Entry], count: int, letters: int) -> Iterator[Entry]:
    """So many, or fewer where they are long."""
    for entry in islice(entries, count):
        yield entry
        letters -= entry.length
        if letters < 0:
            return


def _watched(entries: Iterable[Entry], say: Say) -> Iterator[Entry]:
    """The same entries; now and then a line that says how many there were."""
    spoke, letters = time.monotonic(), 0
    for count, entry in enumerate(entries):
        if count % 1024 == 0 and time.monotonic() - spoke > EVERY_SECONDS:
            spoke = time.monotonic()
            say(f"  {count:,} records, {letters:,} letters so far")
        letters += entry.length
        yield entry


def _again(paths: Sequence[str], reading: Reading) -> Iterator[Entry]:
    return read(paths, reading, Account())


def _check_there(paths: Sequence[str], folder: Path) -> None:
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
    """A few names.

    >>> _brief(["a.fa", "b.fa", "c.fa", "d.fa", "e.fa"])
    'a.fa, b.fa, c.fa and 2 more'
    """
    shown = ", ".join(map(str, paths[:3]))
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown
