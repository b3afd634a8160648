from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.data.ncbi_server import (
    Database,
    Fault,
    cut,
    endless,
    fasta,
    flood,
    genbank,
    nothing,
    says,
    serving,
    short,
    status,
)

from chordmixer.data import entrez
from chordmixer.data.entrez import FORMATS, WAITS, EntrezFormat, SearchResult, Service

FASTA, GENBANK = FORMATS["fasta"], FORMATS["genbank"]


@pytest.fixture
def database() -> Iterator[Database]:
    with serving() as database:
        yield database


class FakeClock:
    """A clock that only sleep moves."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def service(database: Database, clock: FakeClock) -> Service:
    return Service("me@here", "", database.address, clock.time, clock.sleep)


def test_a_search_its_list_and_its_records(service: Service, database: Database) -> None:
    result = service.search("Carassius")
    assert result == SearchResult(23, {"query_key": "1", "WebEnv": "MCID_7"}, [])
    names = service.accessions(result, 5)
    assert names == database.names[:5]
    page, missing = service.records(names, FASTA)
    assert (page.decode(), missing) == ("".join(map(fasta, names)), [])
    assert database.asked[0][1] == {
        **{"db": "nuccore", "tool": "chordmixer", "email": "me@here"},
        **{"term": "Carassius", "usehistory": "y", "retmax": "0"},
    }


def test_a_long_list_comes_in_pieces(service: Service, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrez, "ACCESSIONS_PER_REQUEST", 10)
    assert service.accessions(service.search("x"), 23) == database.names
    assert [form["retmax"] for _, form in database.asked if "retstart" in form] == ["10", "10", "3"]


def test_a_list_with_a_record_twice(service: Service, database: Database) -> None:
    database.names[1] = database.names[0]
    with pytest.raises(ValueError, match="lists 1 of its records twice: its search went wrong; ask again"):
        service.accessions(service.search("x"), 23)


@pytest.mark.parametrize(("key", "rate"), [("", 3), ("secret", 10)])
def test_the_pace_is_what_ncbi_allows(database: Database, clock: FakeClock, key: str, rate: int) -> None:
    service = Service("me@here", key, database.address, clock.time, clock.sleep)
    for _ in range(2 * rate + 1):
        service.search("x")
    assert clock.now == pytest.approx(2.0)
    assert all(form.get("api_key", "") == key for _, form in database.asked)
    clock.now += 5
    service.search("x")
    assert clock.now == pytest.approx(7.0), "no request waits after a pause"


@pytest.mark.parametrize(
    "fault",
    [
        *(status(code, "busy") for code in (400, 429, 500, 502, 503)),
        *(cut, endless, nothing, says("\n"), says("<html>maintenance</html>")),
        says("<eFetchResult><ERROR>Unable to obtain query #1</ERROR></eFetchResult>"),
        says(fasta("AB000000.1") + "Error: proxy_stream(): Failed to retrieve sequence\n"),
    ],
    ids=[
        "400",
        "429",
        "500",
        "502",
        "503",
        "cut",
        "endless",
        "nothing",
        "blank",
        "html",
        "error",
        "error-at-the-end",
    ],
)
def test_a_fault_that_passes(service: Service, database: Database, clock: FakeClock, fault: Fault) -> None:
    names = database.names[:4]
    database.faults = [fault, fault]
    page, missing = service.records(names, FASTA)
    assert (page.decode(), missing, database.pages()) == ("".join(map(fasta, names)), [], [names] * 3)
    assert clock.slept == [1, 2], "each wait is longer than the last, and longer than the rate limit asks for"


@pytest.mark.parametrize(
    "fault",
    [says("<eSearchResult><ERROR>Search Backend failed</ERROR></eSearchResult>"), says("oops"), says("<a/>")],
    ids=["error", "no XML", "no result"],
)
def test_a_search_that_fails_once(service: Service, database: Database, fault: Fault) -> None:
    database.faults = [fault]
    assert service.search("x").total == 23


def test_a_list_that_comes_cut(service: Service, database: Database) -> None:
    result = service.search("x")
    database.faults = [says("AB000000.1\n"), says("too many words here " * 6)]
    assert service.accessions(result, 23) == database.names


def test_the_server_says_how_long_to_wait(service: Service, database: Database, clock: FakeClock) -> None:
    database.faults = [status(429, Retry_After="7"), status(503, Retry_After="9999"), status(503, Retry_After="soon")]
    service.search("x")
    assert clock.slept == [7, 300, 4]


def test_a_fault_that_stays(service: Service, database: Database, clock: FakeClock) -> None:
    database.faults = [says("<a><ERROR>Search\nBackend failed</ERROR></a>")] * 99
    with pytest.raises(
        ValueError, match=r"failed 8 times \(Search Backend failed\): check the network, or wait"
    ) as error:
        service.search("x")
    assert len(database.asked) == len(WAITS) + 1 and clock.slept == [*WAITS] and "\n" not in str(error.value)


def test_an_answer_without_end(service: Service, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrez, "LARGEST_LIST", 1 << 22)
    monkeypatch.setattr(entrez, "LARGEST_PAGE", 1 << 23)
    for request, limit in (
        (lambda: service.search("x"), "4,194,304"),
        (lambda: service.records(["A"], FASTA), "8,388,608"),
    ):
        database.faults = [flood]
        with pytest.raises(
            ValueError, match=f"sends over {limit} bytes in one answer, .*: ask for fewer records at once"
        ):
            request()
    assert database.sent < 1 << 26 and len(database.asked) == 2  # and it is not asked again


def test_no_server(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    service = Service("me@here", "", "http://127.0.0.1:9", clock.time, clock.sleep)
    with pytest.raises(ValueError, match=r"http://127.0.0.1:9 failed 8 times .*refused.*the same command goes on"):
        service.search("x")


def test_the_proxy_of_the_environment(database: Database, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    monkeypatch.setattr("urllib.request._opener", None)  # it remembers the environment of the first request
    monkeypatch.setenv("http_proxy", database.address.removesuffix("/entrez/eutils"))
    service = Service("me@here", "", "http://ncbi.invalid/eutils", clock.time, clock.sleep)
    assert service.search("x").total == 23


def test_a_refusal_is_told_at_once_and_without_the_key(database: Database, clock: FakeClock) -> None:
    service = Service("me@here", "secret", database.address, clock.time, clock.sleep)
    database.faults = [status(400, '{"error":"API key invalid","api-key":"secret"}')]
    with pytest.raises(ValueError, match=r"refuses \(HTTP 400 .*API key invalid.*check --server, --api-key") as error:
        service.search("x")
    assert "secret" not in str(error.value) and len(database.asked) == 1


def test_a_short_page_is_asked_for_again(service: Service, database: Database) -> None:
    names = database.names[:8]
    database.faults = [short]
    page, missing = service.records(names, FASTA)
    assert (page.decode(), missing) == ("".join(map(fasta, names)), [])
    assert database.pages() == [names, names[:4], names[4:]]


@pytest.mark.parametrize("positions", [{0}, {22}, {3, 4, 11}, {*range(0, 23, 2)}, {*range(23)}], ids=len)
def test_records_without_a_sequence_are_named(positions: set[int]) -> None:
    with serving() as database:
        names = database.names
        database.without = {names[number] for number in positions}
        available = [name for name in names if name not in database.without]
        clock = FakeClock()
        service = Service("me@here", "", database.address, clock.time, clock.sleep)
        if available:
            page, missing = service.records(names, FASTA)
            assert (page.decode(), set(missing)) == ("".join(map(fasta, available)), database.without)
        else:
            with pytest.raises(ValueError, match="a page that is blank, cut or not fasta"):
                service.records(names, FASTA)


def test_one_record_that_is_blank_by_accident(service: Service, database: Database) -> None:
    database.faults = [short]
    page, missing = service.records(database.names[:1], FASTA)
    assert (page.decode(), missing) == (fasta(database.names[0]), [])


def test_one_record_without_a_sequence(service: Service, database: Database) -> None:
    database.without = {database.names[0]}
    assert service.records(database.names[:1], FASTA) == (b"", database.names[:1])


def test_genbank(service: Service, database: Database) -> None:
    page, missing = service.records(database.names, GENBANK)
    assert page.decode().strip() == "".join(map(genbank, database.names)).strip() and not missing
    assert GENBANK.count(page) == 23


@pytest.mark.parametrize("form", [FASTA, GENBANK], ids=["fasta", "genbank"])
def test_a_page_cut_in_its_last_line_is_not_complete(form: EntrezFormat) -> None:
    write = fasta if form is FASTA else genbank
    page = (write("A.1") + write("B.1")).rstrip().encode()
    assert form.is_complete(page + b"\n") and form.count(page + b"\n") == 2
    for end in range(len(page)):
        cut_page = page[: end + 1]
        assert not form.is_complete(cut_page) or form.count(cut_page) < 2 or cut_page.endswith(b"\n")
