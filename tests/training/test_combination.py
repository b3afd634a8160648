"""The weights of network and baseline, and what a run predicts with them, also after a fresh start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from chordmixer import files
from chordmixer.config import override
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training import Experiment, combination, evaluation
from chordmixer.training.combination import Combination, fit_weights, load_combination, read_document
from chordmixer.training.evaluation import Predictions, evaluate
from chordmixer.training.inference import Engine
from chordmixer.training.loop import train
from chordmixer.training.prediction import predict
from chordmixer.training.results import compare


def two_views(
    records: int, classes: int, noise: tuple[float, float], seed: int = 0
) -> tuple[ndarray, ndarray, ndarray]:
    """Targets, and two outputs that predict them with independent noise."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(classes, size=records)
    one_hot = np.eye(classes)[targets]
    first, second = (2 * one_hot + size * rng.normal(size=one_hot.shape) for size in noise)
    return targets, first, second


def accuracy(outputs: ndarray, targets: ndarray) -> float:
    return float((outputs.argmax(axis=1) == targets).mean())


@pytest.mark.parametrize("classes", [2, 5])
def test_two_noisy_views_are_better_than_one(classes: int) -> None:
    targets, first, second = two_views(4000, classes, (2.0, 2.0))
    target, fit = Classification([*map(str, range(classes))], targets), slice(0, 1000)
    model = fit_weights(target, first[fit], second[fit], targets[fit])
    test = slice(1000, None)
    scores = {
        using: accuracy(target.unweighted(model.outputs(target, first[test], second[test], using)), targets[test])
        for using in ("network", "baseline", "both")  # type: ignore[attr-defined]
    }
    assert model.using == "both" and scores["both"] > max(scores["network"], scores["baseline"]) + 0.02
    assert model.losses["both"] < min(model.losses["network"], model.losses["baseline"])


def test_noise_gets_no_weight() -> None:
    targets, good, _ = two_views(600, 3, (1.0, 1.0))
    noise = np.random.default_rng(1).normal(size=good.shape)
    target = Classification(["a", "b", "c"], targets)
    model = fit_weights(target, noise, good, targets)
    assert model.weights["both"][0] < 0.1 < model.weights["both"][1]
    assert model.losses["baseline"] < model.losses["network"] and model.using != "network"
    assert np.isfinite(model.outputs(target, None, good, "baseline")).all()


def test_class_weights_are_taken_back_and_put_back() -> None:
    """On classes of unequal size, the mean of two equal outputs is that output."""
    counts = [900, 100]
    target = Classification.of_counts(["no", "yes"], counts)
    rng = np.random.default_rng(0)
    targets = np.repeat([0, 1], counts)
    outputs = np.stack([np.zeros(1000), 2 * targets + rng.normal(size=1000)], axis=1)
    combined = Combination("both", {"both": (0.5, 0.5, 0.0)}, {}).outputs(target, outputs, outputs)
    np.testing.assert_allclose(np.diff(combined), np.diff(outputs), atol=1e-5)


def test_numbers_and_labels() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(1e6, 3.0, size=800)
    target = Regression.of(numbers)
    standardised = target.standardised(numbers)[:, None]
    first, second = (0.5 * standardised + 1 + 0.4 * rng.normal(size=standardised.shape) for _ in range(2))
    model = fit_weights(target, first, second, numbers)
    r2 = {
        using: target.metrics(model.outputs(target, first, second, using), numbers)["r2"] for using in model.weights
    }  # type: ignore[arg-type]
    assert model.using == "both" and r2["both"] > r2["network"] + 0.1, "scale and offset are corrected, noise halved"

    labels = (rng.random((800, 3)) < 0.3).astype(np.uint8)
    label_target = MultiLabel.of(["a", "b", "c"], labels)
    outputs = [3.0 * labels + 1.5 * rng.normal(size=labels.shape) for _ in range(2)]
    label_model = fit_weights(label_target, *outputs, labels)
    assert label_model.using == "both"
    assert label_model.losses["both"] < label_model.losses["network"]


def test_always_right_and_few_records_stay_finite() -> None:
    target = Classification(["a", "b"], [0, 1])
    outputs = np.array([[9.0, 0.0], [0.0, 9.0]])
    for rows in (outputs, outputs[:1]):
        model = fit_weights(target, rows, rows, np.arange(len(rows)))
        assert all(np.isfinite(weights).all() for weights in model.weights.values())


