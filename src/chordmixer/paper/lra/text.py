"""Text: predict the sentiment of a film review, read byte by byte (IMDb: Maas et al., 2011).

As in the Long Range Arena a token is a byte and a review is truncated at 4,000 bytes, which affects 1,510 of the
50,000 reviews. The Arena pads to that length and validates on the test set; here reviews are packed without padding,
and validation reviews are drawn from the training set by the seed. The test set is the official one; 123 of its
reviews are also in the training set, word for word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from chordmixer.config import check_numbers
from chordmixer.data.columns import Columns
from chordmixer.data.entries import Account
from chordmixer.data.record_files import class_files
from chordmixer.data.tables import table_rows
from chordmixer.paper.lra import Part, ReleaseLayout, ReleaseTask, class_of, load, part_of
from chordmixer.tasks.targets import Classification

LABELS = ("neg", "pos")
FOLDERS = {"training": "train", "test": "test"}
CURE = "unpack aclImdb_v1.tar.gz of ai.stanford.edu/~amaas/data/sentiment and give its folder aclImdb as data.source"

Review = tuple[bytes, int, str]
"""Text, class, and name for error messages."""


@dataclass(frozen=True)
class TextConfig:
    """Source and maximum length of the reviews, and the validation split."""

    source: str | None = field(default=None, compare=False)
    """The folder aclImdb, with train/pos, train/neg, test/pos and test/neg; or a Parquet, CSV or JSONL file with the
    columns text, label (neg, pos, or 0, 1) and split (train, test)."""
    length: int = 4_000
    """Maximum length of a review in bytes; longer ones are truncated."""
    validation: int = 2_500
    """Number of reviews held out from the official training set."""
    seed: int = 0
    """Seed of the validation split."""
    cache: str | None = field(default=None, compare=False)
    """Folder that stores the bytes; None: the user's cache folder."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length} is not a number of bytes: give 1 or more")
        if self.validation < 1:
            raise ValueError(f"validation={self.validation} is not a number of reviews: give 1 or more")
        check_numbers(self)


class Text(ReleaseTask):
    """The task: bytes in, `neg` or `pos` out; the main metric is accuracy, as in the Arena.

    `records(split).cut` counts truncated reviews.
    """

    Config = TextConfig
    name, labels, cure = "text", LABELS, CURE
    embedding = "tokens"
    inputs = 256
    target = Classification.of_counts(LABELS, [1, 1])
    target.headline = "accuracy"

    def __init__(self, config: TextConfig) -> None:
        super().__init__(config, layout)
        self.max_length = config.length


def layout(source: str | None) -> ReleaseLayout:
    """Detect the layout of the reviews at `source`."""
    if source is None:
        raise ValueError(f"no reviews are named: Text is the IMDb review set; {CURE}")
    path = Path(source).expanduser()
    if path.is_file():
        return ReleaseLayout(path, [path], lambda part: _joined(read_table(path, part)))
    if not path.is_dir():
        raise ValueError(f"{path} does not exist: Text is the IMDb review set; {CURE}")
    return _folders(path / "aclImdb" if (path / "aclImdb").is_dir() else path)


def _folders(folder: Path) -> ReleaseLayout:
    """The official layout; `unsup`, which has no labels, and the vocabulary files are ignored."""
    files: dict[str, list[tuple[Path, int]]] = {part: [] for part in FOLDERS}
    for part, name in FOLDERS.items():
        for number, label in enumerate(LABELS):
            place = folder / name / label
            if not place.is_dir():
                raise ValueError(f"{place} is missing: reviews lie in train and test, in pos and neg of each; {CURE}")
            files[part] += [(path, number) for path, _ in class_files(place, Account())]

    def read(part: str) -> Iterator[Part]:
        return _joined((load(path), label, str(path)) for path, label in files[part])

    return ReleaseLayout(folder, [path for part_files in files.values() for path, _ in part_files], read)


def read_table(path: Path, part: str) -> Iterator[Review]:
    """Read the reviews of one official part from a table."""
    for number, row in table_rows(path, Columns(id="-", target="-", group="-", weight="-")):
        place, text = f"{path}, row {number}", row["sequence"]
        for column in ("label", "split"):
            if column not in row:
                raise ValueError(f"{path} has no column {column}: text, label and split are needed; add it")
        if not isinstance(text, str | bytes):
            raise ValueError(f"{place}: the text is a list of numbers: a review is needed; choose another file")
        if part_of(row["split"], place) == part:
            yield text if isinstance(text, bytes) else text.encode(), class_of(row["label"], LABELS, place), place


def _joined(reviews: Iterator[Review]) -> Iterator[Part]:
    texts, targets = [], []
    for text, label, place in reviews:
        if not text:
            raise ValueError(f"{place} is empty: a review has a byte or more; use another copy")
        texts.append(text)
        targets.append(label)
    lengths = np.array([len(text) for text in texts])
    yield np.frombuffer(b"".join(texts), dtype=np.uint8), lengths, np.array(targets, dtype=np.int64)
