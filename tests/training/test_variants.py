from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from tests.tasks.variant_files import HEAD, rows, write_genome, write_vcf

from chordmixer import Model, files
from chordmixer.data.variants import VariantColumns
from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.tasks.variants import Variants, VariantsConfig
from chordmixer.training import Experiment
from chordmixer.training.labels import OutputLabels
from chordmixer.training.variants import ScoringConfig, score

TISSUES = VariantColumns(label="CLASS", context="T")
CPU_CONFIG = ScoringConfig(device="cpu")


def write_run(
    folder: Path, columns: VariantColumns, target: Any = None, changes: dict[str, Any] | None = None
) -> Path:
    """A run of random weights on the small genome's variants."""
    reference, calls = write_genome(folder), write_vcf(folder / "calls.vcf", rows())
    task = Variants(VariantsConfig((str(calls),), str(reference), 64, columns))
    target = target or task.target
    network = ChordMixerConfig(max_length=128, track_size=2, hidden=8)
    torch.manual_seed(0)
    model = Model(ModelConfig(task.inputs, target.outputs, head="variant", network=network))
    torch.nn.init.normal_(model.head.context.weight)  # type: ignore[union-attr, operator, arg-type]
    run = folder / "run"
    model.save_pretrained(run)
    Experiment("variants", task.config, model.config).save(run)
    documents = task.documents()
    documents["data.json"] |= changes or {}
    for name, content in documents.items():
        files.write_json(run / name, content)
    OutputLabels(target, "dna").save(run)
    files.write_manifest(run, ["config.json", "labels.json", *documents])
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("plain"), VariantColumns(label="CLASS"))


@pytest.fixture(scope="module")
def tissues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("tissues"), TISSUES)


def info(line: bytes) -> list[str]:
    """The scores of a line."""
    return line.decode().rstrip().split("\t")[7].split("CHORDMIXER=")[1].split(",")


def table_rows(path: Path) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return result


def scored(run: Path, lines: Sequence[str], out: Path, config: ScoringConfig = CPU_CONFIG, **settings: Any) -> Path:
    """Score a VCF file with these lines; return the path of the output."""
    path = write_vcf(out.parent / "new.vcf", list(lines))
    score(run, path, run.parent / "genome.fa", out, config, **settings)
    return out


def test_a_vcf_comes_back_with_scores_and_is_else_the_same(run: Path, tmp_path: Path) -> None:
    symbolic = "chr2\t30\t.\tA\t<DEL>\t.\t.\tEND=40\n"
    ref = rows()[0].split("\t")[3]
    multiallelic = f"chr1\t10\tx\t{ref}\t<INS>,{ref}AC\t.\t.\t.\n"
    lines = [rows()[5], symbolic, rows()[0], multiallelic, *rows()[6:90]]  # not sorted
    written = scored(run, lines, tmp_path / "scored.vcf").read_bytes().splitlines(keepends=True)
    [info_header] = [line for line in written if line.startswith(b"##INFO=<ID=CHORDMIXER,Number=A,Type=Float")]
    assert b"probability of miss" in info_header and written[written.index(info_header) + 1].startswith(b"#CHROM")
    assert written[4] == symbolic.encode(), "a line without a score is unchanged"
    assert info(written[6])[0] == "." and 0 < float(info(written[6])[1]) < 1
    unscored = b"".join(line.partition(b";CHORDMIXER")[0].rstrip() + b"\n" for line in written if line != info_header)
    restored = unscored.replace(b"CHORDMIXER=" + ",".join(info(written[6])).encode(), b".")
    assert restored == (HEAD + "".join(lines)).encode()


def test_gzip_stays_gzip(run: Path, tmp_path: Path) -> None:
    path, genome = tmp_path / "new.vcf.gz", run.parent / "genome.fa"
    path.write_bytes(gzip.compress((HEAD + rows()[0]).encode()))
    score(run, path, genome, tmp_path / "scored.vcf.gz", CPU_CONFIG)
    assert len(info(gzip.decompress((tmp_path / "scored.vcf.gz").read_bytes()).splitlines()[-1])) == 1


def test_a_table_has_the_same_scores_in_the_same_order(run: Path, tmp_path: Path) -> None:
    lines = rows()[40::-1]
    table = table_rows(scored(run, lines, tmp_path / "scores.parquet"))
    written = scored(run, lines, tmp_path / "scored.vcf").read_bytes().splitlines()[3:]
    assert [row["miss"] for row in table] == pytest.approx([float(info(line)[0]) for line in written], abs=1e-6)
    assert [f"{row['contig']}\t{row['position']}\t" for row in table] == [
        "\t".join(x.split("\t")[:2]) + "\t" for x in lines
    ]
    assert list(table[0]) == ["contig", "position", "ref", "alt", "context", "class", "probability", "hit", "miss"]


def test_a_score_does_not_depend_on_its_neighbours(run: Path, tmp_path: Path) -> None:
    batched = table_rows(scored(run, rows()[:30], tmp_path / "many.parquet"))
    single = table_rows(scored(run, rows()[:30], tmp_path / "alone.parquet", replace(CPU_CONFIG, batch_tokens=1)))
    assert [row["miss"] for row in batched] == pytest.approx([row["miss"] for row in single], abs=2e-6)


