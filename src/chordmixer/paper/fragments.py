"""Fragments of whole genomes: from which class is a piece of DNA whose length says nothing?

Genomes are split, not fragments. Those of training are cut anew in every epoch, so that a few hundred genomes are
enough; those of validation and test are always the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from chordmixer.config import LONGEST, MAX_RECORDS, check_numbers
from chordmixer.data import draws
from chordmixer.data.loading import Record, as_tensor
from chordmixer.data.reading import Reading
from chordmixer.data.splits import PARTS, SplitConfig
from chordmixer.data.store import Store
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.tasks.targets import Classification

OTHERS = "others"  # the class of all genomes that are not of the class `against`


@dataclass(frozen=True)
class FragmentsConfig:
    """Which genomes, and how they are cut: by default into lengths like those of Carassius vs. Labeo in the paper."""

    files: tuple[str, ...] = field(default=(), compare=False)
    """FASTA or GenBank files of whole genomes. Their content counts, not where they lie."""
    reading: Reading = field(default_factory=Reading)
    """How they are read, and where the classes are; several files whose records have none: one a class."""
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig("dna"))
    """How letters become tokens."""
    against: str | None = None
    """The class that is told from all others together; None: every class from every other."""
    training: int = 12_000
    """Fragments of an epoch, as many of each class."""
    validation: int = 2_000
    """Fragments to choose the weights by."""
    test: int = 4_000
    """Fragments to score."""
    median: int = 650
    """Of the fragments' lengths, which are log-normal."""
    spread: float = 0.8
    """Standard deviation of the lengths' natural logarithm."""
    shortest: int = 79
    """Shorter draws become this long."""
    longest: int = 100_000
    """Longer draws become this long, or as long as the longest genome of every class allows."""
    circular: bool = True
    """Whether a fragment may run across the end of a genome into its start, as in mitochondria and plasmids."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """Which genomes are trained on."""
    seed: int = 0
    """Of the fragments; the split has its own."""
    cache: str | None = field(default=None, compare=False)
    """The folder of stores; None: the user's cache folder."""
    key: str | None = None
    """The store's name in that folder: a hash of the files' content and of how they are read."""

    def __post_init__(self) -> None:
        check_numbers(self, **dict.fromkeys(PARTS, (1, MAX_RECORDS)), longest=(1, LONGEST), spread=(0, 100))
        if not 1 <= self.shortest <= self.median <= self.longest:
            raise ValueError(
                f"shortest={self.shortest}, median={self.median}, longest={self.longest} are not in this order, or "
                "below 1: correct them"
            )

    @property
    def genomes(self) -> FilesConfig:
        """The whole genomes as a data set of their own."""
        kept = partial(FilesConfig, split=self.split, cache=self.cache, key=self.key)
        return kept(self.files, self.reading, self.tokenizer, "classes")


class Fragments:
    """The task: the class of a fragment's genome, each class as often as any other."""

    Config = FragmentsConfig
    embedding = "tokens"
    complement = None
    keeps_validation = True

    def __init__(self, config: FragmentsConfig) -> None:
        if not config.files:
            raise ValueError(
                "data.files names no genomes: give FASTA or GenBank files, most simply one a class, as in "
                """--set 'data.files=["cyprinidae.fa.gz", "cobitidae.fa.gz"]'"""
            )
        self.genomes = Files(config.genomes)
        self.config = replace(config, reading=self.genomes.config.reading, key=self.genomes.config.key)
        self.inputs = self.genomes.inputs
        self.names, classes = _against(self.genomes.question.names, self.genomes.question.targets, config.against)
        common = (self.genomes, self.names, classes)
        self._records = {part: FragmentRecords(self.config, part, *common) for part in PARTS}
        self.max_length = max(max(own.lengths) for own in self._records.values())
        self.target = Classification(self.names, self._records["training"].classes)

    def records(self, split: str) -> FragmentRecords:
        return self._records[split]

    def documents(self) -> dict[str, dict[str, Any]]:
        """What a run folder says of its data: tokenizer.json, and data.json about the genomes."""
        about = {
            "format": 1,
            "sources": self.genomes.store.sources,
            "account": vars(self.genomes.account),
            "target_type": "classes",
            "split": {
                "method": self.genomes.split.method,
                "seed": self.config.split.seed,
                "fractions": list(self.config.split.fractions),
                "sizes": {part: len(own) for part, own in self.genomes.split.parts.items()},
            },
            "fragments": {part: len(own.lengths) for part, own in self._records.items()},
        }
        return {"tokenizer.json": self.genomes.store.tokenizer.to_json(), "data.json": about}


class Places(NamedTuple):
    """Of the fragments of one epoch, by index."""

    classes: Int[Tensor, "n"]
    genomes: Int[Tensor, "n"]  # numbers in the store
    starts: Int[Tensor, "n"]


