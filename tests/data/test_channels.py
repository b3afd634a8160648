from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chordmixer.data import channels
from chordmixer.data.alphabets import Dna
from chordmixer.data.channels import channels_of
from chordmixer.data.entries import Account, Entry
from chordmixer.data.storing import write_store
from chordmixer.data.tokenizers import Numbers


@pytest.mark.parametrize("scaled", [True, False])
def test_ranges_are_in_the_units_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaled: bool) -> None:
    monkeypatch.setattr(channels, "PIECE", 7)
    series = [np.random.default_rng(i).normal([100.0, -3.0], [20.0, 0.5], (n, 2)) for i, n in enumerate((5, 40))]
    tokenizer = Numbers.of(series) if scaled else Numbers(2)
    store = write_store([Entry("a", s, "x") for s in series], tokenizer, tmp_path / "store", Account())
    found, rows = channels_of(store), np.concatenate(series)
    assert found is not None and (found.missing, found.numbers) == (0, 90)
    for own, expected in (
        (found.least, rows.min(axis=0)),
        (found.mean, rows.mean(axis=0)),
        (found.deviation, rows.std(axis=0)),
        (found.most, rows.max(axis=0)),
    ):
        np.testing.assert_allclose(own, expected, rtol=1e-4)


def test_missing_numbers_are_counted_and_letters_have_no_channels(tmp_path: Path) -> None:
    series = np.array([1.0, np.nan, 3.0, np.inf])
    store = write_store([Entry("a", series, "x")], Numbers.of([series], "unknown"), tmp_path / "numbers", Account())
    found = channels_of(store)
    assert found is not None and (found.missing, found.numbers, found.least, found.most) == (2, 4, [1.0], [3.0])
    assert channels_of(write_store([Entry("a", b"ACGT", "x")], Dna(), tmp_path / "dna", Account())) is None
