from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.variant_files import rows, write_genome, write_vcf

from chordmixer.config import from_dict, to_dict
from chordmixer.data.splits import SplitConfig
from chordmixer.data.variants import Variant, VariantColumns
from chordmixer.models import heads
from chordmixer.tasks import task_class
from chordmixer.tasks import variants as module
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.tasks.variants import Variants, VariantsConfig, context_number

MPRA = Path(__file__).parents[3] / "shared" / "data" / "mpra"
LABELLED = VariantColumns(label="CLASS")


@pytest.fixture
def reference(tmp_path: Path) -> str:
    return str(write_genome(tmp_path))


def config(tmp_path: Path, reference: str, lines: list[str] | None = None, **settings: Any) -> VariantsConfig:
    path = write_vcf(tmp_path / "calls.vcf", rows() if lines is None else lines)
    options: dict[str, Any] = {"window": 64, "columns": LABELLED, **settings}
    return VariantsConfig((str(path),), reference, **options)


def test_a_task_of_pairs(tmp_path: Path, reference: str) -> None:
    task = Variants(config(tmp_path, reference))
    assert task_class("variants") is Variants and isinstance(task.target, Classification)
    assert task.target.labels == ["hit", "miss"] and (task.sequences, task.inputs, task.max_length) == (2, 5, 64)
    assert sum(len(task.records(part)) for part in task.split.parts) == len(rows()) == task.account.used
    packed, targets = task.records("test").batch([0, 1], torch.device("cpu"))
    assert len(packed) == 4 and len(targets) == 2
    assert from_dict(VariantsConfig, to_dict(task.config), "data") == task.config


def test_whole_loci_are_held_out(tmp_path: Path, reference: str) -> None:
    task = Variants(config(tmp_path, reference))
    contigs = {part: {task.data.windows[i].contig for i in indices} for part, indices in task.split.parts.items()}
    assert not contigs["training"] & contigs["test"] and not contigs["training"] & contigs["validation"]
    narrow = Variants(config(tmp_path, reference, window=12))
    assert len(np.unique(narrow.data.groups)) == len(rows()), "windows that do not overlap are separate loci"


def test_groups_are_joined_to_loci(tmp_path: Path, reference: str) -> None:
    lines = [line.strip() + f";GENE={line.split()[0] in ('chr1', 'chr2', 'chr3')}\n" for line in rows()]
    columns = VariantColumns(label="CLASS", group="GENE")
    lines = [line if "GENE=True" in line else line.replace(";GENE=False", "") for line in lines]
    task = Variants(config(tmp_path, reference, lines, columns=columns))
    assert len(np.unique(task.data.groups)) == 10
    documents = task.documents()["data.json"]
    assert documents["loci"] == 10 == sum(documents["split"]["loci"].values())


def test_a_split_that_is_given(tmp_path: Path, reference: str) -> None:
    parts = {"chr1": "test", "chr2": "validation"}
    lines = [line.strip() + f";PART={parts.get(line.split()[0], 'train')}\n" for line in rows()]
    task = Variants(config(tmp_path, reference, lines, columns=VariantColumns(label="CLASS", split="PART")))
    assert {task.data.windows[i].contig for i in task.split.test} == {"chr1"} and task.split.method == "given"


def test_numbers(tmp_path: Path, reference: str) -> None:
    task = Variants(config(tmp_path, reference, columns=VariantColumns(target="BETA")))
    assert isinstance(task.target, Regression) and task.target.scale == pytest.approx(1, abs=0.1)


