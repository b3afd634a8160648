"""Records from NCBI: one file for each genus or term, resumed after a kill where it stopped.

The list of a search is kept before its first page is fetched, so that a fetch of many hours, over several starts, is
of one list and not of a database that changes meanwhile.

Requests go to NCBI's E-utilities by `urllib`, which honours the proxies of the environment. The rules of the service
are in "Entrez Programming Utilities Help", https://www.ncbi.nlm.nih.gov/books/NBK25501/.
"""

from __future__ import annotations

import gzip
import logging
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen
from xml.etree import ElementTree

from chordmixer import files
from chordmixer.config import check_numbers, from_dict

logger = logging.getLogger(__name__)

T = TypeVar("T")

NCBI = "https://eutils.ncbi.nlm.nih.gov/entrez/eutils"
WAITS = (1, 2, 4, 8, 16, 32, 64)
"""Seconds before the second try, the third, and so on."""
TIMEOUT, LONGEST_WAIT = 120.0, 300.0
"""Seconds of silence until a connection is given up, and the most that a server may ask us to wait."""
LISTED = 10_000
"""Accessions asked for at once."""
LARGEST_PAGE, LARGEST_LIST = 1 << 30, 1 << 24
"""The most bytes of an answer: of records, and of a search or a list of accessions. More is an error."""
PIECE = 1 << 20
"""Bytes of an answer that are read at once."""


@dataclass(frozen=True)
class EntrezFormat:
    """A format of records."""

    suffix: str
    """Suffix of a file."""
    kind: str
    """Its name at the service."""
    record: re.Pattern[bytes]
    """One record, from its first letter to the end of its last line."""

    def count(self, page: bytes) -> int:
        """How many records there are, one after the other.

        >>> FORMATS["fasta"].count(b">a\\nACGT\\n\\n>b of a fish\\nAC\\nGT\\n")
        2
        """
        return sum(1 for _ in self.record.finditer(page))

    def whole(self, page: bytes) -> bool:
        """Whether a page consists of complete records alone.

        >>> [FORMATS["fasta"].whole(page) for page in (b">a\\nACGT\\n", b">a\\nACG", b"<ERROR>")]
        [True, False, False]
        """
        return re.fullmatch(b"(?:" + self.record.pattern + b")*+", page) is not None


FORMATS = {
    "fasta": EntrezFormat("fa.gz", "fasta", re.compile(rb">[^\n]*+\n(?:[A-Za-z*-]*+\n)*+")),
    "genbank": EntrezFormat("gb.gz", "gbwithparts", re.compile(rb"LOCUS (?:(?!//\n|LOCUS )[^\n]*+\n)*+//\n\s*+")),
}


@dataclass(frozen=True)
class Found:
    """The result of a search; the list itself stays at the server for a while."""

    total: int
    history: dict[str, str]
    """The server's reference to the list."""
    unknown: list[str]
    """Parts of the term that the database does not know."""


class PassingFault(Exception):
    """A transient fault, with the seconds that the server asks us to wait."""

    def __init__(self, reason: object, wait: float = 0.0) -> None:
        super().__init__(" ".join(str(reason).split())[:200])
        self.wait = wait


