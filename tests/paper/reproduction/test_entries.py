"""What has to be given, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.entries import DataNeeded, find

FILES = DataNeeded(needs="two files", get="a friend has them", setting="files", least=2, several=True)


def test_enough_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.fa"
    path.touch()
    FILES.check("pair", [str(path), str(path)])
    DataNeeded().check("made", [])
    DataNeeded(setting="folder").check("made", [str(tmp_path)])


@pytest.mark.parametrize(
    ("data", "paths", "message"),
    [
        (
            FILES,
            [],
            "pair was given no data and needs two files: a friend has them; then add --data PATH --data PATH to",
        ),
        (FILES, ["."], "pair was given 1 of 2 paths and needs two files: a friend has them; then add --data PATH"),
        (FILES, [".", "gone.fa"], "--data gone.fa does not exist: pair needs two files; a friend has them"),
        (DataNeeded(), ["."], "pair makes its own data and was given .: leave --data out"),
        (DataNeeded(setting="folder"), [".", "."], "pair takes one --data and was given 2: give one folder"),
        (DataNeeded(setting="folder"), ["gone"], "--data gone does not exist: give a path that is there"),
        (DataNeeded("one file", "", "source"), [".", "."], "pair takes one --data and was given 2: give one file"),
    ],
)
def test_what_is_refused(data: DataNeeded, paths: list[str], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        data.check("pair", paths)
    assert str(refused.value).startswith(message)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"'adding200' is not in the list .* did you mean adding-200\?"):
        find("adding200", ENTRIES)
    with pytest.raises(
        ValueError, match=r"'xyz' is not in the list .*: chordmixer reproduce alone lists what there is"
    ):
        find("xyz", ENTRIES)