def test_few_records_that_are_all_right_do_not_ask_for_ever_larger_weights() -> None:
    """The network is confidently wrong on one of 60 records, which must not lead to extreme weights."""
    rng = np.random.default_rng(0)
    targets = rng.integers(3, size=60)
    network = 6.0 * np.eye(3)[targets] + rng.normal(size=(60, 3))
    network[0] = 6.0 * np.eye(3)[(targets[0] + 1) % 3]
    baseline = 1.5 * np.eye(3)[targets] + rng.normal(size=(60, 3))
    model = fit_weights(Classification(list("abc"), targets), network, baseline, targets)
    assert model.losses["both"] < 1.1 * min(model.losses["network"], model.losses["baseline"])
    assert max(model.weights["both"][:2]) < 3


@pytest.mark.parametrize(("records", "wrong", "using"), [(10, 1, "both"), (400, 200, "baseline")])
def test_one_alone_must_be_clearly_better(records: int, wrong: int, using: str) -> None:
    """Both are kept where one confident error of the network decides; a network that is often wrong is left out."""
    rng = np.random.default_rng(0)
    targets = rng.integers(2, size=records)
    baseline = 2.0 * np.eye(2)[targets] + 0.5 * rng.normal(size=(records, 2))
    network = 2.5 * np.eye(2)[targets] + rng.normal(size=(records, 2))
    network[:wrong] = 6.0 * np.eye(2)[1 - targets[:wrong]]
    model = fit_weights(Classification(["a", "b"], targets), network, baseline, targets)
    assert model.losses["baseline"] <= model.losses["both"] and model.using == using


@pytest.mark.parametrize(("records", "using"), [(60, "both"), (400, "baseline")])
def test_many_records_take_the_lowest_loss(records: int, using: str) -> None:
    """A difference within two standard errors counts as a tie only where records are few."""
    rng = np.random.default_rng(0)
    baseline, noise = rng.random(records), rng.normal(size=records)
    losses = {"network": baseline + 1, "baseline": baseline, "both": baseline + 0.01 + 0.5 * (noise - noise.mean())}
    assert combination._chosen(losses, (1.0, 1.0, 0.0)) == using


def test_answers_that_help_nobody_have_a_row_for_each_record() -> None:
    target = Classification(["no", "yes"], [0, 1, 1])
    weightless = Combination("network", {"network": (0.0, 0.0, 0.0)}, {})
    outputs = weightless.outputs(target, np.ones((5, 2)), None)
    assert outputs.shape == (5, 2) and np.ptp(outputs, axis=0).max() == 0


pytestmark = pytest.mark.usefixtures("quick_scores")
SMALL = {
    "model": {"network": {"track_size": 4, "hidden": 8}, "words": {"lengths": []}, "stem": {"layers": 1}},
    "training": {"steps": 12, "trial": 0.0, "device": "cpu"},
}


