"""Entries of the catalogue: runs and figures of the paper, with the settings of the paper and of its released code.

`--like` chooses between our recipes, the paper's table 2, the released code, and our recipes with the parts that
`train` puts around a network on files. The paper states four numbers per
task. The released code, conf/config.yaml at commit 12f0296 of github.com/RuslanKhalitov/ChordMixer, has more, and
some differ: norms on both sides of a block in the Long Range Arena, and long runs with a long warm-up.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.paper.baselines import KINDS
from chordmixer.recipes.files import parts_around
from chordmixer.tasks.targets import Regression
from chordmixer.training import Experiment

SETTINGS_OF = ("ours", "paper", "released", "files")
ADAMW, NOT_SAID = "AdamW, cosine, gradients clipped", "not said"


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of ChordMixer: the four in the paper's table 2, or all in its released code."""

    hidden: int
    track_size: int
    rate: float
    batch: int
    epochs: int = 0  # 0: not stated, like all fields below
    weight_decay: float = 0.0
    warmup: float = 0.0  # share of the run: steps in the code over steps for the paper's number of sequences, about
    dropout: float = 0.0
    prenorm: Literal["layer", "batch"] | None = None
    norm: Literal["batch"] | None = None


RELEASED = {
    "adding-200": Hyper(128, 16, 5e-4, 20, 20, 0.1, 0.2),
    "adding-1000": Hyper(128, 16, 3e-4, 4, 20, 0.1, 0.12),
    "adding-16k": Hyper(128, 16, 1e-4, 2, 20, 0.1, 0.06),
    "adding-128k": Hyper(96, 10, 1e-4, 2, 25, 0.1, 0.4),
    "documents": Hyper(196, 16, 1e-4, 2, 8, 0.4, 0.5, dropout=0.2),
    "carassius-labeo": Hyper(128, 16, 1.5e-4, 4, 15, 0.1, 0.25, dropout=0.1),
    "danio-cyprinus": Hyper(96, 12, 1e-4, 2, 15, 0.1, 0.005, dropout=0.1),
    "mus-rattus": Hyper(96, 12, 1e-4, 2, 30, 0.1, 0.002, dropout=0.1),
    "sus-bos": Hyper(96, 8, 1e-4, 2, 20, 0.1, 0.006, dropout=0.1),
    "listops": Hyper(88, 8, 0.01, 150, 200, 0.02, 0.4, dropout=0.1, prenorm="layer", norm="batch"),
    "image": Hyper(420, 28, 0.01, 100, 120, 0.05, 0.15, prenorm="batch", norm="batch"),
    "text": Hyper(96, 16, 0.007, 90, 90, 0.04, 0.6, dropout=0.1, prenorm="layer", norm="batch"),
    "retrieval": Hyper(128, 20, 0.004, 64, 200, 0.001, 0.1, dropout=0.1, prenorm="layer", norm="batch"),
    "pathfinder": Hyper(320, 24, 0.005, 150, 150, 0.04, 0.6, prenorm="batch", norm="batch"),
    "pathx": Hyper(128, 10, 0.001, 120, 100, 0.01, 0.004, prenorm="batch", norm="batch"),
}
"""Settings of the released code by entry. Retrieval has `linear_warmup_pow2_decay` there, and a cosine here."""


def with_published(experiment: Experiment, hyper: Hyper) -> Experiment:
    """Replace the recipe's settings by published ones.

    Hidden tokens, averaged weights and the norm before the head are switched off, since neither the paper nor the
    code has them. Epochs and warm-up stay the recipe's if the paper does not state them; so do precision and packing.
    """
    network = replace(
        experiment.model.network,
        hidden=hyper.hidden,
        track_size=hyper.track_size,
        order="released" if hyper.epochs else "paper",
        init="xavier",
        dropout=hyper.dropout,
        prenorm=hyper.prenorm,
        norm=hyper.norm,
    )
    head = "average" if experiment.model.head == "standard" else experiment.model.head
    model = replace(experiment.model, head=head, final_norm=None, drop_tokens=0.0, network=network)
    training = replace(
        experiment.training,
        learning_rate=hyper.rate,
        batch_sequences=hyper.batch,
        accumulate=1,
        ema=0.0,
        weight_decay=hyper.weight_decay,
    )
    if hyper.epochs:
        training = replace(training, epochs=hyper.epochs, warmup=hyper.warmup)
    return replace(experiment, model=model, training=training)


