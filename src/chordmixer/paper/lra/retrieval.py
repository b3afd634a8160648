"""Retrieval: is one paper linked to another by citation? (Long Range Arena, from the ACL Anthology Network)

Documents are read as bytes, as they stand in the files, and cut at 4,000. That is what the Arena does: the texts of
its release are Python literals, b'...' with a line break as two letters, and are read with all that. A record is two
documents with one label; its length is that of both together.

From a list of citations, each citation is a true pair, and as many false pairs are drawn. Some papers are cited
hundreds of times: a model that guessed `linked` for these would be right without reading the other paper, so false
pairs are made of the same papers, each as often as in the true ones. All pairs of a citing paper are in one part;
cited papers are in several. What still gives a pair away: papers cite older ones, and papers of their own field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chordmixer.config import LONGEST, check_numbers
from chordmixer.data import draws
from chordmixer.data.loading import Record
from chordmixer.data.splits import PARTS, grouped
from chordmixer.packed import Packed
from chordmixer.paper.lra import RELEASE, ArenaTask, BytesRecords, Part, file_state, made_once
from chordmixer.tasks.targets import Classification

FILES = {
    "training": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
PAPERS, CITATIONS = "arxiv_papers.parquet", "arxiv_citations.parquet"
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
FORMAT = 1  # of the made data: another rule of reading or drawing is another number
CHUNK = 1024  # pairs that are written at a time
FRACTIONS = (0.8, 0.1, 0.1)  # of the citations for training, validation and test: nearly those of the release
ATTEMPTS = 20  # how often false pairs are tried for before it is given up

DocumentPair = tuple[bytes, bytes, int]
"""Two documents, and 1 where they are linked."""


@dataclass(frozen=True)
class RetrievalConfig:
    """The Arena's numbers."""

    source: str | None = field(default=None, compare=False)
    """A folder with the release's three files, new_aan_pairs.train.tsv and so on, or with arxiv_papers.parquet (id,
    text) and arxiv_citations.parquet (citing, cited)."""
    max_length: int = 4000
    """Bytes of a document; what follows them is cut off."""
    training: int = 0
    """Training pairs, the first so many; 0: all."""
    validation: int = 0
    """Validation pairs; 0: all."""
    test: int = 0
    """Test pairs; 0: all."""
    seed: int = 0
    """Of the split and the false pairs of the citations; the release has its own."""
    cache: str | None = field(default=None, compare=False)
    """The folder that what was read is kept in; None: the user's cache folder."""

    def __post_init__(self) -> None:
        check_numbers(self, max_length=(1, LONGEST))


class Retrieval(ArenaTask):
    """The task: two sequences of bytes in, `apart` or `linked` out; as in the Arena, accuracy comes first."""

    Config = RetrievalConfig
    embedding = "tokens"
    inputs = 256
    sequences = 2
    target = Classification.of_counts(["apart", "linked"], [1, 1])
    target.headline = "accuracy"

    def __init__(self, config: RetrievalConfig) -> None:
        self.config = config
        self.max_length = config.max_length

    def records(self, split: str) -> PairRecords:
        config, count = self.config, getattr(self.config, split)
        paths = _found(config.source)
        facts: list[Any] = [FORMAT, config.max_length, split, count]
        if FILES[split] in paths:
            used = [paths[FILES[split]]]
            pairs = partial(read_tsv, used[0], config.max_length)
        else:
            used, papers, citations = [*paths.values()], paths[PAPERS], paths[CITATIONS]
            pairs = partial(read_citations, papers, citations, split, config.max_length, config.seed)
            facts.append(config.seed)
        facts += map(file_state, used)
        place = f"{config.source}, {split}"
        folder = made_once(config.cache, "retrieval", facts, lambda: stored(_first(pairs(), count, place)))
        return PairRecords(folder, split)


