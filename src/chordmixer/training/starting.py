"""Starting from a trained run: its network and weights, what of them stays as it is, and how fast the rest learns."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from chordmixer.config import from_dict
from chordmixer.data import tokenizers
from chordmixer.data.tokenizers import Tokenizer
from chordmixer.models.chordmixer import ChordMixer, depth
from chordmixer.models.growing import take_over
from chordmixer.models.heads import HEADS
from chordmixer.models.model import Model, ModelConfig, read_config
from chordmixer.tasks import Task
from chordmixer.training import checkpoints, ensemble, run_folder
from chordmixer.training.experiment import Experiment, TrainingConfig
from chordmixer.training.run_folder import WEIGHTS

OF_THE_DATA = {"on_bad", "mean", "scale"}
"""Settings of a tokenizer that two runs need not share: numbers are brought to one scale in each."""


def start_from(experiment: Experiment, run: Path | str, freeze: bool = False, unverified: bool = False) -> Experiment:
    """The same experiment with the network of a trained run, built for the longer sequences of the two.

    The head is new. The config remembers the run and the SHA-256 of its weights.
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
    taken = {
        name: getattr(old, name) for name in ("encoder", "within_record", "mark_start", "stem", "words", "final_norm")
    }
    model = replace(experiment.model, network=network, **taken)
    training = replace(experiment.training, start=str(folder), start_sha256=_digest(folder), freeze=freeze, trial=0.0)
    return replace(experiment, model=model, training=training)


def begin(model: Model, config: TrainingConfig, out: Path) -> None:
    """Put the first weights in place, and freeze what does not learn; checkpoints in `out` hold all that follows."""
    if config.start is not None and not checkpoints.found(out):
        folder = Path(config.start)
        if not (folder / WEIGHTS).is_file() or _digest(folder) != config.start_sha256:
            raise ValueError(
                f"{folder / WEIGHTS} is not the file that this run starts from: its SHA-256 is to be "
                f"{config.start_sha256}; put it back, or start into another folder"
            )
        take_over(model, Model.from_pretrained(folder))
    if config.freeze:
        model.freeze()


def said(config: TrainingConfig) -> list[str]:
    """What a user is told of it."""
    lines = [] if config.start is None else [f"starting from the weights of {config.start}, with a new head"]
    return [*lines, *(["embedding and encoder are frozen: only the head learns"] if config.freeze else [])]


def groups(model: Model, config: TrainingConfig, longest: int) -> list[dict[str, Any]]:
    """What learns, as the optimiser's groups, each with its `share` of the rate; `longest` is a record's length.

    With `layer_decay` d the head has the whole rate, the last block d of it, the one before d^2, and the embedding
    the least. The last block is that of the longest record: those behind it learn nothing.
    """
    learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if config.layer_decay == 1:
        return _by_decay([(name, p, 1.0) for name, p in learning], config)
    if not isinstance(model.encoder, ChordMixer):
        raise ValueError(
            f"layer_decay={config.layer_decay} counts the blocks of a chordmixer, and this encoder is "
            f"{model.config.encoder}: set training.layer_decay=1"
        )
    blocks = min(depth(longest + model.head.extra), len(model.encoder.blocks))
    shares = [(name, p, config.layer_decay ** _from_the_head(name, blocks)) for name, p in learning]
    return _by_decay(sorted(shares, key=lambda own: -own[2]), config)


def _by_decay(learning: list[tuple[str, Any, float]], config: TrainingConfig) -> list[dict[str, Any]]:
    """Groups of one share of the rate and one weight decay: tables of words have their own."""
    made: dict[tuple[float, float], list[Any]] = {}
    for name, parameter, share in learning:
        decay = config.words_decay if name == "words.table" else config.weight_decay
        made.setdefault((share, decay), []).append(parameter)
    return [{"params": own, "share": share, "weight_decay": decay} for (share, decay), own in made.items()]


def _from_the_head(name: str, blocks: int) -> int:
    """Blocks from the head to a parameter.

    >>> names = ("head.linear.bias", "encoder.blocks.2.fc1.bias", "embedding.table", "start.vector")
    >>> [_from_the_head(name, 3) for name in names]
    [0, 1, 4, 4]
    """
    if name.startswith(("embedding.", "start.", "stem.", "words.")):
        return blocks + 1
    return max(1, blocks - int(name.split(".")[2])) if name.startswith("encoder.blocks.") else 0


def _check_tokenizers(task: Task, folder: Path) -> None:
    """Refuse a run whose tokens mean something else; tasks that make their own data have no tokenizer."""
    written = task.documents().get(tokenizers.FILE)
    own = None if written is None else tokenizers.tokenizer_from_json(written)
    theirs = tokenizers.load_tokenizer(folder) if (folder / tokenizers.FILE).exists() else None
    if _meaning(own) != _meaning(theirs):
        raise ValueError(
            f"the tokenizer of {folder} is {_shown(theirs)}, and that of these data {_shown(own)}: tokens must mean "
            "the same; read the data as the run did (--tokenizer, data.tokenizer), or start from another run"
        )


def _meaning(tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    return {name: value for name, value in tokenizer.to_json().items() if name not in OF_THE_DATA}


def _shown(tokenizer: Tokenizer | None) -> str:
    text = str(tokenizer)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _digest(folder: Path) -> str:
    with (folder / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
