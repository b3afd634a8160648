from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tasks.variant_files import HEAD, rows, write_genome, write_vcf

from chordmixer import files
from chordmixer.recipes import batches

Command = Callable[..., tuple[int, str, str]]
PAGE = Path(__file__).parents[2] / "docs" / "variants.md"
SMALL = ("--set", "training.device=cpu", "--set", "model.network.track_size=4", "--set", "model.network.hidden=16")


def test_learning_and_scoring(chordmixer: Command, tmp_path: Path) -> None:
    genome, calls, run = write_genome(tmp_path), write_vcf(tmp_path / "calls.vcf", rows()), tmp_path / "run"
    options = ("--reference", genome, "--column", "label=CLASS", "--window", 64, "--set", "training.epochs=3", *SMALL)
    code, output, errors = chordmixer("variants", calls, *options, "--out", run)
    assert code == 0, errors
    assert "288 records read: 288 used, 0 rejected" in output and "the model: ROC-AUC 1.000" in output
    assert "kind of change: ROC-AUC 1.000" in output and (run / "report.html").exists()
    before = (run / "model.safetensors").read_bytes()
    assert chordmixer("train", "--resume", run)[0] == 0 and (run / "model.safetensors").read_bytes() == before
    assert chordmixer("variants", calls, *options, "--out", run, "--resume", "--no-baselines")[0] == 0
    assert chordmixer("evaluate", run)[0] == 0
    code, _, errors = chordmixer("variants", calls, "--reference", genome, "--run", run, "-o", tmp_path / "s.vcf")
    assert code == 0 and "288 records read: 288 used, 0 rejected" in errors
    scores = re.findall(r"CLASS=(\w+);.*CHORDMIXER=(\S+)", (tmp_path / "s.vcf").read_text())
    assert max(float(p) for label, p in scores if label == "hit") < min(
        float(p) for label, p in scores if label == "miss"
    )
    transfer_options = ("--from", run, "--freeze", "--no-baselines", "--out", tmp_path / "second")
    code, output, errors = chordmixer("variants", calls, *options, *transfer_options)
    assert code == 0, errors
    assert (
        files.read_json(tmp_path / "second" / "config.json")["training"]["freeze"] and "kind of change" not in output
    )
    code, _, errors = chordmixer("predict", run, genome, "--over-length", "windows")
    assert code == 2 and "use chordmixer variants" in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run", "run", "--window", "9"], "--run takes one file and the run's own settings: leave out the options"),
        ([], "without --run a run is trained: name its folder with --out RUN, and leave out options of use"),
        (["--out", "x", "--context", "liver"], "without --run a run is trained"),
        (["--out", "x", "--column", "label"], "--column label is not ROLE=NAME: write it as --column label=NAME"),
        (["--out", "x", "--column", "lable=A"], "--column.lable is not a setting: did you mean label?"),
        (["--out", "x", "--on-mismatch", "no"], "--on-mismatch no is not a choice: give one of error, reject"),
        (
            ["--out", "x", "--column", "label=CLASS", "--freeze"],
            "--freeze keeps the weights of a run as they are: name",
        ),
        (["--out", "x"], "no variant has a label or a number to learn"),
        (["--run", "none"], "none is not a folder: give the --out folder of a training run"),
    ],
)
def test_mistakes(chordmixer: Command, tmp_path: Path, words: list[str], message: str) -> None:
    genome, calls = write_genome(tmp_path), write_vcf(tmp_path / "calls.vcf", rows())
    code, _, errors = chordmixer("variants", calls, "--reference", genome, *words)
    assert code == 2 and errors.startswith(f"chordmixer: {message}") and errors.count("\n") == 1
    assert not Path("x").exists()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every file that the page names, and one short pass for each run."""
    lines = rows(every=40, contigs=9, length=200)
    write_genome(tmp_path, contigs=9, length=200)
    for name in ("known.vcf.gz", "new.vcf.gz"):
        (tmp_path / name).write_bytes(gzip.compress((HEAD + "".join(lines)).encode()))
    (tmp_path / "gtex").mkdir()
    for name in ("Skin_pos", "Skin_neg", "Lung_pos", "Lung_neg"):
        write_vcf(tmp_path / "gtex" / f"{name}.vcf", [line for line in lines if ("hit" in line) == ("pos" in name)])
    cells = [re.split(r"[\t;=]", line.strip()) for line in lines]
    table = "".join(
        "\t".join([c[0], c[1], c[3], c[4], c[10], ("no", "yes", "")[len(c[8]) % 3]]) + "\n" for c in cells
    )
    (tmp_path / "effects.tsv").write_text("chrom\tpos\tref\talt\tbeta\tnote\n" + table)
    (tmp_path / "mpra").mkdir()
    (tmp_path / "mpra" / "elements.fa").write_bytes((tmp_path / "genome.fa").read_bytes())
    changes = f"element\tpos\tref\talt\tbeta\tsignificant\n{table}"
    (tmp_path / "mpra" / "variants.tsv.gz").write_bytes(gzip.compress(changes.encode()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batches, "STEPS", 1)
    monkeypatch.setattr(batches, "PASSES", (1, 1))
    return tmp_path


def test_the_page(chordmixer: Command, folder: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.S)
    for line in (line for block in blocks for line in block.splitlines()):
        program, *arguments = shlex.split(line)
        code, _, errors = chordmixer(*arguments)
        assert (program, code) == ("chordmixer", 0), f"{line}: {errors}"
    assert gzip.decompress((folder / "scored.vcf.gz").read_bytes()).count(b"CHORDMIXER=") == 45
    assert files.read_json(folder / "runs" / "gtex" / "data.json")["contexts"] == ["Lung", "Skin"]
    assert (folder / "effects.parquet").exists()