@pytest.fixture(scope="module")
def delivered(motifs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on both strands with its baseline, which tests only read."""
    folder = tmp_path_factory.mktemp("delivery") / "run"
    experiment = override(recipe(FilesConfig(tuple(motifs), both_strands=True)), SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        train(experiment, folder)
        compare(folder, deliver=True)
    return folder


def predicted(run: Path, motifs: list[str], out: Path, using: str | None) -> list[dict[str, float]]:
    predict(run, motifs, out, using=using)  # type: ignore[arg-type]
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_files_have_the_answers_of_the_test_part(delivered: Path, motifs: list[str], tmp_path: Path) -> None:
    rows = {row["id"]: row for row in predicted(delivered, motifs, tmp_path / "a.jsonl", None)}
    predictions, labels = Predictions.read(delivered / "predictions.parquet"), Engine(delivered).labels
    for name, probabilities in zip(predictions.names, labels.probabilities(predictions.outputs), strict=True):
        assert [rows[name]["with"], rows[name]["without"]] == pytest.approx(probabilities.tolist(), abs=1e-5)


def test_network_and_baseline_predict_alone(delivered: Path, motifs: list[str], tmp_path: Path) -> None:
    answers = {
        using: [row["with"] for row in predicted(delivered, motifs[:1], tmp_path / f"{using}.jsonl", using)]
        for using in ("network", "baseline", "both")
    }
    assert len({tuple(values) for values in answers.values()}) == 3
    choice = read_document(delivered)
    assert choice is not None and {*choice.losses} == {*answers}
    assert [r["with"] for r in predicted(delivered, motifs[:1], tmp_path / "x.jsonl", None)] == answers[choice.using]
    with pytest.raises(ValueError, match="--using best is not a choice: give one of network, baseline, both"):
        predicted(delivered, motifs, tmp_path / "y.jsonl", "best")


def test_a_baseline_alone_needs_no_network_and_has_no_longest_record(
    delivered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "model", property(lambda self: pytest.fail("the network was loaded")))
    (tmp_path / "long.fa").write_text(">a\n" + "ACGT" * 500 + "\n>b\nA\n")  # one shorter than any k-mer
    rows = predicted(delivered, [str(tmp_path / "long.fa")], tmp_path / "a.jsonl", "baseline")
    assert [row["length"] for row in rows] == [2000, 1]


def test_both_strands_have_one_answer(delivered: Path) -> None:
    task = Experiment.load(delivered).build_task()
    assert isinstance(task, Files) and task.complement is not None
    combined = load_combination(delivered, task.target, task.complement, "baseline")
    assert combined is not None
    tokens = task.tokens("test")
    complements = [task.complement[sequence[::-1]].astype(sequence.dtype) for sequence in tokens]
    np.testing.assert_allclose(combined.outputs(None, tokens), combined.outputs(None, complements), atol=1e-6)


def test_scores_are_those_of_the_answers(delivered: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    before = (run / "evaluation-test.json").read_bytes()
    evaluate(run, "test")
    assert (run / "evaluation-test.json").read_bytes() == before
    rows = files.read_json(run / "baselines.json")
    assert rows["baselines"][-1]["name"] == "network alone"
    assert rows["ladder"][-1]["name"] in ("delivered", "network alone")


def test_a_run_that_is_finished_again_starts_from_its_network(delivered: Path, tmp_path: Path) -> None:
    """It ends with the same bytes."""
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    train(Experiment.load(run), run, resume=True)
    assert not (run / "combination.json").exists() and read_document(run) is None
    files.verify(run, files.recorded(run))
    compare(run, deliver=True)
    for name in ("combination.json", "baseline.safetensors", "predictions.parquet", "labels.json", "baselines.json"):
        assert (run / name).read_bytes() == (delivered / name).read_bytes(), name


@pytest.mark.parametrize("name", ["combination.json", "baseline.safetensors"])
def test_a_flipped_byte_is_found(delivered: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    damaged = bytearray((run / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (run / name).write_bytes(damaged)
    with pytest.raises(ValueError, match="was changed or damaged"):
        Engine(run)
    (run / name).unlink()
    with pytest.raises(ValueError, match="is missing or not in"):
        Engine(run)


def test_hostile_weights(delivered: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    document = files.read_json(run / "combination.json")
    for change in ({"using": "all"}, {"weights": {"both": [1, 2, 3]}}, {"losses": []}, {"format": 9}, {"extra": 1}):
        files.write_recorded(run, {"combination.json": files.json_bytes(document | change)})
        with pytest.raises(ValueError, match=r"combination\.json is not whole .*: use another copy"):
            Engine(run)


def test_a_run_without_a_baseline(delivered: Path, motifs: list[str], tmp_path: Path) -> None:
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    train(Experiment.load(run), run, resume=True)
    assert Engine(run).combined is None and Engine(run, using="network").combined is None
    with pytest.raises(ValueError, match="keeps no baseline for --using both: leave it out, or train again"):
        Engine(run, using="both")


def test_a_poor_network_has_little_weight_on_few_numbers() -> None:
    """Its squared error is five times the baseline's. Without units of the noise its weight was 0.31."""
    rng = np.random.default_rng(0)
    target, targets = Regression(), rng.normal(size=22).astype(np.float32)
    network, baseline = (targets[:, None] + size * rng.normal(size=(22, 1)) for size in (0.6, 0.17))
    fitted = fit_weights(target, network, baseline, targets, combination.NETWORK_SHARE)
    share, rest, _ = fitted.weights["both"]
    assert share < 0.22 and rest > 0.7
    assert fitted.losses["both"] < 1.2 * fitted.losses["baseline"] < fitted.losses["network"]
