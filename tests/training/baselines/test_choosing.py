from __future__ import annotations

import numpy as np
import pytest
import threadpoolctl

from chordmixer.tasks.targets import Classification
from chordmixer.training.baselines import choosing
from chordmixer.training.baselines.candidates import Candidate
from chordmixer.training.baselines.choosing import Data, choose, few_threads, loss_of
from chordmixer.training.baselines.linear import Linear
from chordmixer.training.labels import fit_temperature

MANY = 40
CLASSES = np.arange(400) % MANY


def data(share: float = 1.0) -> Data:
    """Of many classes, each with a word of its own, in some of its records or in all."""
    chance = np.random.default_rng(0)
    words = chance.integers(0, 20, (MANY, 6)).astype(np.uint8)
    own = [chance.integers(0, 20, 36).astype(np.uint8) for _ in CLASSES]
    for record, of_class in zip(own, CLASSES, strict=True):
        if chance.random() < share:
            record[30:] = words[of_class]
    target = Classification([str(k) for k in range(MANY)], CLASSES)
    return Data(own[:300], own[300:], {"training": CLASSES[:300].copy(), "validation": CLASSES[300:].copy()}, target)


@pytest.mark.parametrize("work", [choosing.MAX_LOGISTIC_WORK, 0], ids=["regression", "centroids"])
def test_many_classes(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By logistic regression or by the means of classes; three in ten records have no word."""
    monkeypatch.setattr(choosing, "MAX_LOGISTIC_WORK", work)
    own = data(share=0.7)
    linear, neighbours = choose([Candidate("protein", (3,))], own)
    assert (
        linear.description.startswith("logistic regression" if work else "similarity to the mean of each class")
        and neighbours.is_neighbours
    )
    for choice in (linear, neighbours):
        assert (own.target.decided(choice.outputs) == own.answers["validation"]).mean() > 0.6
        assert choice.loss == loss_of(choice.outputs, own.answers["validation"], own.target)
        unweighted = own.target.unweighted(choice.outputs)
        assert 0.9 < fit_temperature(unweighted, own.answers["validation"]) < 1.1, "calibrated"


def test_weights_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "MAX_WEIGHTS", MANY * 100)
    linear, neighbours = choose([Candidate("protein", (2,)), Candidate("protein", (3,))], data())
    assert isinstance(linear.member.model, Linear) and linear.member.features.width == 100
    assert neighbours.member.features.width > 100


def test_large_training_parts_have_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "MAX_NEIGHBOUR_ENTRIES", 1_000)
    assert [own.is_neighbours for own in choose([Candidate("protein", (3,))], data())] == [False]


def test_a_class_that_training_has_not_leaves_the_temperature_alone() -> None:
    own = data()
    odd = Data(own.training, own.validation, {**own.answers}, own.target)
    odd.answers["training"] = np.where(CLASSES[:300] == 7, 8, CLASSES[:300])
    (linear,) = choose([Candidate("protein", (3,))], odd, neighbours=False)
    known = odd.answers["validation"] != 7
    assert (odd.target.decided(linear.outputs)[known] == odd.answers["validation"][known]).mean() > 0.9
    assert np.exp(linear.outputs[:, 7]).max() < 1e-11


@pytest.mark.parametrize(("now", "limit"), [(16, 4), (2, 2)])
def test_few_threads(now: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than there were: OpenMP would start them."""
    limits: list[int] = []
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: [{"num_threads": 1}, {"num_threads": now}])
    monkeypatch.setattr(threadpoolctl, "threadpool_limits", limits.append)
    few_threads()
    assert limits == [limit]
