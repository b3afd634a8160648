from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from chordmixer.tasks.targets import Classification, MultiLabel, Regression, resampled
from chordmixer.training.labels import target_from


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

    @pytest.mark.parametrize(("distance", "accuracy"), [(0.0399, 1.0), (0.0401, 0.0), (-0.0399, 1.0), (-0.0401, 0.0)])
    def test_right_within_the_tolerance(self, distance: float, accuracy: float) -> None:
        metrics = self.target.metrics(np.array([[0.5 + distance]]), np.array([0.5]))
        assert metrics["accuracy"] == accuracy
        assert metrics["mse"] == pytest.approx(distance**2)

    def test_the_tolerance_itself_is_wrong(self) -> None:
        """|y - y'| < 0.04 in the paper; here in quarters, which are exact in binary."""
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


class TestRegressionWithoutTolerance:
    targets = np.random.default_rng(2).normal(5000, 300, 400).astype(np.float32)
    target = Regression.of(targets)

    def test_answers_are_near_zero(self) -> None:
        """This holds for any targets, so that a new model starts near them."""
        assert self.target.constant(self.targets) == pytest.approx([0], abs=1e-3)
        assert constant_loss(self.target, np.zeros(1, np.float32), self.targets) == pytest.approx(1, rel=1e-3)

    def test_metrics_are_in_the_targets_units(self) -> None:
        outputs = self.target.standardised(self.targets)[:, None] + np.float32(0.1)
        metrics = self.target.metrics(outputs, self.targets)
        assert metrics["mae"] == pytest.approx(0.1 * self.target.scale, rel=1e-3)
        assert metrics["mse"] == pytest.approx((0.1 * self.target.scale) ** 2, rel=1e-3)
        assert metrics["r2"] == pytest.approx(0.99, rel=1e-3) and metrics["pearson"] == pytest.approx(1)
        assert self.target.values(outputs) == pytest.approx(self.targets + 0.1 * self.target.scale, rel=1e-5)

    def test_the_headline_rises_with_quality(self) -> None:
        assert self.target.headline == "r2" and Regression(0.04).headline == "accuracy"
        exact = self.target.standardised(self.targets)[:, None]
        worse = self.target.metrics(exact + 0.5, self.targets)["r2"]
        assert self.target.metrics(exact, self.targets)["r2"] > worse

    def test_targets_that_are_all_alike(self) -> None:
        with pytest.raises(ValueError, match="all 2 training numbers are 3: nothing to learn"):
            Regression.of([3.0, 3.0])

    def test_large_numbers_keep_their_differences(self) -> None:
        """In float32 all of 1e9 + i are alike."""
        small, large = np.arange(0.0, 40.0), 1e9 + np.arange(0.0, 40.0)
        base, shifted = Regression.of(small), Regression.of(large)
        outputs = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 1)).astype(np.float32))
        losses = [t.losses(outputs, torch.from_numpy(n)) for t, n in ((base, small), (shifted, large))]
        assert torch.equal(*losses) and losses[0].dtype == torch.float32
        assert shifted.values(outputs.numpy()) - 1e9 == pytest.approx(base.values(outputs.numpy()), abs=1e-6)
        first, second = (t.metrics(outputs.numpy(), n) for t, n in ((base, small), (shifted, large)))
        assert first == pytest.approx(second, rel=1e-6)
        assert shifted.rounded(1e9 + 7.123456) == 1000000007.12346 and base.rounded(7.123456789) == 7.1234568

    def test_numbers_beyond_float32_are_learnt(self) -> None:
        target = Regression.of([1e100, 3e100])
        assert target.losses(torch.zeros(2, 1), torch.tensor([1e100, 3e100], dtype=torch.float64)).tolist() == [1, 1]

    @pytest.mark.parametrize(
        ("numbers", "message"),
        [
            (
                [1e17, 1e17 + 16, 1e17 + 32],
                "lose their differences: float64 holds such numbers in steps of 16",
            ),
            ([1e200, 2e200], "are too large or too close: their squares do not fit float64; rescale them"),
            ([0.0, 1e-200], "are too large or too close: their squares do not fit float64; rescale them"),
        ],
    )
    def test_numbers_that_lose_their_precision(self, numbers: list[float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Regression.of(numbers)

    def test_targets_must_be_finite(self) -> None:
        with pytest.raises(ValueError, match="a target is NaN or infinite: every target must be finite; leave that"):
            Regression.of([1.0, float("nan")])


class TestClassification:
    counts = (600, 300, 100)
    targets = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], counts))
    target = Classification(["a", "b", "c"], targets)

    def test_two_classes_weigh_the_same_and_more_are_not_weighted(self) -> None:
        """The weights of all training records have mean one."""
        weights = Classification.of_counts(["a", "b"], [900, 100]).weights.numpy()
        assert weights == pytest.approx([1000 / 1800, 1000 / 200])
        assert weights @ [900, 100] == pytest.approx(1000)
        assert self.target.weights.tolist() == [1, 1, 1]

    def test_losses_by_hand(self, rng: np.random.Generator) -> None:
        outputs = rng.normal(size=(1000, 3)).astype(np.float32)
        expected = (
            -np.log(softmax(outputs)[np.arange(1000), self.targets]) * self.target.weights.numpy()[self.targets]
        )
        losses = self.target.losses(torch.tensor(outputs), torch.tensor(self.targets))
        assert losses.numpy() == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize("shares", [(600, 300, 100), (10, 10, 980), (500, 500, 0)], ids=str)
    def test_the_constant_is_the_best(self, shares: tuple[int, ...]) -> None:
        """This holds for any set of records, such as the test set."""
        targets = np.repeat([0, 1, 2], shares)
        best = self.target.constant(targets)
        loss = constant_loss(self.target, best, targets)
        for step in np.vstack([np.eye(3), -np.eye(3)]) * 0.1:
            assert constant_loss(self.target, best + step.astype(np.float32), targets) > loss - 1e-9

    def test_metrics_are_sklearns(self, rng: np.random.Generator) -> None:
        outputs = rng.normal(size=(1000, 3)).astype(np.float32)
        outputs[:, 1] += self.targets == 1
        metrics = self.target.metrics(outputs, self.targets)
        outputs = self.target.unweighted(outputs)  # whose answers `predict` gives
        assert metrics["accuracy"] == pytest.approx(accuracy_score(self.targets, outputs.argmax(1)))
        area = roc_auc_score(self.targets, softmax(outputs), multi_class="ovr")
        assert metrics["roc_auc"] == pytest.approx(area, abs=1e-5)

    def test_metrics_beside_the_area(self, rng: np.random.Generator) -> None:
        metrics = self.target.metrics(rng.normal(size=(1000, 3)).astype(np.float32), self.targets)
        assert [*metrics] == ["accuracy", "roc_auc", "balanced_accuracy", "f1_macro", "mcc", "log_loss"]

    def test_a_class_without_records_does_not_spoil_the_area(self, rng: np.random.Generator) -> None:
        """As in a length bin, the mean is over the classes that have records."""
        selected = self.targets < 2
        outputs = rng.normal(size=(int(selected.sum()), 3)).astype(np.float32)
        odds = [np.log(p / (1 - p)) for p in softmax(self.target.unweighted(outputs)).T[:2]]
        expected = [roc_auc_score(self.targets[selected] == k, odds[k]) for k in (0, 1)]
        assert self.target.metrics(outputs, self.targets[selected])["roc_auc"] == pytest.approx(
            np.mean(expected), abs=1e-5
        )

    def test_weights_can_be_taken_back(self) -> None:
        """The best constant for the weighted loss, unweighted, is the classes' own shares."""
        best = self.target.unweighted(self.target.constant(self.targets)[None])
        assert softmax(best)[0] == pytest.approx([0.6, 0.3, 0.1], rel=1e-4)

    def test_every_class_needs_a_record(self) -> None:
        with pytest.raises(ValueError, match="class 'c' has no training record: every class needs one"):
            Classification(["a", "b", "c"], [0, 1, 1, 0])


