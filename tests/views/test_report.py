"""report.html for every kind of target and for incomplete folders; the model card."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from chordmixer import Dataset, files, fit
from chordmixer.training import evaluation
from chordmixer.training.evaluation import Predictions
from chordmixer.views.report import write_report

Make = Callable[..., Path]
KINDS = ("two", "five", "many", "regression", "labels", "adding")
VOID = {"meta", "hr", "br"}


class Nested(HTMLParser):
    """Every element that opens closes, in order; addresses and ids are kept."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(markup)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [str(values[key]) for key in ("href", "src", "srcset", "action") if key in values]
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_for_every_question(make_run: Make, kind: str) -> None:
    folder = make_run(kind)
    path = write_report(folder)
    assert path == folder / "report.html"
    page = path.read_text()
    parsed = Nested(page)
    assert parsed.open == [] and len(set(parsed.ids)) == len(parsed.ids)
    assert set(parsed.links) == {f"#{name}" for name in parsed.ids}
    assert "NaN" not in page and not re.search(r'[ "](nan|inf)[ "]', page)
    assert '<script>alert("x")' not in page and "<b>Gobiidae" not in page and "<genes>" not in page
    assert page.count("<script>") == 1


def test_the_sections_of_each_question(make_run: Make) -> None:
    common = ["scores", "data", "training"]
    classes = [*common, "classes", "ranking", "calibration", "errors", "settings"]
    numbers = [*common, "numbers", "errors", "settings"]
    for kind, expected in (("two", classes), ("labels", classes), ("regression", numbers), ("adding", numbers)):
        assert Nested(write_report(make_run(kind)).read_text()).ids == expected


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("evaluation-test.json", "The run has no evaluation-test.json"),
        ("predictions.parquet", "The run has no predictions.parquet"),
        ("labels.json", "The run has no labels.json"),
        ("baselines.json", "The run has no baselines.json"),
        ("data.json", "has no data.json"),
        ("metrics.jsonl", "The run has no metrics.jsonl"),
    ],
)
def test_what_is_missing_is_left_out_with_a_sentence(make_run: Make, missing: str, sentence: str) -> None:
    folder = make_run("two")
    (folder / missing).unlink()
    assert sentence in write_report(folder).read_text()


def test_a_folder_of_nothing_but_a_config(make_run: Make) -> None:
    folder = make_run("two")
    for path in folder.iterdir():
        if path.name not in ("config.json", "manifest.json"):
            path.unlink()
    page = write_report(folder).read_text()
    assert Nested(page).open == [] and "holds no test scores yet" in page


@pytest.mark.parametrize("kind", KINDS)
def test_very_few_records(make_run: Make, kind: str) -> None:
    """Bins have one record, there may be one class alone, and metrics are undefined."""
    assert Nested(write_report(make_run(kind, records=2)).read_text()).open == []


def test_outputs_that_are_not_finite_are_said_to_be(make_run: Make) -> None:
    folder = make_run("two")
    rows = Predictions(["a<b", "c"], np.array([3, 4]), np.array([0, 1]), np.array([[np.nan, 0], [0, 1]], np.float32))
    (folder / "predictions.parquet").write_bytes(rows.parquet())
    files.write_manifest(folder, ["predictions.parquet"])
    page = write_report(folder).read_text()
    assert "1 records have outputs that are not finite, a&lt;b first" in page


def test_the_same_run_gives_the_same_page(make_run: Make) -> None:
    folder = make_run("five")
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()


def test_a_page_stays_small_with_many_records(make_run: Make) -> None:
    for kind in ("two", "regression"):
        assert write_report(make_run(kind, records=5_000)).stat().st_size < 250_000


def test_the_card_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)
    sequences = ["ACGT"[i % 4 :] * (3 + i % 7) for i in range(40)]
    data = Dataset.from_lists(sequences, ["a|b", "<script>"] * 20, ids=[f"secret{i}" for i in range(40)])
    settings = {"training.steps": 2, "training.trial": 0.0, "training.device": "cpu"}
    predictor = fit(data, settings=settings, verbose=False)
    predictor.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: chordmixer\nlicense: other\n")
    assert (
        "# A model to distinguish a\\|b from &lt;script>" in card and "<script" not in card and "secret" not in card
    )
    accuracy = predictor.evaluate(data).headline
    assert accuracy == "roc_auc" and "| ROC-AUC |" in card and "majority class" in card and "## Limits" in card
    assert 'Predictor.from_pretrained("THIS_FOLDER_OR_REPOSITORY")' in card and str(tmp_path) not in card
