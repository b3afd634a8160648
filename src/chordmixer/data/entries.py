"""Records as read from files, before tokenization, and the counts of used and rejected records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from numpy import ndarray


@dataclass(slots=True)
class Entry:
    """One record of a user's file. Not frozen: that would make reading short records twice as slow."""

    id: str
    """The name in the file, or one derived from the record's position."""
    sequence: bytes | str | ndarray
    """Letters without line breaks (bytes), text (str), or real numbers, float32 of shape (N,) or (N, channels)."""
    place: str
    """Its position in the input for messages, such as `genes.fa.gz, record 17`."""
    description: str = ""
    """The rest of a FASTA header, or a GenBank definition."""
    label: str | None = None
    """A class; for a multi-label task all labels in one string, as in the file."""
    target: float | None = None
    """A number to predict."""
    split: str | None = None
    """`training`, `validation` or `test`, if the file says so."""
    group: str | None = None
    """Records of one group never cross a split."""
    weight: float = 1.0
    """Weight in the loss."""
    rate: int | None = None
    """Samples per second of a recording."""
    circular: bool = False
    """Whether the molecule is circular, according to the file."""

    @property
    def length(self) -> int:
        return len(self.sequence)


@dataclass
class Account:
    """Counts of the records read, used and rejected; read = used + rejected."""

    read: int = 0
    used: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Number of rejected records by reason."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Ids of the first `SHOWN` rejected records by reason."""
    notes: Counter[str] = field(default_factory=Counter)
    """Counts of accepted irregularities: lower case, IUPAC letters, carriage returns."""

    SHOWN = 5

    def use(self) -> None:
        self.read, self.used = self.read + 1, self.used + 1

    def reject(self, entry_id: str, reason: str) -> None:
        self.read += 1
        self.rejected[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < self.SHOWN:
            examples.append(entry_id)

    def without(self, ids: Sequence[str], reason: str) -> Account:
        """A copy in which these records count as rejected instead of used."""
        copy = deepcopy(self)
        if ids:
            copy.used -= len(ids)
            copy.rejected[reason], copy.examples[reason] = len(ids), list(ids[: self.SHOWN])
        return copy

    def lines(self) -> Iterator[str]:
        """A readable summary.

        >>> account = Account(); account.use(); account.reject("gene7", "empty"); list(account.lines())
        ['2 records read: 1 used, 1 rejected', '1 rejected, empty: gene7']
        """
        yield f"{self.read:,} records read: {self.used:,} used, {self.rejected.total():,} rejected"
        for reason, count in self.rejected.most_common():
            examples = self.examples[reason]
            yield f"{count:,} rejected, {reason}: {', '.join(examples)}{', ...' if count > len(examples) else ''}"
        for note, count in self.notes.most_common():
            yield f"{count:,} {note}"
