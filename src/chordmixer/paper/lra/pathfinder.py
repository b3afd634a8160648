"""Pathfinder: are two discs joined by one dashed curve? (Linsley et al., 2018; Kim et al., 2020)

Of 32 x 32 pixels in the Long Range Arena, and of 128 x 128 as Path-X; read row by row as one real channel. The
measures of the pictures are the Arena's. Our own choices: how a snake seeks its way (it tries eight directions and
takes the one that stays free longest, so that fewer are drawn in vain), how dashes shade off at their edges, and that
no curve comes nearer to another than the gap between its own dashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

from chordmixer.config import MAX_RECORDS, check_numbers
from chordmixer.data import draws
from chordmixer.paper.lra import RELEASE, ArenaTask, BytesRecords, Part, in_chunks, made_once
from chordmixer.paper.lra.snakes import PictureStyle, pictures
from chordmixer.tasks.targets import Classification

STYLES = {
    32: PictureStyle(32, 2, (1,), 0.5, 1.5, 7, 1.0, 20, 1.5),
    64: PictureStyle(64, 5, (1,), 1.0, 2.5, 12, 1.8, 22, 0.8),
    128: PictureStyle(128, 5, (2, 3), 1.5, 3.0, 20, 1.8, 35, 0.9),
}
"""By size, from the comments of the Arena's builders; of 64 and 128 the dash is the authors' default."""
LEVELS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
"""The release's folder by the number of dashes of the long snakes: easy, intermediate, hard."""
FORMAT = 1  # of the made data: another rule of drawing is another number
CHUNK = {32: 1024, 64: 512, 128: 128}  # pictures made at a time, to fit in a core's cache or nearly so


@dataclass(frozen=True)
class PathfinderConfig:
    """The Arena's numbers, at its hardest level."""

    folder: str | None = field(default=None, compare=False)
    """Of the release, such as pathfinder32, with a folder for each level; None: made by the rule."""
    size: int = 32
    """Pixels a side: 32, 64, or 128 for Path-X."""
    contour: int = 14
    """Dashes of a long snake: 6 is easy, 9 intermediate, 14 hard; the short ones have a third."""
    training: int = 160_000
    """Training pictures; of the release it is eight tenths of what is there."""
    validation: int = 20_000
    """Validation pictures; of the release a tenth."""
    test: int = 20_000
    """Test pictures; of the release a tenth."""
    seed: int = 0
    """Another seed, another data set, and another split of the release."""
    cache: str | None = field(default=None, compare=False)
    """The folder that what was made is kept in; None: the user's cache folder."""

    def __post_init__(self) -> None:
        if self.size not in STYLES:
            sizes = ", ".join(map(str, STYLES))
            raise ValueError(f"size={self.size} is not a size of Pathfinder: give one of {sizes}")
        if self.contour not in LEVELS:
            raise ValueError(f"contour={self.contour} is not a published length: give one of 6, 9, 14")
        check_numbers(self, **dict.fromkeys(("training", "validation", "test"), (1, MAX_RECORDS)))


class Pathfinder(ArenaTask):
    """The task: one real channel in, `apart` or `joined` out; as in the Arena, accuracy comes first."""

    Config = PathfinderConfig
    embedding = "real"
    inputs = 1
    target = Classification.of_counts(["apart", "joined"], [1, 1])
    target.headline = "accuracy"

    def __init__(self, config: PathfinderConfig) -> None:
        self.config = config
        self.max_length = config.size**2

    def records(self, split: str) -> BytesRecords:
        config = self.config
        if config.folder is None:
            count = getattr(config, split)
            facts = (FORMAT, config.size, config.contour, config.seed, split, count)
            parts = partial(in_chunks, partial(made, config, split), count, CHUNK[config.size])
            return BytesRecords(made_once(config.cache, "pathfinder", facts, parts), split, real=True)
        level = Path(config.folder).expanduser() / LEVELS[config.contour]
        rows = read_metadata(level)
        own = _part(len(rows), split, config.seed)
        state = (FORMAT, str(level.absolute()), rows, config.size, split, config.seed)
        reading = partial(_read, level, [rows[i] for i in own], config.size)
        return BytesRecords(made_once(config.cache, "pathfinder-release", state, reading), split, real=True)


def made(config: PathfinderConfig, split: str, indices: ndarray) -> Part:
    """The pictures of these indices; of the numbers 2k and 2k + 1 one is joined."""
    key = draws.key(config.seed, "pathfinder", config.size, config.contour, split)
    joined = (indices ^ draws.bits(key, torch.from_numpy(-1 - indices // 2)).numpy()) & 1
    values = pictures(
        STYLES[config.size], config.contour, draws.bits(key, torch.from_numpy(indices)).numpy(), joined == 1
    )
    return values, np.full(len(indices), config.size**2), joined


# --- The release ---


def read_metadata(level: Path) -> list[tuple[str, int]]:
    """Path and label of each picture of a level's folder: lines of text, or the array of strings that numpy saves."""
    found = sorted(level.glob("metadata/*.npy"), key=lambda path: (len(path.name), path.name))
    if not found:
        raise ValueError(
            f"{level / 'metadata'} holds no .npy file: Pathfinder is read from {level.name}/imgs and "
            f"{level.name}/metadata; unpack {RELEASE} and name its folder pathfinder32, or name no folder to make "
            "the data by the rule"
        )
    rows = []
    for path in found:
        lines = _lines(path)
        for number, line in enumerate(lines, start=1):
            if len(line) < 4 or line[3] not in ("0", "1"):
                raise ValueError(
                    f"{path}, row {number}: folder, name, number and a label of 0 or 1 must stand there; the file is "
                    "cut or damaged"
                )
            rows.append((f"{line[0]}/{line[1]}", int(line[3])))
    return rows


def _lines(path: Path) -> list[list[str]]:
    data = path.read_bytes()
    if not data.startswith(b"\x93NUMPY"):
        return [line.split() for line in data.decode(errors="replace").splitlines()]
    try:
        return [[str(word) for word in row] for row in np.load(path, allow_pickle=False)]
    except (ValueError, EOFError, OSError, TypeError):
        raise ValueError(f"{path} is not an array of strings: it is cut or damaged; unpack {RELEASE} again") from None


def _part(count: int, split: str, seed: int) -> list[int]:
    """Eight tenths, a tenth, a tenth of the numbers, shuffled."""
    order = draws.permutation(draws.key(seed, "pathfinder release"), count).tolist()
    ends = {"training": (0, 8), "validation": (8, 9), "test": (9, 10)}[split]
    return order[count * ends[0] // 10 : count * ends[1] // 10]


def _read(level: Path, rows: list[tuple[str, int]], size: int) -> Iterator[Part]:
    """Picture by picture; the release has a few empty files, which the Arena leaves out too."""
    from matplotlib.image import imread

    for name, label in rows:
        path = level / name
        if not path.is_file():
            raise ValueError(f"{path} is missing, and the metadata name it: unpack {RELEASE} again")
        if path.stat().st_size == 0:
            continue
        try:
            grey = np.asarray(imread(path, format="png"), dtype=np.float32)
        except (OSError, SyntaxError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"{path} is not a whole PNG ({reason}): unpack {RELEASE} again") from None
        grey = grey[..., :3].mean(axis=2) if grey.ndim == 3 else grey
        if grey.shape != (size, size):
            raise ValueError(
                f"{path} has {grey.shape[0]} x {grey.shape[1]} pixels, not {size} x {size}: set the size"
            )
        yield np.rint(grey * 255).astype(np.uint8), np.array([size**2]), np.array([label])