class PairRecords:
    """Pairs of documents, which are kept once however many pairs they are in."""

    def __init__(self, folder: Path, split: str) -> None:
        """Of a folder that `made_once` gave, with the parts of `stored`."""
        self.folder, self.split = folder, split
        self.texts = BytesRecords(folder, split, real=False)
        self.pairs, self.targets = self.texts.targets[:, :2].numpy(), self.texts.targets[:, 2]
        lengths = np.array(self.texts.lengths)[self.pairs]
        self.lengths: list[int] = lengths.sum(axis=1).tolist()
        self.longer: list[int] = lengths.max(axis=1).tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        """Both documents end to end."""
        return Record(self.batch([index], torch.device("cpu"))[0].values, self.targets[index])

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """Two sequences a record, its first document and its second; one target."""
        numbers = self.pairs[list(indices)].ravel()
        values = torch.from_numpy(np.concatenate([self.texts.bytes(i) for i in numbers])).to(device)
        targets = self.targets[torch.tensor(indices)].to(device, non_blocking=True)
        return Packed.from_lengths(values, [self.texts.lengths[i] for i in numbers]), targets

    def name(self, index: int) -> str:
        return f"{self.split}-{index}"

    def __reduce__(self) -> tuple[type[PairRecords], tuple[Path, str]]:
        return PairRecords, (self.folder, self.split)


def stored(pairs: Iterator[DocumentPair]) -> Iterator[Part]:
    """Documents that were not there before, and rows of two documents' numbers and a class.

    >>> [(values, lengths, rows)] = stored(iter([(b"abc", b"de", 1), (b"abc", b"f", 0)]))
    >>> bytes(values), lengths.tolist(), rows.tolist()
    (b'abcdef', [3, 2, 1], [[0, 1, 1], [0, 2, 0]])
    """
    known: dict[bytes, int] = {}
    while chunk := list(islice(pairs, CHUNK)):
        new, rows = [], []
        for *texts, label in chunk:
            for text in texts:
                digest = blake2b(text, digest_size=16).digest()
                if digest not in known:
                    known[digest] = len(known)
                    new.append(text)
                rows.append(known[digest])
            rows.append(label)
        lengths = np.array([len(text) for text in new], dtype=np.int64)
        yield np.frombuffer(b"".join(new), dtype=np.uint8), lengths, np.array(rows).reshape(-1, 3)


def _found(source: str | None) -> dict[str, Path]:
    """The files of the layout that a folder has, all of them there."""
    how = (
        f"it is read from {', '.join(FILES.values())} of {RELEASE}, in its folder tsv_data, or from {PAPERS} and "
        f"{CITATIONS}; set data.source=FOLDER"
    )
    if source is None:
        raise ValueError(f"retrieval has no data.source: {how}")
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: {how}")
    for layout in (tuple(FILES.values()), (PAPERS, CITATIONS)):
        missing = [name for name in layout if not (folder / name).is_file()]
        if not missing:
            return {name: folder / name for name in layout}
        if len(missing) < len(layout):
            raise ValueError(f"{folder / missing[0]} is missing, and files that belong to it are there: {how}")
    raise ValueError(f"{folder} holds no data for retrieval: {how}")


def _first(pairs: Iterator[DocumentPair], count: int, what: str) -> Iterator[DocumentPair]:
    """So many of them, or all; fewer are an error."""
    given = 0
    for pair in islice(pairs, count or None):
        given += 1
        yield pair
    if given < max(count, 1):
        short = f"{given:,} of {max(count, 1):,} pairs are there"
        raise ValueError(f"{what}: {short}; ask for fewer, or use another copy")


# --- The release ---


