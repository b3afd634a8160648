"""Files become a store once and are found again by content; errors say what is missing and how to fix it."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chordmixer import files
from chordmixer.data import store as store_module
from chordmixer.data import store_cache
from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading
from chordmixer.data.store import Store, write_store
from chordmixer.data.store_cache import cache_folder, cached_store, file_labels_line, gather, with_file_labels
from chordmixer.data.tokenizers import Characters, TokenizerConfig

DATA = ("tokens.bin", "offsets.bin", "records.arrow")
FULL = [Entry("a", b"ACGT", "x, record 1", label="worm", target=1.5), Entry("b", b"GG", "x, record 2")]
FASTA = ">a\nACGT\n>b\nACGGT\n"


@pytest.fixture
def fasta(tmp_path: Path) -> str:
    (tmp_path / "x.fa").write_text(FASTA)
    return str(tmp_path / "x.fa")


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "chordmixer" / "stores"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/chordmixer/stores")


def test_files_are_read_once(fasta: str, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    store, key = gather([fasta], Reading(), TokenizerConfig(), cache)
    assert (store.folder, len(store), store.tokenizer.name) == (cache / key, 2, "dna")
    messages = log.messages
    assert messages[0] == f"reading {fasta}" and messages[1].startswith("read 2 records, 9 tokens (dna) in ")
    reloaded, same_key = gather([fasta], Reading(), TokenizerConfig(), cache)
    assert same_key == key and reloaded.tokens(1).tolist() == store.tokens(1).tolist()
    assert log.messages[2:] == [f"{fasta}: read before, found in {cache}"]


def test_content_and_settings_make_the_key_and_folders_do_not(fasta: str, tmp_path: Path) -> None:
    def key(path: str, tokenizer: TokenizerConfig) -> str:
        return gather([path], Reading(), tokenizer, tmp_path / "cache")[1]

    (tmp_path / "moved").mkdir()
    moved = shutil.copy(fasta, tmp_path / "moved")
    assert key(fasta, TokenizerConfig()) == key(str(moved), TokenizerConfig())
    keys = [key(fasta, config) for config in (TokenizerConfig(), TokenizerConfig("kmers"), TokenizerConfig("bytes"))]
    assert len(set(keys)) == 3
    Path(fasta).write_text(FASTA + ">c\nA\n")
    assert key(fasta, TokenizerConfig()) not in keys


def test_a_key_opens_without_the_files(fasta: str, tmp_path: Path) -> None:
    store, key = gather([fasta], Reading(), TokenizerConfig(), tmp_path / "cache")
    Path(fasta).unlink()
    assert gather([fasta], Reading(), TokenizerConfig(), tmp_path / "cache", key)[0].id(1) == "b"
    shutil.rmtree(store.folder)
    message = rf"neither the files of this run nor their store are here: .*x\.fa and .*{key} do not exist; put one of"
    with pytest.raises(ValueError, match=message):
        gather([fasta], Reading(), TokenizerConfig(), tmp_path / "cache", key)
    Path(fasta).write_text(FASTA)
    assert len(gather([fasta], Reading(), TokenizerConfig(), tmp_path / "cache", key)[0]) == 2
    shutil.rmtree(store.folder)
    Path(fasta).write_text(">a\nACGA\n")
    with pytest.raises(ValueError, match=r"x\.fa is not what it was when the run began, and the store .* is gone"):
        gather([fasta], Reading(), TokenizerConfig(), tmp_path / "cache", key)


def test_a_damaged_store_is_never_made_of_other_files(fasta: str, tmp_path: Path) -> None:
    """The files have changed since, so a store built from them would not match the key."""
    store, key = gather([fasta], Reading(), TokenizerConfig(), tmp_path / "cache")
    (store.folder / "tokens.bin").write_bytes(b"")
    Path(fasta).write_text(">a\nACGA\n")
    with pytest.raises(ValueError, match=r"x\.fa is not what it was when the run began"):
        gather([fasta], Reading(), TokenizerConfig(), tmp_path / "cache", key)


def test_a_stream_is_kept_by_what_it_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FASTA.encode())))
        store, key = gather(["-"], Reading(), TokenizerConfig(), tmp_path)
        keys.append(key)
    assert keys[0] == keys[1] and [path.name for path in tmp_path.iterdir()] == [key]
    assert gather(["-"], Reading(), TokenizerConfig(), tmp_path, key)[0].id(0) == store.id(0) == "a"
    with pytest.raises(ValueError, match="a stream is read once, and `characters` reads twice: save it as a file"):
        gather(["-"], Reading(), TokenizerConfig("characters"), tmp_path)


@pytest.mark.parametrize(
    ("config", "name", "size"),
    [
        (TokenizerConfig("dna", others="own"), "dna", 15),
        (TokenizerConfig("protein"), "protein", 21),
        (TokenizerConfig("kmers", k=4), "kmers", 257),
        (TokenizerConfig("characters"), "characters", 5),
        (TokenizerConfig("bytes"), "bytes", 256),
    ],
    ids=lambda value: value.name if isinstance(value, TokenizerConfig) else "",
)
def test_each_tokenizer(fasta: str, tmp_path: Path, config: TokenizerConfig, name: str, size: int) -> None:
    tokenizer = gather([fasta], Reading(), config, tmp_path / "cache")[0].tokenizer
    assert (tokenizer.name, tokenizer.size) == (name, size)
    if isinstance(tokenizer, Characters):
        assert tokenizer.vocabulary == "ACGT"


def test_numbers_have_the_channels_of_the_first(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.stack([np.arange(5 + number) * 1e4, np.full(5 + number, 7)], axis=1))
    paths = [str(tmp_path / f"{number}.npy") for number in range(3)]
    store, _ = gather(paths, Reading(labels="files"), TokenizerConfig(), tmp_path / "cache")
    assert (store.tokenizer.size, store.tokens(2).shape) == (2, (7, 2))
    assert store.values.mean(axis=0) == pytest.approx(0, abs=1e-6) and store.values[:, 0].std() == pytest.approx(1)
    assert store.tokenizer.decode(store.tokens(0)).split()[1] == "10000,7"
    with pytest.raises(ValueError, match=r"0\.npy .* holds numbers: characters are of texts; use numbers"):
        gather(paths, Reading(), TokenizerConfig("characters"), tmp_path / "cache")


def test_bad_characters_by_policy(tmp_path: Path) -> None:
    (tmp_path / "bad.fa").write_text(FASTA + ">c\nAC7T\n")
    paths = [str(tmp_path / "bad.fa")]

    def store(on_bad: str) -> store_cache.Store:
        config = TokenizerConfig("dna", on_bad=on_bad)  # type: ignore[arg-type]
        return gather(paths, Reading(), config, tmp_path / "cache")[0]

    with pytest.raises(ValueError, match=r"record 3 \(c\): character '7' at position 3 is not a nucleotide"):
        store("error")
    assert store("unknown").tokens(2).tolist() == [0, 1, 4, 3]
    rejecting = store("reject")
    assert (len(rejecting), rejecting.account.read, rejecting.account.rejected.total()) == (2, 3, 1)


def test_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "empty.fa").write_text(">a\n\n>b\n\n")
    with pytest.raises(ValueError, match=r"empty\.fa holds no record that can be used"):
        gather([str(tmp_path / "empty.fa")], Reading(on_empty="reject"), TokenizerConfig(), tmp_path / "c")


def test_long_reading_logs_its_progress(
    fasta: str, tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_cache, "EVERY_SECONDS", -1.0)
    gather([fasta], Reading(), TokenizerConfig(), tmp_path / "cache")
    assert "  0 records, 0 letters so far" in log.messages


# --- Labels where none are given ---

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_several_files_without_labels_are_classes(write: Write) -> None:
    paths = [write("worm.fa", FASTA), write("fly.fa.txt", FASTA)]
    assert with_file_labels(paths, Reading()) == Reading(labels="files")
    line = "the records have no labels of their own, so each file is a class: worm, fly.fa"
    assert file_labels_line(paths) == line


@pytest.mark.parametrize("column", ["label", "target"])
def test_records_with_answers_keep_them(write: Write, column: str) -> None:
    paths = [write(f"{n}.csv", f"sequence,{column}\nACGT,1\n") for n in "ab"]
    assert with_file_labels(paths, Reading()) == Reading()


def test_one_file_a_stream_or_given_labels_stay(write: Write) -> None:
    paths = [write("a.fa", FASTA), write("b.fa", FASTA)]
    assert with_file_labels(paths[:1], Reading()) == Reading()
    assert with_file_labels([paths[0], "-"], Reading()) == Reading()
    headers = replace(Reading(), labels="header:gene")
    assert with_file_labels(paths, headers) == headers


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    with pytest.raises(ValueError, match=r"this user has no home folder .*: set HOME or XDG_CACHE_HOME"):
        cache_folder()


class CountingBuilder:
    """A builder that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        write_store(FULL, Dna(), folder, Account())