class Service:
    """The nucleotide database of one server."""

    def __init__(
        self,
        email: str,
        api_key: str = "",
        server: str = NCBI,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.server, self.api_key = server.rstrip("/"), api_key
        self.identity = {"db": "nuccore", "tool": "chordmixer", "email": email}
        self.clock, self.sleep = clock or time.monotonic, sleep or time.sleep
        self.gap = 1 / (10 if api_key else 3)  # seconds between requests, as NCBI allows
        self.free = self.clock()

    def search(self, term: str) -> Found:
        """How many records a term has."""
        return self._ask("esearch", {"term": term, "usehistory": "y", "retmax": 0}, _search_result)

    def accessions(self, found: Found, count: int) -> list[str]:
        """The names of the first so many records, each with its version."""
        names: list[str] = []
        while len(names) < count:
            asked = min(LISTED, count - len(names))

            def listed(answer: bytes, asked: int = asked) -> list[str]:
                lines = answer.decode(errors="replace").split()
                if len(lines) != asked or not all(re.fullmatch(r"[\w.|-]+", name) for name in lines):
                    raise PassingFault(f"{len(lines):,} words where {asked:,} accessions were asked for")
                return lines

            part = {"rettype": "acc", "retmode": "text", "retstart": len(names), "retmax": asked}
            names += self._ask("efetch", {**found.history, **part}, listed)
        if twice := len(names) - len(set(names)):
            raise ValueError(f"{self.server} lists {twice:,} of its records twice: its search went wrong; ask again")
        return names

    def records(self, names: list[str], form: EntrezFormat, within: bool = False) -> tuple[bytes, list[str]]:
        """Records as the format has them, and the names that give none, as the heads of shotgun assemblies do.

        A page with too few is asked for again as two halves (then we are `within` it), and so on, until it is known
        which ones are not there.
        """

        def page_of(answer: bytes) -> bytes:
            page = answer.lstrip()
            if not form.whole(page) or not (page or within or len(names) == 1):
                raise PassingFault(f"a page that is blank, cut or not {form.kind}: {page[:60]!r}")
            return page

        asked = {"id": ",".join(names), "rettype": form.kind, "retmode": "text"}
        page = self._ask("efetch", asked, page_of)
        if not page and len(names) == 1:  # it may be blank by accident, and is left out if it stays so
            page = self._ask("efetch", asked, page_of)
        if form.count(page) == len(names):
            return page, []
        if len(names) == 1:
            return b"", names
        half = len(names) // 2
        first, lost = self.records(names[:half], form, within=True)
        second, also_lost = self.records(names[half:], form, within=True)
        return first + second, lost + also_lost

    def _ask(self, utility: str, form: dict[str, Any], check: Callable[[bytes], T]) -> T:
        """The result of `check` on the answer; `check` raises `PassingFault` to have the request repeated."""
        tries = 0
        while True:
            try:
                return check(self._post(utility, form))
            except PassingFault as fault:
                if tries == len(WAITS):
                    raise ValueError(
                        f"{self.server} failed {tries + 1} times ({fault}): check the network, or wait a while; "
                        "the same command goes on from here"
                    ) from None
                self.sleep(max(WAITS[tries], min(fault.wait, LONGEST_WAIT)))
                tries += 1

    def _post(self, utility: str, form: dict[str, Any]) -> bytes:
        now = self.clock()
        if now < self.free:
            self.sleep(self.free - now)
        self.free = max(now, self.free) + self.gap
        key = {"api_key": self.api_key} if self.api_key else {}
        data = urlencode({**self.identity, **key, **form}).encode()
        try:
            with urlopen(f"{self.server}/{utility}.fcgi", data, timeout=TIMEOUT) as answer:
                if not (answer.chunked or answer.headers.get("Content-Length")):
                    raise PassingFault("an answer that does not say where it ends: it may be cut")
                return _body(answer, LARGEST_PAGE if "id" in form else LARGEST_LIST, self.server)
        except HTTPError as error:
            with error:
                words = self._words(error)
            # 400 from efetch may be a record that its store cannot deliver just now.
            if error.code in (408, 429) or error.code >= 500 or (error.code == 400 and utility == "efetch"):
                wait = error.headers.get("Retry-After", "")
                raise PassingFault(words, float(wait) if re.fullmatch("[0-9]{1,9}", wait) else 0.0) from None
            raise ValueError(f"{self.server} refuses ({words}): check --server, --api-key and the query") from None
        except (OSError, HTTPException) as error:
            raise PassingFault(getattr(error, "reason", None) or repr(error)) from None

    def _words(self, error: HTTPError) -> str:
        """The server's message, without the API key that it may repeat."""
        told = ""
        with suppress(OSError, HTTPException):
            told = error.read(500).decode(errors="replace")
        told = told.replace(self.api_key, "...") if self.api_key else told
        return " ".join(f"HTTP {error.code} {told}".split())[:200]


def _body(answer: Any, most: int, server: str) -> bytes:
    """All of an answer, read piece by piece so that one without end fills no memory."""
    body = bytearray()
    while piece := answer.read(PIECE):
        body += piece
        if len(body) > most:
            raise ValueError(
                f"{server} sends over {most:,} bytes in one answer, the most that is read: ask for fewer records at "
                "once with --page, or for shorter ones with --lengths"
            )
    return bytes(body)


def _search_result(answer: bytes) -> Found:
    try:
        tree = ElementTree.fromstring(answer)
    except ElementTree.ParseError as error:
        raise PassingFault(f"an answer that is no XML: {error}") from None
    count, key, place, fault = (tree.findtext(name, "") for name in ("Count", "QueryKey", "WebEnv", "ERROR"))
    unknown = [part.text or "" for part in tree.iterfind("ErrorList/*")]
    if fault or not re.fullmatch("[0-9]{1,12}", count) or (int(count) and not (key and place)):
        raise PassingFault(fault or "a search without its result")
    return Found(int(count), {"query_key": key, "WebEnv": place}, unknown)


DIVISIONS = ("bct", "inv", "mam", "phg", "pln", "pri", "rod", "vrl", "vrt")
"""The files of GenBank's release that are about a taxon, and not about a way of sequencing."""


@dataclass(frozen=True)
class FetchConfig:
    """Settings of a fetch."""

    email: str = ""
    """Yours: NCBI asks for it, to write to you before it blocks you."""
    api_key: str = field(default="", repr=False)
    """The key of your NCBI account: it allows ten requests a second instead of three."""
    format: Literal["fasta", "genbank"] = "fasta"
    """GenBank has the lineage and the features too, and is several times as large."""
    lengths: str = ""
    """Only records of so many bases, such as `32:100101`."""
    most: int | None = None
    """Only the first so many, in the database's order."""
    page: int = 200
    """Records in a request; fewer where they are long, since a page is held in memory."""
    server: str = NCBI
    """Address of the E-utilities."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", self.email):
            raise ValueError(f"email={self.email!r} is not an address: NCBI asks for one; give --email or NCBI_EMAIL")
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r} is not a choice: give one of {', '.join(FORMATS)}")
        bounds = re.fullmatch(r"(\d{1,18}):(\d{1,18})", self.lengths)
        if self.lengths and not (bounds and int(bounds[1]) <= int(bounds[2])):
            raise ValueError(f"lengths={self.lengths!r} is not a range of bases: write it as 32:100101")
        if self.most is not None and self.most < 1:
            raise ValueError(f"most={self.most} is not a number of records: give 1 or more, or leave it out for all")
        if not 1 <= self.page <= 500:
            raise ValueError(f"page={self.page} is not from 1 to 500: more is not polite; choose one between")
        if not re.match(r"https?://[^/\s]", self.server):
            raise ValueError(
                f"server={self.server!r} is not an address: it begins with https://; leave it out for {NCBI}"
            )


def entrez_term(query: str, lengths: str = "") -> str:
    """The search term: a name, such as a genus, becomes a search for its records in GenBank; a term stays as it is.

    >>> entrez_term("Carassius")  # doctest: +ELLIPSIS
    '"Carassius"[Organism] AND (gbdiv_bct[PROP] OR ... OR gbdiv_vrt[PROP]) NOT srcdb_refseq[PROP] NOT wgs[PROP]'
    >>> entrez_term("Mus[Organism] OR Rattus[Organism]", "32:261093")
    '(Mus[Organism] OR Rattus[Organism]) AND 32:261093[SLEN]'

    The paper's authors took genera from the files `gbvrt`, `gbrod` and `gbmam` of GenBank's release. Tags, patents
    and contigs are in other files of it, RefSeq and the pieces of shotgun assemblies are not in it.
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z. -]*", query) and not {"AND", "OR", "NOT"} & set(query.split()):
        divisions = " OR ".join(f"gbdiv_{division}[PROP]" for division in DIVISIONS)
        query = f'"{query}"[Organism] AND ({divisions}) NOT srcdb_refseq[PROP] NOT wgs[PROP]'
    return f"({query}) AND {lengths}[SLEN]" if lengths else query


