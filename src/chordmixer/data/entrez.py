"""A client of NCBI's E-utilities: searches, lists of accessions, and pages of records that are complete.

Requests use `urllib`, which honours the proxies of the environment. The rules of the service are in "Entrez
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
"""Seconds to wait before the second attempt, the third, and so on."""
TIMEOUT, LONGEST_WAIT = 120.0, 300.0
"""Seconds without data until a connection is given up, and the longest wait that a server may ask for."""
ACCESSIONS_PER_REQUEST = 10_000
"""Accessions per request of a list."""
LARGEST_PAGE, LARGEST_LIST = 1 << 30, 1 << 24
"""The most bytes of a response: of records, and of a search or a list of accessions. More is an error."""
PIECE = 1 << 20
"""Bytes of a response that are read at a time."""


@dataclass(frozen=True)
class EntrezFormat:
    """A file format of records."""

    suffix: str
    """File name suffix."""
    kind: str
    """The value of the service's parameter `rettype`."""
    record: re.Pattern[bytes]
    """Pattern of one record, from its first letter to the end of its last line."""

    def count(self, page: bytes) -> int:
        """The number of records in a page."""
        return sum(1 for _ in self.record.finditer(page))

    def is_complete(self, page: bytes) -> bool:
        """Whether a page consists of complete records only."""
        return re.fullmatch(b"(?:" + self.record.pattern + b")*+", page) is not None


FORMATS = {
    "fasta": EntrezFormat("fa.gz", "fasta", re.compile(rb">[^\n]*+\n(?:[A-Za-z*-]*+\n)*+")),
    "genbank": EntrezFormat("gb.gz", "gbwithparts", re.compile(rb"LOCUS (?:(?!//\n|LOCUS )[^\n]*+\n)*+//\n\s*+")),
}


class SearchResult(NamedTuple):
    """The result of a search. The list of records stays on the server for a while."""

    total: int
    history: dict[str, str]
    """The server's reference to the list, parameters of later requests."""
    unknown: list[str]
    """Phrases of the term that the database does not know."""


class TransientFault(Exception):
    """A fault after which a request is repeated, with the seconds that the server asks us to wait."""

    def __init__(self, reason: object, wait: float = 0.0) -> None:
        super().__init__(" ".join(str(reason).split())[:200])
        self.wait = wait


