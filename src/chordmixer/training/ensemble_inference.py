"""An ensemble at work: on files, and on the records of its own data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy import ndarray

from chordmixer.tasks.targets import Regression
from chordmixer.training import ensemble
from chordmixer.training.answers import Answers
from chordmixer.training.combination import Using
from chordmixer.training.evaluation import Predictions, answer
from chordmixer.training.experiment import Experiment
from chordmixer.training.inference import Item, Piece, Trained


class TrainedEnsemble(Trained):
    """The run folder of an ensemble, loaded for use: its answers are the mean over its members."""

    members: list[Trained]

    def _check_kind(self) -> None:
        """Members are loaded later."""

    def _load(self, using: Using | None, unverified: bool) -> None:
        known = ensemble.finished(self.folder)
        assert known is not None, "the folder has an ensemble.json"
        folders = [ensemble.folder_of(self.folder, k) for k in range(known.size)]
        self.members = []
        for folder in folders:
            own = Trained(folder, self.device.type, self.batch_tokens, using=using, unverified=unverified)
            if self._meaning(own) != self._meaning(self):
                raise ValueError(
                    f"{folder} and {self.folder} do not fit each other: they have other tokens, labels or lengths; "
                    "use the files of one run"
                )
            self.members.append(own)

    @staticmethod
    def _meaning(run: Trained) -> tuple[object, ...]:
        """What members share."""
        target = run.answers.target
        labels = None if isinstance(target, Regression) else target.labels
        return run.tokenizer.to_json(), type(target), labels, run.both_strands, run.max_length, run.cut

    @property
    def network(self) -> bool:
        return any(own.network for own in self.members)

    @property
    def digest(self) -> str:
        whole = hashlib.sha256()
        for name in (*reversed(self.documents), ensemble.FILE):
            whole.update(hashlib.sha256((self.folder / name).read_bytes()).digest())
        for own in self.members:
            whole.update(own.digest.encode())
        return whole.hexdigest()

    def outputs(self, window: Sequence[Item], pieces: Sequence[Piece]) -> ndarray:
        rows = [(own.answers.target, own.outputs(window, pieces)) for own in self.members]
        return ensemble.mean(self.answers.target, rows)


def open_run(
    run: Path | str,
    device: str | None = None,
    batch_tokens: int | None = None,
    *,
    using: Using | None = None,
    unverified: bool = False,
) -> Trained:
    """A run folder for use, of one network or of an ensemble."""
    own = TrainedEnsemble if (Path(run) / ensemble.FILE).exists() else Trained
    return own(run, device, batch_tokens, using=using, unverified=unverified)


def answer_together(run: Path, task: Any, split: str, unverified: bool = False) -> tuple[Predictions, str]:
    """The ensemble's answers to a part of its own data, and what gave them."""
    known = ensemble.finished(run)
    assert known is not None, "it is an ensemble"
    if known.kind == "folds" and split != "test":
        raise ValueError(
            f"members of {run} trained on its {split} records: only the test part is apart from all folds; the "
            f"cross-validated scores stand in evaluation-{ensemble.CROSSED}.json"
        )
    rows, predictions = [], None
    for number in range(known.size):
        folder = ensemble.folder_of(run, number)
        target: Any = Answers.load(folder).target
        experiment = Experiment.load(folder, unverified=unverified)
        predictions, _ = answer(folder, experiment, task, split, target)
        rows.append((target, predictions.outputs))
    assert predictions is not None, "there are members"
    return replace(predictions, outputs=ensemble.mean(task.target, rows)), known.title
