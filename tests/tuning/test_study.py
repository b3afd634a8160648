"""A study: the recipe first, kills at any moment, two processes, memory, failures, time."""

from __future__ import annotations

import random
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from tests.forked import Forked

from chordmixer import Dataset
from chordmixer.recipes.files import LEARNING_RATES
from chordmixer.training.loop import TrainingRun
from chordmixer.tuning import study, tune
from chordmixer.tuning.journal import JournalLock, open_journal
from chordmixer.tuning.results import StudyResult

RATE = LEARNING_RATES["cuda" if torch.cuda.is_available() else "cpu"]
"""The recipe's learning rate."""
SMALL = {
    "model.network.track_size": 2,
    "model.network.hidden": 4,
    "model.stem.layers": 1,
    "model.stem.width": 4,
    "model.words.bits": 6,
    "training.device": "cpu",
}
KILLED = """
import os, signal, sys
from optuna.storages.journal import JournalFileBackend

last, calls, append = int(sys.argv.pop(1)), 0, JournalFileBackend.append_logs

def append_logs(self, logs):
    global calls
    calls += 1
    if calls == last:
        with open(self._file_path, "ab") as file:
            file.write(b'{"op_code": 6, "worker')
        os.kill(os.getpid(), signal.SIGKILL)
    append(self, logs)

JournalFileBackend.append_logs = append_logs
from chordmixer.__main__ import main
main()
"""
"""`chordmixer`, killed while it writes the n-th line of the journal; n is the first argument."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = random.Random(0), tmp_path_factory.mktemp("records") / "motifs.csv"
    rows = ["sequence,label"]
    for i in range(80):
        letters = rng.choices("ACGT", k=rng.randint(9, 30))
        letters[2:9] = "GATTACA" if i % 2 else "CATTAGA"
        rows.append(f"{''.join(letters)},{'worm' if i % 2 else 'fly'}")
    path.write_text("\n".join(rows) + "\n")
    return path


def search(records: Path, out: Path, trials: int = 4, minutes: float = 5, **overrides: Any) -> StudyResult:
    settings = SMALL | overrides.pop("settings", {})
    options: dict[str, Any] = {"minutes": minutes, "trials": trials, "steps": 6, "verbose": False} | overrides
    return tune(Dataset.from_files(records), out, settings=settings, **options)


def command(records: Path, out: Path, trials: int) -> list[str]:
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    return [
        "tune",
        str(records),
        "--out",
        str(out),
        "--minutes",
        "5",
        "--trials",
        str(trials),
        "--steps",
        "6",
        *settings,
    ]


def outcomes(result: StudyResult) -> list[tuple[Any, ...]]:
    return [(trial.number, trial.state, str(trial.loss), trial.values) for trial in result.trials]


@pytest.fixture(scope="module")
def clean(records: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """A study of four trials without interruption."""
    return search(records, tmp_path_factory.mktemp("whole") / "study")


def test_the_recipe_comes_first_with_and_without_words(clean: StudyResult) -> None:
    first, second, *others = clean.trials
    assert first.default and second.default and not any(trial.default for trial in others)
    assert (first.values["model.words"], second.values["model.words"]) == (True, False)
    assert first.values["training.learning_rate"] == RATE and clean.steps == 6 < clean.full_steps
    assert clean.default in (first, second) and clean.default and clean.best.loss <= clean.default.loss
    assert [*(clean.folder / study.TRIALS).iterdir()] == []


def test_killed_in_the_middle_of_a_line_again_and_again(clean: StudyResult, records: Path, tmp_path: Path) -> None:
    """Values and losses are those of the study without interruption."""
    out = tmp_path / "study"
    for last in (5, 20, 45):
        child = Forked([sys.executable, "-c", KILLED, str(last), *command(records, out, 4)])
        child.communicate(timeout=120)
        assert child.returncode == -signal.SIGKILL
    result = search(records, out)
    assert outcomes(result) == outcomes(clean)
    starts = [trial.user_attrs[study.STARTED] for trial in open_journal(out)[0].trials]
    assert max(starts) > 1 and [*(out / study.TRIALS).iterdir()] == []


def test_a_trial_whose_processes_die_is_given_up(records: Path, tmp_path: Path) -> None:
    search(records, tmp_path, trials=2)
    journal, _ = open_journal(tmp_path)
    trial = journal.ask()
    trial.set_user_attr(study.STARTED, study.MAX_STARTS)
    result = search(records, tmp_path, trials=4)
    assert [t.state for t in result.trials][:3] == ["finished", "finished", "failed"]
    assert "killed" in result.trials[2].reason and len(result.trials) == 4


def test_two_processes_share_a_study(records: Path, tmp_path: Path) -> None:
    """Each trial belongs to one process; both have read the records before the first trial starts."""
    out = tmp_path / "study"
    out.mkdir()
    with JournalLock(out):
        children = [Forked([sys.executable, "-m", "chordmixer", *command(records, out, 6)]) for _ in range(2)]
        for child in children:
            next(line for line in child.stdout if "motifs.csv" in line)
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    numbers = [{*map(int, re.findall(r"^trial (\d+),", output, flags=re.M))} for output, _ in outputs]
    assert numbers[0] | numbers[1] == {*range(6)} and not numbers[0] & numbers[1] and all(numbers)
    values = [trial.params for trial in open_journal(out)[0].trials]
    assert len(values) == 6 and all(values.count(v) == 1 for v in values)


def test_what_does_not_fit_into_memory_is_not_run(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, forecast = [], study.forecast
    monkeypatch.setattr(study, "forecast", lambda *args, **kwargs: replace(forecast(*args, **kwargs), free=0))
    learn = TrainingRun.learn
    monkeypatch.setattr(TrainingRun, "learn", lambda self: started.append(self.out.name) or learn(self))
    result = search(records, tmp_path)
    assert [trial.state for trial in result.trials] == ["finished", "finished", "infeasible", "infeasible"]
    assert re.fullmatch(r"needs about \d+ MB of memory, 0 MB are free", result.trials[3].reason)
    assert started == ["0", "1"] and result.best.default


def test_failures(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial may fail, but not three in a row, and not the recipe."""
    learn = TrainingRun.learn

    def fail(self: TrainingRun, after: int) -> float:
        if int(self.out.name) >= after:
            raise ValueError("loss nan is not finite")
        return learn(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "learn", lambda self: fail(self, 0))
        with pytest.raises(ValueError, match=r"^loss nan is not finite"):
            search(records, tmp_path)
    monkeypatch.setattr(TrainingRun, "learn", lambda self: fail(self, 2))
    with pytest.raises(ValueError, match="3 trials in a row failed, the last because: loss nan is not finite"):
        search(records, tmp_path, trials=9)
    assert [trial.state for trial in search(records, tmp_path, trials=5).trials] == ["finished"] * 2 + ["failed"] * 3


