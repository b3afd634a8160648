from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading, read
from chordmixer.data.samples import SAMPLES, write_sample


@pytest.mark.parametrize("name", SAMPLES)
def test_the_same_bytes_each_time_and_files_that_are_read(tmp_path: Path, name: str) -> None:
    paths, repeated, different = (
        write_sample(name, tmp_path / part, seed) for part, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in repeated]
    assert paths[0].read_bytes() != different[0].read_bytes()
    for path in paths:
        entries = list(read([path], Reading(), Account()))
        assert len(entries) == (20 if path.stem == "new" else 120 if name == "dna" else 240)
        assert len({entry.id for entry in entries}) == len(entries)
        assert min(entry.length for entry in entries) >= 40
        assert all(isinstance(entry.sequence, np.ndarray) == (name == "series") for entry in entries)


def test_the_bytes_do_not_depend_on_the_machine(tmp_path: Path) -> None:
    """Nor do they depend on the version of Python; the documentation shows results of these samples."""
    paths = write_sample("dna", tmp_path)
    assert hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16] == "145963351c47a251"


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'worm' is not a sample: choose one of dna, table, series"):
        write_sample("worm", tmp_path)
    (tmp_path / "new.fa").write_text("mine")
    with pytest.raises(ValueError, match=r"new\.fa is there already: give a new folder with --out"):
        write_sample("dna", tmp_path)
    assert (tmp_path / "new.fa").read_text() == "mine" and not (tmp_path / "gattaca.fa").exists()
