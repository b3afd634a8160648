"""From the baseline to the delivered answer: each step with what it adds to the one before."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from chordmixer import files
from chordmixer.config import override
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, ladder, train
from chordmixer.training.nested_runs import local_experiment, train_local
from chordmixer.training.outcome import compare

pytestmark = pytest.mark.usefixtures("quick_scores")
SMALL = {
    "model": {"network": {"track_size": 4, "hidden": 8}, "words": {"lengths": []}, "stem": {"layers": 1}},
    "training": {"steps": 12, "trial": 0.0, "device": "cpu"},
}


@pytest.fixture(scope="module")
def run(motifs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder") / "run"
    train(override(recipe(FilesConfig(tuple(motifs)), lambda line: None), SMALL), folder)
    train_local(folder, Console(quiet=True))
    compare(folder, lambda line: None, deliver=True)
    return folder


def test_steps_add_up_to_the_answer(run: Path) -> None:
    target = Experiment.load(run).build_task().target
    steps = ladder.steps(run, target)
    names = [step.name for step in steps]
    assert names[1:3] == ["local network", "network alone"] and steps[0].gain is None
    written = files.read_json(run / "baselines.json")
    scores = {row["name"]: row["evaluation"]["scores"]["roc_auc"]["value"] for row in written["baselines"]}
    for before, step in pairwise(steps[:3]):
        assert step.gain is not None and step.gain.value == pytest.approx(scores[step.name] - scores[before.name])
    assert [row["name"] for row in written["ladder"]] == names


def test_the_local_network_has_no_encoder_and_half_of_the_steps(run: Path) -> None:
    own, whole = Experiment.load(run / "local"), Experiment.load(run)
    assert own == local_experiment(whole) and own.model.encoder == "none"
    assert (own.training.steps, whole.training.steps) == (6, 12)
    assert own.model.stem == whole.model.stem and own.model.head == whole.model.head


def test_no_baseline_no_ladder(run: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(run, tmp_path / "bare"))
    (bare / "combination.json").unlink()
    assert ladder.steps(bare, Experiment.load(run).build_task().target) == []