def file_name(query: str, format: str = "fasta") -> str:
    """The file of a query.

    >>> file_name("Carassius"), file_name('"Mus"[Organism] AND gbdiv_rod[PROP]', "genbank")
    ('carassius.fa.gz', 'mus-organism-and-gbdiv-rod-prop.gb.gz')
    """
    stem = re.sub(r"[^a-z0-9]+", "-", query.lower())[:80].strip("-")
    if not stem:
        raise ValueError(f"query {query!r} has no letter: give a name such as Carassius, or an Entrez term")
    return f"{stem}.{FORMATS[format].suffix}"


def fetch(
    query: str,
    folder: Path | str,
    config: FetchConfig,
    seen: Callable[[int, int], None] = lambda done, wanted: None,
    service: Service | None = None,
) -> Path:
    """Fetch the records of a name or an Entrez term into one compressed file, or go on with that.

    Beside the file stands `NAME.fetch.json`: term, date, how many records there were and came. `seen` hears after
    each page how many records are done, of how many.
    """
    target = Path(folder) / file_name(query, config.format)
    service = service or Service(config.email, config.api_key, config.server)
    parts, note = target.parent / ".parts" / target.name, target.with_name(f"{target.name}.fetch.json")
    state = FetchState(entrez_term(query, config.lengths), config.most, config.server)
    before = _state(target, note, state)
    if before and before.finished:
        _remove(parts)
        logger.info(
            f"{target}: its {before.records:,} records came on {before.finished[:10]}; remove it to fetch again"
        )
        return target
    found = _search(service, state.term)
    names = _kept(parts, before) if before else None
    if before is None or names is None:
        note.unlink(missing_ok=True)  # an old one must never count for a new list
        _remove(parts)
        wanted = min(found.total, config.most or found.total)
        state = replace(state, total=found.total, wanted=wanted, found=_now())
        names = service.accessions(found, wanted)
        files.write_text(parts / "accessions.txt", "\n".join(names))
        _save(note, state)
    else:
        state = before
        if found.total != state.total:
            logger.info(
                f"{target}: NCBI has {found.total:,} records now and had {state.total:,} on {state.found[:10]}: "
                f"those of that day are fetched; remove {note} to begin with today's"
            )
    _fetch_pages(names, state, config, service, parts, note, seen)
    if not state.records:
        raise ValueError(f"{state.term}: none of its {len(names):,} records has a sequence; ask for others")
    _join(parts, target, note, state, FORMATS[config.format].count)
    _save(note, replace(state, finished=_now()))
    _remove(parts)
    logger.info(state.summary(target))
    return target


