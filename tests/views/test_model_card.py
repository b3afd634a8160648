"""A model card has the scores of the run, and nothing in it acts as Markdown or HTML."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer import Dataset, fit
from chordmixer.training import evaluation


def test_the_card_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)
    sequences = ["ACGT"[i % 4 :] * (3 + i % 7) for i in range(40)]
    data = Dataset.from_lists(sequences, ["a|b", "<script>"] * 20, ids=[f"secret{i}" for i in range(40)])
    quick = {"training.steps": 2, "training.trial": 0.0, "training.device": "cpu"}
    predictor = fit(data, settings=quick, verbose=False)
    predictor.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: chordmixer\nlicense: other\n")
    assert "# A model to tell a\\|b from &lt;script>" in card and "<script" not in card and "secret" not in card
    accuracy = predictor.evaluate(data).headline
    assert accuracy == "roc_auc" and "| ROC-AUC |" in card and "majority class" in card and "## Limits" in card
    assert 'Predictor.from_pretrained("THIS_FOLDER_OR_REPOSITORY")' in card and str(tmp_path) not in card
