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


@dataclass(frozen=True)
class Hyper:
    """The paper's hyper-parameters of ChordMixer (its table 2)."""

    hidden: int
    track_size: int
    rate: float
    batch: int


@dataclass(frozen=True)
class Released(Hyper):
    """The released code's, by AdamW with a cosine behind the warm-up."""

    epochs: int
    weight_decay: float
    warmup: float
    """Share of the run: the code gives steps, and the paper, nearly, how many sequences were trained on."""
    dropout: float = 0.0
    prenorm: Literal["layer", "batch"] | None = None
    norm: Literal["batch"] | None = None


RELEASED = {
    "adding-200": Released(128, 16, 5e-4, 20, 20, 0.1, 0.2),
    "adding-1000": Released(128, 16, 3e-4, 4, 20, 0.1, 0.12),
    "adding-16k": Released(128, 16, 1e-4, 2, 20, 0.1, 0.06),
    "adding-128k": Released(96, 10, 1e-4, 2, 25, 0.1, 0.4),
    "documents": Released(196, 16, 1e-4, 2, 8, 0.4, 0.5, dropout=0.2),
    "carassius-labeo": Released(128, 16, 1.5e-4, 4, 15, 0.1, 0.25, dropout=0.1),
    "danio-cyprinus": Released(96, 12, 1e-4, 2, 15, 0.1, 0.005, dropout=0.1),
    "mus-rattus": Released(96, 12, 1e-4, 2, 30, 0.1, 0.002, dropout=0.1),
    "sus-bos": Released(96, 8, 1e-4, 2, 20, 0.1, 0.006, dropout=0.1),
    "listops": Released(88, 8, 0.01, 150, 200, 0.02, 0.4, dropout=0.1, prenorm="layer", norm="batch"),
    "image": Released(420, 28, 0.01, 100, 120, 0.05, 0.15, prenorm="batch", norm="batch"),
    "text": Released(96, 16, 0.007, 90, 90, 0.04, 0.6, dropout=0.1, prenorm="layer", norm="batch"),
    "retrieval": Released(128, 20, 0.004, 64, 200, 0.001, 0.1, dropout=0.1, prenorm="layer", norm="batch"),
    "pathfinder": Released(320, 24, 0.005, 150, 150, 0.04, 0.6, prenorm="batch", norm="batch"),
    "pathx": Released(128, 10, 0.001, 120, 100, 0.01, 0.004, prenorm="batch", norm="batch"),
}
"""By entry. Of retrieval the rate falls by a power of two, which is here a cosine too."""


def like(experiment: Experiment, hyper: Hyper) -> Experiment:
    """The same task with these settings in place of the recipe's.

    What neither the paper nor the code has is left out: tokens that are hidden, averaged weights, a norm before the
    head. What the paper does not say (epochs, warm-up) stays the recipe's; so do the precision, and packing.
    """
    released = hyper if isinstance(hyper, Released) else None
    network = replace(
        experiment.model.network,
        hidden=hyper.hidden,
        track_size=hyper.track_size,
        order="released" if released else "paper",
        init="xavier",
        dropout=released.dropout if released else 0.0,
        prenorm=released.prenorm if released else None,
        norm=released.norm if released else None,
    )
    head = "average" if experiment.model.head == "standard" else experiment.model.head
    model = replace(experiment.model, head=head, final_norm=None, drop_tokens=0.0, network=network)
    training = replace(
        experiment.training,
        learning_rate=hyper.rate,
        batch_sequences=hyper.batch,
        accumulate=1,
        ema=0.0,
        weight_decay=0.0,
    )
    if released:
        training = replace(
            training, epochs=released.epochs, weight_decay=released.weight_decay, warmup=released.warmup
        )
    return replace(experiment, model=model, training=training)


# --- In words ---


def rows(experiment: Experiment, hyper: Hyper | None, released: Released | None) -> list[list[str]]:
    """A table of settings: the name, the run's, the paper's, and those of the released code, where there are any."""
    paper, code = _paper(hyper) if hyper else {}, _code(released) if released else {}
    return [[name, value, paper.get(name, ""), code.get(name, "")] for name, value in _run(experiment).items()]


