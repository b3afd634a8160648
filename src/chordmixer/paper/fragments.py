"""Fragments of whole genomes: predict the class of a piece of DNA, whose length is independent of the class.

The split assigns genomes, not fragments, to parts. Training fragments are drawn anew in every epoch, so that a few
hundred genomes suffice; validation and test fragments are fixed."""

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

from chordmixer.config import LONGEST, MANY, check_numbers
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
    """Genomes and fragment lengths; the default lengths are like those of Carassius vs. Labeo in the paper."""

    files: tuple[str, ...] = field(default=(), compare=False)
    """FASTA or GenBank files of whole genomes. Their content is compared, not their paths."""
    reading: Reading = field(default_factory=Reading)
    """How the files are read, and what labels them; by default each of several files without labels is a class."""
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig("dna"))
    """How letters become tokens."""
    against: str | None = None
    """The class to separate from all others, which become one class; None: all classes stay."""
    training: int = 12_000
    """Number of training fragments per epoch, equally many of each class."""
    validation: int = 2_000
    """Number of validation fragments."""
    test: int = 4_000
    """Number of test fragments."""
    median: int = 650
    """Median of the fragment lengths, which are log-normal."""
    spread: float = 0.8
    """Standard deviation of the natural logarithm of the lengths."""
    shortest: int = 79
    """Shortest fragment; shorter draws are raised to it."""
    longest: int = 100_000
    """Longest fragment; longer draws are cut to it, or to the longest length that every class can provide."""
    circular: bool = True
    """Whether genomes are circular (mitochondria, plasmids), so that a fragment may span the end and the start."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """How genomes are split into training, validation and test."""
    seed: int = 0
    """Seed of the fragments; the split has its own seed."""
    cache: str | None = field(default=None, compare=False)
    """Folder of the stores; None: the user's cache folder."""
    key: str | None = None
    """Name of the store in that folder: a hash of the content of the files and of the reading settings."""

    def __post_init__(self) -> None:
        check_numbers(self, **dict.fromkeys(PARTS, (1, MANY)), longest=(1, LONGEST), spread=(0, 100))
        if not 1 <= self.shortest <= self.median <= self.longest:
            raise ValueError(
                f"shortest={self.shortest}, median={self.median}, longest={self.longest} are not in this order, or "
                "below 1: correct them"
            )

    @property
    def genomes(self) -> FilesConfig:
        """Config of the whole genomes as a data set of their own."""
        config = partial(FilesConfig, split=self.split, cache=self.cache, key=self.key)
        return config(self.files, self.reading, self.tokenizer, "classes")


class Fragments:
    """The task: predict the class of a fragment's genome; the classes are balanced."""

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
        self.names, classes = _merged(self.genomes.question.names, self.genomes.question.targets, config.against)
        common = (self.genomes, self.names, classes)
        self._records = {part: FragmentRecords(self.config, part, *common) for part in PARTS}
        self.max_length = max(max(records.lengths) for records in self._records.values())
        self.target = Classification(self.names, self._records["training"].classes)

    def records(self, split: str) -> FragmentRecords:
        return self._records[split]

    def documents(self) -> dict[str, dict[str, Any]]:
        """The files on data in a run folder: tokenizer.json, and data.json, which describes the genomes."""
        description = {
            "format": 1,
            "sources": self.genomes.store.sources,
            "account": vars(self.genomes.account),
            "target_type": "classes",
            "split": {
                "method": self.genomes.split.method,
                "seed": self.config.split.seed,
                "fractions": list(self.config.split.fractions),
                "sizes": {part: len(indices) for part, indices in self.genomes.split.parts.items()},
            },
            "fragments": {part: len(records.lengths) for part, records in self._records.items()},
        }
        return {"tokenizer.json": self.genomes.store.tokenizer.to_json(), "data.json": description}


class Places(NamedTuple):
    """Where the fragments of one epoch are cut, by index."""

    classes: Int[Tensor, "n"]
    genomes: Int[Tensor, "n"]  # indices into the store
    starts: Int[Tensor, "n"]


