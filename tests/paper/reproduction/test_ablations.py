"""Ablations from the catalogue: versions by name, one line of the figure each, beside the paper's table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chordmixer.paper.recipes.ablation import PADDING
from chordmixer.paper.reproduction import ENTRIES, entry_experiments, reproduce
from chordmixer.paper.reproduction.comparison import compare
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.paper.reproduction.running import Seen, TrainedRun
from chordmixer.recipes import load
from chordmixer.training import Evaluation, Experiment

Evaluated = Callable[[str, float], Evaluation]
SMALL = {"training": {"epochs": 1, "device": "cpu"}}
NAMES = ("ablation", "ablation-mitogenomes", "padding")
VERSIONS = {name: entry for name, entry in ENTRIES.items() if name in NAMES and isinstance(entry, RunEntry)}


def quiet(_: str) -> None:
    """Nobody listens."""


def test_the_table_of_paddings() -> None:
    paper = VERSIONS["padding"].paper
    assert len(paper) == 8
    assert (paper["longformer-overall_max"], paper["longformer-batch_max"]) == (75.3, 75.7)
    assert (paper["nystromformer-overall_max"], paper["nystromformer-batch_max"]) == (73.1, 73.0)
    assert (paper["poolformer-overall_max"], paper["poolformer-batch_max"]) == (67.0, 68.1)
    assert (paper["cosformer-overall_max"], paper["cosformer-batch_max"]) == (72.3, 72.6)


def test_every_number_is_of_a_version(tiny: Experiment) -> None:
    for name in VERSIONS["padding"].paper:
        encoder = name.partition("-")[0]
        assert name in PADDING.experiments(entry_experiments.with_encoder(tiny, encoder))


def test_data_are_those_of_other_entries() -> None:
    for name, of in zip(NAMES, ("carassius-labeo", "mitogenomes", "documents"), strict=True):
        own, other = VERSIONS[name], ENTRIES[of]
        assert isinstance(other, RunEntry) and callable(load(own.versions).experiments)
        assert (own.data, own.config, own.classes) == (other.data, other.config, other.classes)
        assert own.differences[: len(other.differences)] == other.differences


def test_the_page_says_what_padding_breaks() -> None:
    said = " ".join(VERSIONS["padding"].differences)
    assert "with batch_max the answer to a document changes with its neighbours in the batch" in said


def test_a_line_a_version(motifs: list[str], tmp_path: Path) -> None:
    names = ["poolformer-class_token", "poolformer-segment"]
    pages, scores = reproduce("ablation", tmp_path / "r", motifs, models=names, changes=SMALL, say=quiet)
    assert [score.encoder for score in scores] == [*names, "baseline: 8-mers"]
    page = pages[0].read_text()
    (columns,) = (line for line in page.splitlines() if line.startswith("| length percentile |"))
    assert all(f"| {name}, % |" in columns for name in (*names, "baseline: 8-mers"))
    assert ".png" in page
    run = Experiment.load(tmp_path / "r" / "poolformer-segment-seed0")
    assert (run.model.encoder, run.model.head, run.model.strategy) == ("poolformer", "flat", "segment")


def test_padded_documents_beside_the_paper(tiny: Experiment, evaluated: Evaluated) -> None:
    made = PADDING.experiments(entry_experiments.with_encoder(tiny, "poolformer"))
    trained = [TrainedRun(own, evaluated(name, 0.5), 1.0, False, 9) for name, own in made.items()]
    seen = Seen({"training": 64, "validation": 16, "test": 32}, 30, 9_000, ["a", "b"])
    body = compare("padding", VERSIONS["padding"], trained, seen, [], given=True).body
    assert body[2].startswith("| poolformer-overall_max | 50.00 (45.00-55.00) | 67.00 | -17.00 | 1 |")
    assert body[3].startswith("| poolformer-batch_max | 50.00 (45.00-55.00) | 68.10 | -18.10 | 1 |")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["cosformer-padde"], "--models cosformer-padde is no version of cosformer: choose "),
        (["cosform-padded"], "--models cosform-padded is not known: choose from chordmixer, "),
    ],
)
def test_versions_that_are_not_there(models: list[str], message: str, tiny: Experiment) -> None:
    with pytest.raises(ValueError) as refused:
        entry_experiments.each(tiny, models, 1, VERSIONS["ablation"].versions)
    assert str(refused.value).startswith(message)


def test_versions_of_an_entry_that_has_none(tiny: Experiment) -> None:
    with pytest.raises(ValueError, match=r"^--models chordmixer-flat is not known: choose from chordmixer, "):
        entry_experiments.each(tiny, ["chordmixer-flat"], 1)


def test_folders_of_versions_and_seeds(tiny: Experiment) -> None:
    made = entry_experiments.each(tiny, ["chordmixer", "poolformer-flat"], 2, VERSIONS["ablation"].versions)
    assert [*made] == [
        f"{name}-seed{seed}"
        for name in ("chordmixer-average", "chordmixer-class_token", "poolformer-flat")
        for seed in (0, 1)
    ]
