"""`predict`, `embed` and `explain`: their mistakes; the work of the first two is tested in test_train.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("command", ["predict", "embed", "explain"])
def test_a_run_that_is_not_there(chordmixer: Command, motifs: list[str], tmp_path: Path, command: str) -> None:
    suffix = "tsv" if command == "explain" else "parquet"
    code, output, errors = chordmixer(command, tmp_path / "none", motifs[0], "-o", tmp_path / f"out.{suffix}")
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert "none is not a folder: give the --out folder of a training run" in errors


def test_embed_needs_a_place(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    code, _, errors = chordmixer("embed", tmp_path, motifs[0])
    assert code == 2 and "--out" in errors


def test_explain_from_end_to_end(chordmixer: Command, planted: Path, tmp_path: Path) -> None:
    fasta, out = planted.parent / "gattaca.fa", tmp_path / "why.html"
    code, output, errors = chordmixer("explain", planted, fasta, "-o", out, "--blocks", 8)
    assert (code, output) == (0, "") and "100 more records are not shown: a page has the first 20" in errors
    assert "GATTACA" in "".join(out.read_text().split()) and "20 records read: 20 used, 0 rejected" in errors
    small = tmp_path / "small.fa"
    small.write_text("\n".join(fasta.read_text().splitlines()[:4]))
    bed = tmp_path / "why.bedgraph"
    code, _, _ = chordmixer("explain", planted, small, "-o", bed, "--class", "cattaga", "--using", "baseline")
    assert code == 0 and {line.split("\t")[0] for line in bed.read_text().splitlines()} == {"gattaca-0", "gattaca-1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--class", "cow"], "--class cow is not an answer of this run: give one of cattaga, gattaca"),
        (["--blocks", "0"], "--blocks 0 is too small: something must be hidden; give 1 or more"),
        (["--method", "magic"], "--method magic is not a choice: give one of occlusion, gradients"),
        (["--method", "gradients", "--using", "baseline"], "answers by its baseline alone, and gradients need a net"),
        (["--using", "best"], "--using best is not a choice"),
    ],
)
def test_explain_refuses_in_one_line(
    chordmixer: Command, planted: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    arguments = ["explain", planted, planted.parent / "gattaca.fa", "-o", tmp_path / "why.tsv", *options]
    code, output, errors = chordmixer(*arguments)
    assert (code, output, errors.count("\n")) == (2, "", 1) and message in errors
    assert not [*tmp_path.iterdir()]
