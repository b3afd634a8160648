"""Scores of a run on files with labels: of all records, and of those that it never saw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.trained_runs import CLASSES, SEVERAL, dna, make_run

from chordmixer import files
from chordmixer.data import leakage
from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading
from chordmixer.tasks.targets import Regression
from chordmixer.training import evaluation
from chordmixer.training.file_evaluation import ROWS, SCORES, check_folder, evaluate_files, save

TEXTS = [dna(length, seed) for seed, length in enumerate([5, 90, 12, 40, 128, 8, 64, 17])]
CLASS_OF = ["worm", "fly", "yeast", "worm", "fly", "yeast", "worm", "fly"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)


def write_table(path: Path, rows: list[str]) -> Path:
    path.write_text("id,sequence,label,target\n" + "".join(f"{row}\n" for row in rows))
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = zip(TEXTS, CLASS_OF, strict=True)
    return write_table(tmp_path / "x.csv", [f"r{i},{text.lower()},{name}," for i, (text, name) in enumerate(rows)])


def record_seen(run: Path, training: list[str], validation: list[str]) -> None:
    parts = {"training": training, "validation": validation}
    hashes = {
        part: leakage.seen_hashes((Dna().encode(t.encode()) for t in texts), Dna()) for part, texts in parts.items()
    }
    files.write_recorded(run, {leakage.SEEN_FILE: leakage.pack_seen(hashes)})


def test_records_that_were_trained_on_are_scored_apart(run: Path, table: Path) -> None:
    reverse_complement = TEXTS[1].translate(str.maketrans("ACGT", "TGCA"))[::-1]
    record_seen(run, [TEXTS[0], reverse_complement, "ACGTACGTAA"], [TEXTS[2]])
    result = evaluate_files(run, [table])
    assert result.seen == {"training": 2, "validation": 1} and result.overall.records == 8
    assert result.rows.seen == ["training", "training", "validation", *["no"] * 5]
    assert result.unseen is not None and (result.unseen.records, result.unseen.split) == (5, "unseen")
    rest = write_table(table.with_name("rest.csv"), table.read_text().splitlines()[4:])
    rest_result = evaluate_files(run, [rest])
    assert rest_result.seen == {"training": 0, "validation": 0} and rest_result.unseen is rest_result.overall
    assert rest_result.overall.scores["accuracy"] == result.unseen.scores["accuracy"]
    assert [b.records for b in rest_result.overall.by_length] == [b.records for b in result.unseen.by_length]


def test_a_run_may_have_seen_all_or_not_say(run: Path, table: Path) -> None:
    unknown = evaluate_files(run, [table])
    assert unknown.seen is None and unknown.unseen is None and {*unknown.rows.seen} == {"unknown"}
    record_seen(run, TEXTS, [])
    result = evaluate_files(run, [table])
    assert result.unseen is None and result.seen == {"training": 8, "validation": 0}


def test_what_is_written_into_a_folder(run: Path, table: Path, tmp_path: Path) -> None:
    record_seen(run, TEXTS[:3], [])
    result, out = evaluate_files(run, [table]), tmp_path / "new" / "scores"
    save(out, result, run, [table])
    written = files.read_json(out / SCORES)
    assert (written["files"], written["seen"]) == ([str(table)], {"training": 3, "validation": 0})
    assert written["all"]["records"] == 8 and written["unseen"]["records"] == 5
    assert {*written["unseen"]["by_length"][0]["scores"]} == {*result.overall.scores}
    rows = [line.split("\t") for line in (out / ROWS).read_text().splitlines()]
    assert rows[0] == ["id", "length", "windows", "truth", "seen", "class", "probability", "worm", "fly", "yeast"]
    assert [row[3] for row in rows[1:]] == CLASS_OF and [row[4] for row in rows[1:5]] == ["training"] * 3 + ["no"]
    correct = [row[3] == row[5] for row in rows[1:]]
    assert np.mean(correct) == pytest.approx(result.overall.scores["accuracy"].value)
    with pytest.raises(ValueError, match=r"evaluation\.json is there already: give another name with -o, or replace"):
        check_folder(out, force=False)
    check_folder(out, force=True)
    check_folder(tmp_path / "none", force=False)
    with pytest.raises(ValueError, match="is a file: scores are written into a folder"):
        check_folder(table, force=True)


@pytest.mark.parametrize(
    ("target", "rows"),
    [(SEVERAL, ["a,ACGT,,", "b,ACGA,red; round,", "c,AC,round,"]), (Regression(), ["a,ACGT,3,1.5", "b,ACG,2,"])],
)
def test_several_labels_and_numbers(tmp_path: Path, target: Any, rows: list[str]) -> None:
    run, path = make_run(tmp_path / "run", target), write_table(tmp_path / "x.csv", rows)
    result = evaluate_files(run, [path])
    assert result.overall.records == len(rows)
    save(tmp_path / "out", result, run, [path])
    truth = [line.split("\t")[3] for line in (tmp_path / "out" / ROWS).read_text().splitlines()[1:]]
    assert truth == (["", "red;round", "round"] if target is SEVERAL else ["1.5", "2"])


def test_numbers_that_are_not_there_are_left_out_by_policy(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Regression())
    path = write_table(tmp_path / "x.csv", ["a,ACGT,,1", "b,ACGA,,NA", "c,AC,nan,", "d,ACC,,3"])
    with pytest.raises(ValueError, match=r"x\.csv, row 2 \(b\) has no target: scoring needs one; say where they are"):
        evaluate_files(run, [path])
    account = Account()
    result = evaluate_files(run, [path], reading=Reading(on_unmatched="reject"), account=account)
    assert result.overall.records == 2 and dict(account.rejected) == {"without a target": 2}


@pytest.mark.parametrize(
    ("build", "row", "message"),
    [
        (
            lambda: CLASSES,
            "a,ACGT,ferret,",
            r"x\.csv, row 1 \(a\) has label 'ferret', which this run never saw: .*the class of a file, such as worm=",
        ),
        (lambda: SEVERAL, "a,ACGT,red;blue,", "label 'blue', which this run never saw: it knows red, round"),
        (lambda: CLASSES, "a,ACGT,,", r"\(a\) has no label: scoring needs one"),
        (Regression, "a,ACGT,,", r"\(a\) has no target: scoring needs one"),
        (Regression, "a,ACGT,tall,", r"\(a\) has 'tall' for a number: give a finite one"),
    ],
)
def test_labels_that_the_run_does_not_know(tmp_path: Path, build: Callable[[], Any], row: str, message: str) -> None:
    run = make_run(tmp_path / "run", build())
    with pytest.raises(ValueError, match=message):
        evaluate_files(run, [write_table(tmp_path / "x.csv", [row])])


def test_records_without_a_label_are_left_out_by_policy(run: Path, tmp_path: Path) -> None:
    path, account = write_table(tmp_path / "x.csv", ["a,ACGT,fly,", "b,ACGT,,", "c,ACG,worm,"]), Account()
    result = evaluate_files(run, [path], reading=Reading(on_unmatched="reject"), account=account)
    assert result.overall.records == 2 and (account.read, dict(account.rejected)) == (3, {"without a label": 1})


def test_nothing_to_score(run: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / "x.csv", ["a,AC7T,fly,"])
    with pytest.raises(ValueError, match="no record is left of 1 read"):
        evaluate_files(run, [path], on_bad="reject")