def read_tsv(path: Path, max_length: int) -> Iterator[DocumentPair]:
    """The pairs of a file of the release, one a line: label, two ids, two texts."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if fields == [b""]:
                continue
            if len(fields) != 5 or not all(fields[3:]) or _is_cut(line):
                raise ValueError(
                    f"{path}, line {number}: a label, two ids and two texts must stand there, with tabs between; the "
                    f"file is cut or damaged, unpack {RELEASE} again"
                )
            if fields[0] not in LABELS:
                shown = fields[0][:20].decode(errors="replace")
                raise ValueError(f"{path}, line {number}: label {shown!r} is not 0 or 1; use another copy")
            yield fields[3][:max_length], fields[4][:max_length], LABELS[fields[0]]


def _is_cut(line: bytes) -> bool:
    """Whether a file ends within its last text: b'...' does not close."""
    text = line.rpartition(b"\t")[2]
    return not line.endswith(b"\n") and text[:2] in (b"b'", b'b"') and (len(text) < 3 or text[-1] != text[1])


# --- Citations ---


def read_citations(papers: Path, citations: Path, split: str, max_length: int, seed: int) -> Iterator[DocumentPair]:
    """Each citation of a part between two known papers, and with the same citing paper one that is not there."""
    texts = _texts(papers, max_length)
    links: dict[frozenset[str], tuple[str, str]] = {}
    for citing, cited in _rows(citations, "citing", "cited"):
        if citing != cited and citing in texts and cited in texts:
            links.setdefault(frozenset((citing, cited)), (citing, cited))  # papers that cite each other are one pair
    if not links:
        raise ValueError(f"{citations} links no two papers of {papers}: give the two files of one set")
    pairs = list(links.values())
    part = grouped([citing for citing, _ in pairs], [1] * len(pairs), FRACTIONS, seed)[PARTS.index(split)]
    own = [pairs[i] for i in part]
    false = dealt(own, links, draws.key(seed, "retrieval", split))
    for (citing, cited), other in zip(own, false, strict=True):
        yield texts[citing], texts[cited], 1
        yield texts[citing], texts[other], 0


def dealt(pairs: Sequence[tuple[str, str]], links: Container[frozenset[str]], key: int) -> list[str]:
    """The second papers dealt out anew, none to a first one that it is linked with, and none twice to the same.

    Each paper is thus in as many false pairs as true ones, on either side: one alone says nothing, only both do.

    >>> pairs = [("a", "x"), ("b", "y"), ("c", "z")]
    >>> dealt(pairs, {frozenset(pair) for pair in [*pairs, ("b", "x")]}, key=0)
    ['y', 'z', 'x']
    """
    for attempt in range(ATTEMPTS):
        if seconds := _dealt(pairs, links, draws.key(key, attempt)):
            return seconds
    raise ValueError(
        f"{len(pairs):,} citations of a part leave no false pairs of the same papers: nearly all are linked; give "
        "more papers and citations"
    )


def _dealt(pairs: Sequence[tuple[str, str]], links: Container[frozenset[str]], key: int) -> list[str]:
    """Shuffled; then each that may not be is swapped with another, or nothing where there is none to swap with."""
    firsts = [first for first, _ in pairs]
    seconds = [pairs[i][1] for i in draws.permutation(key, len(pairs)).tolist()]
    times = Counter(zip(firsts, seconds, strict=True))

    def may(place: int, second: str, most: int) -> bool:
        pair = firsts[place], second
        return firsts[place] != second and frozenset(pair) not in links and times[pair] < most

    for i in range(len(pairs)):
        if may(i, seconds[i], 2):  # it is counted itself
            continue
        others = draws.permutation(draws.key(key, i), len(pairs)).tolist()
        j = next((j for j in others if may(i, seconds[j], 1) and may(j, seconds[i], 1)), None)
        if j is None:
            return []
        times.subtract([(firsts[i], seconds[i]), (firsts[j], seconds[j])])
        seconds[i], seconds[j] = seconds[j], seconds[i]
        times.update([(firsts[i], seconds[i]), (firsts[j], seconds[j])])
    return seconds


def _texts(path: Path, max_length: int) -> dict[str, bytes]:
    texts: dict[str, bytes] = {}
    for name, text in _rows(path, "id", "text"):
        if name in texts or not text:
            fault = "comes twice" if name in texts else "has no text"
            raise ValueError(f"{path}: paper {name!r} {fault}: every paper has an id of its own and a text; mend it")
        texts[name] = text[:max_length].encode()[:max_length]
    return texts


def _rows(path: Path, *names: str) -> Iterator[tuple[str, ...]]:
    """The rows of two columns of a Parquet file, some at a time."""
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if missing := set(names) - set(file.schema_arrow.names):
                raise ValueError(f"it has no column {min(missing)!r}")
            for batch in file.iter_batches(256, columns=list(names)):
                batch.validate(full=True)
                if empty := [name for name in names if batch.column(name).null_count]:
                    raise ValueError(f"its column {empty[0]!r} has rows without a value")
                yield from zip(*(map(str, batch.column(name).to_pylist()) for name in names), strict=True)
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ValueError(f"{path} cannot be read ({reason}): use another copy") from None
