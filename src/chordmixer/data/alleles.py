"""A variant as two sequences of tokens: the window around it with either allele; and the loci that windows form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account
from chordmixer.data.loading import Record
from chordmixer.data.reference import Reference
from chordmixer.data.sketches import SketchConfig, clusters, sketch_all
from chordmixer.data.variants import Variant
from chordmixer.packed import Packed

MARK = 256
"""The token at the variant's first base is raised by this, once, and once more for each context before its own."""
LETTERS = re.compile(r"[ACGTNRYSWKMBDHV]+", re.IGNORECASE)

OnMismatch = Literal["error", "reject"]


class Window(NamedTuple):
    """The bases around a variant, in the reference; counted from 0."""

    contig: str
    start: int
    stop: int
    at: int
    """The variant's first base, from the start."""
    ref: str
    alt: str

    @property
    def id(self) -> str:
        return f"{self.contig}:{self.start + self.at + 1}:{self.ref}>{self.alt}"

    @property
    def lengths(self) -> tuple[int, int]:
        """Bases with the reference allele and with the alternative."""
        whole = self.stop - self.start
        return whole, whole - len(self.ref) + len(self.alt)


class Alleles:
    """Windows of `size` bases around variants; one that reaches over a contig's end is shorter, and never padded."""

    def __init__(self, reference: Reference, size: int, longest: int = 50, on_mismatch: OnMismatch = "error") -> None:
        """Alleles of more than `longest` bases are refused."""
        self.reference, self.size, self.longest, self.on_mismatch = reference, size, longest, on_mismatch
        self.letters = Dna()

    def windows(self, variants: Sequence[Variant], account: Account) -> Iterator[Window | None]:
        """The window of each variant, None for one that the account has as rejected."""
        for variant in variants:
            reason = self._unreadable(variant) or self._disagreement(variant)
            if reason:
                account.reject(variant.id, reason)
                yield None
                continue
            account.use()
            window = self._around(variant)
            if window.stop - window.start < self.size:
                account.notes["windows are shorter, since their contig ends"] += 1
            if not (variant.ref.isupper() and variant.alt.isupper()):
                account.notes["variants have lower-case letters, read as upper case"] += 1
            yield window

    def tokens(self, window: Window, context: int = 0) -> tuple[ndarray, ndarray]:
        """Both sequences, each with its variant marked."""
        whole = self.reference.fetch(window.contig, window.start, window.stop)
        changed = whole[: window.at] + window.alt.encode() + whole[window.at + len(window.ref) :]
        both = []
        for letters in (whole, changed):
            try:
                ids = self.letters.encode(letters).astype(np.int32)
            except ValueError as error:
                raise ValueError(f"{self.reference.path}, {window.contig}: {error}") from None
            ids[window.at] += MARK * (1 + context)
            both.append(ids)
        return both[0], both[1]

    def _unreadable(self, variant: Variant) -> str | None:
        """Why an allele cannot be put into a sequence."""
        alt = variant.alt
        if alt in ("", "."):
            return "no alternative allele"
        if alt == "*":
            return "an allele that a deletion upstream removes (*)"
        if alt.startswith("<"):
            return "a symbolic allele, such as <DEL>"
        if "[" in alt or "]" in alt or alt.startswith(".") or alt.endswith("."):
            return "a breakend"
        if not LETTERS.fullmatch(alt) or not LETTERS.fullmatch(variant.ref):
            return "an allele that is not letters of DNA"
        if alt.upper() == variant.ref.upper():
            return "an alternative that is the reference"
        if max(len(alt), len(variant.ref)) > self.longest:
            return f"an allele of more than {self.longest} bases"
        return None

    def _disagreement(self, variant: Variant) -> str | None:
        """Why the reference is not what the variant says; an error, unless such variants are to be rejected."""
        self.reference.check_contig(variant.contig, variant.place)
        length = self.reference.contigs[variant.contig].length
        start, stop = variant.position - 1, variant.position - 1 + len(variant.ref)
        if start < 0 or stop > length:
            reason, detail = "a position outside of its contig", f"{variant.contig} has {length:,} bases"
        else:
            found = self.reference.fetch(variant.contig, start, stop).decode(errors="replace")
            if found.upper() == variant.ref.upper():
                return None
            reason, detail = (
                "a reference allele that the FASTA does not have",
                f"{self.reference.path} has {found} there",
            )
        if self.on_mismatch == "error":
            raise ValueError(
                f"{variant.place}: {variant.id} does not fit the reference, {detail}: both must be of one assembly, "
                "with positions from 1; give the right FASTA, or leave such variants out with --on-mismatch reject"
            )
        return reason

    def _around(self, variant: Variant) -> Window:
        at = variant.position - 1
        start = max(at - self.size // 2, 0)
        stop = min(at - self.size // 2 + self.size, self.reference.contigs[variant.contig].length)
        stop = max(stop, at + len(variant.ref))
        return Window(variant.contig, start, stop, at - start, variant.ref.upper(), variant.alt.upper())


class AlleleRecords:
    """Pairs of windows, read from the reference when they are asked for."""

    def __init__(self, alleles: Alleles, windows: Sequence[Window], contexts: ndarray, targets: ndarray) -> None:
        self.alleles, self.windows, self.contexts = alleles, windows, contexts
        self.targets = torch.from_numpy(targets)
        self.lengths: list[int] = [sum(window.lengths) for window in windows]
        self.longer: list[int] = [max(window.lengths) for window in windows]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Record:
        """Both sequences end to end."""
        return Record(self.batch([index], torch.device("cpu"))[0].values, self.targets[index])

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """Two sequences a record, with the reference allele and with the alternative; one target."""
        pairs = [self.alleles.tokens(self.windows[i], int(self.contexts[i])) for i in indices]
        packed = Packed.from_list([torch.from_numpy(ids) for pair in pairs for ids in pair])
        return packed.to(device), self.targets[torch.tensor(indices)].to(device, non_blocking=True)

    def name(self, index: int) -> str:
        return self.windows[index].id


COMPARED = 300_000_000
"""Bases of all loci up to which near-copies among them are looked for: some two minutes."""


def loci(windows: Sequence[Window]) -> ndarray:
    """A number for each window: the same for those that overlap, or that a chain of overlapping ones joins.

    >>> around = [Window("a", 0, 10, 5, "A", "C"), Window("a", 10, 20, 5, "A", "C"), Window("a", 5, 15, 5, "A", "C")]
    >>> loci(around).tolist(), loci(around[:2]).tolist()
    ([0, 0, 0], [0, 1])
    """
    numbers = np.empty(len(windows), np.int64)
    contig, reach, number = "", 0, -1
    for i in sorted(range(len(windows)), key=lambda i: windows[i][:2]):
        own = windows[i]
        if own.contig != contig or own.start >= reach:
            contig, reach, number = own.contig, 0, number + 1
        reach = max(reach, own.stop)
        numbers[i] = number
    return numbers


def near_copies(windows: Sequence[Window], numbers: ndarray, reference: Reference) -> ndarray:
    """Group numbers in which loci that are near-copies of each other, on either strand, have the same number."""
    spans: dict[int, tuple[str, int, int]] = {}
    for window, number in zip(windows, numbers.tolist(), strict=True):
        contig, start, stop = spans.get(number, window[:3])
        spans[number] = contig, min(start, window.start), max(stop, window.stop)
    if sum(stop - start for _, start, stop in spans.values()) > COMPARED:
        return numbers
    letters, config = Dna(), SketchConfig.of("dna")
    sequences = [letters.encode(reference.fetch(*spans[number])) for number in range(len(spans))]
    return np.asarray(clusters(sketch_all(sequences, config), config.threshold)[numbers])


def merge_groups(*numbers: Sequence[object] | ndarray) -> ndarray:
    """One grouping from several: records that any of them puts together are together; None puts with no other.

    >>> merge_groups([0, 0, 1, 2], ["x", None, "y", "y"]).tolist()
    [0, 0, 2, 2]
    """
    parent = list(range(len(numbers[0])))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for groups in numbers:
        first: dict[object, int] = {}
        for i, group in enumerate(groups):
            if group is not None:
                a, b = root(i), root(first.setdefault(group, i))
                parent[max(a, b)] = min(a, b)
    return np.array([root(i) for i in range(len(parent))])
