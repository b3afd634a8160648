"""`fetch` and its page in docs: a file for each query, progress, Ctrl-C, mistakes in one line; and `sample`."""

from __future__ import annotations

import gzip
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tests.data.ncbi_server import Database, fasta, serving, status

from chordmixer import terminal
from chordmixer.cli.fetch import FetchMeter

Command = Callable[..., tuple[int, str, str]]
PAGE = (Path(__file__).parents[2] / "docs" / "ncbi.md").read_text()


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.delenv("NCBI_EMAIL", raising=False)
    monkeypatch.delenv("NCBI_API_KEY", raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with serving() as database:
        yield database


@pytest.fixture
def fetch(chordmixer: Command, database: Database, tmp_path: Path) -> Command:
    options = ("--server", database.address, "--out", tmp_path / "out")
    return lambda *arguments: chordmixer("fetch", *arguments, *options)


def test_a_file_for_each_query(fetch: Command, database: Database, tmp_path: Path) -> None:
    code, output, errors = fetch("Carassius", "Labeo", "--email", "me@here", "--api-key", "secret")
    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        f"{tmp_path}/out/{name}.fa.gz: 23 records asked for: 23 written, 0 without a sequence"
        for name in ("carassius", "labeo")
    ]
    for name in ("carassius", "labeo"):
        data = gzip.decompress((tmp_path / "out" / f"{name}.fa.gz").read_bytes())
        assert data.decode() == "".join(map(fasta, database.names))
    assert {form["api_key"] for _, form in database.asked} == {"secret"}
    assert not any("secret" in path.read_text() for path in tmp_path.rglob("*.json"))


def test_ctrl_c_is_one_line_and_the_same_command_goes_on(
    fetch: Command, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        if len(database.pages()) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    arguments = ("Carassius", "--email", "me@here", "--page", "5")
    code, output, errors = fetch(*arguments)
    assert (code, output) == (130, "")
    assert errors == "chordmixer: stopped; the records fetched so far are kept, and the same command continues\n"
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    code, output, _ = fetch(*arguments)
    assert code == 0 and "23 written" in output and len(database.pages()) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Carassius"], "email='' is not an address: NCBI asks for one; give --email or NCBI_EMAIL"),
        (["Mus", "mus", "--email", "me@here"], "'mus' and a query before it are both named mus.fa.gz: fetch one"),
        (
            ["Mus", "--email", "me@here", "--format", "xml"],
            "--format xml is not a choice: give one of fasta, genbank",
        ),
    ],
    ids=["email", "twice", "format"],
)
def test_a_mistake_is_one_line(fetch: Command, database: Database, arguments: list[str], message: str) -> None:
    code, output, errors = fetch(*arguments)
    assert (code, output, errors.count("\n")) == (2, "", 1) and message in errors and not database.asked


def test_a_typing_error_in_the_name_is_one_line(fetch: Command, database: Database) -> None:
    database.names = []
    code, output, errors = fetch("Carasius", "--email", "me@here")
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert "finds no record at NCBI: check how the name is spelt" in errors


def test_a_server_that_stays_away_is_one_line(fetch: Command, database: Database) -> None:
    database.faults = [status(503, "maintenance")] * 9
    code, _, errors = fetch("Carassius", "--email", "me@here")
    assert code == 2 and errors.count("\n") == 1 and "failed 8 times (HTTP 503 maintenance)" in errors


def test_the_meter_says_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with FetchMeter("mus.fa.gz") as meter:
        for now, count in ((1.0, 1000), (6.0, 1500), (11.0, 2000), (12.0, 2100)):  # noqa: B007
            meter.update(count, 43_000)
    assert capsys.readouterr().err == "mus.fa.gz  2,000 of 43,000 records  100 records/s  0:06:50 left\n"


def test_the_meter_is_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "console", lambda stderr: Console(force_terminal=True, width=100, stderr=stderr))
    with FetchMeter("mus.fa.gz") as meter:
        meter.update(0, 500)
        meter.update(200, 500)
    assert "200 of 500 records" in capsys.readouterr().err


def test_the_commands_of_the_page_run(
    chordmixer: Command, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.S)).splitlines()
    for line in filter(None, lines):
        arguments = shlex.split(line)
        if arguments[0] == "export":
            monkeypatch.setenv(*arguments[1].split("=", 1))
            continue
        address = ["--server", database.address] if arguments[1] == "fetch" else []
        code, _, errors = chordmixer(*arguments[1:], *address)
        assert code == 0, f"{line}: {errors}"
    assert len([*tmp_path.rglob("*.gz")]) == 4


def test_the_page_names_options_that_there_are(chordmixer: Command) -> None:
    help_text = chordmixer("fetch", "--help")[1] + chordmixer("train", "--help")[1]
    for option in set(re.findall(r"`(--[a-z]+)", PAGE)):
        assert option in help_text, option


def test_sample_files_and_the_command_to_try(chordmixer: Command, tmp_path: Path) -> None:
    code, output, errors = chordmixer("sample", "series", "--out", tmp_path / "my waves")
    assert (code, errors) == (0, "") and output.startswith("synthetic: A CSV file of noisy waves")
    assert f"Next:  cd '{tmp_path / 'my waves'}'\n       chordmixer train series.csv --out RUN --epochs" in output
    assert sorted(path.name for path in (tmp_path / "my waves").iterdir()) == ["new.csv", "series.csv"]
    code, output, errors = chordmixer("sample", "worm", "--out", tmp_path)
    assert (code, output, errors.count("\n")) == (2, "", 1) and "'worm' is not a sample" in errors
