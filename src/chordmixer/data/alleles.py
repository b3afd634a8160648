"""Encode a variant as two token sequences, the window around it with each allele, and group windows into loci."""

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
"""Added to the token at the variant's first base, times 1 + the variant's context number."""
LETTERS = re.compile(r"[ACGTNRYSWKMBDHV]+", re.IGNORECASE)

OnMismatch = Literal["error", "reject"]


class Window(NamedTuple):
    """The bases around a variant in the reference; positions count from 0."""

    contig: str
    start: int
    stop: int
    at: int
    """Offset of the variant's first base from `start`."""
    ref: str
    alt: str

    @property
    def id(self) -> str:
        return f"{self.contig}:{self.start + self.at + 1}:{self.ref}>{self.alt}"

    @property
    def lengths(self) -> tuple[int, int]:
        """Numbers of bases with the reference and with the alternative allele."""
        bases = self.stop - self.start
        return bases, bases - len(self.ref) + len(self.alt)


class Alleles:
    """Windows of `size` bases around variants. A window ends where its contig ends, and is never padded."""

    def __init__(self, reference: Reference, size: int, longest: int = 50, on_mismatch: OnMismatch = "error") -> None:
        """Variants with an allele of more than `longest` bases are rejected."""
        self.reference, self.size, self.longest, self.on_mismatch = reference, size, longest, on_mismatch
        self.letters = Dna()

    def windows(self, variants: Sequence[Variant], account: Account) -> Iterator[Window | None]:
        """The window of each variant; None if the variant was rejected, with the reason in the account."""
        for variant in variants:
            reason = self._allele_problem(variant) or self._reference_mismatch(variant)
            if reason:
                account.reject(variant.id, reason)
                yield None
                continue
            account.use()
            window = self._window_around(variant)
            if window.stop - window.start < self.size:
                account.notes["windows are shorter, since their contig ends"] += 1
            if not (variant.ref.isupper() and variant.alt.isupper()):
                account.notes["variants have lower-case letters, read as upper case"] += 1
            yield window

    def tokens(self, window: Window, context: int = 0) -> tuple[ndarray, ndarray]:
        """Token ids with the reference and with the alternative allele, the variant's first base marked."""
        reference = self.reference.fetch(window.contig, window.start, window.stop)
        alternative = reference[: window.at] + window.alt.encode() + reference[window.at + len(window.ref) :]
        encoded = []
        for letters in (reference, alternative):
            try:
                ids = self.letters.encode(letters).astype(np.int32)
            except ValueError as error:
                raise ValueError(f"{self.reference.path}, {window.contig}: {error}") from None
            ids[window.at] += MARK * (1 + context)
            encoded.append(ids)
        return encoded[0], encoded[1]

    def _allele_problem(self, variant: Variant) -> str | None:
        """The reason why an allele cannot be put into a sequence; None if it can."""
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

    def _reference_mismatch(self, variant: Variant) -> str | None:
        """The reason why variant and reference disagree, None if they agree; an error with `on_mismatch="error"`."""
        self.reference.check_contig(variant.contig, variant.place)
        length = self.reference.contigs[variant.contig].length
        start, stop = variant.position - 1, variant.position - 1 + len(variant.ref)
        if start < 0 or stop > length:
            reason, detail = "a position outside of its contig", f"{variant.contig} has {length:,} bases"
        else:
            bases = self.reference.fetch(variant.contig, start, stop).decode(errors="replace")
            if bases.upper() == variant.ref.upper():
                return None
            reason, detail = (
                "a reference allele that the FASTA does not have",
                f"{self.reference.path} has {bases} there",
            )
        if self.on_mismatch == "error":
            raise ValueError(
                f"{variant.place}: {variant.id} does not fit the reference, {detail}: both must be of one assembly, "
                "with positions from 1; give the right FASTA, or leave such variants out with --on-mismatch reject"
            )
        return reason

    def _window_around(self, variant: Variant) -> Window:
        at = variant.position - 1
        start = max(at - self.size // 2, 0)
        stop = min(at - self.size // 2 + self.size, self.reference.contigs[variant.contig].length)
        stop = max(stop, at + len(variant.ref))
        return Window(variant.contig, start, stop, at - start, variant.ref.upper(), variant.alt.upper())


class AlleleRecords:
    """Records of variants: two sequences and a target each, read from the reference on demand."""

    def __init__(self, alleles: Alleles, windows: Sequence[Window], contexts: ndarray, targets: ndarray) -> None:
        self.alleles, self.windows, self.contexts = alleles, windows, contexts
        self.targets = torch.from_numpy(targets)
        self.lengths: list[int] = [sum(window.lengths) for window in windows]
        self.longer: list[int] = [max(window.lengths) for window in windows]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Record:
        """One record, its two sequences concatenated."""
        return Record(self.batch([index], torch.device("cpu"))[0].values, self.targets[index])

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """A packed batch of two sequences per record, reference allele first, and one target per record."""
        pairs = [self.alleles.tokens(self.windows[i], int(self.contexts[i])) for i in indices]
        packed = Packed.from_list([torch.from_numpy(ids) for pair in pairs for ids in pair])
        return packed.to(device), self.targets[torch.tensor(indices)].to(device, non_blocking=True)

    def name(self, index: int) -> str:
        return self.windows[index].id


MAX_COMPARED_BASES = 300_000_000
"""Total bases of loci up to which near-copies are searched for; the search takes about two minutes at this size."""


def loci(windows: Sequence[Window]) -> ndarray:
    """A locus number for each window. Windows that overlap, directly or through others, share a locus.

    >>> example = [Window("a", 0, 10, 5, "A", "C"), Window("a", 10, 20, 5, "A", "C"), Window("a", 5, 15, 5, "A", "C")]
    >>> loci(example).tolist(), loci(example[:2]).tolist()
    ([0, 0, 0], [0, 1])
    """
    numbers = np.empty(len(windows), np.int64)
    contig, reach, number = "", 0, -1
    for i in sorted(range(len(windows)), key=lambda i: windows[i][:2]):
        window = windows[i]
        if window.contig != contig or window.start >= reach:
            contig, reach, number = window.contig, 0, number + 1
        reach = max(reach, window.stop)
        numbers[i] = number
    return numbers


def near_copies(windows: Sequence[Window], numbers: ndarray, reference: Reference) -> ndarray:
    """Merge the locus numbers of loci that are near-copies of each other, on either strand."""
    spans: dict[int, tuple[str, int, int]] = {}
    for window, number in zip(windows, numbers.tolist(), strict=True):
        contig, start, stop = spans.get(number, window[:3])
        spans[number] = contig, min(start, window.start), max(stop, window.stop)
    if sum(stop - start for _, start, stop in spans.values()) > MAX_COMPARED_BASES:
        return numbers
    letters, config = Dna(), SketchConfig.of("dna")
    sequences = [letters.encode(reference.fetch(*spans[number])) for number in range(len(spans))]
    return np.asarray(clusters(sketch_all(sequences, config), config.threshold)[numbers])


def merge_groups(*groupings: Sequence[object] | ndarray) -> ndarray:
    """Merge groupings: records that share a group in any of them share one in the result. None is no group.

    >>> merge_groups([0, 0, 1, 2], ["x", None, "y", "y"]).tolist()
    [0, 0, 2, 2]
    """
    parent = list(range(len(groupings[0])))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for groups in groupings:
        first: dict[object, int] = {}
        for i, group in enumerate(groups):
            if group is not None:
                a, b = root(i), root(first.setdefault(group, i))
                parent[max(a, b)] = min(a, b)
    return np.array([root(i) for i in range(len(parent))])
