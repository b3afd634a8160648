from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import loci as module
from chordmixer.data.alleles import Window
from chordmixer.data.loci import joined, loci, near_copies
from chordmixer.data.reference import Reference


def window(contig: str, start: int, stop: int) -> Window:
    return Window(contig, start, stop, 0, "A", "C")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=12))
def test_windows_of_two_loci_share_no_base(given: list[tuple[str, int, int]]) -> None:
    windows = [window(contig, start, start + length) for contig, start, length in given]
    numbers = loci(windows)
    bases = [{(w.contig, base) for base in range(w.start, w.stop)} for w in windows]
    together = joined(*([0 if b & own else None for b in bases] for own in bases))
    assert np.array_equal(numbers[:, None] == numbers, together[:, None] == together)


def test_copies_are_one_locus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    one, other = ("".join(chance.choices("ACGT", k=300)) for _ in range(2))
    turned = one[::-1].translate(str.maketrans("ACGT", "TGCA"))
    contigs = {"one": one, "other": other, "turned": turned, "shifted": one[20:] + other[:5]}
    (tmp_path / "genome.fa").write_text("".join(f">{name}\n{letters}\n" for name, letters in contigs.items()))
    reference = Reference(tmp_path / "genome.fa")
    windows = [window(name, start, start + 200) for name in contigs for start in (0, 80)]
    numbers = near_copies(windows, loci(windows), reference)
    assert len({*numbers[[0, 1, 4, 5, 6, 7]]}) == 1 and numbers[2] == numbers[3] != numbers[0]
    monkeypatch.setattr(module, "COMPARED", 100)
    assert len({*near_copies(windows, loci(windows), reference)}) == 4, "too much to compare: as they were"


def test_groupings_are_joined() -> None:
    assert joined([0, 1, 2, 3], ["x", "y", "y", None], [None, None, 5, 5]).tolist() == [0, 1, 1, 1]
