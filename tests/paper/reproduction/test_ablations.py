"""Ablations from the catalogue: versions by name, one line of the figure each, beside the paper's table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chordmixer.models import ModelConfig
from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.fragments import FragmentsConfig
from chordmixer.paper.reproduction import ENTRIES, Request, ablations, experiments, reproduce
from chordmixer.paper.reproduction.ablations import PADDING, POOLING, READING, Study, with_padded_batches
from chordmixer.paper.reproduction.comparison import Comparison
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.paper.reproduction.running import DataSummary, TrainedRun
from chordmixer.recipes import load
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, TrainingConfig
from chordmixer.training.evaluation import Evaluation

Evaluated = Callable[[str, float], Evaluation]
SMALL = {"training": {"epochs": 1, "device": "cpu"}}
NAMES = ("ablation", "ablation-mitogenomes", "padding")
VERSIONS = {name: entry for name, entry in ENTRIES.items() if name in NAMES and isinstance(entry, RunEntry)}


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
        assert name in PADDING.experiments(experiments.with_encoder(tiny, encoder))


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
    pages, scores = reproduce(Request("ablation", motifs, names, changes=SMALL), tmp_path / "r", baselines=False)
    assert [score.encoder for score in scores] == names
    page = pages[0].read_text()
    (columns,) = (line for line in page.splitlines() if line.startswith("| length percentile |"))
    assert all(f"| {name}, % |" in columns for name in names)
    assert ".png" in page
    run = Experiment.load(tmp_path / "r" / "poolformer-segment-seed0")
    assert (run.model.encoder, run.model.head, run.model.strategy) == ("poolformer", "flat", "segment")


def test_padded_documents_beside_the_paper(tiny: Experiment, evaluated: Evaluated) -> None:
    made = PADDING.experiments(experiments.with_encoder(tiny, "poolformer"))
    trained = [TrainedRun(own, evaluated(name, 0.5), 1.0, False, 9) for name, own in made.items()]
    seen = DataSummary({"training": 64, "validation": 16, "test": 32}, 30, 9_000, ["a", "b"])
    body = Comparison(VERSIONS["padding"], trained, seen, user_data=True).page("padding", []).body
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
        experiments.expand(tiny, models, 1, VERSIONS["ablation"].versions)
    assert str(refused.value).startswith(message)


def test_versions_of_an_entry_that_has_none(tiny: Experiment) -> None:
    with pytest.raises(ValueError, match=r"^--models chordmixer-flat is not known: choose from chordmixer, "):
        experiments.expand(tiny, ["chordmixer-flat"], 1)


def test_folders_of_versions_and_seeds(tiny: Experiment) -> None:
    made = experiments.expand(tiny, ["chordmixer", "poolformer-flat"], 2, VERSIONS["ablation"].versions)
    assert [*made] == [
        f"{name}-seed{seed}"
        for name in ("chordmixer-average", "chordmixer-class_token", "poolformer-flat")
        for seed in (0, 1)
    ]


def around(encoder: str, length: int = 100_101) -> Experiment:
    model = ModelConfig(inputs=6, outputs=2)
    model = replace(model, network=replace(model.network, max_length=length)).with_encoder(encoder)
    training = TrainingConfig(batch_sequences=64, batch_tokens=1 << 18)
    return Experiment("files", FilesConfig(("a.fa",)), model, training)


def settings(study: Study, encoder: str, version: str = "") -> dict[str, Any]:
    made = study.experiments(around(encoder), version)
    return {name: (own.model.encoder, own.model.head, own.model.strategy) for name, own in made.items()}


def test_chordmixer_as_in_section_4() -> None:
    assert settings(POOLING, "chordmixer") == {
        "chordmixer-average": ("chordmixer", "average", "packed"),
        "chordmixer-class_token": ("chordmixer", "class_token", "packed"),
    }


def test_a_class_token_looks_around_from_the_start() -> None:
    experiment = around("chordmixer")
    network = replace(experiment.model.network, init="identity")
    made = POOLING.experiments(replace(experiment, model=replace(experiment.model, network=network)), "")
    starts = {name: own.model.network.init for name, own in made.items()}
    assert starts == {"chordmixer-average": "identity", "chordmixer-class_token": "xavier"}


@pytest.mark.parametrize("encoder", ["poolformer", "cosformer", "nystromformer"])
def test_rivals_that_take_any_length(encoder: str) -> None:
    assert [*settings(POOLING, encoder)] == [f"{encoder}-{head}" for head in ("average", "class_token", "flat")]


@pytest.mark.parametrize("encoder", ["transformer", "linformer", "reformer"])
def test_rivals_that_take_pieces(encoder: str) -> None:
    assert settings(POOLING, encoder) == {
        f"{encoder}-truncate": (encoder, "flat", "truncate"),
        f"{encoder}-segment": (encoder, "flat", "segment"),
    }


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("study", [POOLING, PADDING, READING], ids=["pooling", "padding", "reading"])
def test_any_encoder_in_any_version(study: Study, encoder: str) -> None:
    assert settings(study, encoder)
    for version in filter(None, study.versions):
        assert [*settings(study, encoder, version)] == [f"{encoder}-{version}"]


def test_who_reads_the_adding_problem_how() -> None:
    assert settings(READING, "chordmixer") == {"chordmixer": ("chordmixer", "average", "packed")}
    assert settings(READING, "cosformer") == {"cosformer-flat": ("cosformer", "flat", "packed")}
    assert settings(READING, "cosformer", "average") == {"cosformer-average": ("cosformer", "average", "packed")}
    with pytest.raises(ValueError, match=r"cosformer- with one of average, flat behind it$"):
        READING.experiments(around("cosformer"), "last")


def test_padding_of_the_appendix() -> None:
    assert settings(PADDING, "longformer") == {
        "longformer-overall_max": ("longformer", "flat", "overall_max"),
        "longformer-batch_max": ("longformer", "flat", "batch_max"),
    }
    assert [*settings(PADDING, "chordmixer")] == ["chordmixer-average"]


@pytest.mark.parametrize(
    ("study", "encoder", "sizes"),
    [
        (POOLING, "transformer", {"layers": 1, "heads": 2, "width": 128}),
        (POOLING, "linformer", {"layers": 1, "heads": 2, "width": 128}),
        (POOLING, "reformer", {"layers": 1, "heads": 2, "width": 64}),
        (POOLING, "cosformer", {"layers": 2, "heads": 2, "width": 128}),
        (POOLING, "poolformer", {"layers": 2, "width": 128}),
        (POOLING, "nystromformer", {"layers": 2, "heads": 2, "width": 128}),
        (PADDING, "cosformer", {"layers": 1, "heads": 2, "width": 64}),
        (PADDING, "poolformer", {"layers": 1, "width": 64}),
        (PADDING, "nystromformer", {"layers": 2, "heads": 2, "width": 128}),
    ],
)
def test_sizes_are_those_of_table_1(study: Study, encoder: str, sizes: dict[str, int]) -> None:
    for made in study.experiments(around(encoder)).values():
        assert {name: getattr(made.model.network, name) for name in sizes} == sizes


@pytest.mark.parametrize(
    ("version", "batch"),
    [("flat", (64, 1)), ("padded", (2, 32)), ("truncate", (16, 4)), ("segment", (64, 1))],
)
def test_a_step_has_as_many_records(version: str, batch: tuple[int, int]) -> None:
    (made,) = POOLING.experiments(around("cosformer"), version).values()
    assert (made.training.batch_sequences, made.training.accumulate) == batch


def test_one_sequence_may_be_more_than_a_batch() -> None:
    made = with_padded_batches(TrainingConfig(batch_sequences=4, batch_tokens=1_000, accumulate=9), 5_000)
    assert (made.batch_sequences, made.accumulate) == (1, 9)


def test_a_version_that_is_not_there() -> None:
    message = (
        "^--models cosformer-flatt is no version of cosformer: choose cosformer for what the paper has, or "
        "cosformer- with one of average, class_token, flat, padded, truncate, segment behind it$"
    )
    with pytest.raises(ValueError, match=message):
        POOLING.experiments(around("cosformer"), "flatt")


def test_networks_are_built_for_the_longest(motifs: list[str]) -> None:
    taxa = ablations.ablation(FilesConfig(tuple(motifs)))
    lengths = [n for part in ("training", "validation", "test") for n in taxa.build_task().records(part).lengths]
    assert taxa.model.network.max_length == max(lengths) <= 120
    pieces = FragmentsConfig(tuple(motifs), shortest=5, median=20, longest=45, training=40, validation=20, test=20)
    assert ablations.ablation_of_fragments(pieces).model.network.max_length <= 45
    texts = ablations.padding(FilesConfig(tuple(motifs)))
    assert (texts.model.network.max_length, texts.model.network.hidden) == (max(lengths), 128)
