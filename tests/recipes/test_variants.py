from __future__ import annotations

from pathlib import Path

import pytest
from tests.tasks.variant_files import rows, write_genome, write_vcf

from chordmixer.data.variants import VariantColumns
from chordmixer.recipes import RECIPES, load
from chordmixer.recipes.variants import GTEX_WINDOW, MPRA_WINDOW, gtex, is_gtex, mpra, variants
from chordmixer.tasks.variants import VariantsConfig


def test_an_experiment_from_the_data(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    data = VariantsConfig(
        (str(write_vcf(tmp_path / "calls.vcf", rows())),),
        str(write_genome(tmp_path)),
        64,
        VariantColumns(label="CLASS"),
    )
    experiment, messages = variants(data), log.messages
    assert load(RECIPES["variants"]) is variants and experiment.build_task().max_length == 64
    model = experiment.model
    assert (model.head, model.network.max_length, model.network.prenorm, model.outputs) == ("variant", 64, "layer", 2)
    assert messages[0] == "288 records read: 288 used, 0 rejected"
    assert messages[-1].startswith("split (grouped, whole loci): ") and "in 9 loci for training" in messages[-1]


def tissues(folder: Path, names: tuple[str, ...]) -> str:
    for name in names:
        hits = "_pos" in name
        write_vcf(folder / name, [line for line in rows() if ("hit" in line) == hits])
    return str(folder)


def test_tissues_by_the_names_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "vcfs"
    folder.mkdir()
    path = tissues(folder, ("Skin_pos.vcf", "Skin_neg.vcf", "Whole_Blood_pos.vcf", "Whole_Blood_neg.vcf"))
    task = gtex(VariantsConfig((path,), str(write_genome(tmp_path)))).build_task()
    assert task.config.window == GTEX_WINDOW and task.data.contexts == ["Skin", "Whole_Blood"]  # type: ignore[attr-defined]
    assert task.target.labels == ["neg", "pos"] and task.account.used == 2 * 288  # type: ignore[attr-defined]
    parts = [{task.records(part).name(i) for i in range(len(task.records(part)))} for part in ("training", "test")]  # type: ignore[arg-type]
    assert not parts[0] & parts[1], "a variant in two tissues is a single locus"
    narrow = gtex(VariantsConfig((path,), str(tmp_path / "genome.fa"), window=64))
    assert narrow.data.window == 64


def test_a_tissue_with_one_class(tmp_path: Path) -> None:
    path = tissues(tmp_path, ("Skin_pos.vcf", "Skin_neg.vcf", "Lung_neg.vcf"))
    with pytest.raises(
        ValueError, match=r"Lung_neg\.vcf has no Lung_pos\.vcf beside it: each tissue needs both; add"
    ):
        gtex(VariantsConfig((path,), "genome.fa"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["a_pos.vcf", "a_neg.vcf.gz"], True), (["a_pos.vcf", "b.vcf"], False), (["a_pos.vcf"], False)],
)
def test_the_layout_is_told_by_names(names: list[str], expected: bool) -> None:
    assert is_gtex([Path(name) for name in names]) == expected


def test_saturation_mutagenesis(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r" has no variants\.tsv\.gz and elements\.fa: give the folder of a saturation"
    ):
        mpra(tmp_path)
    write_genome(tmp_path).rename(tmp_path / "elements.fa")
    lines = ["element\tpos\tref\talt\tcoefficient\tsignificant\n"]
    for number, row in enumerate(rows()):
        contig, position, _, ref, alt, *_ = row.split("\t")
        answer = "" if number % 10 == 0 else "yes" if alt in "AC" else "no"
        lines.append(f"{contig}\t{position}\t{ref}\t{alt}\t0.1\t{answer}\n")
    (tmp_path / "variants.tsv.gz").write_text("".join(lines))
    task = mpra(tmp_path).build_task()
    assert task.account.rejected == {"without a label": 29} and task.target.labels == ["no", "yes"]  # type: ignore[attr-defined]
    assert task.max_length == MPRA_WINDOW
