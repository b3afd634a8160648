from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from chordmixer.data import Loader, TokenSampler
from chordmixer.paper.lra.image import BATCHES, CLASSES, Image, ImageConfig, grey, layout, read_binary

SHARED = Path(__file__).parents[4] / "shared" / "data" / "cifar10.parquet"
CURE = r"unpack cifar-10-binary\.tar\.gz of cs\.toronto\.edu/~kriz/cifar\.html and give its folder as data\.source"


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Of random colours, classes in turn."""
    colours = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return colours, np.arange(count) % 10


TRAINING, TEST = pictures(50, seed=0), pictures(10, seed=1)


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    folder = tmp_path / "any name"
    folder.mkdir()
    for names, (colours, labels) in zip(BATCHES.values(), (TRAINING, TEST), strict=True):
        planes = colours.transpose(0, 3, 1, 2).reshape(len(colours), -1)
        rows = np.concatenate([labels[:, None].astype(np.uint8), planes], axis=1)
        for name, own in zip(names, np.split(rows, len(names)), strict=True):
            (folder / name).write_bytes(own.tobytes())
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for split, (colours, labels) in {"train": TRAINING, "test": TEST}.items():
        for number, (picture, label) in enumerate(zip(colours, labels, strict=True)):
            path = tmp_path / "pictures" / split / CLASSES[label] / f"{number:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(picture).save(path)
    return tmp_path / "pictures"


def columns(kind: str, as_struct: bool, numbers: bool) -> dict[str, list[Any]]:
    data, labels = [], []
    for picture, label in zip(*map(np.concatenate, zip(TRAINING, TEST, strict=True)), strict=True):
        file = BytesIO()
        PIL.Image.fromarray(picture).save(file, kind)
        data.append({"bytes": file.getvalue(), "path": "x"} if as_struct else file.getvalue())
        labels.append(int(label) if numbers else CLASSES[label])
    return {"img" if as_struct else kind: data, "label": labels, "split": ["train"] * 50 + ["test"] * 10}


def write(path: Path, table: dict[str, list[Any]]) -> Path:
    parquet.write_table(pa.table(table), path)
    return path


def task(source: Path | None, cache: Path, validation: int = 10) -> Image:
    return Image(ImageConfig(source=source and str(source), validation=validation, cache=str(cache)))


def as_read(source: Path, cache: Path) -> dict[bytes, int]:
    """The grey pictures of all parts with their classes."""
    sets = [task(source, cache).records(split) for split in ("training", "validation", "test")]
    assert [len(records) for records in sets] == [40, 10, 10]
    return {
        np.rint(records[i].values.numpy() * 255).astype(np.uint8).tobytes(): int(records[i].target)
        for records in sets
        for i in range(len(records))
    }


def test_every_layout_holds_the_same_pictures(binary: Path, folders: Path, tmp_path: Path) -> None:
    known = {
        grey(picture).tobytes(): int(label)
        for colours, labels in (TRAINING, TEST)
        for picture, label in zip(colours, labels, strict=True)
    }
    assert len(known) == 60
    plain = write(tmp_path / "plain.parquet", columns("png", as_struct=False, numbers=False))
    hub = write(tmp_path / "hub", columns("png", as_struct=True, numbers=True))
    for number, source in enumerate((binary, folders, plain, hub)):
        assert as_read(source, tmp_path / f"cache{number}") == known
    (tmp_path / "around").mkdir()
    binary.rename(tmp_path / "around" / "cifar-10-batches-bin")
    assert as_read(tmp_path / "around", tmp_path / "cache") == known


def test_records(binary: Path, tmp_path: Path) -> None:
    image = task(binary, tmp_path / "cache")
    assert (image.embedding, image.inputs, image.max_length, image.target.outputs) == ("real", 1, 1024, 10)
    assert image.target.headline == "accuracy" and image.documents() == {}
    records = image.records("test")
    assert records.lengths == [1024] * 10 and records.targets.tolist() == list(range(10)) and records.cut == 0
    values = records[3].values
    assert values.dtype == torch.float32 and values.shape == (1024, 1)
    assert np.array_equal(np.rint(values.numpy() * 255).reshape(32, 32), grey(TEST[0][3]))
    held = image.records("validation")
    assert np.bincount(held.targets).tolist() == [1] * 10
    other = Image(replace(image.config, seed=1)).records("validation")
    assert other.folder == held.folder and set(other.indices) != set(held.indices)


def test_training_pictures_are_mirrored_and_moved(binary: Path, tmp_path: Path) -> None:
    plain = task(binary, tmp_path / "cache")
    moving = Image(replace(plain.config, augment=True))
    records, same = moving.records("training"), plain.records("training")
    chosen = list(range(40))

    def seen(epoch: int) -> np.ndarray:
        loader = Loader(records, TokenSampler(records.lengths, 40 * 1024, 40), drawing=True)
        batch = next(loader.epoch(epoch))
        assert torch.equal(batch.targets, same.targets[batch.indices])
        pixels = np.empty((40, 32, 32), dtype=np.int64)
        pixels[batch.indices] = np.rint(batch.inputs.values.numpy() * 255).reshape(40, 32, 32)
        return pixels

    first, second = seen(0), seen(1)
    found = set()
    for moved, number in zip(first, chosen, strict=True):
        picture = np.pad(same.bytes(number).reshape(32, 32), 4).astype(np.int64)
        ways = {
            (down, right, mirrored)
            for down in range(9)
            for right in range(9)
            for mirrored in (False, True)
            if np.array_equal(picture[down : down + 32, right : right + 32][:, :: -1 if mirrored else 1], moved)
        }
        assert len(ways) == 1
        found |= ways
    assert len(found) > 30 and {mirrored for *_, mirrored in found} == {False, True}
    assert np.array_equal(first, seen(0)) and (first != second).any(axis=(1, 2)).all()
    alone = records.drawn_batch([7], torch.device("cpu"), 0)[0].values
    assert np.array_equal(np.rint(alone.numpy() * 255).reshape(32, 32), first[7])
    assert torch.equal(records[7].values, same[7].values)
    assert type(moving.records("test")) is type(same) is type(moving.records("validation"))


def test_jpeg_is_nearly_the_same(binary: Path, tmp_path: Path) -> None:
    smooth = np.broadcast_to(np.linspace(0, 250, 32, dtype=np.uint8)[:, None, None], (32, 32, 3))
    file = BytesIO()
    PIL.Image.fromarray(smooth).save(file, "jpeg")
    table = columns("jpeg", as_struct=False, numbers=False)
    table["jpeg"][50] = file.getvalue()
    read = task(write(tmp_path / "x", table), tmp_path / "cache").records("test")[0].values.reshape(32, 32) * 255
    assert np.abs(read.numpy() - smooth[..., 0]).max() < 6


@given(st.lists(st.tuples(*[st.integers(0, 255)] * 3), min_size=1))
def test_grey_is_what_tensorflow_gives(colours: list[tuple[int, int, int]]) -> None:
    """Its `convert_image_dtype` multiplies by the largest value and a half, and truncates."""
    given = np.array(colours, dtype=np.uint8)
    exact = given.astype(np.float64) / 255 @ [0.2989, 0.5870, 0.1140] * 255.5
    clear = np.abs(exact - np.rint(exact)) > 1e-6
    assert np.array_equal(grey(given)[clear], np.floor(exact).astype(np.uint8)[clear])
    same = np.repeat(given[:, :1], 3, axis=1)
    assert np.array_equal(grey(same), same[:, 0])


# --- What is refused ---


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no pictures are named: Image is grey CIFAR-10; {CURE}"):
        task(None, tmp_path).records("training")
    with pytest.raises(ValueError, match=f"nowhere does not exist: Image is grey CIFAR-10; {CURE}"):
        layout(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=f"holds none of its layouts: CIFAR-10 has data_batch_1.bin, .*; {CURE}"):
        layout(str(tmp_path))
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x03.")
    with pytest.raises(ValueError, match="holds Python's pickles, which are never loaded"):
        layout(str(tmp_path))
    with pytest.raises(ValueError, match="validation=0 is not a number of pictures: give 1 or more"):
        ImageConfig(validation=0)


def test_half_of_the_binary_files(binary: Path, tmp_path: Path) -> None:
    path = binary / "data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        ValueError, match=rf"data_batch_3.bin has 30,729 bytes, not 3,073 a picture: it is cut; {CURE}"
    ):
        task(binary, tmp_path / "cache").records("training")
    path.write_bytes(whole[:-3073])
    with pytest.raises(ValueError, match=r"any name has 4 training records of truck and 5 of airplane: .* not whole"):
        task(binary, tmp_path / "cache").records("training")
    path.write_bytes(b"\x0b" + whole[1:])
    with pytest.raises(ValueError, match=r"data_batch_3.bin, picture 1: class 11 is above 9, it is not CIFAR-10"):
        read_binary(path)
    path.unlink()
    with pytest.raises(ValueError, match=f"data_batch_3.bin is missing: five files are for training .*; {CURE}"):
        layout(str(binary))


def test_folders_that_are_not_whole(folders: Path, tmp_path: Path) -> None:
    def read() -> None:
        task(folders, tmp_path / "cache").records("test")

    path = folders / "train" / "cat" / "0013.png"
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(ValueError, match=r"0013.png is not a whole JPEG or PNG \(.*\): use another copy"):
        read()
    PIL.Image.new("RGB", (28, 30)).save(path)
    with pytest.raises(ValueError, match=r"0013.png has 28 x 30 pixels, not 32 x 32"):
        read()
    path.unlink()
    with pytest.raises(ValueError, match="pictures has 4 training records of cat and 5 of airplane"):
        read()
    path.write_bytes(whole)
    (folders / "test").rename(folders / "tests")
    with pytest.raises(ValueError, match="test is missing: pictures lie in train/CLASS and test/CLASS"):
        read()
    (folders / "tests" / "cat").rename(folders / "tests" / "tiger")
    (folders / "tests").rename(folders / "test")
    with pytest.raises(ValueError, match=r"0003.png: class 'tiger' is none of airplane, automobile"):
        read()
    for path in (folders / "test").glob("*/*.png"):
        path.rename(folders / "test" / path.name)
        if not [*path.parent.iterdir()]:
            path.parent.rmdir()
    with pytest.raises(ValueError, match=r"test/0000.png: class 'test' is none of airplane"):
        read()


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("label", "tiger", r"row 5: class 'tiger' is none of"),
        ("split", "validation", "row 5: split 'validation' is not train or test"),
        ("png", b"rubbish", r"row 5 is not a whole JPEG or PNG"),
        ("png", None, "row 5 is not a whole JPEG or PNG"),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, name: str, value: Any, match: str) -> None:
    table = columns("png", as_struct=False, numbers=False)
    table[name][4] = value
    with pytest.raises(ValueError, match=match):
        task(write(tmp_path / "x", table), tmp_path / "cache").records("training")


def test_files_that_are_no_such_table(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {"img": [b"x"], "label": ["cat"]})
    with pytest.raises(ValueError, match="has the columns img, label: label, split and one of jpeg, png, image, img"):
        task(path, tmp_path / "cache").records("training")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=rf"x cannot be read as Parquet \(.*\): use another copy, or {CURE}"):
        task(path, tmp_path / "cache").records("training")


@pytest.mark.skipif(not SHARED.is_file(), reason="needs ../shared/data/cifar10.parquet beside the repository")
def test_the_true_pictures(tmp_path: Path) -> None:
    """Upright: the sky is above, so ships and aeroplanes are brighter in the upper half."""
    whole = parquet.read_table(SHARED)
    place = np.arange(len(whole))
    few = whole.take(place[np.concatenate([place[start : start + 10] for start in range(0, len(whole), 1000)])])
    parquet.write_table(few, tmp_path / "few.parquet")
    records = task(tmp_path / "few.parquet", tmp_path / "cache", validation=50).records("training")
    assert len(records) == 450
    upper = [records[i].values.reshape(2, 512).mean(dim=1) for i in range(450) if records.targets[i] in (0, 8)]
    assert torch.stack(upper).mean(dim=0).diff() < -0.02
