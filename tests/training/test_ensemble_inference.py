"""An ensemble answers with the mean of its members, on files and on its own records."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.training.trained_runs import SEVERAL, make_run, write_fasta

from chordmixer import files
from chordmixer.config import to_dict
from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading, read
from chordmixer.training import ensemble
from chordmixer.training.embedding import embed
from chordmixer.training.ensemble import Ensemble, EnsembleMember
from chordmixer.training.ensemble_inference import TrainedEnsemble, open_run
from chordmixer.training.inference import Trained
from chordmixer.training.intervals import Score
from chordmixer.training.prediction import predict


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three untrained networks that answer together."""
    folder = make_run(tmp_path / "run")
    (folder / "model.safetensors").unlink()
    files.unrecord(folder, ["model.safetensors"])
    members = tuple(EnsembleMember(k, "network", Score(0.5), Score(0.5)) for k in range(3))
    known = Ensemble("replicates", 3, False, "accuracy", members)
    files.write_recorded(folder, {ensemble.FILE: files.json_bytes(to_dict(known))})
    for number in range(3):
        make_run(ensemble.folder_of(folder, number), seed=number)
    return folder


def outputs(trained: Trained, path: Path) -> np.ndarray:
    entries = read([path], Reading(), Account())
    rows = [
        trained.outputs(window, trained.pieces(window, "windows"))
        for window in trained.windows(entries, Account(), None, print)
    ]
    return np.concatenate(rows)


def test_answers_are_the_mean(run: Path, tmp_path: Path) -> None:
    fasta = write_fasta(tmp_path / "new.fa", [20, 300, 50])  # one of them in windows
    own = open_run(run)
    assert isinstance(own, TrainedEnsemble) and len(own.members) == 3 and own.network
    answers = Trained(ensemble.folder_of(run, 0)).answers
    each = [answers.unweighted(outputs(Trained(ensemble.folder_of(run, k)), fasta)) for k in range(3)]
    odds = np.mean([rows - rows.mean(axis=1, keepdims=True) for rows in each], axis=0)
    np.testing.assert_allclose(own.answers.unweighted(outputs(own, fasta)), odds, atol=1e-5)
    assert np.std(each, axis=0).min() > 1e-4, "members differ"
    assert own.digest != open_run(ensemble.folder_of(run, 0)).digest


def test_what_takes_one_network_names_a_member(run: Path, tmp_path: Path) -> None:
    fasta = write_fasta(tmp_path / "new.fa", [20])
    with pytest.raises(ValueError, match=r"has 3 networks, and this command takes one: give a member, .*members/0"):
        embed(run, [fasta], tmp_path / "out.parquet")
    embed(ensemble.folder_of(run, 0), [fasta], tmp_path / "out.parquet", say=lambda line: None)
    with pytest.raises(ValueError, match="keeps no baseline for --using baseline"):
        predict(run, [fasta], tmp_path / "out.tsv", using="baseline")


def _gone(run: Path) -> None:
    shutil.rmtree(ensemble.folder_of(run, 2))


def _changed(run: Path) -> None:
    path = ensemble.folder_of(run, 1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"good")


def _of_another_run(run: Path) -> None:
    shutil.rmtree(ensemble.folder_of(run, 1))
    make_run(ensemble.folder_of(run, 1), SEVERAL)


def _of_another_length(run: Path) -> None:
    shutil.rmtree(ensemble.folder_of(run, 1))
    make_run(ensemble.folder_of(run, 1), max_length=64)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_gone, "members/2 is not a folder"),
        (_changed, "members/1/model.safetensors was changed or damaged"),
        (_of_another_run, "do not fit each other: they have other tokens, labels or lengths"),
        (_of_another_length, "do not fit each other"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_members_are_checked(run: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(run)
    with pytest.raises(ValueError, match=message):
        open_run(run)
