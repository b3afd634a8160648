from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.trained_runs import make_run

from chordmixer.data.columns import Columns
from chordmixer.data.reading import Reading
from chordmixer.training.prediction import predict
from chordmixer.training.rows import unlabelled


def test_only_ids_and_sequences_are_read() -> None:
    given = Reading(
        "genbank", Columns(id="a", sequence="b", label="c"), "files", "files", "CDS", "genus", on_empty="reject"
    )
    assert unlabelled(given) == Reading(
        "genbank", Columns("a", "b", *["-"] * 5), features="CDS", on_empty="reject", on_unmatched="error"
    )


def test_empty_records_are_no_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "x.fa").write_text(">a\nACGT\n>b\n>c\nACG\n")
    with pytest.raises(ValueError, match="record 'b' is empty"):
        predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv")
    account = predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv", reading=Reading(on_empty="reject"))
    assert (account.read, account.used, dict(account.rejected)) == (3, 2, {"empty": 1})
    assert len((tmp_path / "y.tsv").read_text().splitlines()) == 3
