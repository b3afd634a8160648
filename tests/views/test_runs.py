"""A run folder is read whole, in part, or refused with the file's name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chordmixer import files
from chordmixer.tasks.targets import Regression
from chordmixer.training.intervals import Score
from chordmixer.views.report import page
from chordmixer.views.runs import Run, steps

Make = Callable[..., Path]


def test_all_parts_are_there(make_run: Make) -> None:
    run = Run.load(make_run("five"))
    assert run.test is not None and run.test.headline == "accuracy" and run.test.records == 300
    assert run.predictions is not None and run.predictions.outputs.shape == (300, 5)
    assert [b.name for b in run.baselines] == ["majority class", "length alone", "4-mers"]
    assert run.data is not None and run.data.inspection is not None and run.data.account is not None
    assert run.data.inspection.percentiles[50] > 0 and run.data.account.rejected.total() == 2
    assert run.versions == {"chordmixer": "1.2.3", "torch": "2.13.0"}
    assert run.output_labels is not None and run.output_labels.temperature is not None and len(run.labels) == 5


def test_intervals_that_are_not_there(make_run: Make) -> None:
    """Null, or NaN of an older run, is no interval; null is no score."""
    folder = make_run("two")
    evaluation = json.loads((folder / "evaluation-test.json").read_text())
    evaluation["scores"] |= {
        "accuracy": {"value": 0.5, "low": None, "high": None},
        "mcc": {"value": 0.5, "low": math.nan, "high": math.nan},
        "log_loss": {"value": None, "low": None, "high": None},
    }
    (folder / "evaluation-test.json").write_text(json.dumps(evaluation))
    files.write_manifest(folder, ["evaluation-test.json"])
    run = Run.load(folder)
    assert run.test is not None and {run.test.scores[name] for name in ("accuracy", "mcc")} == {Score(0.5)}
    assert math.isnan(run.test.scores["log_loss"].value)
    assert ">nan" not in page(run).lower()


def test_how_a_run_was_made(make_run: Make) -> None:
    folder = make_run("two")
    assert Run.load(folder).provenance is None and "Trained on" not in page(Run.load(folder))
    provenance = {"started": "2026-11-17 20:10:50 UTC", "command": "chordmixer train <a>", "device": "NVIDIA H200"}
    files.write_json(folder / "run.json", {**provenance, "seconds": 400.0, "starts": 2, "ends": 2})
    html = page(Run.load(folder))
    assert "Trained on 2026-11-17 20:10:50 UTC in 7 min on NVIDIA H200." in html
    assert "<code>chordmixer train &lt;a&gt;</code>" in html
    files.write_json(folder / "run.json", {**provenance, "seconds": 400.0, "starts": 2, "ends": 1})
    assert "in more than 7 min on" in page(Run.load(folder))


def test_a_torn_last_line_is_left_out(make_run: Make) -> None:
    folder = make_run("two")
    assert (folder / "metrics.jsonl").read_text().endswith('"spl')
    assert Run.load(folder).journal[-1]["step"] == steps(folder) == 2000


def test_several_targets_are_a_matrix(make_run: Make) -> None:
    predictions = Run.load(make_run("labels")).predictions
    assert predictions is not None and predictions.targets.shape == (300, 5)
    assert set(np.unique(predictions.targets)) == {0.0, 1.0}


def test_a_task_of_its_own_has_its_target(make_run: Make) -> None:
    run = Run.load(make_run("adding"))
    assert run.target == Regression(tolerance=0.04)
    assert (run.output_labels, run.data, run.baselines, run.labels) == (None, None, [], [])


def test_only_the_config_is_needed(make_run: Make) -> None:
    folder = make_run("two")
    for path in folder.iterdir():
        if path.name not in ("config.json", "manifest.json"):
            path.unlink()
    run = Run.load(folder)
    assert (run.test, run.predictions, run.target, run.journal) == (None, None, None, [])
    assert steps(run.folder) == 0


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none is not a folder: give the --out folder of a training run"):
        Run.load(tmp_path / "none")


@pytest.mark.parametrize("name", ["evaluation-test.json", "baselines.json", "data.json"])
def test_a_file_that_is_not_whole_is_named(make_run: Make, name: str) -> None:
    folder = make_run("two")
    data = json.loads((folder / name).read_text())
    broken = {"data.json": {"inspection": {"edges": []}}}.get(name, {k: v for k, v in data.items() if k == "format"})
    (folder / name).write_text(json.dumps(broken))
    files.write_manifest(folder, [name])
    with pytest.raises(ValueError, match=f"{name} is not whole .*: use another copy, or make it again"):
        Run.load(folder)


def test_a_broken_line_of_the_journal_is_named(make_run: Make) -> None:
    folder = make_run("two")
    (folder / "metrics.jsonl").write_text('{"step": 1}\nnothing\n{"step": 2}\n')
    files.write_manifest(folder, ["metrics.jsonl"])
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2 is not a JSON object: use another copy"):
        Run.load(folder)


@pytest.mark.parametrize("content", [b"", b"PAR1 not really"])
def test_broken_predictions_are_named(make_run: Make, content: bytes) -> None:
    folder = make_run("two")
    (folder / "predictions.parquet").write_bytes(content)
    files.write_manifest(folder, ["predictions.parquet"])
    with pytest.raises(
        ValueError, match=r"predictions.parquet cannot be read .*: use another copy, or evaluate again"
    ):
        Run.load(folder)


def test_numbers_that_are_not_defined_are_null(make_run: Make) -> None:
    """Files of older versions have NaN in their place."""
    folder = make_run("two")
    for literal in ("null", "NaN"):
        path = folder / "evaluation-test.json"
        evaluation = json.loads(path.read_text())
        evaluation["scores"]["roc_auc"] = json.loads(f'{{"value": {literal}, "low": {literal}, "high": {literal}}}')
        path.write_text(json.dumps(evaluation))
        (folder / "metrics.jsonl").write_text(f'{{"step": 10, "split": "validation", "loss": {literal}}}\n' * 2)
        files.write_manifest(folder, ["evaluation-test.json", "metrics.jsonl"])
        run = Run.load(folder)
        assert run.test is not None and np.isnan(run.test.scores["roc_auc"].value)
        assert np.isnan(run.journal[0]["loss"]) and "undefined" in page(run)
