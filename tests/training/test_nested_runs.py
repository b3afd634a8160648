"""Runs inside a run: trials of words, the local network, and ensembles; a killed run loses nothing but time."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.forked import Forked

from chordmixer import files
from chordmixer.config import override
from chordmixer.models import ModelConfig
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, TrainingConfig, ensemble, evaluation, nested_runs
from chordmixer.training.evaluation import Predictions, evaluate
from chordmixer.training.labels import OutputLabels, fit_temperature
from chordmixer.training.loop import TrainingRun, train
from chordmixer.training.nested_runs import local_experiment, read_trials, run_trials
from chordmixer.views.report import write_report
from chordmixer.views.runs import Run

Command = Callable[..., tuple[int, str, str]]

SETTINGS = (
    "training.steps=4",
    "training.precision=fp32",
    "training.trial=0",
    "training.checkpoint_every=2",
    "model.network.track_size=4",
    "model.network.hidden=8",
    "model.stem.layers=1",
    "model.words.bits=8",
    "training.device=cpu",
)


@pytest.fixture(scope="module")
def command(kills: ModuleType, motifs: list[str]) -> list[str]:
    return list(kills.words(SETTINGS, "train", *motifs, "--folds", "2", "--group", "header:gene"))


@pytest.fixture(scope="module")
def folds(kills: ModuleType, command: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """An uninterrupted run of two folds with baselines, which tests only read, and the number of its writes."""
    folder = tmp_path_factory.mktemp("folds") / "run"
    child = kills.start(folder, command=command)
    output, errors = child.communicate(timeout=300)
    assert (child.returncode, errors) == (0, ""), errors
    return folder, int(output.split()[-1])


def contents(folder: Path) -> dict[str, Any]:
    """The content of all files but pictures and those that hold times."""
    content: dict[str, Any] = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.name in ("run.json", ".lock", "report.html") or path.suffix == ".png":
            continue
        content[name] = path.read_bytes()
        if path.name == "manifest.json":
            content[name] = {k: v for k, v in json.loads(content[name]).items() if k != "run.json"}
    return content


def member_predictions(run: Path, part: str) -> list[tuple[Any, Predictions]]:
    name = "predictions.parquet" if part == "test" else f"predictions-{part}.parquet"
    folders = [ensemble.folder_of(run, k) for k in range(2)]
    return [(OutputLabels.load(folder).target, Predictions.read(folder / name)) for folder in folders]


def test_what_a_run_of_folds_leaves(folds: tuple[Path, int]) -> None:
    run, _ = folds
    document = ensemble.finished(run)
    assert document is not None and (document.kind, document.size, document.metric) == ("folds", 2, "roc_auc")
    experiment = Experiment.load(run)
    assert (experiment.data.split.folds, experiment.data.split.fold) == (2, None)
    recorded = {*files.recorded(run)}
    files.verify(run, recorded)
    assert {"config.json", "ensemble.json", "labels.json", "tokenizer.json", "data.json", "run.json"} <= recorded
    assert {"evaluation-cross-validation.json", "predictions-cross-validation.parquet"} <= recorded
    assert {"evaluation-test.json", "predictions.parquet", "baselines.json", "seen.safetensors"} <= recorded
    for number, member in enumerate(document.members):
        folder = ensemble.folder_of(run, number)
        assert Experiment.load(folder).data.split.fold == number
        score = files.read_json(folder / "evaluation-validation.json")["scores"]["roc_auc"]
        assert member.validation.value == score["value"] and (folder / "combination.json").exists()
    rows = {row["name"]: row for row in files.read_json(run / "baselines.json")["baselines"]}
    member_rows = files.read_json(ensemble.folder_of(run, 0) / "baselines.json")["baselines"]
    assert {*rows} == {row["name"] for row in member_rows} - {"network alone"}
    for row in member_rows:
        if row["name"] in rows:
            expected, actual = (r["evaluation"]["scores"]["roc_auc"]["value"] for r in (row, rows[row["name"]]))
            assert actual == pytest.approx(expected) and rows[row["name"]]["difference"] is not None


def test_scores_are_of_the_mean_and_of_folds_held_out(folds: tuple[Path, int]) -> None:
    run, _ = folds
    target: Any = OutputLabels.load(run).target
    members = member_predictions(run, "test")
    test_predictions = Predictions.read(run / "predictions.parquet")
    odds = np.mean([t.unweighted(p.outputs) for t, p in members], axis=0)
    np.testing.assert_allclose(np.diff(target.unweighted(test_predictions.outputs)), np.diff(odds), atol=1e-4)
    assert all(p.same_records(test_predictions) for _, p in members)

    pooled = Predictions.read(run / "predictions-cross-validation.parquet")
    held_out = member_predictions(run, "validation")
    assert pooled.names == [name for _, p in held_out for name in p.names] and len({*pooled.names}) == 160
    assert not {*pooled.names} & {*test_predictions.names}
    genes = [{int(re.sub(r"\D", "", name)) // 4 for name in p.names} for _, p in held_out]
    assert all(not fold & earlier for i, fold in enumerate(genes) for earlier in genes[:i]), "a group is in two folds"
    assert pooled.groups is not None and len(np.unique(pooled.groups)) == sum(len(fold) for fold in genes)
    assert OutputLabels.load(run).temperature == fit_temperature(target.unweighted(pooled.outputs), pooled.targets)
    scores = files.read_json(run / "evaluation-cross-validation.json")
    assert scores["records"] == 160 and scores["split"] == "cross-validation"


def test_killed_and_resumed_has_the_same_bytes(
    kills: ModuleType, command: list[str], folds: tuple[Path, int], tmp_path: Path
) -> None:
    """Killed inside writes of the first member and near the end, then resumed by its folder alone."""
    full_run, writes = folds
    run = tmp_path / "run"
    for kill_at in (writes // 4, writes // 2):
        child = kills.start(run, command=command, dies_at_write=kill_at)
        child.communicate(timeout=300)
        assert child.returncode == -signal.SIGKILL
    document = ensemble.read(run)
    assert document is not None and not document.complete
    resume_command = [sys.executable, "-m", "chordmixer", "train", "--resume", str(run)]
    resumed = Forked(resume_command)
    assert resumed.communicate(timeout=300)[1] == "" and resumed.returncode == 0
    expected, actual = contents(full_run), contents(run)
    assert [name for name in expected if actual.get(name) != expected[name]] == []
    assert set(actual) == set(expected) and not kills.strays(run)


def test_predict_evaluate_and_report(
    folds: tuple[Path, int], motifs: list[str], chordmixer: Command, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(folds[0], tmp_path / "run"))
    before = (run / "predictions.parquet").read_bytes()
    code, output, errors = chordmixer("evaluate", run)
    assert (code, errors) == (0, "") and "mean of 2 members" in output
    assert (run / "predictions.parquet").read_bytes() == before
    code, _, errors = chordmixer("evaluate", run, "--split", "validation")
    assert code == 2 and "only the test part is apart from all folds" in errors

    rows = {}
    for using in ("network", "baseline", "both"):
        code, output, _ = chordmixer("predict", run, motifs[0], "--using", using)
        rows[using] = [line.split("\t")[4] for line in output.splitlines()[1:]]
        assert code == 0 and len(rows[using]) == 100
    assert rows["network"] != rows["baseline"]
    code, output, errors = chordmixer("evaluate", run, *motifs)
    assert code == 0 and "160 of 200 records were seen in training" in output + errors

    code, _, errors = chordmixer("embed", run, motifs[0], "-o", tmp_path / "e.parquet")
    assert code == 2 and f"give a member, {run / 'members' / '0'}" in errors
    code, _, errors = chordmixer("train", *motifs, "--from", run, "--out", tmp_path / "next")
    assert code == 2 and "--from takes one: give a member" in errors
    assert chordmixer("report", run)[0] == 0
    page = (run / "report.html").read_text()
    assert 'id="members"' in page and "2-fold cross-validation on 160 records" in page
    assert "split into 2 folds" in page and "no metrics.jsonl" not in page
    (run / "ensemble.json").write_text("{}")
    for arguments in (("predict", run, motifs[0]), ("evaluate", run), ("report", run), ("train", "--resume", run)):
        code, _, errors = chordmixer(*arguments)
        assert code == 2 and "ensemble.json was changed or damaged" in errors and errors.count("\n") == 1


def test_replicates_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members differ in their seeds but not in their records, and the mean is that of their numbers."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)
    rows = [f"{'A' * (i % 9 + 1)}{'C' * (i % 5)},{100 + i % 9}" for i in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["sequence,target", *rows]))
    data = FilesConfig((str(tmp_path / "table.csv"),))
    settings = {
        "model": {"network": {"track_size": 2, "hidden": 4}, "words": {"bits": 8}, "stem": {"layers": 1}},
        "training": {"steps": 2, "trial": 0.0, "replicates": 2, "seed": 4, "device": "cpu"},
    }
    run = tmp_path / "run"
    result = train(override(recipe(data), settings), run)
    assert result.headline == "r2" and result.encoder == "mean of 2 members"
    folders = [ensemble.folder_of(run, k) for k in range(2)]
    assert [Experiment.load(folder).training.seed for folder in folders] == [4, 5]
    for name in ("predictions.parquet", "predictions-validation.parquet"):
        values = [OutputLabels.load(f).target.values(Predictions.read(f / name).outputs) for f in folders]  # type: ignore[union-attr]
        mean = OutputLabels.load(run).target.values(Predictions.read(run / name).outputs)  # type: ignore[union-attr]
        np.testing.assert_allclose(mean, np.mean(values, axis=0), atol=1e-4)
        assert not np.array_equal(*values)
    assert evaluate(run, "validation").records == len(Predictions.read(run / "predictions-validation.parquet").names)
    assert "over the seeds" in write_report(run).read_text() and Run.load(run).held_out is not None
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    train(Experiment.load(run), run, resume=True)
    assert [(folder / "model.safetensors").read_bytes() for folder in folders] == weights


# --- Trials ---


SMALL = {
    "model": {"network": {"track_size": 4, "hidden": 8}, "words": {"lengths": [4], "bits": 6}, "stem": {"layers": 1}},
    "training": {"steps": 20, "trial": 0.2, "device": "cpu", "evaluate_every": 5},
}


@pytest.fixture
def experiment(motifs: list[str]) -> Experiment:
    result: Experiment = override(recipe(FilesConfig(tuple(motifs))), SMALL)
    return result


def decide(experiment: Experiment, out: Path, resume: bool = False) -> tuple[Experiment, str]:
    output = io.StringIO()
    decided, begun = run_trials(experiment, out, resume=resume, console=Console(file=output, width=200))
    assert begun
    return decided, output.getvalue()


def test_trial_runs_are_evaluated_less_often(experiment: Experiment) -> None:
    training = replace(experiment.training, steps=1_000, evaluate_every=50)
    short = nested_runs._shortened(replace(experiment, training=training), 0.2).training
    assert (short.steps, short.evaluate_every) == (200, 40)


def test_the_lower_loss_wins_and_is_kept(experiment: Experiment, tmp_path: Path) -> None:
    decided, output = decide(experiment, tmp_path / "run")
    trials = read_trials(tmp_path / "run")
    assert trials is not None and trials.line() in output
    assert [*trials.losses] == ["words", "no words"]
    assert trials.chosen == min(trials.losses, key=trials.losses.__getitem__)
    assert decided.training == replace(experiment.training, trial=0.0)
    assert decided.model.words.lengths == ((4,) if trials.chosen == "words" else ())
    assert Experiment.load(tmp_path / "run") == decided
    assert not (tmp_path / "run" / "trials").exists(), "the short runs are removed"
    assert decide(experiment, tmp_path / "run", resume=True) == (decided, ""), "no second trial"
    with pytest.raises(ValueError, match="already holds a run"):
        run_trials(experiment, tmp_path / "run", resume=False)


def test_positions_are_tried_on_the_better_of_both(experiment: Experiment, tmp_path: Path) -> None:
    experiment = override(experiment, {"model": {"positions": 8}})
    decided, _ = decide(experiment, tmp_path / "run")
    trials = read_trials(tmp_path / "run")
    assert trials is not None
    words, no_words, _ = trials.losses.values()
    assert [*trials.losses] == ["words", "no words", "words and positions" if words < no_words else "positions"]
    assert trials.chosen == min(trials.losses, key=trials.losses.__getitem__)
    assert bool(decided.model.words.lengths) == trials.chosen.startswith("words")
    assert decided.model.positions == (8 if "positions" in trials.chosen else 0)


def test_a_kill_among_the_short_runs(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decide(experiment, tmp_path / "whole")
    run, original_step = tmp_path / "killed", TrainingRun._step
    for steps in (2, 6):  # in the first run, in the second one
        remaining = iter(range(steps))

        def step(self: TrainingRun, *arguments: object, remaining: object = remaining) -> None:
            if next(remaining, None) is None:  # type: ignore[call-overload]
                raise KeyboardInterrupt
            original_step(self, *arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(TrainingRun, "_step", step)
            run_trials(experiment, run, resume=run.exists())
    assert Experiment.load(run).training.trial == 0.2, "--resume RUN knows that the trial is not over"
    decide(Experiment.load(run), run, resume=True)
    assert (run / "trials.json").read_bytes() == (tmp_path / "whole" / "trials.json").read_bytes()
    assert files.read_json(run / "config.json") == files.read_json(tmp_path / "whole" / "config.json")


def test_without_words_there_is_nothing_to_try(experiment: Experiment, tmp_path: Path) -> None:
    without_words = override(experiment, {"model": {"words": {"lengths": []}}})
    decided, begun = run_trials(without_words, tmp_path / "run", resume=False)
    assert decided.training.trial == 0 and not begun and not (tmp_path / "run").exists()


def test_what_a_run_refuses_is_refused_before_a_folder_is_made(experiment: Experiment, tmp_path: Path) -> None:
    short = override(experiment, {"model": {"network": {"max_length": 40}}})
    with pytest.raises(ValueError, match=r"above model\.network\.max_length=40"):
        run_trials(short, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_a_damaged_choice(tmp_path: Path) -> None:
    (tmp_path / "trials.json").write_text('{"losses": {"words": "low"}, "chosen": "words", "format": 1}')
    with pytest.raises(ValueError, match=r"trials\.json"):
        read_trials(tmp_path)


# --- Local network ---


def test_the_local_network_trains_half_as_long() -> None:
    model = ModelConfig(inputs=5, outputs=2)
    by_epochs = local_experiment(Experiment("files", None, model, TrainingConfig(epochs=9)))
    assert (by_epochs.training.epochs, by_epochs.training.steps) == (4, 0)
    by_steps = local_experiment(
        Experiment("files", None, model, TrainingConfig(epochs=9, steps=100, layer_decay=0.5, context_parallel=2))
    )
    assert (by_steps.training.epochs, by_steps.training.steps, by_steps.training.layer_decay) == (9, 50, 1.0)
    assert by_steps.training.context_parallel == 1