class TestTwoClasses:
    targets = np.random.default_rng(1).integers(2, size=400)
    target = Classification(["no", "yes"], targets)

    def metrics(self, scores: np.ndarray) -> dict[str, float]:
        outputs = np.stack([np.zeros_like(scores), scores], axis=1).astype(np.float32)
        return self.target.metrics(outputs, self.targets)

    def test_average_precision_is_sklearns(self, rng: np.random.Generator) -> None:
        scores = (rng.normal(size=400) + self.targets).round(1)
        expected = average_precision_score(self.targets, scores)
        assert self.metrics(scores)["average_precision"] == pytest.approx(expected)

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


class TestMultiLabel:
    targets = (np.random.default_rng(1).random((500, 3)) < [0.5, 0.2, 0.02]).astype(np.float32)
    target = MultiLabel.of(["a", "b", "c"], targets)

    def test_weights_are_one_on_average(self) -> None:
        weights = np.where(self.targets, self.target.positive.numpy(), self.target.negative.numpy())
        assert weights.mean(axis=0) == pytest.approx(1, rel=1e-4)

    def test_rare_labels_do_not_weigh_without_end(self) -> None:
        target = MultiLabel(["rare"], [1], 100_000)
        assert target.positive.item() == pytest.approx(MultiLabel.MOST * target.negative.item())
        assert MultiLabel(["always"], [10], 10).negative.item() == 5

    def test_losses_by_hand(self, rng: np.random.Generator) -> None:
        outputs = rng.normal(size=(500, 3)).astype(np.float32)
        probability = 1 / (1 + np.exp(-outputs.astype(np.float64)))
        expected = -np.where(
            self.targets,
            self.target.positive.numpy() * np.log(probability),
            self.target.negative.numpy() * np.log(1 - probability),
        )
        losses = self.target.losses(torch.tensor(outputs), torch.tensor(self.targets))
        assert losses.shape == (500,) and losses.numpy() == pytest.approx(expected.mean(axis=1), rel=1e-4)

    @pytest.mark.parametrize("rows", [slice(None), slice(50)], ids=["all", "few"])
    def test_the_constant_is_the_best(self, rows: slice) -> None:
        targets = self.targets[rows]
        best = self.target.constant(targets)
        loss = constant_loss(self.target, best, targets)
        for step in np.vstack([np.eye(3), -np.eye(3)]) * 0.1:
            assert constant_loss(self.target, best + step.astype(np.float32), targets) > loss - 1e-9

    def test_metrics_are_sklearns(self, rng: np.random.Generator) -> None:
        outputs = (rng.normal(size=(500, 3)) + 2 * self.targets - 1).astype(np.float32)
        metrics = self.target.metrics(outputs, self.targets)
        answers = self.target.unweighted(outputs) > 0  # which `predict` gives
        assert metrics["roc_auc"] == pytest.approx(roc_auc_score(self.targets, outputs))
        assert metrics["average_precision"] == pytest.approx(average_precision_score(self.targets, outputs))
        assert metrics["accuracy"] == pytest.approx(accuracy_score(self.targets, answers))
        assert metrics["f1_micro"] == pytest.approx(f1_score(self.targets, answers, average="micro"))
        assert metrics["f1_macro"] == pytest.approx(f1_score(self.targets, answers, average="macro", zero_division=0))
        assert self.target.headline in metrics

    def test_every_label_needs_a_record(self) -> None:
        with pytest.raises(ValueError, match="class 'b' has no training record"):
            MultiLabel(["a", "b"], [3, 0], 5)