def with_parts(experiment: Experiment) -> Experiment:
    """Put the parts of `recipes.files` around the recipe's network: convolutions, words, positions, three poolings.

    The network keeps its size. A layer norm before each block where it has no norms, with an identity start and a
    rate of 1e-3, as on files; its other norms and their rate stay. Epochs and batches stay the recipe's.
    """
    network, training = experiment.model.network, experiment.training
    if experiment.model.head not in ("average", "standard"):
        raise ValueError(
            f"--like files: its pooling would replace the head {experiment.model.head} of {experiment.task}, whose "
            "records are not single sequences; leave it out"
        )
    task: Any = experiment.build_task()
    kind = getattr(task, "kind", None) or KINDS.get(experiment.task, "real")  # files say what they are
    lengths, cpu = task.records("training").lengths, not torch.cuda.is_available()
    parts = parts_around(experiment.model.embedding, kind, lengths, cpu=cpu)
    if isinstance(task.target, Regression):
        parts["within_record"] = False  # the target may be a magnitude
    drop_tokens = max(experiment.model.drop_tokens, parts["drop_tokens"])
    training = replace(training, beta2=0.98, weight_decay=0.1, ema=0.05)
    if not network.prenorm:
        network = replace(network, prenorm="layer", init="identity", dropout=max(network.dropout, 0.2))
        training = replace(training, learning_rate=1e-3)
    model = replace(experiment.model, **{**parts, "drop_tokens": drop_tokens}, network=network)
    return replace(experiment, model=model, training=training)


# --- In words ---


def rows(experiment: Experiment, paper: Hyper | None, released: Hyper | None) -> list[list[str]]:
    """Rows of a table of settings: name, value here, in the paper, and in the released code."""
    others = [_published(hyper) if hyper else {} for hyper in (paper, released)]
    return [[name, value, *(known.get(name, "") for known in others)] for name, value in _run(experiment).items()]


def _run(experiment: Experiment) -> dict[str, str]:
    network, training = experiment.model.network, experiment.training
    steps = f", {training.accumulate} to a step" if training.accumulate > 1 else ""
    limit = f", or {training.steps:,} steps" if training.steps else ""
    limit = f", or {training.minutes:g} minutes of training" if training.minutes else limit
    sizes = {}
    if isinstance(network, ChordMixerConfig):
        sizes = {
            "hidden H": str(network.hidden),
            "track size S": str(network.track_size),
            "block": f"order {network.order}, {_norms(network.prenorm, network.norm)}, start {network.init}",
            "dropout": f"{network.dropout:g}",
        }
    parts = _parts(experiment.model)
    return sizes | {
        **({"around the blocks": parts} if parts else {}),
        "tokens hidden in training": f"{experiment.model.drop_tokens:.0%}",
        "learning rate": f"{training.learning_rate:g}",
        "sequences a batch": f"{training.batch_sequences} at most{steps}",
        "epochs": f"{training.epochs} at most{limit}",
        "warm-up": f"{training.warmup:.1%} of the run",
        "optimiser": ADAMW,
        "weight decay": f"{training.weight_decay:g}",
        "averaged weights": f"over {training.ema:.0%} of the run" if training.ema else "no",
        "precision": training.precision,
    }


def _parts(model: ModelConfig) -> str:
    """What a model has around its blocks that the paper's has not."""
    words = ", ".join(map(str, model.words.lengths))
    named = {
        f"{model.stem.layers} convolutions over {model.stem.taps} tokens": model.stem.layers,
        f"words of {words} tokens": words,
        "a vector for each position": model.positions,
        "channels standardised within each record": model.within_record,
        f"head {model.head}": model.head != "average",
        "with the logarithm of the length": model.length,
    }
    return ", ".join(name for name, has in named.items() if has)