def test_bad_trials_are_pruned_and_late_ones_stopped(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study.MedianPruner, "prune", lambda self, pruner_study, trial: trial.number == 2)
    result = search(records, tmp_path, trials=3)
    assert [trial.state for trial in result.trials] == ["finished", "finished", "pruned"]
    monkeypatch.setattr(study.Search, "_has_work", lambda self: len(self.study.trials) < 4)
    assert search(records, tmp_path, minutes=1e-9).trials[3].state == "out of time"


def test_the_recipe_is_trained_however_little_time_there_is(records: Path, tmp_path: Path) -> None:
    result = search(records, tmp_path, minutes=1e-9, steps=None)
    assert len(result.trials) == 1 and result.best.default and result.steps == 20
    assert outcomes(search(records, tmp_path, minutes=1e-9, steps=None)) == outcomes(result)


@pytest.mark.parametrize(
    "extra, message",
    [
        ({"settings": {"training.batch_sequences": 7}}, r"is a study with training.batch_sequences=16, not 7"),
        ({"steps": 7}, "is a study with steps=6, not 7"),
        ({"seed": 3}, "is a study with training.seed=0, not 3"),
        ({"settings": {"training.learning_rate": RATE}}, r"searches other settings \(training.learning_rate only"),
        ({"minutes": 0.0}, "--minutes 0 is not the time of a study"),
        ({"minutes": float("inf")}, "--minutes inf is not the time of a study"),
        ({"settings": {"training.replicates": 3}}, "--folds and --replicates train several networks"),
    ],
)
def test_other_studies_are_refused(clean: StudyResult, records: Path, extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(records, clean.folder, **extra)


def test_other_records_and_torchrun_are_refused(
    clean: StudyResult, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "other.csv"
    changed.write_text(records.read_text().replace("GATTACA", "GATTTCA"))
    with pytest.raises(ValueError, match="is a study of other records: give the same files, or a new folder"):
        search(changed, clean.folder)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="start it several times, without torchrun"):
        search(records, tmp_path / "study")


def test_optuna_stays_as_talkative_as_it_was(clean: StudyResult) -> None:
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
