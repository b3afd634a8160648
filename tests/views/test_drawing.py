from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer.views import drawing


def test_a_figure_is_a_file_and_gone(tmp_path: Path) -> None:
    pyplot = drawing.pyplot()
    before = pyplot.get_fignums()
    figure, axes = pyplot.subplots(figsize=(2, 1))
    axes.plot([0, 1])
    path = drawing.save(figure, tmp_path / "line.png", dpi=50)
    assert path.read_bytes().startswith(b"\x89PNG") and pyplot.get_fignums() == before
    assert [p.name for p in tmp_path.iterdir()] == ["line.png"]


def test_no_window_is_opened() -> None:
    assert drawing.pyplot().get_backend().lower() == "agg"


def test_what_cannot_be_drawn_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        drawing.save(object(), tmp_path / "line.png")
    assert not list(tmp_path.iterdir())