def test_contexts(tmp_path: Path, reference: str) -> None:
    task = Variants(config(tmp_path, reference, columns=VariantColumns(label="CLASS", context="T")))
    assert task.data.contexts == ["liver", "skin"] == task.documents()["data.json"]["contexts"]
    positions = np.array([window.start + window.at + 1 for window in task.data.windows])
    assert np.array_equal(task.data.context, positions // 12 % 2)


def test_variants_in_are_used_or_rejected(tmp_path: Path, reference: str) -> None:
    bad = ["chr1\t5\t.\tA\t<DEL>,*\t.\t.\tCLASS=hit\n", "chr1\t9999\t.\tA\tC\t.\t.\tCLASS=hit\n"]
    unlabelled = [rows()[0].replace("CLASS=", "NONE=")]
    data = config(tmp_path, reference, bad + unlabelled + rows()[1:], on_mismatch="reject", on_unmatched="reject")
    account = Variants(data).account
    assert account.read == len(rows()) + 3 == account.used + account.rejected.total()
    assert account.rejected == {
        "a symbolic allele, such as <DEL>": 1,
        "an allele that a deletion upstream removes (*)": 1,
        "a position outside of its contig": 1,
        "without a label": 1,
    }


def test_the_order_of_a_file_does_not_matter(tmp_path: Path, reference: str) -> None:
    first = Variants(config(tmp_path, reference))
    names = {part: {first.records(part).name(i) for i in range(len(idx))} for part, idx in first.split.parts.items()}
    reordered = Variants(config(tmp_path, reference, rows()[::-1]))
    assert reordered.account.used == first.account.used and names.keys() == reordered.split.parts.keys()


def test_data_that_have_changed(tmp_path: Path, reference: str) -> None:
    original = Variants(config(tmp_path, reference)).config
    assert Variants(replace(original)).config.key == original.key
    changed = replace(config(tmp_path, reference, rows()[1:]), key=original.key)
    with pytest.raises(
        ValueError, match=r"calls\.vcf or .* is not what this run was trained on: put the same files b"
    ):
        Variants(changed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, r"^window=0 is too small: give 1 or more$"),
        ({"longest": 0}, r"^longest=0 is too small: give 1 or more$"),
        ({"split": SplitConfig("random")}, r"^split\.method='random' would split a locus: give grouped"),
        ({"split": SplitConfig("similarity")}, "would split a locus"),
    ],
)
def test_settings_with_a_fault(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VariantsConfig(**settings)


def test_files_with_a_fault(tmp_path: Path, reference: str) -> None:
    def build(lines: list[str], **settings: Any) -> None:
        Variants(config(tmp_path, reference, lines, **settings))

    with pytest.raises(
        ValueError, match=r"^no variant has a label or a number to learn: name a table's column or a k"
    ):
        build(rows(), columns=VariantColumns())
    with pytest.raises(ValueError, match=r"^1 of 288 records have no label, chr1:10:.* --on-unmatched reject$"):
        build([rows()[0].replace("CLASS=", "NONE="), *rows()[1:]])
    with pytest.raises(
        ValueError, match=r"^no variant of 1 is left: 1 records read: 0 used, 1 rejected; .*; give oth"
    ):
        build(["chr1\t5\t.\tA\t<DEL>\t.\t.\tCLASS=hit\n"])
    with pytest.raises(
        ValueError, match=r"contig '1' is not in .*genome\.fa: it has 'chr1'; rename those of one side"
    ):
        build([rows()[0].removeprefix("chr")])
    with pytest.raises(ValueError, match=r"the data have 2 groups for 3 splits: each split needs one of its own"):
        build([line for line in rows() if line.startswith(("chr1\t", "chr2\t"))])
    with pytest.raises(ValueError, match=r"none\.vcf does not exist: give a VCF file or a table of variants$"):
        Variants(VariantsConfig((str(tmp_path / "none.vcf"),), reference))
    with pytest.raises(ValueError, match=r"^no files were given: name a VCF file or a table of variants$"):
        Variants(VariantsConfig((), reference))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"folder has no file that ends in \.vcf or \.vcf\.gz: give another folder"):
        Variants(VariantsConfig((str(tmp_path / "folder"),), reference))


def test_a_part_without_a_variant(tmp_path: Path, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Variants(config(tmp_path, reference))
    empty = replace(task.split, validation=np.array([], dtype=np.int64))
    monkeypatch.setattr(module, "split", lambda *_, **__: empty)
    module._cached_data.cache_clear()
    with pytest.raises(
        ValueError, match=r"^the validation part has no variant: every part needs one; give variants o"
    ):
        Variants(config(tmp_path, reference))


def test_contexts_with_a_fault(tmp_path: Path, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = Variant("chr1", 5, "A", "C", "calls.vcf, line 3", context="bone")
    with pytest.raises(
        ValueError, match=r"^calls\.vcf, line 3: context 'bone' is not one of .*, liver, skin: name one"
    ):
        context_number(variant, ["liver", "skin"])
    assert context_number(variant, []) == 0 and context_number(variant, ["bone"]) == 0
    monkeypatch.setattr(module, "CONTEXTS", 1)
    with pytest.raises(ValueError, match=r"^2 contexts are more than the 1 that a model can learn: merge some$"):
        Variants(config(tmp_path, reference, columns=VariantColumns(label="CLASS", context="T"), window=60))


def test_the_head_has_room_for_the_contexts() -> None:
    assert module.CONTEXTS == heads.CONTEXTS


def test_a_folder_of_files(tmp_path: Path, reference: str) -> None:
    folder = tmp_path / "vcfs"
    folder.mkdir()
    for label in ("pos", "neg"):
        write_vcf(folder / f"Skin_{label}.vcf", [line for line in rows() if ("hit" in line) == (label == "pos")])
    (folder / "notes.txt").write_text("")
    data = VariantsConfig((str(folder),), reference, 64, names=r"(?P<context>.+)_(?P<label>pos|neg)\.vcf")
    task = Variants(data)
    assert (
        task.account.used == len(rows()) and task.data.contexts == ["Skin"] and task.target.labels == ["neg", "pos"]
    )


@pytest.mark.skipif(not MPRA.is_dir(), reason="needs ../shared/data/mpra")
def test_saturation_mutagenesis() -> None:
    table, reference = str(MPRA / "variants.tsv.gz"), str(MPRA / "elements.fa")
    columns = VariantColumns(contig="element", label="significant")
    task = Variants(VariantsConfig((table,), reference, 1202, columns, on_unmatched="reject"))
    assert (task.account.read, task.account.used) == (38_556, 6_999 + 20_925), "all reference alleles match"
    assert task.account.rejected == {"without a label": 10_632} and task.max_length == 601
    assert len(np.unique(task.data.groups)) == 21, "some of the 29 elements share a locus"
    elements = {part: {task.data.windows[i].contig for i in indices} for part, indices in task.split.parts.items()}
    assert not elements["training"] & (elements["test"] | elements["validation"])
