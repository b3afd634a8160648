from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.data.ncbi_server import (
    Database,
    fasta,
    nothing,
    serving,
    short,
    status,
)

from chordmixer import files
from chordmixer.data.entrez import Service
from chordmixer.data.ncbi import FetchConfig, entrez_term, fetch, file_name
from chordmixer.data.sequence_files import read_fasta
from chordmixer.data.sources import open_source


@pytest.fixture
def database() -> Iterator[Database]:
    with serving() as database:
        yield database


class Fetcher:
    """`fetch` without waiting, with its log messages and its progress."""

    def __init__(self, database: Database, folder: Path, log: pytest.LogCaptureFixture) -> None:
        self.database, self.folder, self.log = database, folder, log
        self.progress: list[tuple[int, int]] = []

    @property
    def messages(self) -> list[str]:
        return self.log.messages

    def __call__(self, query: str = "Carassius", **settings: Any) -> Path:
        self.log.clear()
        self.progress = []
        config = FetchConfig(**{"email": "me@here", "page": 5, "server": self.database.address, **settings})
        service = Service(config.email, config.api_key, config.server, sleep=lambda seconds: None)
        return fetch(query, self.folder, config, lambda *counts: self.progress.append(counts), service)

    def names(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def fetcher(database: Database, tmp_path: Path, log: pytest.LogCaptureFixture) -> Fetcher:
    return Fetcher(database, tmp_path / "fish", log)


def note(path: Path) -> dict[str, Any]:
    return files.read_json(path.with_name(f"{path.name}.fetch.json"))


def test_a_genus_becomes_a_file(fetcher: Fetcher, database: Database) -> None:
    path = fetcher()
    assert gzip.decompress(path.read_bytes()).decode() == "".join(map(fasta, database.names))
    with open_source(path) as source:
        assert [entry.id for entry in read_fasta(source)] == database.names
    assert fetcher.messages == [f"{path}: 23 records asked for: 23 written, 0 without a sequence"]
    assert fetcher.progress == [(0, 23), (5, 23), (10, 23), (15, 23), (20, 23), (23, 23)]
    assert fetcher.names() == {"carassius.fa.gz", "carassius.fa.gz.fetch.json"}
    saved = note(path)
    assert saved["term"] == database.asked[0][1]["term"] == entrez_term("Carassius")
    assert (saved["total"], saved["wanted"], saved["records"], saved["without"]) == (23, 23, 23, [])
    assert saved["found"] <= saved["finished"] and "key" not in json.dumps(saved)


def test_genbank_of_the_first_few(fetcher: Fetcher, database: Database) -> None:
    path = fetcher("Danio", format="genbank", most=7, lengths="34:261943")
    assert path.name == "danio.gb.gz"
    assert gzip.decompress(path.read_bytes()).count(b"LOCUS ") == 7
    assert fetcher.messages == [f"{path}: 7 records asked for, the first of 23: 7 written, 0 without a sequence"]
    assert database.asked[0][1]["term"].endswith(" NOT wgs[PROP]) AND 34:261943[SLEN]")


def test_a_finished_file_is_not_fetched_again(fetcher: Fetcher, database: Database) -> None:
    path = fetcher()
    before, requests = path.read_bytes(), len(database.asked)
    assert fetcher() == path and path.read_bytes() == before and len(database.asked) == requests
    assert "its 23 records came on" in fetcher.messages[0] and "remove it to fetch again" in fetcher.messages[0]
    path.unlink()
    assert fetcher().read_bytes() == before


def test_faults_leave_no_trace_in_the_file(fetcher: Fetcher, database: Database) -> None:
    database.faults = [status(429), nothing, status(500), status(200, "AB1.1\n"), status(502), short, nothing]
    path = fetcher()
    assert gzip.decompress(path.read_bytes()).decode() == "".join(map(fasta, database.names))


def test_records_without_a_sequence_are_counted_and_named(fetcher: Fetcher, database: Database) -> None:
    database.without = set(database.names[1:8])
    path = fetcher(page=20)
    assert fetcher.messages[0].endswith(
        "23 records asked for: 16 written, 7 without a sequence "
        "(AB000001.1, AB000002.1, AB000003.1, AB000004.1, AB000005.1, ...)"
    )
    assert note(path)["without"] == database.names[1:8]


def test_no_record_has_a_sequence(fetcher: Fetcher, database: Database) -> None:
    database.names, database.without = database.names[:1], set(database.names)
    with pytest.raises(ValueError, match="none of its 1 records has a sequence; ask for others"):
        fetcher()


class Killed(BaseException):
    """Stands for SIGKILL, which nothing catches."""


@pytest.mark.parametrize("fn", ["write_bytes", "flush"])
def test_a_kill_at_any_moment(fetcher: Fetcher, database: Database, monkeypatch: pytest.MonkeyPatch, fn: str) -> None:
    """Repeat a command until it succeeds, killing it at its first write or flush, then at its second, and so on."""
    original, missing = getattr(files, fn), {database.names[3], database.names[22]}
    database.without = missing
    for attempt in range(99):
        calls = 0

        def dying(path: Path, *data: bytes, attempt: int = attempt) -> None:
            nonlocal calls
            if calls == attempt:
                if data:  # torn
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.with_name(files.TEMPORARY + path.name).write_bytes(data[0][: len(data[0]) // 2])
                raise Killed
            calls += 1
            original(path, *data)

        monkeypatch.setattr(files, fn, dying)
        try:
            path = fetcher(page=2 + attempt % 3)
            break
        except Killed:
            continue
    assert attempt > 4
    available = [name for name in database.names if name not in missing]
    assert gzip.decompress(path.read_bytes()).decode() == "".join(map(fasta, available))
    assert note(path)["records"] == 21 and fetcher.names() == {"carassius.fa.gz", "carassius.fa.gz.fetch.json"}


def interrupt_fetch(fetcher: Fetcher, database: Database) -> None:
    """Run a fetch that fails at its second page."""
    database.faults = [*([lambda handler, form: False] * 3), status(404)]
    with pytest.raises(ValueError, match=r"refuses \(HTTP 404\)"):
        fetcher()


def test_going_on_asks_for_the_rest_only(fetcher: Fetcher, database: Database) -> None:
    interrupt_fetch(fetcher, database)
    database.asked.clear()
    fetcher()
    assert fetcher.progress[0] == (5, 23)
    assert [name for page in database.pages() for name in page] == database.names[5:]


def test_a_total_that_changed_is_reported(fetcher: Fetcher, database: Database) -> None:
    interrupt_fetch(fetcher, database)
    before = list(database.names)
    database.names.insert(0, "ZZ000000.1")
    path = fetcher()
    assert "NCBI has 24 records now and had 23 on 2" in fetcher.messages[0]
    assert (
        "those of that day are fetched; remove" in fetcher.messages[0]
        and ".fetch.json to begin with" in fetcher.messages[0]
    )
    assert gzip.decompress(path.read_bytes()).decode() == "".join(map(fasta, before))


def test_without_the_note_it_begins_anew(fetcher: Fetcher, database: Database) -> None:
    interrupt_fetch(fetcher, database)
    (fetcher.folder / "carassius.fa.gz.fetch.json").unlink()
    database.names = database.names[1:]
    path = fetcher()
    assert gzip.decompress(path.read_bytes()).decode() == "".join(map(fasta, database.names))


@pytest.mark.parametrize("change", [{"records": "5"}, {"without": 3}, {"found": None}, {"total": 10**30}, {}])
def test_a_note_that_is_damaged(fetcher: Fetcher, database: Database, change: dict[str, object]) -> None:
    interrupt_fetch(fetcher, database)
    path = fetcher.folder / "carassius.fa.gz.fetch.json"
    note = {**json.loads(path.read_text()), **change}
    if not change:
        del note["wanted"]
    path.write_text(json.dumps(note))
    with pytest.raises(
        ValueError, match=r"fetch\.json is damaged: a count or a name is missing or not one; remove it and fetch"
    ):
        fetcher()


def test_other_settings_for_the_same_file(fetcher: Fetcher, database: Database) -> None:
    interrupt_fetch(fetcher, database)
    with pytest.raises(ValueError, match=r"fetch.json is of most=None and 9 is asked for: one file holds one search"):
        fetcher(most=9)
    fetcher()
    with pytest.raises(
        ValueError, match=r"is of term=.* is asked for: .*give the same options, choose another --out"
    ):
        fetcher(lengths="1:9")


def test_a_file_of_the_users_own_is_not_replaced(fetcher: Fetcher, database: Database) -> None:
    fetcher.folder.mkdir()
    (fetcher.folder / "carassius.fa.gz").write_text("mine")
    with pytest.raises(ValueError, match="is there, and not from a fetch: it is not replaced; choose another --out"):
        fetcher()
    assert not database.asked


def test_a_page_damaged_on_the_disk(fetcher: Fetcher, database: Database) -> None:
    interrupt_fetch(fetcher, database)
    (page,) = (fetcher.folder / ".parts" / "carassius.fa.gz").glob("*.gz")
    page.write_bytes(page.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"holds 18 records and 23 came: a page was damaged on the disk; remove"):
        fetcher()
    assert not (fetcher.folder / "carassius.fa.gz").exists()


def test_a_name_without_records(fetcher: Fetcher, database: Database) -> None:
    database.names, database.unknown = [], "Carasius[Organism]"
    with pytest.raises(
        ValueError, match=r'^"Carasius"\[.* finds no record at NCBI \(unknown there: Carasius'
    ) as error:
        fetcher("Carasius")
    assert "check how the name is spelt" in str(error.value) and "\n" not in str(error.value)
    assert not fetcher.names()


def test_a_part_of_a_term_that_is_unknown_is_reported(fetcher: Fetcher, database: Database) -> None:
    database.unknown = "gbdiv_xyz[PROP]"
    fetcher()
    assert fetcher.messages[0] == "NCBI does not know gbdiv_xyz[PROP], and searched without"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"email": ""}, "email='' is not an address: NCBI asks for one; give --email or NCBI_EMAIL"),
        ({"email": "me"}, "email='me' is not an address"),
        ({"format": "xml"}, "format='xml' is not a choice: give one of fasta, genbank"),
        ({"lengths": "9"}, "lengths='9' is not a range of bases: write it as 79:100101"),
        ({"lengths": "9:3"}, "lengths='9:3' is not a range of bases"),
        ({"most": 0}, "most=0 is not a number of records: give 1 or more, or leave it out for all"),
        ({"page": 501}, "page=501 is not from 1 to 500: more is not polite; choose one between"),
        ({"server": "file:///etc"}, "server='file:///etc' is not an address: it begins with https://"),
    ],
    ids=str,
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        FetchConfig(**{"email": "me@here", **settings})


def test_the_key_is_never_shown() -> None:
    assert "secret" not in repr(FetchConfig("me@here", "secret"))


def test_a_query_without_letters() -> None:
    with pytest.raises(ValueError, match=r"query '\[\]' has no letter: give a name such as Carassius"):
        file_name("[]")


@pytest.mark.parametrize("term", ["Mus[Organism]", "Mus AND Rattus", "txid10088", '"house mouse"'])
def test_terms_stay_as_they_are(term: str) -> None:
    assert entrez_term(term) == term


@pytest.mark.parametrize("name", ["Mus", "Carassius auratus", "Bos sp."])
def test_names_are_organisms(name: str) -> None:
    assert entrez_term(name).startswith(f'"{name}"[Organism] AND (')
