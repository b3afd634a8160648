from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import threadpoolctl

from chordmixer.data.features import TextWords
from chordmixer.tasks.targets import Classification
from chordmixer.training.baselines import choosing, nonlinear
from chordmixer.training.baselines.candidates import Candidate
from chordmixer.training.baselines.choosing import Data, choose, few_threads, loss_of
from chordmixer.training.baselines.linear import Linear
from chordmixer.training.labels import fit_temperature

MANY = 40
CLASSES = np.arange(400) % MANY


def data(share: float = 1.0) -> Data:
    """Records of many classes, each with its own word in this share of its records."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 20, (MANY, 6)).astype(np.uint8)
    records = [rng.integers(0, 20, 36).astype(np.uint8) for _ in CLASSES]
    for record, label in zip(records, CLASSES, strict=True):
        if rng.random() < share:
            record[30:] = words[label]
    target = Classification([str(k) for k in range(MANY)], CLASSES)
    return Data(
        records[:300], records[300:], {"training": CLASSES[:300].copy(), "validation": CLASSES[300:].copy()}, target
    )


@pytest.mark.parametrize("work", [choosing.MAX_LOGISTIC_WORK, 0], ids=["regression", "centroids"])
def test_many_classes(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By logistic regression or by the means of classes; three in ten records have no word."""
    monkeypatch.setattr(choosing, "MAX_LOGISTIC_WORK", work)
    dataset = data(share=0.7)
    linear, neighbours = choose([Candidate("protein", (3,))], dataset)
    assert (
        linear.description.startswith("logistic regression" if work else "similarity to the mean of each class")
        and neighbours.is_neighbours
    )
    for choice in (linear, neighbours):
        assert (dataset.target.decided(choice.outputs) == dataset.answers["validation"]).mean() > 0.6
        assert choice.loss == loss_of(choice.outputs, dataset.answers["validation"], dataset.target)
        unweighted = dataset.target.unweighted(choice.outputs)
        assert 0.9 < fit_temperature(unweighted, dataset.answers["validation"]) < 1.1, "calibrated"


def test_weights_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "MAX_WEIGHTS", MANY * 100)
    linear, neighbours = choose([Candidate("protein", (2,)), Candidate("protein", (3,))], data())
    assert isinstance(linear.member.model, Linear) and linear.member.features.width == 100
    assert neighbours.member.features.width > 100


@pytest.mark.parametrize("limit", ["MAX_NEIGHBOUR_ENTRIES", "MAX_NEIGHBOUR_WORK"])
def test_large_training_parts_have_no_neighbours(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonlinear, limit, 10)
    assert [choice.is_neighbours for choice in choose([Candidate("protein", (3,))], data())] == [False]


def test_a_class_that_training_has_not_leaves_the_temperature_alone() -> None:
    dataset = data()
    changed = Data(dataset.training, dataset.validation, {**dataset.answers}, dataset.target)
    changed.answers["training"] = np.where(CLASSES[:300] == 7, 8, CLASSES[:300])
    (linear,) = choose([Candidate("protein", (3,))], changed, neighbours=False)
    seen = changed.answers["validation"] != 7
    assert (changed.target.decided(linear.outputs)[seen] == changed.answers["validation"][seen]).mean() > 0.9
    assert np.exp(linear.outputs[:, 7]).max() < 1e-11


def few(validation: list[int]) -> Data:
    """300 training records whose classes are told by words, and validation records with these wrong classes."""
    dataset = data(share=1.0)
    answers = {"training": dataset.answers["training"], "validation": np.array(validation)}
    groups = np.arange(300)
    return Data(dataset.training, dataset.validation[: len(validation)], answers, dataset.target, groups)


def test_few_validation_records_do_not_choose() -> None:
    """Training records that are left out choose and calibrate, since all validation classes are wrong here."""
    misleading = few([int(label) for label in (CLASSES[300:312] + 1) % MANY])
    without_folds = Data(misleading.training, misleading.validation, misleading.answers, misleading.target)
    (linear,) = choose([Candidate("protein", (3,))], misleading, neighbours=False)
    (fooled,) = choose([Candidate("protein", (3,))], without_folds, neighbours=False)
    assert len(linear.judged) == 300 and len(fooled.judged) == 12
    assert (misleading.target.decided(linear.judged) == misleading.answers["training"]).mean() > 0.9
    assert linear.loss == loss_of(linear.judged, misleading.answers["training"], misleading.target) < 1 < fooled.loss
    assert np.exp(linear.outputs.max(axis=1)).mean() > 0.3 > np.exp(fooled.outputs.max(axis=1)).mean()


def test_models_of_folds_are_told_apart() -> None:
    """With and without ratios, in each strength; a splitter of texts into words is part of a candidate too."""
    dataset, words = few([0] * 12), TextWords(np.arange(32, 53, dtype=np.uint32))
    candidates = [Candidate("text", (2,)), Candidate("text", (1, 2), words=words)]
    assert dataset.folds is not None
    left_out = choosing._left_out_outputs(candidates, dataset, False, dataset.folds)
    assert len(left_out) == len(candidates) * 2 * len(choosing.SPARSE_STRENGTHS)
    assert len({outputs.tobytes() for outputs in left_out.values()}) > len(left_out) / 2
    assert all(np.isfinite(outputs).all() for outputs in left_out.values())


def test_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = few([0] * 12)
    grouped = replace(dataset, groups=np.arange(300) // 10)
    folds = grouped.folds
    assert folds is not None and np.bincount(folds).tolist() == [60] * choosing.FOLDS
    assert all(len(set(folds[start : start + 10].tolist())) == 1 for start in range(0, 300, 10))
    part = grouped.fold(folds == 2)
    assert (len(part.training), len(part.validation), part.folds) == (240, 60, None)
    assert np.array_equal(part.answers["validation"], dataset.answers["training"][folds == 2])
    assert replace(dataset, groups=np.arange(300) // 20).folds is None, "too few groups"
    assert replace(dataset, groups=None).folds is None
    assert replace(data(), groups=np.arange(300)).folds is None, "100 validation records choose well"
    for limit in ("MAX_FOLDED_TOKENS", "MAX_FOLDED_OUTPUTS"):
        with monkeypatch.context() as patch:
            patch.setattr(choosing, limit, 1_000)
            assert dataset.folds is None


def test_validation_records_choose_if_no_model_has_all_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_left_out_outputs", lambda *_: {})
    dataset = few([0] * 12)
    (linear,) = choose([Candidate("protein", (3,))], dataset, neighbours=False)
    assert linear.judging is dataset.answers["validation"] and len(linear.judged) == 12


def test_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more threads than before, so that a user's own number stays."""
    limits: list[dict[str, int]] = []
    pools = [("blas", 16), ("openmp", 1), ("openmp", 2)]
    info = [{"user_api": api, "num_threads": threads} for api, threads in pools]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: info)
    monkeypatch.setattr(threadpoolctl, "threadpool_limits", limits.append)
    few_threads()
    assert limits == [{"blas": 4, "openmp": 2}]


def test_the_limits_are_in_force() -> None:
    with few_threads():
        assert all(pool["num_threads"] <= choosing.MAX_THREADS for pool in threadpoolctl.threadpool_info())
