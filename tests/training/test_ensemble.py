"""ensemble.json, the experiments of members, and the mean of their answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer import files
from chordmixer.config import to_dict
from chordmixer.data.splits import SplitConfig
from chordmixer.models import ModelConfig
from chordmixer.tasks.files import FilesConfig
from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training import Experiment, TrainingConfig, ensemble
from chordmixer.training.ensemble import Ensemble, EnsembleMember
from chordmixer.training.intervals import Score

MEMBERS = tuple(EnsembleMember(k, "network", Score(0.9, 0.8, 1.0), Score(0.7)) for k in range(3))
ENSEMBLE = Ensemble("folds", 3, True, "roc_auc", MEMBERS)


def write_ensemble(folder: Path, **changes: Any) -> Path:
    files.write_recorded(folder, {ensemble.FILE: files.json_bytes(to_dict(ENSEMBLE) | changes)})
    return folder


def test_there_and_back(tmp_path: Path) -> None:
    assert ensemble.read(tmp_path) is None
    assert ensemble.read(write_ensemble(tmp_path)) == ENSEMBLE == ensemble.finished(tmp_path)
    files.write_recorded(tmp_path, {ensemble.FILE: files.json_bytes(to_dict(replace(ENSEMBLE, members=MEMBERS[:1])))})
    with pytest.raises(ValueError, match=r"has 1 of 3 members: go on with chordmixer train --resume"):
        ensemble.finished(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "bags"}, "kind='bags' is not a choice"),
        ({"size": 10**9}, "size=1,000,000,000 is too large"),
        ({"size": 1}, "size=1 is too small"),
        ({"size": 2}, "members are not numbered 0 to 1"),
        ({"size": "3"}, "not of type int"),
        ({"format": 2}, "format=2"),
        ({"members": [to_dict(MEMBERS[1]), to_dict(MEMBERS[0])]}, "members are not numbered"),
        ({"members": [{**to_dict(MEMBERS[0]), "number": -1}]}, "members are not numbered"),
        ({"members": [{**to_dict(MEMBERS[0]), "number": "../../elsewhere"}]}, "not of type int"),
        ({"members": 3}, "is not a list"),
        ({"more": 1}, "more is not a setting"),
    ],
    ids=str,
)
def test_what_is_damaged_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        ensemble.read(write_ensemble(tmp_path, **changes))
    assert "ensemble.json is not whole" in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_the_manifest_does_not_know(tmp_path: Path) -> None:
    write_ensemble(tmp_path)
    (tmp_path / ensemble.FILE).write_bytes(b"{}")
    with pytest.raises(ValueError, match="was changed or damaged"):
        ensemble.read(tmp_path)
    (tmp_path / ensemble.FILE).unlink()
    with pytest.raises(ValueError, match="is missing"):
        ensemble.read(tmp_path)


def test_experiments_of_members() -> None:
    plain = Experiment("files", FilesConfig(), ModelConfig(4, 2), TrainingConfig(seed=5))
    assert ensemble.kind_and_size(plain) is None
    folds = replace(plain, data=FilesConfig(split=SplitConfig(folds=4)))
    assert ensemble.kind_and_size(folds) == ("folds", 4)
    member = ensemble.member(folds, 2)
    assert member.data.split == SplitConfig(folds=4, fold=2) and ensemble.kind_and_size(member) is None
    seeds = replace(plain, training=TrainingConfig(seed=5, replicates=3))
    assert ensemble.kind_and_size(seeds) == ("replicates", 3)
    assert ensemble.member(seeds, 2) == replace(plain, training=TrainingConfig(seed=7))
    with pytest.raises(ValueError, match="--folds 4 and --replicates 3 are two ways"):
        ensemble.kind_and_size(replace(folds, training=seeds.training))
    with pytest.raises(ValueError, match="--replicates is for files with labels, and this is a run of masking"):
        ensemble.kind_and_size(replace(seeds, task="masking"))
    with pytest.raises(ValueError, match="replicates=1 is one network"):
        TrainingConfig(replicates=1)


def test_the_mean_is_of_log_odds_without_class_weights() -> None:
    """Members with different class counts weigh alike, and the result has the class weights of the ensemble."""
    rng = np.random.default_rng(0)
    target = Classification.of_counts(["a", "b", "c"], [10, 20, 30])
    targets = [Classification.of_counts(["a", "b", "c"], counts) for counts in ([9, 21, 30], [30, 10, 10])]
    outputs = [rng.normal(size=(5, 3)).astype(np.float32) for _ in targets]
    mean = ensemble.mean(target, list(zip(targets, outputs, strict=True)))
    odds = np.mean([t.unweighted(o) for t, o in zip(targets, outputs, strict=True)], axis=0)
    combined = target.unweighted(mean)
    np.testing.assert_allclose(combined - combined[:, :1], odds - odds[:, :1], atol=1e-5)
    assert mean.dtype == np.float32

    label_target = MultiLabel(["x", "y"], [3, 5], 10)
    label_targets = [MultiLabel(["x", "y"], [2, 6], 10), MultiLabel(["x", "y"], [4, 4], 10)]
    rows = [rng.normal(size=(4, 2)) for _ in label_targets]
    mean = ensemble.mean(label_target, list(zip(label_targets, rows, strict=True)))
    expected = np.mean([t.unweighted(o) for t, o in zip(label_targets, rows, strict=True)], axis=0)
    np.testing.assert_allclose(label_target.unweighted(mean), expected, atol=1e-5)
