"""Explanations of files and of test records: formats, the choice of records, bounds, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import MOTIFS
from tests.training.trained_runs import CLASSES, SEVERAL, make_run, write_fasta

from chordmixer import files
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.data.tokenizers import Bytes, Numbers
from chordmixer.tasks.targets import Regression
from chordmixer.training.evaluation import Predictions
from chordmixer.training.explanation import Explanation, explain
from chordmixer.training.inference import Engine
from chordmixer.training.labels import OutputLabels
from chordmixer.views import explain as explaining
from chordmixer.views.explain import (
    MAX_SHOWN,
    MAX_TOKENS,
    MAX_WORK,
    affordable,
    bedgraph,
    choose,
    explain_files,
    explain_tests,
    tsv,
)
from chordmixer.views.explanations import strongest_regions
from chordmixer.views.report import write_report
from chordmixer.views.runs import Run


@pytest.fixture
def random_run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    return write_fasta(tmp_path / "new.fa", [30, 12, 50])


@pytest.fixture
def expected(random_run: Path, fasta: Path) -> list[Explanation]:
    return list(explain(Engine(random_run), read([fasta], Reading(), Account()), blocks=10))


def test_bedgraph_and_tsv_have_all_values(
    random_run: Path, fasta: Path, expected: list[Explanation], tmp_path: Path
) -> None:
    explain_files(random_run, [fasta], tmp_path / "a.bedgraph", blocks=10)
    rows = [line.split("\t") for line in (tmp_path / "a.bedgraph").read_text().splitlines()]
    actual = {(name, position): float(v) for name, a, b, v in rows for position in range(int(a), int(b))}
    values = {(item.entry.id, position): v for item in expected for position, v in enumerate(item.values.tolist())}
    assert actual == pytest.approx(values, rel=1e-5) and len(rows) <= 30

    explain_files(random_run, [fasta], tmp_path / "a.tsv", blocks=10)
    header, *rows = [line.split("\t") for line in (tmp_path / "a.tsv").read_text().splitlines()]
    assert header == ["id", "position", "letter", "value"]
    assert [(row[0], int(row[1]) - 1) for row in rows] == [*values]
    assert "".join(row[2] for row in rows) == "".join(item.letters or "" for item in expected)
    assert [float(row[3]) for row in rows] == pytest.approx([*values.values()], rel=1e-5)


def test_a_page_has_the_first_records(random_run: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    fasta = write_fasta(tmp_path / "many.fa", [10] * (MAX_SHOWN + 3))
    explain_files(random_run, [fasta], tmp_path / "a.html", blocks=2)
    page = (tmp_path / "a.html").read_text()
    assert page.count("<h2>") == MAX_SHOWN and "3 more records are not shown" in page
    assert "Explanations of the predictions of run" in page and "Each part of a record was hidden in turn" in page
    assert any("3 more records are not shown: a page has the first 20" in line for line in log.messages)


def test_series_of_two_channels(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tokenizer=Numbers(2))
    np.save(tmp_path / "x.npy", np.arange(8.0).reshape(4, 2))
    explain_files(run, [tmp_path / "x.npy"], tmp_path / "a.tsv")
    lines = (tmp_path / "a.tsv").read_text().splitlines()
    assert lines[0] == "id\tposition\tsample\tvalue" and lines[2].split("\t")[1:3] == ["2", "2,3"]


def test_nothing_is_replaced_unasked(random_run: Path, fasta: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("mine")
    with pytest.raises(ValueError, match=r"a\.tsv is there already: give another name with -o, or replace it with"):
        explain_files(random_run, [fasta], tmp_path / "a.tsv")
    assert (tmp_path / "a.tsv").read_text() == "mine"
    explain_files(random_run, [fasta], tmp_path / "a.tsv", force=True)
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
    random_run: Path, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        explain_files(random_run, [fasta], out)


def test_a_failure_leaves_what_was_there(random_run: Path, tmp_path: Path) -> None:
    fasta = write_fasta(tmp_path / "long.fa", [30, 300])
    (tmp_path / "a.tsv").write_text("mine")
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="has 300 tokens, above this model's max_length=128"):
        explain_files(random_run, [fasta], tmp_path / "a.tsv", force=True)
    assert (tmp_path / "a.tsv").read_text() == "mine" and {path.name for path in tmp_path.iterdir()} == before


def make_explanation(name: str, text: str = "ab") -> Explanation:
    return Explanation(Entry(name, text, "x"), Bytes(), np.ones(len(text), np.float32), "w", "w", 0.5, 0.0)


@pytest.mark.parametrize("name", ["", "a b", "a\tb", "a\n"])
def test_bedgraph_needs_names_of_one_word(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot stand in a bedGraph: it needs one word; write \.tsv, or rename it"):
        list(bedgraph([make_explanation(name)]))


def test_bedgraph_needs_a_name_for_each() -> None:
    with pytest.raises(ValueError, match=r"id a occurs twice: a bedGraph has one record of a name; write \.tsv"):
        list(bedgraph([make_explanation("a"), make_explanation("b"), make_explanation("a")]))


def test_tsv_has_a_line_a_position_whatever_stands_there() -> None:
    lines = [*tsv([make_explanation("a\tb", "x\t\n\ry")])]
    assert [line.split("\t")[2] for line in lines] == ["letter", "x", "\\t", "\\n", "\\r", "y"]
    assert lines[1] == "a\\tb\t1\tx\t1\n"


@pytest.fixture
def run(planted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(planted, tmp_path / "run"))


def test_a_report_says_where_answers_come_from(run: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = explain_tests(run)
    assert [item.id.partition("-")[0] for item in result.records[:2]] in (
        ["gattaca", "cattaga"],
        ["cattaga", "gattaca"],
    )
    for item in result.records[:2]:
        motif = MOTIFS[item.id.partition("-")[0]]
        start, stop, value = strongest_regions(item.values)[0]
        at = (item.letters or "").index(motif)
        assert item.said[1] == "That is correct." and value > 0
        assert min(stop, at + len(motif)) - max(start, at) >= 5, "the strongest region covers most of the motif"
        assert stop - start < 3 * len(motif)
    files.verify(run, ["explanations.json"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(run / "nowhere"))  # the store is gone, the page is not
    assert Run.load(run).explained == result
    page = write_report(run).read_text()
    assert '<section id="explanations">' in page and f"<h3>{result.records[0].id}</h3>" in page
    before = (run / "explanations.json").read_bytes()
    monkeypatch.undo()
    explain_tests(run)
    assert (run / "explanations.json").read_bytes() == before


def test_without_explanations_there_is_no_chapter(planted: Path, tmp_path: Path) -> None:
    assert Run.load(planted).explained is None
    run = Path(shutil.copytree(planted, tmp_path / "run"))
    assert 'id="explanations"' not in write_report(run).read_text()


def test_damaged_explanations_are_refused(run: Path) -> None:
    explain_tests(run)
    files.write_recorded(run, {"explanations.json": b'{"records": [{"id": "x"}], "said": []}'})
    with pytest.raises(ValueError, match=r"explanations\.json is not whole \(.*\): use another copy, or make it"):
        Run.load(run)


def test_long_records_are_left_out_and_counted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "MAX_TOKENS", 4 * 17 * 40)
    explained = explain_tests(run)
    lengths = Predictions.read(run / "predictions.parquet").lengths
    left_out = int((lengths > 40).sum())
    counted = f"{left_out} of {len(lengths)} test records are longer than 40 tokens and left out"
    assert explained.said[1].startswith(counted)
    assert explained.records and all(len(record.letters or "") <= 40 for record in explained.records)
    monkeypatch.setattr(explaining, "MAX_TOKENS", 100)
    empty = explain_tests(run)
    assert empty.records == () and "48 of 48 test records are longer" in empty.said[0]
    assert "48 of 48 test records are longer" in write_report(run).read_text()


def test_work_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    single = Engine(make_run(tmp_path / "one"))
    assert affordable(single) == MAX_TOKENS
    weights = sum(p.numel() for p in single.model.encoder.parameters())
    double = Engine(make_run(tmp_path / "both", both_strands=True))
    monkeypatch.setattr(explaining, "MAX_TOKENS", 10**12)
    assert affordable(single) == int(MAX_WORK / weights) and affordable(double) == int(MAX_WORK / (2 * weights))


def predictions(outputs: list[list[float]], targets: list[object]) -> Predictions:
    rows = np.array(outputs, np.float32)
    return Predictions([f"r{i}" for i in range(len(rows))], np.arange(len(rows)) + 10, np.array(targets), rows)


def test_classes_have_right_ones_and_a_wrong_one() -> None:
    """Rows in units in which 9 is sure: r0 and r1 right, r2 the surest of worms, r3 and r4 wrong, r5 does not fit."""
    rows = [[9, 0, 0], [0, 8, 0], [19, 0, 0], [0, 3, 0], [0, 0, 6], [39, 0, 0]]
    fits = np.array([True] * 5 + [False])
    chosen = [*choose(OutputLabels(CLASSES, "dna"), predictions(rows, [0, 1, 0, 2, 1, 0]), fits)]  # type: ignore[arg-type]
    assert chosen == [
        (2, "worm", "That is correct."),
        (1, "fly", "That is correct."),
        (4, "yeast", "That is wrong: the true class is fly."),
    ]
    assert not [*choose(OutputLabels(CLASSES, "dna"), predictions(rows, [0] * 6), np.zeros(6, bool))]  # type: ignore[arg-type]


def test_labels_have_right_ones_and_a_wrong_one() -> None:
    rows, targets = [[9.0, 9.0], [5.0, -9.0], [-9.0, 19.0]], [[1, 1], [0, 0], [1, 1]]
    chosen = [*choose(OutputLabels(SEVERAL, "dna"), predictions(rows, targets), np.ones(3, bool))]  # type: ignore[arg-type]
    assert chosen == [
        (0, "red", "That is correct."),
        (2, "round", "That is correct."),
        (1, "red", "That is wrong: the record does not have this label."),
    ]


def test_numbers_have_their_extremes() -> None:
    target = Regression(mean=10.0, scale=2.0)
    rows = predictions([[0.0], [3.0], [-1.0], [9.0]], [10.0, 16.0, 20.0, 0.0])
    chosen = [*choose(OutputLabels(target, "dna"), rows, np.array([True, True, True, False]))]
    assert [choice[:2] for choice in chosen] == [(1, None), (2, None)]
    assert chosen[1].sentence == "The smallest prediction; the true value is 20.00."


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    from chordmixer.models import ChordMixerConfig, ModelConfig
    from chordmixer.paper.adding import AddingConfig
    from chordmixer.training import Experiment

    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4)
    Experiment("adding", AddingConfig(), ModelConfig(2, 1, "real", network=network)).save(tmp_path)
    with pytest.raises(ValueError, match="is a run of adding: only runs on files are explained"):
        explain_tests(tmp_path)
