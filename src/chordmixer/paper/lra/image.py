"""Image: classify grey pictures of 32 x 32 pixels into ten classes, read row by row as one real channel.

The pictures are CIFAR-10's (Krizhevsky, 2009). As in the Long Range Arena they are made grey by TensorFlow's
`rgb_to_grayscale`, are not augmented unless the user asks for it, and 5,000 of the 50,000 training pictures are used
for validation: the last tenth there, drawn by the seed here. Copies of CIFAR-10 in JPEG are slightly lossy; scores on
them should say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int, UInt8
from numpy import ndarray
from torch import Tensor

from chordmixer.config import check_numbers
from chordmixer.data import draws
from chordmixer.data.entries import Account
from chordmixer.data.record_files import class_files
from chordmixer.packed import Packed
from chordmixer.paper.lra import BytesRecords, Part, ReleaseLayout, ReleaseTask, class_of, in_chunks, load, part_of
from chordmixer.tasks.targets import Classification

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
BATCHES = {"training": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
RECORD = 1 + 3 * SIDE**2
"""Bytes per picture in the official binary files: the class, then red, green and blue, each row by row."""
COLUMNS = ("jpeg", "png", "image", "img")  # of Parquet: bytes, or Hugging Face's struct of bytes and path
CURE = "unpack cifar-10-binary.tar.gz of cs.toronto.edu/~kriz/cifar.html and give its folder as data.source"
CHUNK = 1024  # pictures decoded at a time
SHIFT = 4  # pixels by which augmentation moves a picture at most, in either direction

Row = tuple[bytes | Path, int, str]
"""A picture (bytes or path of JPEG or PNG), its class, and its name for error messages."""


@dataclass(frozen=True)
class ImageConfig:
    """Source of the pictures and the validation split."""

    source: str | None = field(default=None, compare=False)
    """The folder of the official binary files; a folder with train/CLASS and test/CLASS of PNG or JPEG files; or a
    Parquet file with the columns jpeg (or png, image, img), label and split. The layout is detected."""
    validation: int = 5_000
    """Number of pictures held out from the official training set."""
    seed: int = 0
    """Seed of the validation split and of the augmentation."""
    augment: bool = False
    """Mirror each training picture with a probability of one half, and move it by up to four pixels in both
    directions, anew in each epoch. The Arena does neither. Default false."""
    cache: str | None = field(default=None, compare=False)
    """Folder that stores the grey pictures; None: the user's cache folder."""

    def __post_init__(self) -> None:
        if self.validation < 1:
            raise ValueError(f"validation={self.validation} is not a number of pictures: give 1 or more")
        check_numbers(self)


class Image(ReleaseTask):
    """The task: one real channel from 0 to 1 in, one of ten classes out."""

    Config = ImageConfig
    name, labels, cure = "image", CLASSES, CURE
    embedding = "real"
    inputs = 1
    max_length = SIDE**2
    target = Classification.of_counts(CLASSES, [1] * len(CLASSES))

    def __init__(self, config: ImageConfig) -> None:
        super().__init__(config, layout)

    def records(self, split: str) -> BytesRecords:
        records = super().records(split)
        augmenting = self.config.augment and split == "training"
        return AugmentedPictures(self.config.seed, *records.arguments) if augmenting else records


class AugmentedPictures(BytesRecords):
    """Pictures that training sees mirrored and moved at random."""

    def __init__(
        self, seed: int, folder: Path, split: str, real: bool, indices: ndarray | None, longest: int | None
    ) -> None:
        super().__init__(folder, split, real, indices, longest)
        self.seed, self.arguments = seed, (seed, *self.arguments)

    def drawn_batch(self, indices: Sequence[int], device: torch.device, epoch: int) -> tuple[Packed, Tensor]:
        numbers, pictures = torch.tensor(indices), np.stack([self.bytes(i) for i in indices])
        moved = augmented(torch.from_numpy(pictures).view(-1, SIDE, SIDE).to(device), self.seed, epoch, numbers)
        targets = self.targets[numbers].to(device, non_blocking=True)
        return Packed.from_lengths(self._read(moved.flatten()), [SIDE**2] * len(indices)), targets


def augmented(
    pictures: UInt8[Tensor, "B H W"], seed: int, epoch: int, numbers: Int[Tensor, "B"]
) -> UInt8[Tensor, "B H W"]:
    """Each picture mirrored or not, and moved by -`SHIFT` to `SHIFT` pixels in both directions; zeros are shifted in.

    What is drawn is a function of seed, epoch and the picture's number.
    """
    limits = torch.full_like(numbers, 2 * SHIFT + 1)
    key = [draws.key(seed, name, epoch) for name in ("rows", "columns", "mirror")]
    down, right = (draws.below(key[i], numbers, limits).to(pictures.device) for i in (0, 1))
    mirrored = (draws.bits(key[2], numbers) & 1).bool().to(pictures.device)
    place = torch.arange(SIDE, device=pictures.device)
    rows = down[:, None] + place
    columns = right[:, None] + torch.where(mirrored[:, None], SIDE - 1 - place, place)
    each = torch.arange(len(pictures), device=pictures.device)[:, None, None]
    return F.pad(pictures, [SHIFT] * 4)[each, rows[:, :, None], columns[:, None, :]]


def grey(pictures: UInt8[ndarray, "*rows 3"]) -> UInt8[ndarray, "*rows"]:
    """Luma of ITU-R BT.601 with TensorFlow's weights 0.2989, 0.5870, 0.1140 and its conversion to bytes.

    It multiplies values from 0 to 1 by 255.5 and drops the fraction; here in integer arithmetic.

    >>> grey(np.array([[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [7, 7, 7]], dtype=np.uint8)).tolist()
    [255, 76, 149, 29, 7]
    """
    red, green, blue = np.moveaxis(pictures, -1, 0).astype(np.uint32)
    luma: ndarray = (2989 * red + 5870 * green + 1140 * blue) * 511 // (510 * 10_000)
    return luma.astype(np.uint8)


