from __future__ import annotations

from pathlib import Path

import pytest
from tests.tasks.variant_files import rows, write_genome, write_vcf

from chordmixer import files
from chordmixer.data.alleles import Window
from chordmixer.data.variants import VariantColumns
from chordmixer.models import ModelConfig
from chordmixer.paper.adding import AddingConfig
from chordmixer.tasks.variants import Variants, VariantsConfig
from chordmixer.training import Experiment, evaluation
from chordmixer.training.baselines.variant_baselines import compare, kind


@pytest.mark.parametrize("columns", [VariantColumns(label="CLASS", context="T"), VariantColumns(target="BETA")])
def test_the_kind_of_change_is_found(
    tmp_path: Path, columns: VariantColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)
    data = VariantsConfig((str(write_vcf(tmp_path / "calls.vcf", rows())),), str(write_genome(tmp_path)), 64, columns)
    task, run = Variants(data), tmp_path / "run"
    run.mkdir()
    Experiment("variants", task.config, ModelConfig(task.inputs, task.target.outputs, head="variant")).save(run)
    found = {each.encoder: each.scores[each.headline].value for each in compare(run)}
    assert list(found)[1:] == ["position alone", "kind of change", "letters around"]
    assert found["kind of change"] > 0.95 and found["letters around"] > 0.8 and found["position alone"] < 0.7
    assert len(files.read_json(run / "baselines.json")["baselines"]) == 4


def test_a_run_of_another_task(tmp_path: Path) -> None:
    Experiment("adding", AddingConfig(), ModelConfig(2, 1, "real")).save(tmp_path)
    with pytest.raises(ValueError, match=r" is a run of adding: give one of chordmixer variants$"):
        compare(tmp_path)


@pytest.mark.parametrize(
    ("ref", "alt", "name"), [("A", "N", "other"), ("AC", "TG", "other"), ("AC", "A", "deletion")]
)
def test_kinds(ref: str, alt: str, name: str) -> None:
    assert kind(Window("chr1", 0, 9, 4, ref, alt)) == name
