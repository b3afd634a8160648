"""Pathfinder: predict whether a dashed curve joins two discs (Linsley et al., 2018; Kim et al., 2020).

Pictures have 32 x 32 pixels in the Long Range Arena, and 128 x 128 in Path-X; they are read row by row as one real
channel. Sizes and distances are those of the Arena. Our own choices are the path search of a curve (it tries eight
directions and takes the one with most free space, so that fewer attempts fail), the anti-aliasing of dashes, and that
the distance between curves is at least the gap between the dashes of one curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

from chordmixer.config import MANY, check_numbers
from chordmixer.data import draws
from chordmixer.paper.lra import RELEASE, ArenaTask, BytesRecords, Part, build_once, in_chunks
from chordmixer.paper.lra.snakes import PictureStyle, pictures
from chordmixer.tasks.targets import Classification

STYLES = {
    32: PictureStyle(32, 2, (1,), 0.5, 1.5, 7, 1.0, 20, 1.5),
    64: PictureStyle(64, 5, (1,), 1.0, 2.5, 12, 1.8, 22, 0.8),
    128: PictureStyle(128, 5, (2, 3), 1.5, 3.0, 20, 1.8, 35, 0.9),
}
"""Styles by size, from comments in the Arena's builders; the dash of 64 and 128 is the authors' default."""
LEVELS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
"""Folder in the release by number of dashes of the long curves: easy, intermediate, hard."""
FORMAT = 1  # version of the generated data; to be raised if they are generated in another way
CHUNK = {32: 1024, 64: 512, 128: 128}  # pictures generated at a time, about what fits in the cache of a core


@dataclass(frozen=True)
class PathfinderConfig:
    """Settings of Pathfinder; the defaults are the Arena's, at its hardest level."""

    folder: str | None = field(default=None, compare=False)
    """Folder of the release, such as pathfinder32, with a folder per level; None: generate by the rule."""
    size: int = 32
    """Side of a picture in pixels: 32, 64, or 128 for Path-X."""
    contour: int = 14
    """Dashes of a long curve: 6 is easy, 9 intermediate, 14 hard; distractors have a third as many."""
    training: int = 160_000
    """Number of training pictures; the release is split 80 : 10 : 10 instead."""
    validation: int = 20_000
    """Number of validation pictures."""
    test: int = 20_000
    """Number of test pictures."""
    seed: int = 0
    """Seed of the data, or of the split of the release."""
    cache: str | None = field(default=None, compare=False)
    """Folder that stores the data; None: the user's cache folder."""

    def __post_init__(self) -> None:
        if self.size not in STYLES:
            sizes = ", ".join(map(str, STYLES))
            raise ValueError(f"size={self.size} is not a size of Pathfinder: give one of {sizes}")
        if self.contour not in LEVELS:
            raise ValueError(f"contour={self.contour} is not a published length: give one of 6, 9, 14")
        check_numbers(self, **dict.fromkeys(("training", "validation", "test"), (1, MANY)))


class Pathfinder(ArenaTask):
    """The task: one real channel in, `apart` or `joined` out; the main metric is accuracy, as in the Arena."""

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
            parts = partial(in_chunks, partial(generate, config, split), count, CHUNK[config.size])
            return BytesRecords(build_once(config.cache, "pathfinder", facts, parts), split, real=True)
        level = Path(config.folder).expanduser() / LEVELS[config.contour]
        rows = read_metadata(level)
        indices = _part(len(rows), split, config.seed)
        state = (FORMAT, str(level.absolute()), rows, config.size, split, config.seed)
        reading = partial(_read, level, [rows[i] for i in indices], config.size)
        return BytesRecords(build_once(config.cache, "pathfinder-release", state, reading), split, real=True)


def generate(config: PathfinderConfig, split: str, indices: ndarray) -> Part:
    """Generate the pictures of these indices; exactly one of the pictures 2k and 2k + 1 has joined discs."""
    key = draws.key(config.seed, "pathfinder", config.size, config.contour, split)
    joined = (indices ^ draws.bits(key, torch.from_numpy(-1 - indices // 2)).numpy()) & 1
    values = pictures(
        STYLES[config.size], config.contour, draws.bits(key, torch.from_numpy(indices)).numpy(), joined == 1
    )
    return values, np.full(len(indices), config.size**2), joined


# --- The release ---


def read_metadata(level: Path) -> list[tuple[str, int]]:
    """Path and label of each picture of a level, from metadata as lines of text or as a numpy array of strings."""
    paths = sorted(level.glob("metadata/*.npy"), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise ValueError(
            f"{level / 'metadata'} holds no .npy file: Pathfinder is read from {level.name}/imgs and "
            f"{level.name}/metadata; unpack {RELEASE} and name its folder pathfinder32, or name no folder to make "
            "the data by the rule"
        )
    rows = []
    for path in paths:
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
    """Shuffled indices of a part: 80, 10 and 10 % of all."""
    order = draws.permutation(draws.key(seed, "pathfinder release"), count).tolist()
    ends = {"training": (0, 8), "validation": (8, 9), "test": (9, 10)}[split]
    return order[count * ends[0] // 10 : count * ends[1] // 10]


def _read(level: Path, rows: list[tuple[str, int]], size: int) -> Iterator[Part]:
    """Read pictures one by one; skip the few empty files of the release, as the Arena does."""
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
