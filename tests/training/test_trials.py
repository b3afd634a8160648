"""Two short runs decide about words; a kill among them costs nothing, and the choice is kept."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from chordmixer import files
from chordmixer.config import override
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, trials
from chordmixer.training.loop import TrainingRun

SMALL = {
    "model": {"network": {"track_size": 4, "hidden": 8}, "words": {"lengths": [4], "bits": 6}, "stem": {"layers": 1}},
    "training": {"steps": 20, "trial": 0.2, "device": "cpu", "evaluate_every": 5},
}


@pytest.fixture
def experiment(motifs: list[str]) -> Experiment:
    made: Experiment = override(recipe(FilesConfig(tuple(motifs)), lambda line: None), SMALL)
    return made


def settle(experiment: Experiment, out: Path, resume: bool = False) -> tuple[Experiment, str]:
    said = io.StringIO()
    decided, begun = trials.settle(experiment, out, resume=resume, console=Console(file=said, width=200))
    assert begun
    return decided, said.getvalue()


def test_the_lower_loss_wins_and_is_kept(experiment: Experiment, tmp_path: Path) -> None:
    decided, said = settle(experiment, tmp_path / "run")
    known = trials.read(tmp_path / "run")
    assert known is not None and known.line() in said
    assert [*known.losses] == ["words", "no words"]
    assert known.chosen == min(known.losses, key=known.losses.__getitem__)
    assert decided.training == replace(experiment.training, trial=0.0)
    assert decided.model.words.lengths == ((4,) if known.chosen == "words" else ())
    assert Experiment.load(tmp_path / "run") == decided
    assert not (tmp_path / "run" / "trials").exists(), "the short runs are removed"
    assert settle(experiment, tmp_path / "run", resume=True) == (decided, ""), "no second trial"
    with pytest.raises(ValueError, match="already holds a run"):
        trials.settle(experiment, tmp_path / "run", resume=False)


def test_a_kill_among_the_short_runs(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(experiment, tmp_path / "whole")
    own, take = tmp_path / "killed", TrainingRun._step
    for kill in (2, 6):  # in the first run, in the second one
        left = iter(range(kill))

        def step(self: TrainingRun, *given: object, left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise KeyboardInterrupt
            take(self, *given)  # type: ignore[arg-type]

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(TrainingRun, "_step", step)
            trials.settle(experiment, own, resume=own.exists())
    assert Experiment.load(own).training.trial == 0.2, "--resume RUN knows that the trial is not over"
    settle(Experiment.load(own), own, resume=True)
    assert (own / "trials.json").read_bytes() == (tmp_path / "whole" / "trials.json").read_bytes()
    assert files.read_json(own / "config.json") == files.read_json(tmp_path / "whole" / "config.json")


def test_without_words_there_is_nothing_to_try(experiment: Experiment, tmp_path: Path) -> None:
    none = override(experiment, {"model": {"words": {"lengths": []}}})
    decided, begun = trials.settle(none, tmp_path / "run", resume=False)
    assert decided.training.trial == 0 and not begun and not (tmp_path / "run").exists()


def test_what_a_run_refuses_is_refused_before_a_folder_is_made(experiment: Experiment, tmp_path: Path) -> None:
    short = override(experiment, {"model": {"network": {"max_length": 40}}})
    with pytest.raises(ValueError, match=r"above model\.network\.max_length=40"):
        trials.settle(short, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_a_damaged_choice(tmp_path: Path) -> None:
    (tmp_path / "trials.json").write_text('{"losses": {"words": "low"}, "chosen": "words", "format": 1}')
    with pytest.raises(ValueError, match=r"trials\.json"):
        trials.read(tmp_path)
