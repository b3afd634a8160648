"""Experiments of an entry: changed, made shorter, one a model and seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chordmixer.paper.reproduction import Request, experiments, reproduce, running
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.comparison import Comparison
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.paper.reproduction.experiments import expand, model_of, with_encoder
from chordmixer.paper.reproduction.running import DataSummary, TrainedRun
from chordmixer.training import Experiment
from chordmixer.training.evaluation import Evaluation


def entry(name: str = "adding-200") -> RunEntry:
    found = ENTRIES[name]
    assert isinstance(found, RunEntry)
    return found


@pytest.fixture
def adding() -> Experiment:
    return experiments.build(entry(), changes={"training": {"epochs": 10}})


def test_changes_reach_data_model_and_training() -> None:
    changes = {"data": {"max_length": 500}, "model": {"network": {"hidden": 8}}, "training": {"epochs": 3}}
    made = experiments.build(entry(), changes=changes)
    assert (made.data.base_length, made.model.network.max_length, made.model.network.hidden) == (200, 500, 8)
    assert made.training.epochs == 3 and changes["data"] == {"max_length": 500}


def test_given_paths_go_where_the_task_looks() -> None:
    assert experiments.build(entry("listops"), ["somewhere"]).data.folder == "somewhere"
    assert experiments.build(entry("image"), ["somewhere"]).data.source == "somewhere"


@pytest.mark.parametrize(
    ("share", "epochs", "training"), [(1, 10, 0), (0.5, 5, 0), (0.1, 1, 0), (0.01, 1, 5_000), (2, 20, 0)]
)
def test_a_share_of_a_run(adding: Experiment, share: float, epochs: int, training: int) -> None:
    short = experiments.scaled(adding, share, by_rule=True)
    assert (short.training.epochs, short.data.training) == (epochs, training)


def test_records_that_were_given_are_all_used(adding: Experiment) -> None:
    assert experiments.scaled(adding, 0.01, by_rule=False).data == adding.data
    listops = experiments.build(entry("listops"))
    assert experiments.scaled(listops, 0.001, by_rule=True).data.training == 2_880


@pytest.mark.parametrize("share", [0, -1, float("inf"), float("nan")])
def test_no_share(adding: Experiment, share: float) -> None:
    with pytest.raises(ValueError, match=r"--scale .* is not a share of a run: give a number above 0, such as 0.1"):
        experiments.scaled(adding, share, by_rule=True)


def test_one_a_model_and_seed(adding: Experiment) -> None:
    later = replace(adding, training=replace(adding.training, seed=5))
    made = experiments.expand(later, ["chordmixer", "pointwise"], 2)
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
        experiments.expand(adding, models, seeds)
    assert str(refused.value).startswith(message)


def test_what_stands_first_on_a_page(adding: Experiment) -> None:
    def said(share: float, changes: dict[str, object], classes: list[str], name: str = "adding-200") -> list[str]:
        short = experiments.scaled(adding, share, by_rule=True)
        return experiments.warnings(Request(name, scale=share, changes=changes), entry(name), adding, short, classes)

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
    rates = Request("adding-200", rates=[1e-4, 3e-4, 1e-3])
    assert experiments.warnings(rates, entry("adding-200"), adding, adding, []) == [
        "Each model was trained with rates of 0.0001, 0.0003 and 0.001, a run each, and the lowest validation loss "
        "chose."
    ]


Run = Callable[[str, float, int, float, float], TrainedRun]


@pytest.fixture
def run(tiny: Experiment, evaluated: Callable[[str, float], Evaluation]) -> Run:
    """Of a model, with a rate, a seed, a validation loss and a test score."""

    def make(model: str, rate: float, seed: int, loss: float, score: float) -> TrainedRun:
        own = replace(tiny, training=replace(tiny.training, learning_rate=rate, seed=seed))
        return TrainedRun(own, evaluated(model, score), 1.0, False, 9, validation=loss)

    return make


def test_each_with_each_rate(tiny: Experiment) -> None:
    runs = expand(tiny, ["chordmixer", "cnn"], seeds=2)
    found = experiments.with_rates(runs, [1e-3, 3e-4])
    assert {
        name: (own.training.learning_rate, own.training.seed) for name, own in found.items() if "cnn" in name
    } == {
        "cnn-seed0": (1e-3, 0),
        "cnn-rate0.0003-seed0": (3e-4, 0),
        "cnn-seed1": (1e-3, 1),
        "cnn-rate0.0003-seed1": (3e-4, 1),
    }
    assert len(found) == 8 and {model_of(name) for name in found} == {"chordmixer", "cnn"}
    assert found["cnn-seed1"] == runs["cnn-seed1"], "so that it is not trained again"
    assert experiments.with_rates(runs, []) == runs


def test_validation_chooses_and_not_the_test(run: Run) -> None:
    good, bad = run("cnn", 1e-3, 0, 0.1, 0.2), run("cnn", 3e-4, 0, 0.3, 0.9)
    other = run("lstm", 3e-4, 0, 0.2, 0.5), run("lstm", 1e-3, 0, 0.4, 0.6)
    losses = running.validation_losses([good, bad, *other])
    assert losses == {"cnn": {1e-3: 0.1, 3e-4: 0.3}, "lstm": {3e-4: 0.2, 1e-3: 0.4}}
    assert running.best_rates([good, bad, *other], losses) == [good, other[0]]


def test_of_several_seeds_the_mean_chooses_and_all_are_shown(run: Run) -> None:
    runs = [run("cnn", rate, seed, loss, 0.5) for rate, own in {1e-3: (0.1, 0.9), 3e-4: (0.4, 0.4)}.items()
            for seed, loss in enumerate(own)]  # fmt: skip
    losses = running.validation_losses(runs)
    assert losses == {"cnn": {1e-3: 0.5, 3e-4: 0.4}}
    assert running.best_rates(runs, losses) == runs[2:]


def test_no_choice_without_losses(run: Run) -> None:
    with pytest.raises(ValueError, match=r"a run of cnn has no validation loss in its metrics.jsonl, so no rate can"):
        running.validation_losses([run("cnn", 1e-3, 0, float("nan"), 0.5)])


def test_what_the_page_says(run: Run) -> None:
    """Beside each model its rate, the losses that chose it, and that others had another."""
    entry, seen = ENTRIES["adding-200"], DataSummary({"training": 64, "validation": 16, "test": 32}, 30, 9_000, [])
    assert isinstance(entry, RunEntry)
    runs = [run("chordmixer", 1e-3, 0, 0.1, 0.9), run("cnn", 3e-4, 0, 0.25, 0.5)]
    runs[1] = replace(runs[1], experiment=with_encoder(runs[1].experiment, "cnn"))
    losses = {"chordmixer": {1e-3: 0.1, 3e-4: 0.2}, "cnn": {1e-3: 0.3, 3e-4: 0.25}}
    result = Comparison(entry, runs, seen, False, losses).page("adding-200", [])
    assert result.body[:4] == [
        "| model | accuracy here, % | rate | runs | steps a run | time a run |",
        "|---|---|---|---|---|---|",
        "| chordmixer | 90.00 (85.00-95.00) | 0.001 | 1 | 9 | 1 s |",
        "| cnn | 50.00 (45.00-55.00) | 0.0003 | 1 | 9 | 1 s |",
    ]
    text = "\n".join(result.body)
    assert (
        "| lowest validation loss at a rate of | 0.0003 | 0.001 |\n|---|---|---|\n| chordmixer | 0.2 | 0.1 |" in text
    )
    assert "The others train in the same way, each at its rate, padded versions" in text
    assert result.numbers["validation_loss_by_rate"]["cnn"] == {"0.001": 0.3, "0.0003": 0.25}


@pytest.mark.parametrize("rates", [[0.0], [1e-3, 1e-3], [1e-3, 1.0000001e-3], [float("inf")], [float("nan")]])
def test_refusals(rates: list[float]) -> None:
    with pytest.raises(
        ValueError, match=r"^--rates .* are not different numbers above 0: give some such as 3e-4,1e-3"
    ):
        experiments.check_rates(rates, {})


def test_one_rate_or_the_other(tiny: Experiment) -> None:
    experiments.check_rates([], {"training": {"learning_rate": 1e-3}})
    with pytest.raises(
        ValueError, match=r"--rates 0.001 and --set training.learning_rate are both the rate of a run: leave one"
    ):
        experiments.check_rates([1e-3], {"training": {"learning_rate": 1e-3}})


def test_rates_are_added_to_what_is_trained(
    changes: dict[str, Any], tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """The page then has the better of both."""
    reproduce(Request("adding-200", changes=changes), tmp_path, baselines=False)
    weights = (tmp_path / "chordmixer-seed0" / "model.safetensors").read_bytes()
    log.clear()
    request = Request("adding-200", rates=[1e-3, 1e-9], changes=changes)
    _, scores = reproduce(request, tmp_path, resume=True, baselines=False)
    said = log.messages
    assert "chordmixer-seed0, 1 of 2: finished before" in said and "chordmixer-rate1e-09-seed0, 2 of 2" in said
    assert (tmp_path / "chordmixer-seed0" / "model.safetensors").read_bytes() == weights
    assert [own.encoder for own in scores] == ["chordmixer"], "of the chosen one alone"


def test_runs_that_cannot_share_a_device(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"--at-once 0 is too few: give 1 or more runs"):
        experiments.check_at_once({"a": tiny}, 0)
    by_clock = replace(tiny, training=replace(tiny.training, minutes=2.0))
    experiments.check_at_once({"a": by_clock}, 1)
    with pytest.raises(ValueError, match=r"training.minutes=2 ends a run by the clock, and runs at once slow each"):
        experiments.check_at_once({"a": by_clock}, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"--at-once 3 on 2 processes is not possible: use one"):
        experiments.check_at_once({"a": tiny}, 3)
