"""Versions of models around the same data: the paper's, by name, with batches that hold their padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chordmixer.models import ModelConfig
from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.recipes import ablation
from chordmixer.paper.recipes.ablation import PADDING, POOLING, READING, Study, with_room
from chordmixer.paper.tasks.fragments import FragmentsConfig
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, TrainingConfig


def quiet(_: str) -> None:
    """Nobody listens."""


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
    made = with_room(TrainingConfig(batch_sequences=4, batch_tokens=1_000, accumulate=9), 5_000)
    assert (made.batch_sequences, made.accumulate) == (1, 9)


def test_a_version_that_is_not_there() -> None:
    message = (
        "^--models cosformer-flatt is no version of cosformer: choose cosformer for what the paper has, or "
        "cosformer- with one of average, class_token, flat, padded, truncate, segment behind it$"
    )
    with pytest.raises(ValueError, match=message):
        POOLING.experiments(around("cosformer"), "flatt")


def test_networks_are_built_for_the_longest(motifs: list[str]) -> None:
    taxa = ablation.ablation(FilesConfig(tuple(motifs)), quiet)
    lengths = [n for part in ("training", "validation", "test") for n in taxa.build_task().records(part).lengths]
    assert taxa.model.network.max_length == max(lengths) <= 120
    pieces = FragmentsConfig(tuple(motifs), shortest=5, median=20, longest=45, training=40, validation=20, test=20)
    assert ablation.ablation_of_fragments(pieces, quiet).model.network.max_length <= 45
    texts = ablation.padding(FilesConfig(tuple(motifs)), quiet)
    assert (texts.model.network.max_length, texts.model.network.hidden) == (max(lengths), 128)