@dataclass
class FetchState:
    """The contents of `NAME.fetch.json`."""

    term: str
    most: int | None
    server: str
    total: int = 0
    """Records that the search found."""
    wanted: int = 0
    """Records to fetch."""
    found: str = ""
    """When the search was made."""
    records: int = 0
    """Records that came."""
    without: list[str] = field(default_factory=list)
    """Accessions without a sequence."""
    finished: str = ""

    def __post_init__(self) -> None:
        check_numbers(self)

    def summary(self, target: Path) -> str:
        few = ", ".join(self.without[:5]) + (", ..." if len(self.without) > 5 else "")
        first = f", the first of {self.total:,}" if self.wanted < self.total else ""
        return (
            f"{target}: {self.wanted:,} records asked for{first}: {self.records:,} written, "
            f"{len(self.without):,} without a sequence{f' ({few})' if few else ''}"
        )


def _state(target: Path, note: Path, asked: FetchState) -> FetchState | None:
    """The state that an earlier start left, if it can be resumed."""
    if not note.exists():
        if target.exists():
            raise ValueError(f"{target} is there, and not from a fetch: it is not replaced; choose another --out")
        return None
    given = files.read_json(note)
    if given.get("finished") and not target.exists():
        return None
    for key in ("term", "most", "server"):
        if given.get(key) != getattr(asked, key):
            raise ValueError(
                f"{note} is of {key}={given.get(key)!r} and {getattr(asked, key)!r} is asked for: one file holds one "
                "search; give the same options, choose another --out, or remove it and the file beside it"
            )
    try:
        return from_dict(FetchState, given, note.name)
    except ValueError:
        raise ValueError(f"{note} is damaged: a count or a name is not one; remove it and fetch again") from None


