from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordmixer.views import drawing
from chordmixer.views.drawing import strongest


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


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40), st.integers(1, 12))
def test_thinning_keeps_the_strongest(numbers: list[int], most: int) -> None:
    kept = strongest(np.array(numbers), most)
    assert len(kept) <= most and set(kept.tolist()) <= {*numbers, 0}
    assert np.abs(kept).max() == max(map(abs, numbers))