KEY, OTHER_KEY = "a" * 64, "b" * 64


def test_built_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = CountingBuilder()
    for _ in range(3):
        assert len(cached_store(KEY, tmp_path / "cache", build)) == 2
    assert build.calls == 1 and not capsys.readouterr().err
    cached_store(OTHER_KEY, tmp_path / "cache", build)
    assert build.calls == 2 and {p.name for p in (tmp_path / "cache").iterdir()} == {KEY, OTHER_KEY}


def test_a_torn_cache_is_built_again_and_reported(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    build = CountingBuilder()
    store = cached_store(KEY, tmp_path, build)
    (store.folder / "tokens.bin").write_bytes(b"")
    assert cached_store(KEY, tmp_path, build).tokens(1).tolist() == [2, 2]
    assert build.calls == 2 and [p.name for p in tmp_path.iterdir()] == [KEY]
    torn = f"{store.folder / 'tokens.bin'} has 0 bytes of 6: the store is torn; rebuild it; doing so"
    assert log.messages[-1] == torn


def flip(path: Path, offset: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("large", [False, True], ids=["whole", "in blocks"])
@pytest.mark.parametrize("name", DATA)
def test_a_changed_byte_is_built_again_and_reported(
    tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str, large: bool
) -> None:
    if large:
        monkeypatch.setattr(store_module, "WHOLE_FILE", 3)
        for module in (store_module, store_cache):
            monkeypatch.setattr(module, "BLOCK", 256)
    build = CountingBuilder()
    folder = cached_store(KEY, tmp_path, build).folder
    assert (name in files.read_json(folder / "store.json")["sums"]) == large
    flip(folder / name, offset={"tokens.bin": 5, "offsets.bin": 8, "records.arrow": 500}[name])
    assert cached_store(KEY, tmp_path, build).tokens(0).tolist() == [0, 1, 2, 3]
    assert build.calls == 2 and [p.name for p in tmp_path.iterdir()] == [KEY]
    line = f"{folder / name} was changed or damaged since it was written: rebuild it; doing so"
    assert [(record.levelname, record.getMessage()) for record in log.records] == [("WARNING", line)]


def test_what_cannot_be_built_again_stays(tmp_path: Path) -> None:
    folder = cached_store(KEY, tmp_path, CountingBuilder()).folder
    flip(folder / "tokens.bin")

    def fail(folder: Path) -> None:
        raise ValueError("genes.fa is gone")

    with pytest.raises(ValueError, match=r"genes\.fa is gone"):
        cached_store(KEY, tmp_path, fail)
    assert [p.name for p in tmp_path.iterdir()] == [KEY] and Store.open(folder).id(0) == "a"


@pytest.mark.parametrize("marked", [False, True], ids=["foreign", "a store and more"])
def test_nothing_is_deleted_that_is_not_a_store(tmp_path: Path, marked: bool) -> None:
    build, folder = CountingBuilder(), tmp_path / KEY
    if marked:
        flip(cached_store(KEY, tmp_path, build).folder / "tokens.bin")
    folder.mkdir(exist_ok=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not a store of chordmixer: move it, or give another"):
        cached_store(KEY, tmp_path, build)
    assert (folder / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("key", ["home", "../home", "/home", "", KEY + "/..", "A" * 64])
def test_a_key_is_a_digest(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a store, 64 digits from 0 to f: leave it out"):
        cached_store(key, tmp_path, CountingBuilder())


def test_another_process_builds_the_same(tmp_path: Path) -> None:
    quick = CountingBuilder()

    def slow(folder: Path) -> None:
        quick(folder)
        write_store(FULL, Dna(), folder, Account())

    assert len(cached_store(KEY, tmp_path, slow)) == 2


def test_what_fails_to_build_is_not_there(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        raise ValueError("genes.fa is empty")

    with pytest.raises(ValueError, match=r"genes\.fa is empty"):
        cached_store(KEY, tmp_path, build)
