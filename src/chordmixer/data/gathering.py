"""A user's files become a store, once: it is kept under their content's hash and found again when they have moved."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from numpy import ndarray

from chordmixer.config import check_numbers
from chordmixer.data.alphabets import Dna, Kmers, Protein
from chordmixer.data.encoding import OnBad, Tokenizer
from chordmixer.data.entries import Account, Entry
from chordmixer.data.labels import FILES, file_label
from chordmixer.data.reading import Reading, content_key, read
from chordmixer.data.store import Store, cached_store, place
from chordmixer.data.storing import write_store
from chordmixer.data.tokenizers import Bytes, Characters, Numbers, guess

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


@dataclass(frozen=True)
class TokenizerConfig:
    """How letters, text or numbers become tokens."""

    name: Literal["auto", "dna", "protein", "bytes", "characters", "kmers", "numbers"] = "auto"
    """`auto`: told by the first records. `characters` are those of the files."""
    k: int = 3
    """Letters of a word, for kmers."""
    case: Literal["same", "mask"] = "same"
    """Of dna, protein and kmers: lower case is the same as upper case, or masked, that is taken as unknown."""
    others: Literal["unknown", "own"] = "unknown"
    """Of dna and protein: further letters of the alphabet are taken as unknown, or have a token each."""
    on_bad: Literal["error", "unknown", "reject"] = "error"
    """Bad characters and numbers: an error, taken as unknown (numbers: as 0), or the record is left out."""

    def __post_init__(self) -> None:
        check_numbers(self, k=(1, 12))


def default_cache() -> Path:
    """Where stores are kept: in the user's cache folder, below `chordmixer/stores`."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chordmixer" / "stores"
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


def make_tokenizer(
    config: TokenizerConfig, sample: Sequence[Entry], again: Callable[[], Iterable[Entry]]
) -> Tokenizer:
    """The tokenizer that the config names, or that the sample asks for; `again` reads all records once more."""
    on_bad: OnBad = "unknown" if config.on_bad == "unknown" else "error"
    name = config.name if config.name != "auto" else guess(entry.sequence for entry in sample)
    if name == "dna":
        return Dna(config.others, config.case, on_bad)
    if name == "protein":
        return Protein(config.others, config.case, on_bad)
    if name == "kmers":
        return Kmers(config.k, case=config.case, on_bad=on_bad)
    if name == "characters":
        return Characters.of(_text(entry) for entry in again())
    if name == "numbers":
        series = [entry.sequence for entry in sample if isinstance(entry.sequence, ndarray)]
        return Numbers.of(series, on_bad) if series else Numbers(on_bad=on_bad)
    return Bytes()


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


def _text(entry: Entry) -> bytes | str:
    if isinstance(entry.sequence, ndarray):
        raise ValueError(f"{entry.place} ({entry.id}) holds numbers: characters are of texts; use numbers")
    return entry.sequence


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
