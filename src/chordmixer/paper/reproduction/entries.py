"""What the catalogue consists of: runs and figures of the paper, with the settings that it and its code used.

`--like` chooses between our recipes, the paper's table 2 and the released code. The paper names four numbers for
each task. The released code, conf/config.yaml at commit 12f0296 of github.com/RuslanKhalitov/ChordMixer, has more,
and some differ: norms on both sides of a block in the Long Range Arena, and long runs with a long warm-up.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from chordmixer.models import ChordMixerConfig
from chordmixer.training import Experiment

WHOSE = ("ours", "paper", "released")
ADAMW, UNSAID = "AdamW, cosine, gradients clipped", "not said"


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of ChordMixer: the four of the paper's table 2, or all of its released code."""

    hidden: int
    track_size: int
    rate: float
    batch: int
    epochs: int = 0  # 0: not said, as all that follows
    weight_decay: float = 0.0
    warmup: float = 0.0  # share of the run: the code gives steps, and the paper, nearly, the sequences trained on
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
"""By entry. Of retrieval the rate falls by a power of two, which is here a cosine too."""


def like(experiment: Experiment, hyper: Hyper) -> Experiment:
    """The same task with these settings in place of the recipe's.

    What neither the paper nor the code has is left out: tokens that are hidden, averaged weights, a norm before the
    head. What the paper does not say (epochs, warm-up) stays the recipe's; so do the precision, and packing.
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


# --- In words ---


def rows(experiment: Experiment, paper: Hyper | None, released: Hyper | None) -> list[list[str]]:
    """A table of settings: the name, the run's, the paper's, and those of the released code, where there are any."""
    others = [_published(hyper) if hyper else {} for hyper in (paper, released)]
    return [[name, value, *(own.get(name, "") for own in others)] for name, value in _run(experiment).items()]


def _run(experiment: Experiment) -> dict[str, str]:
    network, training = experiment.model.network, experiment.training
    several = f", {training.accumulate} to a step" if training.accumulate > 1 else ""
    limit = f", or {training.steps:,} steps" if training.steps else ""
    limit = f", or {training.minutes:g} minutes of training" if training.minutes else limit
    own = {}
    if isinstance(network, ChordMixerConfig):
        own = {
            "hidden H": str(network.hidden),
            "track size S": str(network.track_size),
            "block": f"order {network.order}, {_norms(network.prenorm, network.norm)}, start {network.init}",
            "dropout": f"{network.dropout:g}",
        }
    return own | {
        "tokens hidden in training": f"{experiment.model.drop_tokens:.0%}",
        "learning rate": f"{training.learning_rate:g}",
        "sequences a batch": f"{training.batch_sequences} at most{several}",
        "epochs": f"{training.epochs} at most{limit}",
        "warm-up": f"{training.warmup:.1%} of the run",
        "optimiser": ADAMW,
        "weight decay": f"{training.weight_decay:g}",
        "averaged weights": f"over {training.ema:.0%} of the run" if training.ema else "no",
        "precision": training.precision,
    }


def _published(hyper: Hyper) -> dict[str, str]:
    code = hyper.epochs > 0
    norms = _norms(hyper.prenorm, hyper.norm)
    return {
        "hidden H": str(hyper.hidden),
        "track size S": str(hyper.track_size),
        "block": f"order released, {norms}, start xavier" if code else norms,
        "dropout": f"{hyper.dropout:g}" if code else UNSAID,
        "learning rate": f"{hyper.rate:g}",
        "sequences a batch": str(hyper.batch),
        "epochs": str(hyper.epochs) if code else UNSAID,
        "warm-up": f"about {hyper.warmup:.1%}" if code else UNSAID,
        "optimiser": ADAMW if code else "Adam",
        "weight decay": f"{hyper.weight_decay:g}" if code else UNSAID,
        "precision": "fp32" if code else UNSAID,
    }


def _norms(before: str | None, behind: str | None) -> str:
    """
    >>> _norms(None, None), _norms("layer", None), _norms("layer", "batch")
    ('no norm', 'layer norm', 'layer norm before and batch norm behind')
    """
    if before and behind:
        return f"{before} norm before and {behind} norm behind"
    return f"{before} norm" if before else f"{behind} norm behind" if behind else "no norm"


@dataclass(frozen=True)
class DataNeeded:
    """What has to be given with --data, if anything."""

    needs: str = ""  # in words; empty: nothing, the data are generated
    get: str = ""  # where they come from
    setting: str | None = None  # the field of the task's config that the paths go into; None: none can be given
    least: int = 1  # paths at least, where any are needed
    several: bool = False  # whether it takes more than one path
    size: str = ""  # how large the originals are

    @property
    def by_rule(self) -> bool:
        return not self.needs

    def check(self, name: str, paths: Sequence[str]) -> None:
        """Refuse too few, too many and missing paths, before anything is read."""
        how = " ".join(["--data PATH"] * self.least)
        if len(paths) < self.least and self.needs:
            missing = "no data" if not paths else f"{len(paths)} of {self.least} paths"
            raise ValueError(
                f"{name} was given {missing} and needs {self.needs}: {self.get}; then add {how} to the command"
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
    """A run: its recipe, its data, and what the paper has to say of it."""

    title: str
    where: str  # in the paper; empty: not in it
    recipe: str  # as module:function
    config: str  # the task's config, as module:class
    data: DataNeeded = field(default_factory=DataNeeded)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the data, where they are not the config's defaults
    versions: str = ""  # a `Study` as module:name, where each model is trained in several versions
    training: Mapping[str, Any] = field(default_factory=dict)  # where the recipe's would not fit into 80 GB
    metric: str = "accuracy"
    right: str = ""  # when an answer is right, in a sentence, where the metric's own meaning leaves it open
    paper: Mapping[str, float] = field(default_factory=dict)  # the metric in per cent, by encoder
    claim: str = ""  # what the paper says in words, where its number stands only in a picture
    hyper: Hyper | None = None  # the paper's
    released: Hyper | None = None  # those of its released code
    seeds: int = 0  # runs that the paper's number is a mean of; 0: it does not say
    classes: tuple[str, ...] = ()  # of the paper's data; other ones are said on the page
    differences: tuple[str, ...] = ()  # in protocol, a sentence each
    if_by_rule: tuple[str, ...] = ()  # further ones where no data were given


@dataclass(frozen=True)
class Figure:
    """A picture that is drawn at once."""

    title: str
    where: str
    draw: str  # as module:function, of the paths that were given
    data: DataNeeded = field(default_factory=DataNeeded)
    claim: str = ""
    differences: tuple[str, ...] = ()


def find(name: str, entries: Mapping[str, RunEntry | Figure]) -> RunEntry | Figure:
    """The entry of this name, or one line with what is like it."""
    if name not in entries:
        close = difflib.get_close_matches(name, entries, n=1)
        cure = f"did you mean {close[0]}?" if close else "chordmixer reproduce alone lists what there is"
        raise ValueError(f"{name!r} is not in the list of what can be reproduced: {cure}")
    return entries[name]