def _published(hyper: Hyper) -> dict[str, str]:
    from_code = hyper.epochs > 0
    norms = _norms(hyper.prenorm, hyper.norm)
    return {
        "hidden H": str(hyper.hidden),
        "track size S": str(hyper.track_size),
        "block": f"order released, {norms}, start xavier" if from_code else norms,
        "dropout": f"{hyper.dropout:g}" if from_code else NOT_SAID,
        "learning rate": f"{hyper.rate:g}",
        "sequences a batch": str(hyper.batch),
        "epochs": str(hyper.epochs) if from_code else NOT_SAID,
        "warm-up": f"about {hyper.warmup:.1%}" if from_code else NOT_SAID,
        "optimiser": ADAMW if from_code else "Adam",
        "weight decay": f"{hyper.weight_decay:g}" if from_code else NOT_SAID,
        "precision": "fp32" if from_code else NOT_SAID,
    }


def _norms(before: str | None, after: str | None) -> str:
    """
    >>> _norms(None, None), _norms("layer", None), _norms("layer", "batch")
    ('no norm', 'layer norm', 'layer norm before and batch norm behind')
    """
    if before and after:
        return f"{before} norm before and {after} norm behind"
    return f"{before} norm" if before else f"{after} norm behind" if after else "no norm"


@dataclass(frozen=True)
class DataNeeded:
    """The data that an entry needs with --data, if any."""

    needs: str = ""  # description; empty: none, since the data are generated
    get: str = ""  # how to obtain them
    setting: str | None = None  # field of the task's config that takes the paths; None: it takes none
    least: int = 1  # smallest number of paths, if any are needed
    several: bool = False  # whether it takes more than one path
    size: str = ""  # size of the original data

    @property
    def by_rule(self) -> bool:
        return not self.needs

    def check(self, name: str, paths: Sequence[str]) -> None:
        """Refuse too few, too many and missing paths before anything is read."""
        options = " ".join(["--data PATH"] * self.least)
        if len(paths) < self.least and self.needs:
            missing = "no data" if not paths else f"{len(paths)} of {self.least} paths"
            raise ValueError(
                f"{name} was given {missing} and needs {self.needs}: {self.get}; then add {options} to the command"
            )
        if paths and self.setting is None:
            raise ValueError(f"{name} makes its own data and was given {paths[0]}: leave --data out")
        if len(paths) > 1 and not self.several:
            raise ValueError(f"{name} takes one --data and was given {len(paths)}: give {self.needs or 'one folder'}")
        for path in paths:
            if not Path(path).expanduser().exists():
                cure = f"{name} needs {self.needs}; {self.get}" if self.needs else "give a path that is there"
                raise ValueError(f"--data {path} does not exist: {cure}")


@dataclass(frozen=True)
class RunEntry:
    """Runs that can be reproduced: recipe, data, and the paper's results and settings."""

    title: str
    where: str  # section, figure or table of the paper; empty: not in the paper
    recipe: str  # as module:function
    config: str  # the task's config, as module:class
    data: DataNeeded = field(default_factory=DataNeeded)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the data, if not the defaults of the config
    versions: str = ""  # a `Study` as module:name, if each model is trained in several versions
    training: Mapping[str, Any] = field(default_factory=dict)  # changes, if the recipe's batches exceed 80 GB
    metric: str = "accuracy"
    right: str = ""  # sentence on when a prediction is correct, if the metric leaves it open
    paper: Mapping[str, float] = field(default_factory=dict)  # the metric in the paper in per cent, by encoder
    claim: str = ""  # the paper's result in words, if its number is only in a plot
    hyper: Hyper | None = None  # settings in the paper
    released: Hyper | None = None  # settings in its released code
    seeds: int = 0  # number of runs averaged in the paper; 0: not stated
    classes: tuple[str, ...] = ()  # of the paper's data; the page warns of other classes
    differences: tuple[str, ...] = ()  # differences in protocol, one sentence each
    if_by_rule: tuple[str, ...] = ()  # further differences if the data are generated


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn without training."""

    title: str
    where: str
    draw: str  # as module:function, called with the data paths
    data: DataNeeded = field(default_factory=DataNeeded)
    claim: str = ""
    differences: tuple[str, ...] = ()


def find(name: str, entries: Mapping[str, RunEntry | Figure]) -> RunEntry | Figure:
    """The entry of this name; an unknown name is refused with the most similar one."""
    if name not in entries:
        close = difflib.get_close_matches(name, entries, n=1)
        cure = f"did you mean {close[0]}?" if close else "chordmixer reproduce alone lists what there is"
        raise ValueError(f"{name!r} is not in the list of what can be reproduced: {cure}")
    return entries[name]
