"""Fetch records from NCBI into one file per genus or search term; an interrupted fetch can be resumed.

The list of accessions is saved before the first page is fetched, so that a fetch of many hours, even over several
starts, is of one list although the database changes meanwhile.
"""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from chordmixer import files
from chordmixer.config import check_numbers, from_dict
from chordmixer.data.entrez import FORMATS, NCBI, SearchResult, Service

logger = logging.getLogger(__name__)

DIVISIONS = ("bct", "inv", "mam", "phg", "pln", "pri", "rod", "vrl", "vrt")
"""GenBank divisions by taxon; the other divisions are by sequencing method."""


@dataclass(frozen=True)
class FetchConfig:
    """Settings of a fetch."""

    email: str = ""
    """Your address: NCBI requires one, and writes to it before it blocks a user."""
    api_key: str = field(default="", repr=False)
    """The API key of your NCBI account: it allows ten requests per second instead of three."""
    format: Literal["fasta", "genbank"] = "fasta"
    """The file format. GenBank files also have lineage and features, and are several times as large."""
    lengths: str = ""
    """The range of record lengths in bases, such as `79:100101`. Default: all lengths."""
    most: int | None = None
    """Maximum number of records, the first in the database's order. Default: all."""
    page: int = 200
    """Records per request; choose fewer for long records, since a page is held in memory."""
    server: str = NCBI
    """Address of the E-utilities."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", self.email):
            raise ValueError(f"email={self.email!r} is not an address: NCBI asks for one; give --email or NCBI_EMAIL")
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r} is not a choice: give one of {', '.join(FORMATS)}")
        bounds = re.fullmatch(r"(\d{1,18}):(\d{1,18})", self.lengths)
        if self.lengths and not (bounds and int(bounds[1]) <= int(bounds[2])):
            raise ValueError(f"lengths={self.lengths!r} is not a range of bases: write it as 79:100101")
        if self.most is not None and self.most < 1:
            raise ValueError(f"most={self.most} is not a number of records: give 1 or more, or leave it out for all")
        if not 1 <= self.page <= 500:
            raise ValueError(f"page={self.page} is not from 1 to 500: more is not polite; choose one between")
        if not re.match(r"https?://[^/\s]", self.server):
            raise ValueError(
                f"server={self.server!r} is not an address: it begins with https://; leave it out for {NCBI}"
            )


def entrez_term(query: str, lengths: str = "") -> str:
    """The search term of a query: the name of a taxon becomes a search of GenBank, an Entrez term is unchanged.

    >>> entrez_term("Carassius")  # doctest: +ELLIPSIS
    '"Carassius"[Organism] AND (gbdiv_bct[PROP] OR ... OR gbdiv_vrt[PROP]) NOT srcdb_refseq[PROP] NOT wgs[PROP]'
    >>> entrez_term("Mus[Organism] OR Rattus[Organism]", "32:261093")
    '(Mus[Organism] OR Rattus[Organism]) AND 32:261093[SLEN]'

    The paper's authors took genera from the files `gbvrt`, `gbrod` and `gbmam` of a GenBank release. Tags, patents
    and contigs are in other files of the release; RefSeq and the pieces of shotgun assemblies are not part of it.
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z. -]*", query) and not {"AND", "OR", "NOT"} & set(query.split()):
        divisions = " OR ".join(f"gbdiv_{division}[PROP]" for division in DIVISIONS)
        query = f'"{query}"[Organism] AND ({divisions}) NOT srcdb_refseq[PROP] NOT wgs[PROP]'
    return f"({query}) AND {lengths}[SLEN]" if lengths else query


def file_name(query: str, format: str = "fasta") -> str:
    """The file name for a query.

    >>> file_name("Carassius"), file_name('"Mus"[Organism] AND gbdiv_rod[PROP]', "genbank")
    ('carassius.fa.gz', 'mus-organism-and-gbdiv-rod-prop.gb.gz')
    """
    stem = re.sub(r"[^a-z0-9]+", "-", query.lower())[:80].strip("-")
    if not stem:
        raise ValueError(f"query {query!r} has no letter: give a name such as Carassius, or an Entrez term")
    return f"{stem}.{FORMATS[format].suffix}"


@dataclass
class FetchState:
    """The state of a fetch, saved as `NAME.fetch.json`."""

    term: str
    most: int | None
    server: str
    total: int
    """Number of records that the search found."""
    wanted: int
    """Number of records to fetch."""
    found: str
    """Date and time of the search."""
    records: int
    """Number of records fetched so far."""
    without: list[str]
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


def fetch(
    query: str,
    folder: Path | str,
    config: FetchConfig,
    seen: Callable[[int, int], None] = lambda done, wanted: None,
    service: Service | None = None,
) -> Path:
    """Fetch the records of a taxon's name or an Entrez term into one compressed file, or resume an earlier fetch.

    `NAME.fetch.json` next to the file records the search term, date and numbers of records. `seen` is called after
    each page with the numbers of records done and wanted.
    """
    target = Path(folder) / file_name(query, config.format)
    _Fetch(target, query, config, service or Service(config.email, config.api_key, config.server)).run(seen)
    return target