def test_records_in_are_scored_or_rejected(run: Path, tmp_path: Path) -> None:
    path = write_vcf(
        tmp_path / "new.vcf", [*rows()[:3], "chr1\t5\t.\tA\t*\t.\t.\t.\n", "chr1\t999\t.\tA\tC\t.\t.\t.\n"]
    )
    config, genome = replace(CPU_CONFIG, on_mismatch="reject"), run.parent / "genome.fa"
    for name in ("scores.tsv", "scored.vcf"):
        account = score(run, path, genome, tmp_path / name, config)
        assert (account.read, account.used, account.rejected.total()) == (5, 3, 2)
    assert (tmp_path / "scores.tsv").read_text().count("\n") == 4
    with pytest.raises(ValueError, match=r"new\.vcf, line 7: chr1:999:A>C does not fit the reference"):
        score(run, path, genome, tmp_path / "again.vcf", CPU_CONFIG)
    assert not (tmp_path / "again.vcf").exists() and not [*tmp_path.glob(".writing*")]


def test_contexts(tissues: Path, tmp_path: Path) -> None:
    by_file = table_rows(scored(tissues, rows()[:2], tmp_path / "a.parquet", replace(CPU_CONFIG, columns=TISSUES)))
    assert [row["context"] for row in by_file] == ["liver", "skin"]
    by_hand = [
        table_rows(scored(tissues, rows()[:2], tmp_path / f"{name}.parquet", replace(CPU_CONFIG, context=name)))
        for name in ("liver", "skin")
    ]
    assert by_file == [by_hand[0][0], by_hand[1][1]] and by_hand[0][0]["miss"] != by_hand[1][0]["miss"]
    with pytest.raises(
        ValueError, match=r"line 3: context None is not one of those .*, liver, skin: name one of them"
    ):
        scored(tissues, rows()[:2], tmp_path / "none.vcf")


def test_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path, VariantColumns(label="CLASS"), Regression(mean=100.0, scale=2.0))
    [line] = scored(run, rows()[:1], tmp_path / "scored.vcf").read_bytes().splitlines()[3:]
    [row] = table_rows(scored(run, rows()[:1], tmp_path / "scores.parquet"))
    assert 80 < row["value"] < 120 and float(info(line)[0]) == pytest.approx(row["value"], rel=1e-5)


def test_more_than_two_classes_need_a_table(tmp_path: Path) -> None:
    run = write_run(tmp_path, VariantColumns(label="CLASS"), Classification.of_counts(["alt", "b", "c"], [1, 1, 1]))
    with pytest.raises(
        ValueError, match=r"^INFO takes one number an allele, and this run tells 3 classes apart: name"
    ):
        scored(run, rows()[:1], tmp_path / "scored.vcf")
    [row] = table_rows(scored(run, rows()[:1], tmp_path / "scores.parquet"))
    assert row["p(alt)"] + row["b"] + row["c"] == pytest.approx(1, abs=1e-5)


def test_an_output_is_not_replaced_unasked(run: Path, tmp_path: Path) -> None:
    out = scored(run, rows()[:1], tmp_path / "scored.vcf")
    with pytest.raises(
        ValueError, match=r"scored\.vcf is there already: give another name with -o, or replace it wit"
    ):
        scored(run, rows()[:1], out)
    scored(run, rows()[:2], out, force=True)
    assert out.read_text().count("\n") == 5
    with pytest.raises(ValueError, match=r"scored\.vcf has CHORDMIXER in INFO already|line 4 has CHORDMIXER in INFO"):
        score(run, out, run.parent / "genome.fa", tmp_path / "twice.vcf", CPU_CONFIG)
    assert not (tmp_path / "twice.vcf").exists()


def test_mistakes(run: Path, tmp_path: Path) -> None:
    table, genome = tmp_path / "table.tsv", run.parent / "genome.fa"
    table.write_text("chrom\tpos\tref\talt\nchr1\t5\tA\tC\n")
    with pytest.raises(
        ValueError, match=r"out\.vcf is written whole, from a VCF file: leave out --resume, or name a "
    ):
        score(run, table, genome, tmp_path / "out.vcf", CPU_CONFIG)
    other_run = tmp_path / "other"
    other_run.mkdir()
    for path in run.iterdir():
        (other_run / path.name).write_bytes(path.read_bytes())
    files.write_json(other_run / "config.json", files.read_json(run / "config.json") | {"task": "files"})
    files.write_manifest(other_run, ["config.json"])
    with pytest.raises(ValueError, match=r"other is a run of files: give one of chordmixer variants$"):
        score(other_run, table, genome, tmp_path / "out.tsv", CPU_CONFIG)


def test_an_answer_that_is_not_finite(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "forward", lambda self, x: torch.full((len(x) // 2, 2), torch.nan))
    with pytest.raises(
        ValueError, match=r"new\.vcf, line 3 .*the model's answer is NaN or infinite: .* train again$"
    ):
        scored(run, rows()[:1], tmp_path / "scored.vcf")


def test_a_table_can_be_resumed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    expected = scored(run, rows(), tmp_path / "whole.tsv", replace(CPU_CONFIG, batch_tokens=512)).read_bytes()
    monkeypatch.setattr("chordmixer.training.output_files.SECONDS", 0.0)
    forward, calls = Model.forward, [0]

    def fail(self: Model, x: Any) -> Any:
        calls[0] += 1
        if calls[0] == 20:
            raise KeyboardInterrupt
        return forward(self, x)

    monkeypatch.setattr(Model, "forward", fail)
    with pytest.raises(KeyboardInterrupt):
        scored(run, rows(), tmp_path / "part.tsv", replace(CPU_CONFIG, batch_tokens=512))
    assert not (tmp_path / "part.tsv").exists()
    resumed = scored(run, rows(), tmp_path / "part.tsv", replace(CPU_CONFIG, batch_tokens=512), resume=True)
    assert resumed.read_bytes() == expected and calls[0] < 2 * 288 // 4
    log.clear()
    score(run, tmp_path / "new.vcf", run.parent / "genome.fa", resumed, CPU_CONFIG, resume=True)
    assert log.messages == [f"{resumed} is whole already: nothing is left to do"]
