"""A client of NCBI's E-utilities: searches, lists of accessions, and pages of records that are known to be whole.

Requests go by `urllib`, which honours the proxies of the environment. The rules of the service are in "Entrez
Programming Utilities Help", https://www.ncbi.nlm.nih.gov/books/NBK25501/.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen
from xml.etree import ElementTree

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
        """How many records there are, one after the other."""
        return sum(1 for _ in self.record.finditer(page))

    def whole(self, page: bytes) -> bool:
        """Whether a page consists of complete records alone."""
        return re.fullmatch(b"(?:" + self.record.pattern + b")*+", page) is not None


FORMATS = {
    "fasta": EntrezFormat("fa.gz", "fasta", re.compile(rb">[^\n]*+\n(?:[A-Za-z*-]*+\n)*+")),
    "genbank": EntrezFormat("gb.gz", "gbwithparts", re.compile(rb"LOCUS (?:(?!//\n|LOCUS )[^\n]*+\n)*+//\n\s*+")),
}


class Found(NamedTuple):
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