class _Fetch:
    """The fetch of one file. Pages are saved in the folder `parts` until all are there; `note` has the state."""

    def __init__(self, target: Path, query: str, config: FetchConfig, service: Service) -> None:
        self.target, self.config, self.service = target, config, service
        self.parts, self.note = target.parent / ".parts" / target.name, target.with_name(f"{target.name}.fetch.json")
        self.term = entrez_term(query, config.lengths)

    def run(self, seen: Callable[[int, int], None]) -> None:
        state = self._load_state()
        if state and state.finished:
            self._remove_parts()
            came = f"its {state.records:,} records came on {state.finished[:10]}"
            logger.info(f"{self.target}: {came}; remove it to fetch again")
            return
        found = self._search()
        names = self._saved_names(state.wanted) if state else None
        if state is None or names is None:
            state, names = self._begin(found)
        elif found.total != state.total:
            logger.info(
                f"{self.target}: NCBI has {found.total:,} records now and had {state.total:,} on {state.found[:10]}: "
                f"those of that day are fetched; remove {self.note} to begin with today's"
            )
        self._fetch_pages(names, state, seen)
        if not state.records:
            raise ValueError(f"{state.term}: none of its {len(names):,} records has a sequence; ask for others")
        self._join(state)
        self._save(replace(state, finished=_now()))
        self._remove_parts()
        logger.info(state.summary(self.target))

    def _load_state(self) -> FetchState | None:
        """The state of an earlier start, None if there is none to resume."""
        if not self.note.exists():
            if self.target.exists():
                raise ValueError(
                    f"{self.target} is there, and not from a fetch: it is not replaced; choose another --out"
                )
            return None
        saved = files.read_json(self.note)
        if saved.get("finished") and not self.target.exists():
            return None
        for key, value in (("term", self.term), ("most", self.config.most), ("server", self.config.server)):
            if saved.get(key) != value:
                raise ValueError(
                    f"{self.note} is of {key}={saved.get(key)!r} and {value!r} is asked for: one file holds one "
                    "search; give the same options, choose another --out, or remove it and the file beside it"
                )
        try:
            return from_dict(FetchState, saved, self.note.name)
        except ValueError:
            raise ValueError(
                f"{self.note} is damaged: a count or a name is missing or not one; remove it and fetch again"
            ) from None

    def _save(self, state: FetchState) -> None:
        files.write_json(self.note, {k: value for k, value in asdict(state).items() if value or k != "finished"})

    def _search(self) -> SearchResult:
        result = self.service.search(self.term)
        unknown = ", ".join(result.unknown)
        if not result.total:
            why = f" (unknown there: {unknown})" if unknown else ""
            cure = "check how the name is spelt, or give another term"
            raise ValueError(f"{self.term} finds no record at NCBI{why}: {cure}")
        if unknown:
            logger.info(f"NCBI does not know {unknown}, and searched without")
        return result

    def _saved_names(self, wanted: int) -> list[str] | None:
        """The list of accessions of an earlier start; None if it is missing or incomplete."""
        with suppress(OSError):
            names = (self.parts / "accessions.txt").read_text(errors="replace").split()
            return names if len(names) == wanted else None
        return None

    def _begin(self, result: SearchResult) -> tuple[FetchState, list[str]]:
        self.note.unlink(missing_ok=True)  # an old state must not be combined with a new list
        self._remove_parts()
        wanted = min(result.total, self.config.most or result.total)
        most, server = self.config.most, self.config.server
        state = FetchState(self.term, most, server, result.total, wanted, found=_now(), records=0, without=[])
        names = self.service.accessions(result, wanted)
        files.write_text(self.parts / "accessions.txt", "\n".join(names))
        self._save(state)
        return state, names

    def _fetch_pages(self, names: list[str], state: FetchState, seen: Callable[[int, int], None]) -> None:
        """Fetch the pages that are missing.

        A page is written before the state that counts it, so that after a kill at most one page is fetched twice. It
        is named by the number of its first record, so that a second copy replaces the first.
        """
        done = state.records + len(state.without)
        seen(done, len(names))
        while done < len(names):
            batch = names[done : done + self.config.page]
            page, without = self.service.records(batch, FORMATS[self.config.format])
            files.write_bytes(self.parts / f"{done:010}.gz", gzip.compress(page, mtime=0))
            state.records += len(batch) - len(without)
            state.without += without
            self._save(state)
            done += len(batch)
            seen(done, len(names))

    def _join(self, state: FetchState) -> None:
        """Concatenate all pages into one file: they are gzip streams, which may follow each other."""
        pages, records = sorted(self.parts.glob("[0-9]*.gz")), 0
        size = f"{sum(page.stat().st_size for page in pages):,}"
        disk_guard = files.explaining_no_room(self.target, size, "; the same command goes on")
        with disk_guard, files.replacing(self.target, sweeping=True) as file:
            for page in pages:
                data = page.read_bytes()
                with suppress(EOFError, OSError, zlib.error):  # a damaged page has no records
                    records += FORMATS[self.config.format].count(gzip.decompress(data))
                file.write(data)
            if records != state.records:
                raise ValueError(
                    f"{self.parts} holds {records:,} records and {state.records:,} came: a page was damaged on the "
                    f"disk; remove {self.note} and fetch again"
                )

    def _remove_parts(self) -> None:
        """Remove the pages and the list of accessions, and the folders if they are empty then."""
        with suppress(OSError):  # other files, or pages of other queries, keep their folder
            files.sweep(self.parts)
            for path in [*self.parts.glob("[0-9]*.gz"), self.parts / "accessions.txt"]:
                path.unlink(missing_ok=True)
            self.parts.rmdir()
            self.parts.parent.rmdir()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
