"""Retrieval: predict whether a citation links two papers (Long Range Arena, from the ACL Anthology Network).

Documents are read as the bytes in the files and truncated at 4,000 bytes, as in the Arena: the texts of its release
are Python literals, b'...' with line breaks as two characters, and are read without decoding. A record is two
documents with one label; its length is the sum of both.

In data from a list of citations, each citation is a positive pair, and as many negative pairs are drawn. Some papers
are cited hundreds of times, and a model could predict `linked` for these without reading the other paper. Negative
pairs therefore have the same papers, each as often as in positive pairs. All pairs of a citing paper are in one part;
cited papers can be in several. Shortcuts remain: papers cite older papers, and papers of their own field.
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
from chordmixer.paper.lra import RELEASE, ArenaTask, BytesRecords, Part, build_once, file_state
from chordmixer.tasks.targets import Classification

FILES = {
    "training": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
PAPERS, CITATIONS = "arxiv_papers.parquet", "arxiv_citations.parquet"
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
FORMAT = 1  # version of the stored data; to be raised if they are read or drawn in another way
CHUNK = 1024  # pairs written at a time
FRACTIONS = (0.8, 0.1, 0.1)  # training, validation and test share of the citations, about those of the release
ATTEMPTS = 20  # attempts to draw negative pairs

DocumentPair = tuple[bytes, bytes, int]
"""Two documents, and 1 if they are linked, else 0."""


@dataclass(frozen=True)
class RetrievalConfig:
    """Settings of Retrieval; the defaults are the Arena's."""

    source: str | None = field(default=None, compare=False)
    """A folder with the release's three files, new_aan_pairs.train.tsv and so on, or with arxiv_papers.parquet (id,
    text) and arxiv_citations.parquet (citing, cited)."""
    max_length: int = 4000
    """Maximum length of a document in bytes; longer ones are truncated."""
    training: int = 0
    """Number of training pairs, from the first on; 0: all."""
    validation: int = 0
    """Number of validation pairs; 0: all."""
    test: int = 0
    """Number of test pairs; 0: all."""
    seed: int = 0
    """Seed of the split and the negative pairs of citations; the release has its own split and pairs."""
    cache: str | None = field(default=None, compare=False)
    """Folder that stores the data; None: the user's cache folder."""

    def __post_init__(self) -> None:
        check_numbers(self, max_length=(1, LONGEST))


class Retrieval(ArenaTask):
    """The task: two sequences of bytes in, `apart` or `linked` out; the main metric is accuracy, as in the Arena."""

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
        paths = _find_files(config.source)
        key: list[Any] = [FORMAT, config.max_length, split, count]
        if FILES[split] in paths:
            used = [paths[FILES[split]]]
            pairs = partial(read_tsv, used[0], config.max_length)
        else:
            used, papers, citations = [*paths.values()], paths[PAPERS], paths[CITATIONS]
            pairs = partial(read_citations, papers, citations, split, config.max_length, config.seed)
            key.append(config.seed)
        key += map(file_state, used)
        place = f"{config.source}, {split}"
        folder = build_once(config.cache, "retrieval", key, lambda: deduplicated(_take(pairs(), count, place)))
        return PairRecords(folder, split)


class PairRecords:
    """Pairs of documents; a document in several pairs is stored once."""

    def __init__(self, folder: Path, split: str) -> None:
        """`folder` comes from `build_once` with the parts of `deduplicated`."""
        self.folder, self.split = folder, split
        self.texts = BytesRecords(folder, split, real=False)
        self.pairs, self.targets = self.texts.targets[:, :2].numpy(), self.texts.targets[:, 2]
        lengths = np.array(self.texts.lengths)[self.pairs]
        self.lengths: list[int] = lengths.sum(axis=1).tolist()
        self.longer: list[int] = lengths.max(axis=1).tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        """Both documents, concatenated."""
        return Record(self.batch([index], torch.device("cpu"))[0].values, self.targets[index])

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """Two sequences and one target per record."""
        numbers = self.pairs[list(indices)].ravel()
        values = torch.from_numpy(np.concatenate([self.texts.bytes(i) for i in numbers])).to(device)
        targets = self.targets[torch.tensor(indices)].to(device, non_blocking=True)
        return Packed.from_lengths(values, [self.texts.lengths[i] for i in numbers]), targets

    def name(self, index: int) -> str:
        return f"{self.split}-{index}"

    def __reduce__(self) -> tuple[type[PairRecords], tuple[Path, str]]:
        return PairRecords, (self.folder, self.split)


