"""Fine-tuning: an experiment that starts from the network and weights of a trained run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from chordmixer import files
from chordmixer.config import from_dict
from chordmixer.data import tokenizers
from chordmixer.data.tokenizers import Tokenizer
from chordmixer.models.heads import HEADS
from chordmixer.models.model import Model, ModelConfig, read_config
from chordmixer.tasks import Task
from chordmixer.training import checkpoints, ensemble, run_folder
from chordmixer.training.experiment import Experiment, TrainingConfig
from chordmixer.training.run_folder import WEIGHTS

DATA_SETTINGS = {"on_bad", "mean", "scale"}
"""Settings of a tokenizer that may differ between runs, since they depend on the data."""
COPIED_SETTINGS = ("encoder", "within_record", "mark_start", "positions", "stem", "words", "final_norm")
"""Settings of the model, in addition to its network, that are copied from the other run."""


def start_from(experiment: Experiment, run: Path | str, freeze: bool = False, unverified: bool = False) -> Experiment:
    """The experiment with the network of a trained run, built for the larger max_length of the two.

    The head is new. The config records the run and the SHA-256 of its weights.
    """
    folder = Path(run)
    ensemble.refuse(folder, "--from")
    if not (folder / WEIGHTS).is_file():
        raise ValueError(
            f"{folder} has no {WEIGHTS} to start from: give the folder of a finished run; go on with an unfinished "
            f"one by chordmixer train --resume {shlex.quote(str(folder))}"
        )
    run_folder.check(folder, unverified=unverified)
    old = from_dict(ModelConfig, read_config(folder)["model"], f"{folder / 'config.json'}: model")
    _check_tokenizers(experiment.build_task(), folder)
    longest = max(experiment.model.network.max_length, old.network.max_length + HEADS[old.head].extra)
    network = replace(old.network, max_length=longest)
    model = replace(experiment.model, network=network, **{name: getattr(old, name) for name in COPIED_SETTINGS})
    digest = files.sha256(folder / WEIGHTS)
    training = replace(experiment.training, start=str(folder), start_sha256=digest, freeze=freeze, trial=0.0)
    return replace(experiment, model=model, training=training)


def initialise(model: Model, config: TrainingConfig, out: Path) -> None:
    """Load the initial weights, unless `out` has checkpoints, and freeze embedding and encoder if configured."""
    if config.start is not None and not checkpoints.newest_first(out):
        folder = Path(config.start)
        if not (folder / WEIGHTS).is_file() or files.sha256(folder / WEIGHTS) != config.start_sha256:
            raise ValueError(
                f"{folder / WEIGHTS} is not the file that this run starts from: its SHA-256 is to be "
                f"{config.start_sha256}; put it back, or start into another folder"
            )
        from chordmixer.models.growing import take_over  # most runs start from random weights

        take_over(model, Model.from_pretrained(folder))
    if config.freeze:
        model.freeze()


def messages(config: TrainingConfig) -> list[str]:
    """Messages for the user at the start."""
    lines = [] if config.start is None else [f"starting from the weights of {config.start}, with a new head"]
    return [*lines, *(["embedding and encoder are frozen: only the head learns"] if config.freeze else [])]


def _check_tokenizers(task: Task, folder: Path) -> None:
    """Refuse a run with another tokenizer; generated data have no tokenizer."""
    document = task.documents().get(tokenizers.FILE)
    new = None if document is None else tokenizers.tokenizer_from_json(document)
    old = tokenizers.load_tokenizer(folder) if (folder / tokenizers.FILE).exists() else None
    if _encoding(new) != _encoding(old):
        raise ValueError(
            f"the tokenizer of {folder} is {_shortened(old)}, and that of these data {_shortened(new)}: tokens must "
            "mean the same; read the data as the run did (--tokenizer, data.tokenizer), or start from another run"
        )


def _encoding(tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    """The settings of a tokenizer that define its tokens."""
    if tokenizer is None:
        return None
    return {name: value for name, value in tokenizer.to_json().items() if name not in DATA_SETTINGS}


def _shortened(tokenizer: Tokenizer | None) -> str:
    text = str(tokenizer)
    return text if len(text) <= 100 else f"{text[:100]}…"
