"""`explain` on files: the three formats, and what is refused before and during the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.trained_runs import make_run, write_fasta

from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.data.tokenizers import Bytes, Numbers
from chordmixer.training.explanation import Explanation, explain
from chordmixer.training.inference import Trained
from chordmixer.views.explained_files import SHOWN, bedgraph, explain_files, tsv


def write(*given: Any, **settings: Any) -> list[str]:
    said: list[str] = []
    explain_files(*given, say=said.append, **settings)
    return said


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    return write_fasta(tmp_path / "new.fa", [30, 12, 50])


@pytest.fixture
def expected(run: Path, fasta: Path) -> list[Explanation]:
    return list(explain(Trained(run), read([fasta], Reading(), Account()), blocks=10))


def test_bedgraph_and_tsv_have_all_values(
    run: Path, fasta: Path, expected: list[Explanation], tmp_path: Path
) -> None:
    write(run, [fasta], tmp_path / "a.bedgraph", blocks=10)
    rows = [line.split("\t") for line in (tmp_path / "a.bedgraph").read_text().splitlines()]
    read_back = {(name, at): float(v) for name, a, b, v in rows for at in range(int(a), int(b))}
    values = {(own.entry.id, at): v for own in expected for at, v in enumerate(own.values.tolist())}
    assert read_back == pytest.approx(values, rel=1e-5) and len(rows) <= 30

    write(run, [fasta], tmp_path / "a.tsv", blocks=10)
    head, *rows = [line.split("\t") for line in (tmp_path / "a.tsv").read_text().splitlines()]
    assert head == ["id", "position", "letter", "value"]
    assert [(row[0], int(row[1]) - 1) for row in rows] == [*values]
    assert "".join(row[2] for row in rows) == "".join(own.letters or "" for own in expected)
    assert [float(row[3]) for row in rows] == pytest.approx([*values.values()], rel=1e-5)


def test_a_page_has_the_first_records(run: Path, tmp_path: Path) -> None:
    fasta = write_fasta(tmp_path / "many.fa", [10] * (SHOWN + 3))
    said = write(run, [fasta], tmp_path / "a.html", blocks=2)
    page = (tmp_path / "a.html").read_text()
    assert page.count("<h2>") == SHOWN and "3 more records are not shown" in page
    assert "Where the answers of run came from" in page and "Each part of a record was hidden in turn" in page
    assert any("3 more records are not shown: a page has the first 20" in line for line in said)


def test_series_of_two_channels(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tokenizer=Numbers(2))
    np.save(tmp_path / "x.npy", np.arange(8.0).reshape(4, 2))
    write(run, [tmp_path / "x.npy"], tmp_path / "a.tsv")
    lines = (tmp_path / "a.tsv").read_text().splitlines()
    assert lines[0] == "id\tposition\tsample\tvalue" and lines[2].split("\t")[1:3] == ["2", "2,3"]


def test_nothing_is_replaced_unasked(run: Path, fasta: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("mine")
    with pytest.raises(ValueError, match=r"a\.tsv is there already: give another name with -o, or replace it with"):
        write(run, [fasta], tmp_path / "a.tsv")
    assert (tmp_path / "a.tsv").read_text() == "mine"
    write(run, [fasta], tmp_path / "a.tsv", force=True)
    assert (tmp_path / "a.tsv").read_text().startswith("id\tposition")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("a.csv", "are written as .bedgraph, .bedGraph, .tsv, .html; name it so"),
        ("none/a.tsv", "none is not a folder: make it"),
        ("-", "standard output cannot take .bedgraph: name a file with -o"),
    ],
)
def test_outputs_that_cannot_be(
    run: Path, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        write(run, [fasta], out)


def test_a_failure_leaves_what_was_there(run: Path, tmp_path: Path) -> None:
    fasta = write_fasta(tmp_path / "long.fa", [30, 300])
    (tmp_path / "a.tsv").write_text("mine")
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="has 300 tokens, above this model's max_length=128"):
        write(run, [fasta], tmp_path / "a.tsv", force=True)
    assert (tmp_path / "a.tsv").read_text() == "mine" and {path.name for path in tmp_path.iterdir()} == before


def own(name: str, text: str = "ab") -> Explanation:
    return Explanation(Entry(name, text, "x"), Bytes(), np.ones(len(text), np.float32), "w", "w", 0.5, 0.0)


@pytest.mark.parametrize("name", ["", "a b", "a\tb", "a\n"])
def test_bedgraph_needs_names_of_one_word(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot stand in a bedGraph: it needs one word; write \.tsv, or rename it"):
        list(bedgraph([own(name)]))


def test_bedgraph_needs_a_name_for_each() -> None:
    with pytest.raises(ValueError, match=r"id a occurs twice: a bedGraph has one record of a name; write \.tsv"):
        list(bedgraph([own("a"), own("b"), own("a")]))


def test_tsv_has_a_line_a_position_whatever_stands_there() -> None:
    lines = [*tsv([own("a\tb", "x\t\n\ry")])]
    assert [line.split("\t")[2] for line in lines] == ["letter", "x", "\\t", "\\n", "\\r", "y"]
    assert lines[1] == "a\\tb\t1\tx\t1\n"
