from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score

from chordmixer.tasks.targets import Classification, Regression


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def softmax(outputs: np.ndarray) -> np.ndarray:
    odds = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def constant_loss(target: Any, answer: np.ndarray, targets: np.ndarray) -> float:
    outputs = torch.tensor(answer).double().expand(len(targets), -1)
    return target.losses(outputs, torch.tensor(targets)).double().mean().item()


class TestRegression:
    target = Regression(tolerance=0.04)

    @pytest.mark.parametrize(("distance", "right"), [(0.0399, 1.0), (0.0401, 0.0), (-0.0399, 1.0), (-0.0401, 0.0)])
    def test_right_within_the_tolerance(self, distance: float, right: float) -> None:
        metrics = self.target.metrics(np.array([[0.5 + distance]]), np.array([0.5]))
        assert metrics["accuracy"] == right
        assert metrics["mse"] == pytest.approx(distance**2)

    def test_the_tolerance_itself_is_wrong(self) -> None:
        """|y - y'| < 0.04 in the paper; in quarters, which binary numbers hold exactly."""
        metrics = Regression(tolerance=0.25).metrics(np.array([[0.25], [0.75], [0.5]]), np.full(3, 0.5))
        assert metrics["accuracy"] == pytest.approx(1 / 3)

    def test_losses_are_squares(self) -> None:
        losses = self.target.losses(torch.tensor([[0.5], [1.0]]), torch.tensor([0.25, 3.0]))
        assert losses.tolist() == [0.0625, 4.0]

    def test_the_constant_is_the_best(self, rng: np.random.Generator) -> None:
        targets = rng.random(500).astype(np.float32)
        best = self.target.constant(targets)
        loss = constant_loss(self.target, best, targets)
        assert loss == pytest.approx(targets.astype(np.float64).var(), rel=1e-5)
        assert all(constant_loss(self.target, best + step, targets) > loss for step in (-0.01, 0.01))


class TestClassification:
    counts = (600, 300, 100)
    targets = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], counts))
    target = Classification(["a", "b", "c"], targets)

    def test_weights_are_one_on_average(self) -> None:
        weights = self.target.weights.numpy()
        assert weights == pytest.approx([1000 / (3 * n) for n in self.counts])
        assert weights[self.targets].mean() == pytest.approx(1)

    def test_losses_by_hand(self, rng: np.random.Generator) -> None:
        outputs = rng.normal(size=(1000, 3)).astype(np.float32)
        expected = (
            -np.log(softmax(outputs)[np.arange(1000), self.targets]) * self.target.weights.numpy()[self.targets]
        )
        losses = self.target.losses(torch.tensor(outputs), torch.tensor(self.targets))
        assert losses.numpy() == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize("shares", [(600, 300, 100), (10, 10, 980), (500, 500, 0)], ids=str)
    def test_the_constant_is_the_best(self, shares: tuple[int, ...]) -> None:
        """For any other set of records too, such as the test set."""
        targets = np.repeat([0, 1, 2], shares)
        best = self.target.constant(targets)
        loss = constant_loss(self.target, best, targets)
        for step in np.vstack([np.eye(3), -np.eye(3)]) * 0.1:
            assert constant_loss(self.target, best + step.astype(np.float32), targets) > loss - 1e-9

    def test_metrics_are_sklearns(self, rng: np.random.Generator) -> None:
        outputs = rng.normal(size=(1000, 3)).astype(np.float32)
        outputs[:, 1] += self.targets == 1
        metrics = self.target.metrics(outputs, self.targets)
        assert metrics["accuracy"] == pytest.approx(accuracy_score(self.targets, outputs.argmax(1)))
        area = roc_auc_score(self.targets, softmax(outputs), multi_class="ovr")
        assert metrics["roc_auc"] == pytest.approx(area, abs=1e-5)

    def test_every_class_needs_a_record(self) -> None:
        with pytest.raises(ValueError, match="class 'c' has no training record: every class needs one"):
            Classification(["a", "b", "c"], [0, 1, 1, 0])


class TestTwoClasses:
    targets = np.random.default_rng(1).integers(2, size=400)
    target = Classification(["no", "yes"], targets)

    def metrics(self, scores: np.ndarray) -> dict[str, float]:
        outputs = np.stack([np.zeros_like(scores), scores], axis=1).astype(np.float32)
        return self.target.metrics(outputs, self.targets)

    def test_headline(self) -> None:
        assert self.target.headline == "roc_auc" and TestClassification.target.headline == "accuracy"

    @pytest.mark.parametrize("decimals", [0, 1, 6], ids=["many-ties", "some-ties", "no-ties"])
    def test_area_is_sklearns(self, decimals: int, rng: np.random.Generator) -> None:
        scores = (rng.normal(size=400) + self.targets).round(decimals)
        assert self.metrics(scores)["roc_auc"] == pytest.approx(roc_auc_score(self.targets, scores), abs=1e-9)

    def test_area_is_of_the_scores_not_of_the_answers(self) -> None:
        """All answers are no, and yet the ranking is perfect; the authors measured after argmax."""
        metrics = self.metrics(self.targets - 5.0)
        assert metrics["roc_auc"] == 1.0
        assert metrics["accuracy"] == pytest.approx((self.targets == 0).mean())

    @pytest.mark.parametrize("confidence", [20, -20, 60, -60])
    def test_confident_scores_are_still_ranked(self, confidence: int, rng: np.random.Generator) -> None:
        """Probabilities that round to one or zero must not become ties."""
        scores = confidence + rng.normal(size=400) + self.targets
        assert self.metrics(scores)["roc_auc"] == pytest.approx(roc_auc_score(self.targets, scores), abs=1e-3)

    def test_one_class_alone_has_no_area(self) -> None:
        assert np.isnan(self.target.metrics(np.zeros((3, 2), np.float32), np.ones(3, int))["roc_auc"])