def _run(experiment: Experiment) -> dict[str, str]:
    network, training = experiment.model.network, experiment.training
    several = f", {training.accumulate} to a step" if training.accumulate > 1 else ""
    limit = f", or {training.steps:,} steps" if training.steps else ""
    limit = f", or {training.minutes:g} minutes of training" if training.minutes else limit
    own = {}
    if isinstance(network, ChordMixerConfig):
        norms = _norms(network.prenorm, network.norm)
        own = {
            "hidden H": str(network.hidden),
            "track size S": str(network.track_size),
            "block": f"order {network.order}, {norms}, start {network.init}",
            "dropout": f"{network.dropout:g}",
        }
    return own | {
        "tokens hidden in training": f"{experiment.model.drop_tokens:.0%}",
        "learning rate": f"{training.learning_rate:g}",
        "sequences a batch": f"{training.batch_sequences} at most{several}",
        "epochs": f"{training.epochs} at most{limit}",
        "warm-up": f"{training.warmup:.1%} of the run",
        "optimiser": "AdamW, cosine, gradients clipped",
        "weight decay": f"{training.weight_decay:g}",
        "averaged weights": f"over {training.ema:.0%} of the run" if training.ema else "no",
        "precision": training.precision,
    }


def _paper(hyper: Hyper) -> dict[str, str]:
    unsaid = dict.fromkeys(("dropout", "epochs", "warm-up", "weight decay", "precision"), "not said")
    return unsaid | {
        "hidden H": str(hyper.hidden),
        "track size S": str(hyper.track_size),
        "block": "no norm",
        "learning rate": f"{hyper.rate:g}",
        "sequences a batch": str(hyper.batch),
        "optimiser": "Adam",
    }


def _code(released: Released) -> dict[str, str]:
    return _paper(released) | {
        "block": f"order released, {_norms(released.prenorm, released.norm)}, start xavier",
        "dropout": f"{released.dropout:g}",
        "epochs": str(released.epochs),
        "warm-up": f"about {released.warmup:.1%}",
        "optimiser": "AdamW, cosine, gradients clipped",
        "weight decay": f"{released.weight_decay:g}",
        "precision": "fp32",
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

    needs: str = ""
    """In words; empty: nothing, the data are generated."""
    get: str = ""
    """Where they come from."""
    setting: str | None = None
    """The field of the task's config that the paths go into; None: none can be given."""
    least: int = 1
    """Paths at least, where any are needed."""
    several: bool = False
    """Whether it takes more than one path."""
    size: str = ""
    """How large the originals are."""

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
    where: str
    """In the paper; empty: not in it."""
    recipe: str
    """As module:function."""
    config: str
    """The task's config, as module:class."""
    data: DataNeeded = field(default_factory=DataNeeded)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the data, where this entry differs from the config's defaults."""
    versions: str = ""
    """What each model is trained in several versions of, a `Study` as module:name; empty: there is one of each."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Of the training, where the recipe's would not fit into a GPU of 80 GB."""
    metric: str = "accuracy"
    right: str = ""
    """When an answer is right, in a sentence, where the metric's own meaning leaves it open."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """The metric in per cent, by encoder."""
    claim: str = ""
    """What the paper says in words, where its number stands only in a picture."""
    hyper: Hyper | None = None
    """The paper's."""
    released: Released | None = None
    """Those of its released code."""
    seeds: int = 0
    """Runs that the paper's number is a mean of; 0: it does not say."""
    classes: tuple[str, ...] = ()
    """Of the paper's data; other ones are said on the page."""
    differences: tuple[str, ...] = ()
    """In protocol, a sentence each."""
    if_by_rule: tuple[str, ...] = ()
    """Further ones where no data were given."""


@dataclass(frozen=True)
class Figure:
    """A picture that is drawn at once."""

    title: str
    where: str
    draw: str
    """As module:function, of the paths that were given and a folder for pictures."""
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
