"""A small server that speaks as NCBI's E-utilities do, with faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

import pytest

Form = dict[str, str]
Fault = Callable[["Handler", Form], bool]
"""Answers in place of the server, or declines with False."""


def fasta(name: str) -> str:
    return f">{name} a fish\nACGT{'ACGT' * (len(name) % 3)}\nNN\n\n"


def genbank(name: str) -> str:
    return f"LOCUS       {name}  4 bp DNA linear VRT\nORIGIN\n        1 acgt\n//\n\n"


@dataclass
class Database:
    """The server's records, the faults of its next requests, and the requests it has received."""

    names: list[str] = field(default_factory=lambda: [f"AB{number:06}.1" for number in range(23)])
    without: set[str] = field(default_factory=set)
    """Records that have no FASTA, such as the master records of shotgun assemblies."""
    unknown: str = ""
    faults: list[Fault] = field(default_factory=list)
    """Each request takes the next one."""
    asked: list[tuple[str, Form]] = field(default_factory=list)
    address: str = ""
    sent: int = 0
    """Bytes of an answer that does not end."""

    def pages(self) -> list[list[str]]:
        """The records of each request for records."""
        return [form["id"].split(",") for _, form in self.asked if "id" in form]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    database: Database

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        utility = self.path.rpartition("/")[2]
        self.database.asked.append((utility, form))
        fault = self.database.faults.pop(0) if self.database.faults else None
        if not (fault and fault(self, form)):
            self.reply(self.search_result(form) if utility == "esearch.fcgi" else self.fetch_result(form))

    def search_result(self, form: Form) -> str:
        assert form["usehistory"] == "y" and form["db"] == "nuccore" and form["tool"] and form["email"]
        unknown = f"<ErrorList><PhraseNotFound>{self.database.unknown}</PhraseNotFound></ErrorList>"
        return (
            '<?xml version="1.0" encoding="UTF-8" ?>\n<!DOCTYPE eSearchResult PUBLIC "-//NLM//DTD esearch" "x.dtd">\n'
            f"<eSearchResult><Count>{len(self.database.names)}</Count><RetMax>0</RetMax><RetStart>0</RetStart>"
            f"<QueryKey>1</QueryKey><WebEnv>MCID_7</WebEnv>{unknown if self.database.unknown else ''}</eSearchResult>"
        )

    def fetch_result(self, form: Form) -> str:
        if form["rettype"] == "acc":
            assert (form["query_key"], form["WebEnv"]) == ("1", "MCID_7")
            start = int(form["retstart"])
            return "".join(f"{name}\n" for name in self.database.names[start : start + int(form["retmax"])])
        write = {"fasta": fasta, "gbwithparts": genbank}[form["rettype"]]
        return "".join(write(name) for name in form["id"].split(",") if name not in self.database.without) or "\n"

    def reply(self, text: str, code: int = 200, cut: int = 0, **headers: str) -> bool:
        """Send a text, without its last bytes if `cut` is not 0, though its length is declared."""
        data = text.encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data[: len(data) - cut])
        return True

    def log_message(self, format: str, *values: object) -> None:
        """Log nothing."""


def status(code: int, text: str = "", **headers: str) -> Fault:
    return lambda handler, form: handler.reply(text, code, **headers)


def cut(handler: Handler, form: Form) -> bool:
    """The connection ends in the middle of a page."""
    return handler.reply(handler.fetch_result(form), cut=9)


def short(handler: Handler, form: Form) -> bool:
    """A page without its last record."""
    rest = form["id"].rpartition(",")[0]
    return handler.reply(handler.fetch_result({**form, "id": rest}) if rest else "\n")


def says(text: str) -> Fault:
    return lambda handler, form: handler.reply(text)


def endless(handler: Handler, form: Form) -> bool:
    """A page without its last line; no length is declared, so nothing shows it."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(handler.fetch_result(form).encode().rstrip().rpartition(b"\n")[0] + b"\n")
    return True


def flood(handler: Handler, form: Form) -> bool:
    """An answer that does not end."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()
    with suppress(OSError):  # until the other side has enough
        while True:
            handler.database.sent += handler.wfile.write(b"A" * (1 << 16))
    return True


def nothing(handler: Handler, form: Form) -> bool:
    """The connection is closed without an answer."""
    handler.close_connection = True
    return True


@contextmanager
def serving() -> Iterator[Database]:
    """A server on this machine, for as long as the context lasts; no proxy is asked."""
    database = Database()
    handler = type("Bound", (Handler,), {"database": database})
    with pytest.MonkeyPatch.context() as patch, ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        patch.setenv("no_proxy", "127.0.0.1")
        database.address = f"http://127.0.0.1:{server.server_address[1]}/entrez/eutils"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield database
        server.shutdown()
        thread.join()