def deduplicated(pairs: Iterator[DocumentPair]) -> Iterator[Part]:
    """Convert pairs to documents, each once, and rows of the numbers of two documents and a class.

    >>> [(values, lengths, rows)] = deduplicated(iter([(b"abc", b"de", 1), (b"abc", b"f", 0)]))
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


def _find_files(source: str | None) -> dict[str, Path]:
    """Find the files of one of the two layouts in a folder; all of them must be there."""
    usage = (
        f"it is read from {', '.join(FILES.values())} of {RELEASE}, in its folder tsv_data, or from {PAPERS} and "
        f"{CITATIONS}; set data.source=FOLDER"
    )
    if source is None:
        raise ValueError(f"retrieval has no data.source: {usage}")
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: {usage}")
    for layout in (tuple(FILES.values()), (PAPERS, CITATIONS)):
        missing = [name for name in layout if not (folder / name).is_file()]
        if not missing:
            return {name: folder / name for name in layout}
        if len(missing) < len(layout):
            raise ValueError(f"{folder / missing[0]} is missing, and files that belong to it are there: {usage}")
    raise ValueError(f"{folder} holds no data for retrieval: {usage}")


def _take(pairs: Iterator[DocumentPair], count: int, place: str) -> Iterator[DocumentPair]:
    """Take the first `count` pairs, or all if it is 0; fewer are an error."""
    taken = 0
    for pair in islice(pairs, count or None):
        taken += 1
        yield pair
    if taken < max(count, 1):
        available = f"{taken:,} of {max(count, 1):,} pairs are there"
        raise ValueError(f"{place}: {available}; ask for fewer, or use another copy")


# --- The release ---


def read_tsv(path: Path, max_length: int) -> Iterator[DocumentPair]:
    """Read the pairs of a file of the release; a line has label, two ids and two texts."""
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
    """Whether the last line of a file is truncated: the literal b'...' does not end."""
    text = line.rpartition(b"\t")[2]
    return not line.endswith(b"\n") and text[:2] in (b"b'", b'b"') and (len(text) < 3 or text[-1] != text[1])


# --- Citations ---


def read_citations(papers: Path, citations: Path, split: str, max_length: int, seed: int) -> Iterator[DocumentPair]:
    """Yield the citations of a part between known papers, each with a negative pair of the same citing paper."""
    texts = _texts(papers, max_length)
    links: dict[frozenset[str], tuple[str, str]] = {}
    for citing, cited in _rows(citations, "citing", "cited"):
        if citing != cited and citing in texts and cited in texts:
            links.setdefault(frozenset((citing, cited)), (citing, cited))  # mutual citations are one pair
    if not links:
        raise ValueError(f"{citations} links no two papers of {papers}: give the two files of one set")
    pairs = list(links.values())
    part = grouped([citing for citing, _ in pairs], [1] * len(pairs), FRACTIONS, seed)[PARTS.index(split)]
    positive = [pairs[i] for i in part]
    negative = draw_negatives(positive, links, draws.key(seed, "retrieval", split))
    for (citing, cited), other in zip(positive, negative, strict=True):
        yield texts[citing], texts[cited], 1
        yield texts[citing], texts[other], 0


def draw_negatives(pairs: Sequence[tuple[str, str]], links: Container[frozenset[str]], key: int) -> list[str]:
    """Permute the second papers of pairs so that no pair is linked and none occurs twice.

    Each paper is thus in as many negative as positive pairs, on either side, so that one paper alone is not enough.

    >>> pairs = [("a", "x"), ("b", "y"), ("c", "z")]
    >>> draw_negatives(pairs, {frozenset(pair) for pair in [*pairs, ("b", "x")]}, key=0)
    ['y', 'z', 'x']
    """
    for attempt in range(ATTEMPTS):
        if seconds := _try_negatives(pairs, links, draws.key(key, attempt)):
            return seconds
    raise ValueError(
        f"{len(pairs):,} citations of a part leave no false pairs of the same papers: nearly all are linked; give "
        "more papers and citations"
    )


def _try_negatives(pairs: Sequence[tuple[str, str]], links: Container[frozenset[str]], key: int) -> list[str]:
    """Shuffle, then repair each invalid pair by a swap; return an empty list if no valid swap exists."""
    firsts = [first for first, _ in pairs]
    seconds = [pairs[i][1] for i in draws.permutation(key, len(pairs)).tolist()]
    counts = Counter(zip(firsts, seconds, strict=True))

    def is_valid(place: int, second: str, limit: int) -> bool:
        pair = firsts[place], second
        return firsts[place] != second and frozenset(pair) not in links and counts[pair] < limit

    for i in range(len(pairs)):
        if is_valid(i, seconds[i], 2):  # its own occurrence counts as one
            continue
        others = draws.permutation(draws.key(key, i), len(pairs)).tolist()
        j = next((j for j in others if is_valid(i, seconds[j], 1) and is_valid(j, seconds[i], 1)), None)
        if j is None:
            return []
        counts.subtract([(firsts[i], seconds[i]), (firsts[j], seconds[j])])
        seconds[i], seconds[j] = seconds[j], seconds[i]
        counts.update([(firsts[i], seconds[i]), (firsts[j], seconds[j])])
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
    """Read rows of some columns of a Parquet file in batches."""
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
