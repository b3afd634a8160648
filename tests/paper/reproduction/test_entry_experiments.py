"""Experiments of an entry: changed, made shorter, one a model and seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordmixer.paper.reproduction import entry_experiments
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.training import Experiment


def entry(name: str = "adding-200") -> RunEntry:
    found = ENTRIES[name]
    assert isinstance(found, RunEntry)
    return found


@pytest.fixture
def adding() -> Experiment:
    return entry_experiments.build(entry(), changes={"training": {"epochs": 10}})


def test_changes_reach_data_model_and_training() -> None:
    changes = {"data": {"max_length": 500}, "model": {"network": {"hidden": 8}}, "training": {"epochs": 3}}
    made = entry_experiments.build(entry(), changes=changes)
    assert (made.data.base_length, made.model.network.max_length, made.model.network.hidden) == (200, 500, 8)
    assert made.training.epochs == 3 and changes["data"] == {"max_length": 500}


def test_given_paths_go_where_the_task_looks() -> None:
    assert entry_experiments.build(entry("listops"), ["somewhere"]).data.folder == "somewhere"
    assert entry_experiments.build(entry("image"), ["somewhere"]).data.source == "somewhere"


@pytest.mark.parametrize(
    ("share", "epochs", "training"), [(1, 10, 0), (0.5, 5, 0), (0.1, 1, 0), (0.01, 1, 5_000), (2, 20, 0)]
)
def test_a_share_of_a_run(adding: Experiment, share: float, epochs: int, training: int) -> None:
    short = entry_experiments.scaled(adding, share, by_rule=True)
    assert (short.training.epochs, short.data.training) == (epochs, training)


def test_records_that_were_given_are_all_used(adding: Experiment) -> None:
    assert entry_experiments.scaled(adding, 0.01, by_rule=False).data == adding.data
    listops = entry_experiments.build(entry("listops"))
    assert entry_experiments.scaled(listops, 0.001, by_rule=True).data.training == 2_880


@pytest.mark.parametrize("share", [0, -1, float("inf"), float("nan")])
def test_no_share(adding: Experiment, share: float) -> None:
    with pytest.raises(ValueError, match=r"--scale .* is not a share of a run: give a number above 0, such as 0.1"):
        entry_experiments.scaled(adding, share, by_rule=True)


def test_one_a_model_and_seed(adding: Experiment) -> None:
    later = replace(adding, training=replace(adding.training, seed=5))
    made = entry_experiments.each(later, ["chordmixer", "pointwise"], 2)
    assert [*made] == ["chordmixer-seed5", "chordmixer-seed6", "pointwise-seed5", "pointwise-seed6"]
    last = made["pointwise-seed6"]
    assert (last.model.encoder, last.training.seed, last.data) == ("pointwise", 6, adding.data)


@pytest.mark.parametrize(
    ("models", "seeds", "message"),
    [
        (["chordmixer"], 0, "--seeds 0 is too few: a model needs one run; give 1 or more"),
        (["cord"], 1, "--models cord is not known: choose from chordmixer, "),
        (["chordmixer", "chordmixer"], 1, "--models chordmixer,chordmixer names one twice or none: name each once"),
        ([], 1, "--models  names one twice or none: name each once"),
    ],
)
def test_models_that_cannot_be(adding: Experiment, models: list[str], seeds: int, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        entry_experiments.each(adding, models, seeds)
    assert str(refused.value).startswith(message)


def test_what_stands_first_on_a_page(adding: Experiment) -> None:
    def said(share: float, changes: dict[str, object], classes: list[str], name: str = "adding-200") -> list[str]:
        short = entry_experiments.scaled(adding, share, by_rule=True)
        return entry_experiments.warnings(entry(name), adding, short, share, changes, classes)

    assert said(1, {}, []) == []
    assert said(0.1, {}, []) == [
        "This is a run of 0.1 of the epochs (1 epoch in place of 10): not the paper's number."
    ]
    assert said(0.01, {"training": {"learning_rate": 0.1}}, []) == [
        "This is a run of 0.01 of the epochs (1 epoch in place of 10, over 5,000 of 50,000 training records): not "
        "the paper's number.",
        "Settings were changed with --set: training.learning_rate=0.1.",
    ]
    assert said(1, {}, ["carassius", "labeo"], "carassius-labeo") == []
    assert said(1, {}, ["mus", "labeo"], "carassius-labeo") == [
        "The classes are mus, labeo, not Carassius, Labeo: not the paper's data."
    ]