class FragmentRecords:
    """The fragments of one part. An index has a fixed length; class, genome and start are drawn for each epoch.

    All are functions of (seed, part, index, epoch), so that a run can be resumed. Every class can provide every
    length, so that length does not predict the class. Within a class all genomes that are long enough are equally
    likely.
    """

    def __init__(
        self, config: FragmentsConfig, part: str, genomes: Files, names: Sequence[str], classes: ndarray
    ) -> None:
        """`classes` has the class of each of `genomes.question.records`, as an index into `names`."""
        self.store: Store = genomes.store
        self.part, self.circular = part, config.circular
        self.key = draws.key(config.seed, "fragments", part)
        indices = genomes.split.parts[part]
        of_class = [genomes.question.records[indices[classes[indices] == k]] for k in range(len(names))]
        sizes = [np.sort(self.store.lengths[numbers])[::-1] for numbers in of_class]
        limits = [int(lengths.max(initial=0)) for lengths in sizes]
        if min(limits) < config.shortest:
            raise ValueError(
                f"no genome of {names[int(np.argmin(limits))]!r} in the {part} part has shortest={config.shortest:,} "
                f"letters, the longest has {min(limits):,}: give more or longer genomes, or a smaller data.shortest"
            )
        lengths = _lengths(config, getattr(config, part), self.key, min(limits))
        self.lengths: list[int] = lengths.tolist()
        self.fitting = torch.stack([_count_fitting(class_sizes, lengths) for class_sizes in sizes])
        """Number of genomes that are long enough, by class and fragment."""
        longest_first = [numbers[np.argsort(-self.store.lengths[numbers], kind="stable")] for numbers in of_class]
        self.numbers = torch.from_numpy(np.concatenate(longest_first))
        self.firsts = torch.tensor([0, *map(len, of_class)][:-1]).cumsum(0)
        self.first = self._draw(0)
        self.epoch, self.places = 0, self.first

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def classes(self) -> ndarray:
        """Classes of the fragments of the first epoch; in every epoch class counts differ by at most one."""
        classes: ndarray = self.first.classes.numpy()
        return classes

    def __getitem__(self, index: int) -> Record:
        """The fragment of the first epoch."""
        return self.drawn(index, 0)

    def drawn(self, index: int, epoch: int) -> Record:
        """The fragment of an epoch, which has the length of this index."""
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
        """Genome, first and last position, counted from 1; the last exceeds the genome if it wraps around."""
        if self.part == "training":  # a different fragment in each epoch
            return f"{self.part}-{index}"
        start = int(self.first.starts[index])
        return f"{self.store.id(int(self.first.genomes[index]))}:{start + 1}-{start + self.lengths[index]}"

    def _draw(self, epoch: int) -> Places:
        index = torch.arange(len(self.lengths))
        classes = draws.permutation(draws.key(self.key, "classes", epoch), len(index)) % len(self.firsts)
        which = draws.below(draws.key(self.key, "genomes", epoch), index, self.fitting[classes, index])
        genomes = self.numbers[self.firsts[classes] + which]
        start_count = torch.from_numpy(self.store.lengths)[genomes]
        if not self.circular:
            start_count = start_count - torch.tensor(self.lengths) + 1
        return Places(classes, genomes, draws.below(draws.key(self.key, "places", epoch), index, start_count))


def _lengths(config: FragmentsConfig, count: int, key: int, limit: int) -> Int[Tensor, "n"]:
    """Lengths N = round(median * exp(spread * normal)), clamped to the range."""
    stretch = draws.normal(key, torch.arange(count)).mul_(config.spread).exp_()
    return (config.median * stretch).round_().long().clamp_(config.shortest, min(config.longest, limit))


def _count_fitting(genomes: ndarray, lengths: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Count the genomes that are at least as long as each fragment; genome lengths are sorted in descending order.

    >>> _count_fitting(np.array([900, 500, 500]), torch.tensor([500, 501])).tolist()
    [3, 1]
    """
    return torch.from_numpy(np.searchsorted(-genomes, -lengths.numpy(), side="right"))


def _merged(names: Sequence[str], classes: ndarray, against: str | None) -> tuple[list[str], ndarray]:
    """Keep all classes, or merge all but `against` into one.

    >>> _merged(["carps", "loaches", "suckers"], np.array([0, 1, 2]), "loaches")
    (['loaches', 'others'], array([1, 0, 1]))
    """
    if against is None:
        return list(names), classes
    if against not in names:
        raise ValueError(
            f"against={against!r} is no class of these genomes: they are of {', '.join(names)}; name one of these"
        )
    return [against, OTHERS], (classes != list(names).index(against)).astype(np.int64)
