from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from chordmixer.paper.lra.pathfinder import LEVELS, STYLES, Pathfinder, PathfinderConfig, generate, read_metadata

SMALL = {"training": 24, "validation": 6, "test": 6}


def discs(picture: np.ndarray) -> np.ndarray:
    """The two places where a disc fits best, found by its shape alone."""
    size, radius = len(picture), 1
    padded = np.pad(picture.astype(float), radius)
    window = [padded[dy : dy + size, dx : dx + size] for dy in range(3) for dx in range(3)]
    fit = np.mean(window, axis=0)
    first = np.unravel_index(fit.argmax(), fit.shape)
    y, x = np.ogrid[:size, :size]
    fit[(y - first[0]) ** 2 + (x - first[1]) ** 2 < 12] = 0
    return np.array([first, np.unravel_index(fit.argmax(), fit.shape)], dtype=float)


def test_classes_differ_in_nothing_simple() -> None:
    """Neither how far apart the discs are nor how bright a picture is tells the classes apart."""
    values, _, joined = generate(PathfinderConfig(), "training", np.arange(600))
    assert joined.sum() == 300 and (joined.reshape(-1, 2).sum(axis=1) == 1).all() and 100 < joined[::2].sum() < 200
    distance = np.array([np.linalg.norm(np.subtract(*discs(picture))) for picture in values])
    for simple in (distance, values.mean(axis=(1, 2))):
        above = (simple[joined == 1][:, None] > simple[joined == 0]).mean()
        assert 0.4 < above < 0.6


def test_records(tmp_path: Path) -> None:
    task = Pathfinder(PathfinderConfig(**SMALL, cache=str(tmp_path)))
    records = task.records("training")
    assert (task.embedding, task.inputs, task.max_length, task.target.outputs) == ("real", 1, 1024, 2)
    assert task.target.headline == "accuracy"
    values, target = records[5]
    assert values.shape == (1024, 1) and values.dtype == torch.float32 and values.min() >= 0 and values.max() == 1
    inputs, targets = records.batch([5, 7], torch.device("cpu"))
    assert torch.equal(inputs.to_list()[0], values) and targets[0] == target
    alone, _, label = generate(task.config, "training", np.array([5]))
    assert np.array_equal(alone.ravel(), np.rint(values.numpy().ravel() * 255)) and label[0] == target
    assert not torch.equal(task.records("test")[5].values, values)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"size": 40}, "size=40 is not a size of Pathfinder"),
        ({"contour": 7}, "contour=7 is not a published length"),
        ({"test": 0}, "test=0 is too small: give 1 or more"),
    ],
)
def test_config_errors(given: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        PathfinderConfig(**given)


def test_published_measures() -> None:
    assert {size: style.clutter // 4 for size, style in STYLES.items()} == {32: 5, 64: 5, 128: 8}
    assert all(style.size == size for size, style in STYLES.items())


# --- The release ---


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Ten pictures in its layout, one of them an empty file as in the true one."""
    from PIL import Image

    level = tmp_path / "pathfinder32" / LEVELS[14]
    (level / "imgs" / "0").mkdir(parents=True)
    (level / "metadata").mkdir()
    values, _, joined = generate(PathfinderConfig(contour=6), "test", np.arange(10))
    for number, picture in enumerate(values):
        Image.fromarray(picture).save(level / "imgs" / "0" / f"sample_{number}.png")
    (level / "imgs" / "0" / "sample_9.png").write_bytes(b"")
    lines = [f"imgs/0 sample_{i}.png {i} {label} 1.0 14 4 2 0.5 1 1\n" for i, label in enumerate(joined)]
    (level / "metadata" / "0.npy").write_text("".join(lines))
    return level


def test_the_release(release: Path, tmp_path: Path) -> None:
    values, _, joined = generate(PathfinderConfig(contour=6), "test", np.arange(10))
    task = Pathfinder(PathfinderConfig(folder=str(release.parent), cache=str(tmp_path / "cache")))
    sets = [task.records(split) for split in ("training", "validation", "test")]
    assert sum(map(len, sets)) == 9
    known = {picture.tobytes(): label for picture, label in zip(values, joined, strict=True)}
    read = [(records.bytes(i).tobytes(), int(records.targets[i])) for records in sets for i in range(len(records))]
    assert len(dict(read)) == 9 and all(known[picture] == label for picture, label in read)


def test_metadata_as_numpy_saves_them(release: Path) -> None:
    as_text = read_metadata(release)
    path = release / "metadata" / "0.npy"
    rows = np.array([line.split() for line in path.read_text().splitlines()])
    np.save(path, rows)
    assert read_metadata(release) == as_text
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match="is not an array of strings: it is cut or damaged"):
        read_metadata(release)


def test_release_errors(release: Path, tmp_path: Path) -> None:
    def read(**given: int) -> None:
        task = Pathfinder(PathfinderConfig(folder=str(release.parent), cache=str(tmp_path / "cache"), **given))
        task.records("training")

    with pytest.raises(ValueError, match=r"holds no \.npy file: .* unpack lra_release\.gz"):
        read(contour=9)
    with pytest.raises(ValueError, match="has 32 x 32 pixels, not 128 x 128: set the size"):
        read(size=128)
    for path in (release / "imgs" / "0").iterdir():
        path.write_bytes(path.read_bytes()[:60] or b"x")
    with pytest.raises(ValueError, match="is not a whole PNG"):
        read()
    for path in (release / "imgs" / "0").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="is missing, and the metadata name it"):
        read()
    (release / "metadata" / "0.npy").write_text("imgs/0 sample_0.png\n")
    with pytest.raises(ValueError, match="row 1: folder, name, number and a label"):
        read()