class FragmentRecords:
    """The fragments of one part. An index has a length; its class, genome and place are drawn for each epoch.

    All are functions of (seed, part, index, epoch), so that a run can be resumed. Any class can fill any length, so
    that length tells nothing: of a class, every genome that is long enough has the same chance.
    """

    def __init__(
        self, config: FragmentsConfig, part: str, genomes: Files, names: Sequence[str], classes: ndarray
    ) -> None:
        """`classes` are those of `genomes.question.records`, by their place in `names`."""
        self.store: Store = genomes.store
        self.part, self.circular = part, config.circular
        self.key = draws.key(config.seed, "fragments", part)
        own = genomes.split.parts[part]
        of_class = [genomes.question.records[own[classes[own] == k]] for k in range(len(names))]
        sizes = [np.sort(self.store.lengths[numbers])[::-1] for numbers in of_class]
        limits = [int(lengths.max(initial=0)) for lengths in sizes]
        if min(limits) < config.shortest:
            raise ValueError(
                f"no genome of {names[int(np.argmin(limits))]!r} in the {part} part has shortest={config.shortest:,} "
                f"letters, the longest has {min(limits):,}: give more or longer genomes, or a smaller data.shortest"
            )
        lengths = _lengths(config, getattr(config, part), self.key, min(limits))
        self.lengths: list[int] = lengths.tolist()
        self.fitting = torch.stack([_as_long(own, lengths) for own in sizes])
        """Of each class and fragment, how many genomes are long enough."""
        longest_first = [numbers[np.argsort(-self.store.lengths[numbers], kind="stable")] for numbers in of_class]
        self.numbers = torch.from_numpy(np.concatenate(longest_first))
        self.firsts = torch.tensor([0, *map(len, of_class)][:-1]).cumsum(0)
        self.first = self._draw(0)
        self.epoch, self.places = 0, self.first

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def classes(self) -> ndarray:
        """Of the fragments of the first epoch; in any epoch there are as many of each, to one."""
        own: ndarray = self.first.classes.numpy()
        return own

    def __getitem__(self, index: int) -> Record:
        """As in the first epoch."""
        return self.drawn(index, 0)

    def drawn(self, index: int, epoch: int) -> Record:
        """A fragment of this length from some genome, at some place."""
        if epoch != self.epoch:
            self.epoch, self.places = epoch, self._draw(epoch)
        tokens = self.store.tokens(int(self.places.genomes[index]))
        start = int(self.places.starts[index])
        stop = start + self.lengths[index]
        piece = tokens[start:stop]
        if stop > len(tokens):
            piece = np.concatenate([piece, tokens[: stop - len(tokens)]])
        return Record(as_tensor(piece), self.places.classes[index])

    def name(self, index: int) -> str:
        """Genome, first and last letter, from 1; the last is beyond the genome where that goes on at its start."""
        if self.part == "training":  # another fragment in each epoch
            return f"{self.part}-{index}"
        start = int(self.first.starts[index])
        return f"{self.store.id(int(self.first.genomes[index]))}:{start + 1}-{start + self.lengths[index]}"

    def _draw(self, epoch: int) -> Places:
        index = torch.arange(len(self.lengths))
        classes = draws.permutation(draws.key(self.key, "classes", epoch), len(index)) % len(self.firsts)
        which = draws.below(draws.key(self.key, "genomes", epoch), index, self.fitting[classes, index])
        genomes = self.numbers[self.firsts[classes] + which]
        room = torch.from_numpy(self.store.lengths)[genomes]
        if not self.circular:
            room = room - torch.tensor(self.lengths) + 1
        return Places(classes, genomes, draws.below(draws.key(self.key, "places", epoch), index, room))


def _lengths(config: FragmentsConfig, count: int, key: int, limit: int) -> Int[Tensor, "n"]:
    """N = round(median * exp(spread * normal)), within the range."""
    stretch = draws.normal(key, torch.arange(count)).mul_(config.spread).exp_()
    return (config.median * stretch).round_().long().clamp_(config.shortest, min(config.longest, limit))


def _as_long(genomes: ndarray, lengths: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """How many genomes of these lengths, the longest first, are as long as each fragment, or longer.

    >>> _as_long(np.array([900, 500, 500]), torch.tensor([500, 501])).tolist()
    [3, 1]
    """
    return torch.from_numpy(np.searchsorted(-genomes, -lengths.numpy(), side="right"))


def _against(names: Sequence[str], classes: ndarray, against: str | None) -> tuple[list[str], ndarray]:
    """All classes, or one and the others.

    >>> _against(["carps", "loaches", "suckers"], np.array([0, 1, 2]), "loaches")
    (['loaches', 'others'], array([1, 0, 1]))
    """
    if against is None:
        return list(names), classes
    if against not in names:
        raise ValueError(
            f"against={against!r} is no class of these genomes: they are of {', '.join(names)}; name one of these"
        )
    return [against, OTHERS], (classes != list(names).index(against)).astype(np.int64)