@pytest.mark.parametrize(
    "target",
    [
        Regression(0.04),
        Regression.of([1.0, 5.0]),
        Classification(["no", "yes"], [0, 0, 1]),
        MultiLabel(["a", "b"], [3, 1], 5),
    ],
    ids=["tolerance", "regression", "classes", "labels"],
)
def test_targets_go_into_a_run_and_back(target: Any, rng: np.random.Generator) -> None:
    copy = target_from(json.loads(json.dumps(target.to_dict())))
    assert type(copy) is type(target) and copy.headline == target.headline and copy.outputs == target.outputs
    outputs = torch.tensor(rng.normal(size=(4, target.outputs)))
    targets = torch.tensor([0, 1, 1, 0]) if target.outputs == 2 else torch.rand(4)
    if isinstance(target, MultiLabel):
        targets = torch.ones(4, 2)
    assert torch.equal(copy.losses(outputs, targets), target.losses(outputs, targets))


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (
            {"kind": "ranking"},
            "target kind 'ranking' is not known: it is one of regression, classification, multi-lab",
        ),
        ({}, "target kind None is not known"),
        ({"kind": "classification", "labels": ["a"]}, "target.counts is missing"),
        ({"kind": "classification", "labels": ["a"], "counts": [1, 2]}, "1 labels have 2 counts: each needs one"),
        ({"kind": "classification", "labels": [], "counts": []}, "0 labels have 0 counts: each needs one"),
        ({"kind": "classification", "labels": ["a", "a"], "counts": [1, 2]}, "2 labels are not all different"),
        ({"kind": "classification", "labels": ["a", "b"], "counts": [1, 0]}, "class 'b' has no training record"),
        ({"kind": "classification", "labels": "ab", "counts": [1, 2]}, "target.labels='ab' is not a list"),
        ({"kind": "multi-label", "labels": ["a"], "counts": [9], "records": 3}, "9 records of 3 have a label"),
        ({"kind": "regression", "mean": None}, "target.mean=None is not of type float"),
        ({"kind": "regression", "scale": 0}, "a number needs a finite mean, a scale above 0"),
    ],
)
def test_targets_that_are_not_whole(saved: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        target_from(saved)


RNG = np.random.default_rng(1)
RECORDS = 90


def binary(decimals: int) -> tuple[Classification, np.ndarray, np.ndarray]:
    targets = (RNG.random(RECORDS) < 0.1).astype(np.int64)
    outputs = (targets[:, None] * [-1, 1] + RNG.normal(size=(RECORDS, 2))).round(decimals)
    return Classification.of_counts(["no", "yes"], [9, 1]), outputs.astype(np.float32), targets


def multi() -> tuple[Classification, np.ndarray, np.ndarray]:
    targets = RNG.integers(0, 4, RECORDS)  # the fifth class has no record
    outputs = np.eye(5)[targets] + RNG.normal(size=(RECORDS, 5))
    return Classification.of_counts(list("abcde"), [5, 4, 3, 2, 1]), outputs.astype(np.float32), targets


def labels() -> tuple[MultiLabel, np.ndarray, np.ndarray]:
    targets = (RNG.random((RECORDS, 3)) < [0.5, 0.1, 0.02]).astype(np.float32)
    outputs = targets + RNG.normal(size=(RECORDS, 3)).round(1)
    return MultiLabel(["x", "y", "z"], [50, 10, 2], 100), outputs.astype(np.float32), targets


def number() -> tuple[Regression, np.ndarray, np.ndarray]:
    targets = RNG.normal(size=RECORDS).astype(np.float32)
    return Regression(), (targets[:, None] + RNG.normal(size=(RECORDS, 1))).astype(np.float32), targets


CASES = {"no ties": binary(6), "ties": binary(0), "five classes": multi(), "labels": labels(), "a number": number()}


@pytest.mark.parametrize("name", CASES)
def test_resampled_metrics_are_those_of_each_resample(name: str) -> None:
    target, outputs, targets = CASES[name]
    draws = RNG.integers(RECORDS, size=(40, RECORDS))
    draws[0], draws[1] = np.arange(RECORDS), 3  # all records once, and one record alone
    weights = np.array([np.bincount(rows, minlength=RECORDS) for rows in draws], dtype=np.float64)
    actual = resampled(target, outputs, targets, weights)
    expected = [target.metrics(outputs[rows], targets[rows]) for rows in draws]
    assert [*actual] == [*expected[0]]
    for metric, values in actual.items():
        np.testing.assert_allclose(values, [m[metric] for m in expected], rtol=1e-6, atol=1e-9, err_msg=metric)