def layout(source: str | None) -> ReleaseLayout:
    """Detect the layout of the pictures at `source`."""
    if source is None:
        raise ValueError(f"no pictures are named: Image is grey CIFAR-10; {CURE}")
    path = Path(source).expanduser()
    if path.is_file():
        return ReleaseLayout(path, [path], partial(read_parquet, path))
    for folder in (path, path / "cifar-10-batches-bin"):
        if any((folder / name).is_file() for names in BATCHES.values() for name in names):
            return _binary(folder)
    if (path / "train").is_dir() or (path / "test").is_dir():
        return _folders(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist: Image is grey CIFAR-10; {CURE}")
    kind = "Python's pickles, which are never loaded" if (path / "data_batch_1").is_file() else "none of its layouts"
    raise ValueError(f"{path} holds {kind}: CIFAR-10 has data_batch_1.bin, or train/CLASS and test/CLASS; {CURE}")


# --- The official binary files ---


def _binary(folder: Path) -> ReleaseLayout:
    files = {part: [folder / name for name in names] for part, names in BATCHES.items()}
    for path in (path for paths in files.values() for path in paths):
        if not path.is_file():
            raise ValueError(f"{path} is missing: five files are for training and one for the test; {CURE}")
    return ReleaseLayout(folder, [*files["training"], *files["test"]], lambda part: map(read_binary, files[part]))


def read_binary(path: Path) -> Part:
    """Read the pictures of a binary file."""
    data = np.frombuffer(load(path), dtype=np.uint8)
    if len(data) % RECORD or not len(data):
        raise ValueError(f"{path} has {len(data):,} bytes, not {RECORD:,} a picture: it is cut; {CURE}")
    rows = data.reshape(-1, RECORD)
    targets = rows[:, 0].astype(np.int64)
    if targets.max() >= len(CLASSES):
        where = int(targets.argmax())
        fault = f"class {targets[where]} is above 9, it is not CIFAR-10"
        raise ValueError(f"{path}, picture {where + 1}: {fault}; {CURE}")
    values = grey(np.moveaxis(rows[:, 1:].reshape(-1, 3, SIDE, SIDE), 1, -1))
    return values, np.full(len(rows), SIDE**2), targets


# --- Pictures as JPEG or PNG ---


def _folders(folder: Path) -> ReleaseLayout:
    rows: dict[str, list[Row]] = {}
    for part, part_folder in {"training": folder / "train", "test": folder / "test"}.items():
        if not part_folder.is_dir():
            raise ValueError(f"{part_folder} is missing: pictures lie in train/CLASS and test/CLASS; {CURE}")
        paths = [path for path, _ in class_files(part_folder, Account())]
        rows[part] = [(path, class_of(path.parent.name, CLASSES, str(path)), str(path)) for path in paths]
    files = [Path(place) for part_rows in rows.values() for *_, place in part_rows]
    return ReleaseLayout(folder, files, lambda part: _decoded(rows[part]))


def read_parquet(path: Path, part: str) -> Iterator[Part]:
    """Read the pictures of one official part from a Parquet file."""
    rows: list[Row] = []
    for number, (data, label, split) in enumerate(_table(path), start=1):
        place = f"{path}, row {number}"
        if part_of(split, place) == part:
            rows.append((data, class_of(label, CLASSES, place), place))
    return _decoded(rows)


def _table(path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """Read picture, class and split of each row of a Parquet file."""
    from pyarrow import ArrowException, compute, parquet, types

    try:
        names = parquet.read_schema(path).names
        wanted = [name for name in COLUMNS if name in names][:1] + [n for n in ("label", "split") if n in names]
        table = parquet.read_table(path, columns=wanted, page_checksum_verification=True)
        table.validate(full=True)
        if wanted and types.is_struct(table[0].type):
            table = table.set_column(0, wanted[0], compute.struct_field(table[0], "bytes"))
        columns = [column.to_pylist() for column in table.columns]
    except (ArrowException, OSError, ValueError, OverflowError, MemoryError, TypeError, LookupError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ValueError(f"{path} cannot be read as Parquet ({reason}): use another copy, or {CURE}") from None
    if len(columns) < 3:
        needed = f"label, split and one of {', '.join(COLUMNS)}"
        raise ValueError(f"{path} has the columns {', '.join(names)[:160]}: {needed} are needed; rename them")
    return zip(*columns, strict=True)


def _decoded(rows: Sequence[Row]) -> Iterator[Part]:
    def make(indices: ndarray) -> Part:
        pictures = np.stack([_pixels(rows[i][0], rows[i][2]) for i in indices])
        return grey(pictures), np.full(len(indices), SIDE**2), np.array([rows[i][1] for i in indices])

    return in_chunks(make, len(rows), CHUNK)


def _pixels(data: bytes | Path, place: str) -> UInt8[ndarray, "32 32 3"]:
    import PIL.Image

    if isinstance(data, Path):
        data = load(data)
    try:
        with PIL.Image.open(BytesIO(data), formats=("JPEG", "PNG")) as picture:
            size = picture.size
            pixels = np.asarray(picture.convert("RGB")) if size == (SIDE, SIDE) else None
    except (OSError, SyntaxError, ValueError, TypeError, PIL.Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise ValueError(f"{place} is not a whole JPEG or PNG ({reason}): use another copy, or {CURE}") from None
    if pixels is None:
        raise ValueError(f"{place} has {size[0]} x {size[1]} pixels, not 32 x 32: CIFAR-10's have; {CURE}")
    return pixels
