"""`sample`; that its files can be trained on stands in tests/test_readme.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Command = Callable[..., tuple[int, str, str]]


def test_files_and_what_to_do_with_them(chordmixer: Command, tmp_path: Path) -> None:
    code, said, errors = chordmixer("sample", "series", "--out", tmp_path / "my waves")
    assert (code, errors) == (0, "") and said.startswith("synthetic: A CSV file of noisy waves")
    assert f"Next:  cd '{tmp_path / 'my waves'}'\n       chordmixer train series.csv --out RUN --epochs" in said
    assert sorted(path.name for path in (tmp_path / "my waves").iterdir()) == ["new.csv", "series.csv"]
    code, said, errors = chordmixer("sample", "worm", "--out", tmp_path)
    assert (code, said, errors.count("\n")) == (2, "", 1) and "'worm' is not a sample" in errors