def _save(note: Path, state: FetchState) -> None:
    files.write_json(note, {key: value for key, value in asdict(state).items() if value or key != "finished"})


def _search(service: Service, term: str) -> Found:
    found = service.search(term)
    unknown = ", ".join(found.unknown)
    if not found.total:
        why = f" (unknown there: {unknown})" if unknown else ""
        raise ValueError(f"{term} finds no record at NCBI{why}: check how the name is spelt, or give another term")
    if unknown:
        logger.info(f"NCBI does not know {unknown}, and searched without")
    return found


def _kept(parts: Path, state: FetchState) -> list[str] | None:
    """The list of accessions of an earlier start, if it exists."""
    try:
        names = (parts / "accessions.txt").read_text(errors="replace").split()
    except OSError:
        return None
    return names if len(names) == state.wanted else None


def _fetch_pages(
    names: list[str],
    state: FetchState,
    config: FetchConfig,
    service: Service,
    parts: Path,
    note: Path,
    seen: Callable[[int, int], None],
) -> None:
    """Each page is on the disk before the note that counts it: a kill between them fetches one page twice.

    A page is named after its first record, so that what a kill left of it is replaced.
    """
    done = state.records + len(state.without)
    seen(done, len(names))
    while done < len(names):
        asked = names[done : done + config.page]
        page, without = service.records(asked, FORMATS[config.format])
        files.write_bytes(parts / f"{done:010}.gz", gzip.compress(page, mtime=0))
        state.records += len(asked) - len(without)
        state.without += without
        _save(note, state)
        done += len(asked)
        seen(done, len(names))


def _join(parts: Path, target: Path, note: Path, state: FetchState, count: Callable[[bytes], int]) -> None:
    """One file of all pages, which are gzip streams: those may stand one after the other."""
    pages, records = sorted(parts.glob("[0-9]*.gz")), 0
    size = f"{sum(page.stat().st_size for page in pages):,}"
    room = files.explaining_no_room(target, size, "; the same command goes on")
    with room, files.replacing(target, sweeping=True) as file:
        for page in pages:
            data = page.read_bytes()
            with suppress(EOFError, OSError, zlib.error):  # a damaged page counts for nothing
                records += count(gzip.decompress(data))
            file.write(data)
        if records != state.records:
            raise ValueError(
                f"{parts} holds {records:,} records and {state.records:,} came: a page was damaged on the disk; "
                f"remove {note} and fetch again"
            )


def _remove(parts: Path) -> None:
    """The pages and their list; nothing else that may lie there."""
    with suppress(OSError):  # what is not ours keeps its folder, and other queries may have theirs beside it
        files.sweep(parts)
        for own in [*parts.glob("[0-9]*.gz"), parts / "accessions.txt"]:
            own.unlink(missing_ok=True)
        parts.rmdir()
        parts.parent.rmdir()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
