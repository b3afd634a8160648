"""What an entry of the catalogue is: a run of the paper, or a figure that is drawn without training."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chordmixer.paper.reproduction.published_settings import Hyper, Released


@dataclass(frozen=True)
class DataNeeded:
    """What has to be given with --data, if anything."""

    needs: str = ""
    """In words; empty: nothing, the data are made by rule."""
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
