"""`fit`: the same records give the same model, however they were given; runs resume; settings are checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chordmixer import Dataset, Predictor, fit
from chordmixer.fitting import ensemble_settings, nested
from chordmixer.training import Experiment
from chordmixer.training.loop import TrainingRun

QUICK = {"training.steps": 3, "training.trial": 0.0, "training.checkpoint_every": 1, "training.device": "cpu"}


@pytest.fixture(autouse=True)
def quick(quick_runs: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch)


@pytest.fixture(scope="module")
def records() -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(0)
    letters = ["".join(rng.choice(list("ACGT"), int(n))) for n in rng.integers(9, 40, 48)]
    return [text + ("GATTACA" if i % 2 else "CATTAGA") for i, text in enumerate(letters)], ["worm", "fly"] * 24


def test_lists_a_frame_and_files_give_the_same_numbers(records: Any, tmp_path: Path, capsys: Any) -> None:
    sequences, labels = records
    rows = [f"r{i},{s},{label}" for i, (s, label) in enumerate(zip(sequences, labels, strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(["id,sequence,label", *rows]) + "\n")
    datasets = [
        Dataset.from_files(tmp_path / "t.csv", cache=tmp_path / "cache"),
        Dataset.from_lists(sequences, labels),
        Dataset.from_pandas(pd.DataFrame({"dna": sequences, "kind": labels}), target="kind"),
    ]
    probabilities = [fit(data, settings=QUICK, verbose=False).predict_proba(sequences) for data in datasets]
    assert probabilities[0].shape == (48, 2) and np.ptp(probabilities[0][:, 0]) > 0.01
    np.testing.assert_array_equal(probabilities[1], probabilities[0])
    np.testing.assert_array_equal(probabilities[2], probabilities[0])
    assert capsys.readouterr().out == ""


def test_nothing_is_printed_unless_verbose(records: Any, log: pytest.LogCaptureFixture, capsys: Any) -> None:
    fit(Dataset.from_lists(*records), settings=QUICK, baselines=False, verbose=False)
    assert capsys.readouterr() == ("", "") and any(line.startswith("split (") for line in log.messages)


def test_a_temporary_run_goes_with_its_predictor(records: Any) -> None:
    predictor = fit(Dataset.from_lists(*records), settings=QUICK, baselines=False, verbose=False)
    folder = predictor.folder
    assert (folder / "report.html").exists() and (folder.parent / "stores").is_dir()
    del predictor
    assert not folder.parent.exists()


def test_ranks_need_a_folder_that_they_share(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="fit on several ranks has no folder that they share: give `out`"):
        fit(records)


def test_a_run_that_was_stopped_goes_on(records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset.from_lists(*records, cache=tmp_path / "cache")
    uninterrupted = fit(data, tmp_path / "whole", settings=QUICK, verbose=False)
    original_step = TrainingRun._step

    def step(self: TrainingRun, *arguments: Any) -> None:
        if self.state.step == 2:
            raise KeyboardInterrupt
        original_step(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainingRun, "_step", step)
        fit(data, tmp_path / "run", settings=QUICK, verbose=False, resume=True)
    assert Experiment.load(tmp_path / "run").training.steps == 3
    resumed = fit(data, tmp_path / "run", settings=QUICK, verbose=False, resume=True)
    np.testing.assert_array_equal(resumed.predict_proba(records[0]), uninterrupted.predict_proba(records[0]))
    repeated = fit(data, tmp_path / "run", settings=QUICK, verbose=False, resume=True)
    np.testing.assert_array_equal(repeated.predict_proba(records[0]), uninterrupted.predict_proba(records[0]))
    with pytest.raises(ValueError, match="already holds a run"):
        fit(data, tmp_path / "run", settings=QUICK, verbose=False)


def test_measured_steps_are_those_of_the_first_call(records: Any, tmp_path: Path) -> None:
    data = Dataset.from_lists(*records, cache=tmp_path / "cache")
    options: dict[str, Any] = {
        "minutes": 0.001,
        "settings": {"training.trial": 0.0},
        "baselines": False,
        "verbose": False,
    }
    first = fit(data, tmp_path / "run", **options)
    repeated = fit(data, tmp_path / "run", resume=True, **{**options, "minutes": 60})
    np.testing.assert_array_equal(repeated.predict_proba(records[0]), first.predict_proba(records[0]))
    with pytest.raises(ValueError, match="run was started on other records"):
        fit(Dataset.from_lists(records[0][:30], records[1][:30]), tmp_path / "run", resume=True, **options)


def test_an_ensemble_of_folds(records: Any) -> None:
    predictor = fit(Dataset.from_lists(*records), folds=2, settings=QUICK, baselines=False, verbose=False)
    assert (predictor.folder / "members" / "1").is_dir() and len(predictor.predict(records[0])) == 48
    with pytest.raises(ValueError, match=r"is an ensemble, .* embed with one of them, Predictor\.from_pretrained"):
        predictor.embed(records[0])
    member = Predictor.from_pretrained(predictor.folder / "members" / "0")
    assert member.embed(records[0]).shape[0] == 48  # type: ignore[union-attr]


def test_a_report_does_without_explanations(
    records: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("there is no room")

    monkeypatch.setattr("chordmixer.fitting.explain_tests", refuse)
    fit(Dataset.from_lists(*records, cache=tmp_path / "cache"), tmp_path / "run", settings=QUICK, baselines=False)
    assert "the report does not explain any prediction: there is no room" in capsys.readouterr().out
    assert (tmp_path / "run" / "report.html").exists()


def test_trained_weights_keep_a_lower_learning_rate(records: Any, tmp_path: Path) -> None:
    data = Dataset.from_lists(*records, cache=tmp_path / "cache")
    options: Any = {"device": "cpu", "settings": QUICK, "baselines": False, "verbose": False}
    fit(data, tmp_path / "run", **options)
    fit(data, tmp_path / "tuned", start=tmp_path / "run", **options)
    rates = [Experiment.load(tmp_path / name).training.learning_rate for name in ("run", "tuned")]
    assert rates == [3e-3, 1e-3]


def test_settings_are_said_and_checked(records: Any, tmp_path: Path, capsys: Any) -> None:
    data = Dataset.from_lists(*records, cache=tmp_path / "cache")
    fit(data, tmp_path / "run", seed=5, settings=QUICK, baselines=False)
    output = capsys.readouterr().out
    assert "settings changed: training.steps=3 (default" in output and "training.seed=5 (default 0)" in output
    assert "48 records read: 48 used, 0 rejected" in output and "validation at step 3" in output
    for arguments, match in (
        ({"settings": {"training.stepps": 3}}, "training.stepps"),
        ({"freeze": True}, "--freeze keeps the encoder of a trained run as it is: add --from RUN"),
        ({"folds": 1}, "--folds 1 is not possible: give 2 to 20"),
        ({"folds": 2, "replicates": 2}, "two ways to choose members"),
        ({"folds": 2, "ladder": True}, "--ladder is of one network"),
    ):
        with pytest.raises(ValueError, match=match):
            fit(data, tmp_path / "other", verbose=False, **arguments)
    assert not (tmp_path / "other").exists()


def test_tables_of_settings() -> None:
    assert ensemble_settings(None, 3) == {"training.replicates": 3}
    assert nested({"a.b.c": 1, "a.d": 2}) == {"a": {"b": {"c": 1}, "d": 2}}
    with pytest.raises(ValueError, match="a=1 is not a table of settings"):
        nested({"a": 1, "a.b": 2})