class Service:
    """A client of one server's nucleotide database."""

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
        self.next_request = self.clock()

    def search(self, term: str) -> SearchResult:
        """Search for a term; the result has the number of records."""
        return self._request("esearch", {"term": term, "usehistory": "y", "retmax": 0}, _parse_search)

    def accessions(self, result: SearchResult, count: int) -> list[str]:
        """The accessions, with versions, of the first `count` records of a search."""
        names: list[str] = []
        while len(names) < count:
            size = min(ACCESSIONS_PER_REQUEST, count - len(names))

            def parse(response: bytes, size: int = size) -> list[str]:
                lines = response.decode(errors="replace").split()
                if len(lines) != size or not all(re.fullmatch(r"[\w.|-]+", name) for name in lines):
                    raise TransientFault(f"{len(lines):,} words where {size:,} accessions were asked for")
                return lines

            parameters = {"rettype": "acc", "retmode": "text", "retstart": len(names), "retmax": size}
            names += self._request("efetch", {**result.history, **parameters}, parse)
        if duplicates := len(names) - len(set(names)):
            raise ValueError(
                f"{self.server} lists {duplicates:,} of its records twice: its search went wrong; ask again"
            )
        return names

    def records(self, names: list[str], format: EntrezFormat, is_half: bool = False) -> tuple[bytes, list[str]]:
        """A page of records, and the names without a record, such as the master records of shotgun assemblies.

        A page with too few records is requested again as two halves (`is_half`), recursively, until the missing
        names are known.
        """

        def checked_page(response: bytes) -> bytes:
            page = response.lstrip()
            if not format.is_complete(page) or not (page or is_half or len(names) == 1):
                raise TransientFault(f"a page that is blank, cut or not {format.kind}: {page[:60]!r}")
            return page

        parameters = {"id": ",".join(names), "rettype": format.kind, "retmode": "text"}
        page = self._request("efetch", parameters, checked_page)
        if not page and len(names) == 1:  # a single blank page may be an accident: try once more
            page = self._request("efetch", parameters, checked_page)
        if format.count(page) == len(names):
            return page, []
        if len(names) == 1:
            return b"", names
        half = len(names) // 2
        first, missing = self.records(names[:half], format, is_half=True)
        second, also_missing = self.records(names[half:], format, is_half=True)
        return first + second, missing + also_missing

    def _request(self, utility: str, parameters: dict[str, Any], check: Callable[[bytes], T]) -> T:
        """Send a request and return `check(response)`; the request is repeated if that raises `TransientFault`."""
        tries = 0
        while True:
            try:
                return check(self._post(utility, parameters))
            except TransientFault as fault:
                if tries == len(WAITS):
                    raise ValueError(
                        f"{self.server} failed {tries + 1} times ({fault}): check the network, or wait a while; "
                        "the same command goes on from here"
                    ) from None
                self.sleep(max(WAITS[tries], min(fault.wait, LONGEST_WAIT)))
                tries += 1

    def _post(self, utility: str, parameters: dict[str, Any]) -> bytes:
        now = self.clock()
        if now < self.next_request:
            self.sleep(self.next_request - now)
        self.next_request = max(now, self.next_request) + self.gap
        key = {"api_key": self.api_key} if self.api_key else {}
        data = urlencode({**self.identity, **key, **parameters}).encode()
        try:
            with urlopen(f"{self.server}/{utility}.fcgi", data, timeout=TIMEOUT) as response:
                if not (response.chunked or response.headers.get("Content-Length")):
                    raise TransientFault("an answer that does not say where it ends: it may be cut")
                return _read_body(response, LARGEST_PAGE if "id" in parameters else LARGEST_LIST, self.server)
        except HTTPError as error:
            with error:
                words = self._error_message(error)
            # efetch also answers 400 if a record is temporarily unavailable.
            if error.code in (408, 429) or error.code >= 500 or (error.code == 400 and utility == "efetch"):
                wait = error.headers.get("Retry-After", "")
                raise TransientFault(words, float(wait) if re.fullmatch("[0-9]{1,9}", wait) else 0.0) from None
            raise ValueError(f"{self.server} refuses ({words}): check --server, --api-key and the query") from None
        except (OSError, HTTPException) as error:
            raise TransientFault(getattr(error, "reason", None) or repr(error)) from None

    def _error_message(self, error: HTTPError) -> str:
        """The server's message, with the API key removed."""
        message = ""
        with suppress(OSError, HTTPException):
            message = error.read(500).decode(errors="replace")
        message = message.replace(self.api_key, "...") if self.api_key else message
        return " ".join(f"HTTP {error.code} {message}".split())[:200]


def _read_body(response: Any, most: int, server: str) -> bytes:
    """The body of a response, read piece by piece so that an endless one cannot fill the memory."""
    body = bytearray()
    while piece := response.read(PIECE):
        body += piece
        if len(body) > most:
            raise ValueError(
                f"{server} sends over {most:,} bytes in one answer, the most that is read: ask for fewer records at "
                "once with --page, or for shorter ones with --lengths"
            )
    return bytes(body)


def _parse_search(response: bytes) -> SearchResult:
    try:
        tree = ElementTree.fromstring(response)
    except ElementTree.ParseError as error:
        raise TransientFault(f"an answer that is no XML: {error}") from None
    count, key, place, fault = (tree.findtext(name, "") for name in ("Count", "QueryKey", "WebEnv", "ERROR"))
    unknown = [part.text or "" for part in tree.iterfind("ErrorList/*")]
    if fault or not re.fullmatch("[0-9]{1,12}", count) or (int(count) and not (key and place)):
        raise TransientFault(fault or "a search without its result")
    return SearchResult(int(count), {"query_key": key, "WebEnv": place}, unknown)
