"""The paper's settings for tasks of the Long Range Arena, and that they train."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer.config import override
from chordmixer.recipes import listops, pathfinder
from chordmixer.tasks.lra.listops import ListOpsConfig
from chordmixer.tasks.lra.pathfinder import PathfinderConfig
from chordmixer.training import Experiment, train

SMALL = {"training": 8, "validation": 8, "test": 8}


def test_the_papers_numbers() -> None:
    made = {
        "ListOps": listops(ListOpsConfig()),
        "Pathfinder": pathfinder(PathfinderConfig()),
        "Path-X": pathfinder(PathfinderConfig(size=128)),
    }
    numbers = {
        name: (e.model.network.hidden, e.model.network.track_size, e.training.rate, e.training.batch_sequences)
        for name, e in made.items()
    }
    assert numbers == {
        "ListOps": (88, 8, 0.007, 150),
        "Pathfinder": (320, 24, 0.005, 150),
        "Path-X": (128, 10, 0.001, 120),
    }


@pytest.mark.parametrize(
    "experiment",
    [
        listops(ListOpsConfig(min_length=20, max_length=60, max_depth=4, **SMALL)),
        pathfinder(PathfinderConfig(contour=6, **SMALL)),
    ],
    ids=["listops", "pathfinder"],
)
def test_one_epoch_from_data_to_scores(experiment: Experiment, tmp_path: Path) -> None:
    small = {"data": {"cache": str(tmp_path / "cache")}, "model": {"network": {"track_size": 2, "hidden": 4}}}
    evaluation = train(override(experiment, {**small, "training": {"epochs": 1, "device": "cpu"}}), tmp_path / "run")
    assert evaluation.records == 8 and 0 <= evaluation.scores["accuracy"].value <= 1
