"""Which test records a report explains, what that may cost, and where they are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import MOTIFS
from tests.training.trained_runs import CLASSES, SEVERAL, make_run

from chordmixer import files
from chordmixer.tasks.targets import Regression
from chordmixer.training.answers import Answers
from chordmixer.training.evaluation import Predictions
from chordmixer.training.inference import Trained
from chordmixer.views import explained_tests
from chordmixer.views.explained_tests import TOKENS, WORK, affordable, choose, explain_tests
from chordmixer.views.explanations import places
from chordmixer.views.report import write_report
from chordmixer.views.runs import Run


@pytest.fixture
def run(planted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(planted, tmp_path / "run"))


def test_a_report_says_where_answers_come_from(run: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = explain_tests(run)
    assert [own.id.partition("-")[0] for own in made.records[:2]] in (["gattaca", "cattaga"], ["cattaga", "gattaca"])
    for own in made.records[:2]:
        motif = MOTIFS[own.id.partition("-")[0]]
        start, stop, value = places(own.values)[0]
        assert own.said[1] == "That is right." and value > 0 and (own.letters or "")[start:stop] in f"..{motif}.."
    files.verify(run, ["explanations.json"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(run / "nowhere"))  # the store is gone, the page is not
    assert Run.load(run).explained == made
    page = write_report(run).read_text()
    assert '<section id="explanations">' in page and f"<h3>{made.records[0].id}</h3>" in page
    before = (run / "explanations.json").read_bytes()
    monkeypatch.undo()
    explain_tests(run)
    assert (run / "explanations.json").read_bytes() == before


def test_without_explanations_there_is_no_chapter(planted: Path, tmp_path: Path) -> None:
    assert Run.load(planted).explained is None
    run = Path(shutil.copytree(planted, tmp_path / "run"))
    assert "Where answers come from" not in write_report(run).read_text()


def test_damaged_explanations_are_refused(run: Path) -> None:
    explain_tests(run)
    files.write_recorded(run, {"explanations.json": b'{"records": [{"id": "x"}], "said": []}'})
    with pytest.raises(ValueError, match=r"explanations\.json is not whole \(.*\): use another copy, or make it"):
        Run.load(run)


def test_long_records_are_left_out_and_counted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explained_tests, "TOKENS", 4 * 17 * 40)
    made = explain_tests(run)
    lengths = Predictions.read(run / "predictions.parquet").lengths
    left_out = int((lengths > 40).sum())
    assert made.said[1].startswith(f"{left_out} of {len(lengths)} test records are left out, being longer than 40 ")
    assert made.records and all(len(own.letters or "") <= 40 for own in made.records)
    monkeypatch.setattr(explained_tests, "TOKENS", 100)
    none = explain_tests(run)
    assert none.records == () and "48 of 48 test records are left out" in none.said[0]
    assert "48 of 48 test records are left out" in write_report(run).read_text()


def test_work_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Trained(make_run(tmp_path / "one"))
    assert affordable(one) == TOKENS
    weights = sum(p.numel() for p in one.model.encoder.parameters())
    both = Trained(make_run(tmp_path / "both", both_strands=True))
    monkeypatch.setattr(explained_tests, "TOKENS", 10**12)
    assert affordable(one) == int(WORK / weights) and affordable(both) == int(WORK / (2 * weights))


def predictions(outputs: list[list[float]], targets: list[object]) -> Predictions:
    rows = np.array(outputs, np.float32)
    return Predictions([f"r{i}" for i in range(len(rows))], np.arange(len(rows)) + 10, np.array(targets), rows)


def test_classes_have_right_ones_and_a_wrong_one() -> None:
    """Rows in units in which 9 is sure: r0 and r1 right, r2 the surest of worms, r3 and r4 wrong, r5 does not fit."""
    rows = [[9, 0, 0], [0, 8, 0], [19, 0, 0], [0, 3, 0], [0, 0, 6], [39, 0, 0]]
    fits = np.array([True] * 5 + [False])
    chosen = [*choose(Answers(CLASSES, "dna"), predictions(rows, [0, 1, 0, 2, 1, 0]), fits)]  # type: ignore[arg-type]
    assert chosen == [
        (2, "worm", "That is right."),
        (1, "fly", "That is right."),
        (4, "yeast", "That is wrong: the record's class is fly."),
    ]
    assert not [*choose(Answers(CLASSES, "dna"), predictions(rows, [0] * 6), np.zeros(6, bool))]  # type: ignore[arg-type]


def test_labels_have_right_ones_and_a_wrong_one() -> None:
    rows, targets = [[9.0, 9.0], [5.0, -9.0], [-9.0, 19.0]], [[1, 1], [0, 0], [1, 1]]
    chosen = [*choose(Answers(SEVERAL, "dna"), predictions(rows, targets), np.ones(3, bool))]  # type: ignore[arg-type]
    assert chosen == [
        (0, "red", "That is right."),
        (2, "round", "That is right."),
        (1, "red", "That is wrong: the record does not have this label."),
    ]


def test_numbers_have_their_extremes() -> None:
    target = Regression(mean=10.0, scale=2.0)
    rows = predictions([[0.0], [3.0], [-1.0], [9.0]], [10.0, 16.0, 20.0, 0.0])
    chosen = [*choose(Answers(target, "dna"), rows, np.array([True, True, True, False]))]
    assert [own[:2] for own in chosen] == [(1, None), (2, None)]
    assert chosen[1].said == "The smallest prediction; true is 20.00."


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    from chordmixer.models import ChordMixerConfig, ModelConfig
    from chordmixer.paper.adding import AddingConfig
    from chordmixer.training import Experiment

    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4)
    Experiment("adding", AddingConfig(), ModelConfig(2, 1, "real", network=network)).save(tmp_path)
    with pytest.raises(ValueError, match="is a run of adding: only runs on files are explained"):
        explain_tests(tmp_path)
