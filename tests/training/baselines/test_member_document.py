"""Documents and arrays of baselines that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines import FittedBaseline, fit_baselines, load
from chordmixer.training.baselines.candidates import Candidate
from chordmixer.training.baselines.member_document import Member
from chordmixer.training.baselines.trees import fit_trees

PARTS = {"training": np.arange(60), "validation": np.arange(60, 90), "test": np.arange(90, 120)}
CLASSES = np.arange(120) % 3


def changed(baseline: FittedBaseline, path: Path, name: str, change: Any) -> None:
    """Write it with one array, or its document, changed; an array that becomes None is left out."""
    path.write_bytes(baseline.packed())
    arrays = load_file(path)
    with safe_open(path, "np") as file:
        document = json.loads(file.metadata()["baseline"])
    if name == "document":
        document = change(document)
    else:
        own = change(arrays.pop(f"0.{name}", None))
        arrays |= {} if own is None else {f"0.{name}": np.ascontiguousarray(own)}
        document["members"][0]["words"] = name == "points"
    save_file(arrays, path, metadata={"baseline": json.dumps(document)})


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("weights", lambda a: a[:, :2], "weights has type float32 and shape"),
        ("weights", lambda a: a.astype(np.float64), "weights has type float64"),
        ("weights", lambda a: np.full_like(a, np.nan), "weights has numbers that are not finite"),
        ("offset", lambda a: None, "offset is missing"),
        ("kept", lambda a: a[::-1].copy(), "kept has numbers out of range"),
        ("rarity", lambda a: a[1:], "rarity has type float32"),
        ("document", lambda d: {**d, "members": [{**d["members"][0], "bits": 60}]}, "bits=60 is out of range"),
        ("points", lambda a: np.array([1 << 30], np.uint32), "points has numbers out of range"),
        ("document", lambda d: {**d, "format": 2}, "format 2 is not 1"),
        ("document", lambda d: {**d, "weights": []}, "1 members have 0 weights"),
        ("document", lambda d: {**d, "outputs": 7}, "it has 7 outputs, where 3 are asked for"),
        ("document", lambda d: {**d, "members": [{**d["members"][0], "k": [40]}]}, "k=40 is not a k-mer's length"),
        ("document", lambda d: {**d, "members": [{**d["members"][0], "model": "neighbours"}]}, "values is missing"),
    ],
)
def test_what_is_wrong_is_said(name: str, change: Any, reason: str, tmp_path: Path) -> None:
    target, chance, path = Classification(["a", "b", "c"], CLASSES), np.random.default_rng(0), tmp_path / "baseline"
    own = [
        chance.integers(3 * c, 20, n).astype(np.uint8)
        for c, n in zip(CLASSES, chance.integers(1, 80, 120), strict=True)
    ]
    *_, baseline = fit_baselines(own, [len(s) for s in own], CLASSES, PARTS, target, "text", k=2)
    assert baseline.fitted
    changed(baseline.fitted, path, name, change)
    with pytest.raises(ValueError, match=reason) as raised:
        load(path, target)
    assert str(raised.value).endswith(": use another copy") and "\n" not in str(raised.value)


def grown(classes: int) -> FittedBaseline:
    """Of proteins' composition, which says the class."""
    chance, answers = np.random.default_rng(0), np.arange(300) % classes
    own = [chance.integers(2 * c, 20, 40).astype(np.uint8) for c in answers]
    target = Classification([str(c) for c in range(classes)], answers)
    features, rows = Candidate("protein", (1,), length=True, dense=True).fit(own, room=100)
    return FittedBaseline(target, (Member(features, next(fit_trees(rows, answers, target))),))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("left", lambda a: np.zeros_like(a), "left or right has numbers out of range"),
        ("right", lambda a: a + 10_000, "left or right has numbers out of range"),
        ("left", lambda a: np.arange(len(a), dtype=np.int32), "left or right has numbers out of range"),
        ("feature", lambda a: a + 21, "feature, roots or known has numbers out of range"),
        ("feature", lambda a: a - 1, "feature, roots or known has numbers out of range"),
        ("roots", lambda a: a[:0], "feature, roots or known has numbers out of range"),
        ("roots", lambda a: a + 10_000, "feature, roots or known has numbers out of range"),
        ("known", lambda a: a + 1, "feature, roots or known has numbers out of range"),
        ("known", lambda a: a[::-1], "feature, roots or known has numbers out of range"),
        ("known", lambda a: a[:1], "feature, roots or known has numbers out of range"),
        ("threshold", lambda a: a * np.nan, "threshold has numbers that are not finite"),
        ("value", lambda a: a[1:], "value has type float32 and shape"),
        ("base", lambda a: None, "base is missing"),
    ],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_trees_that_no_record_could_be_led_through(
    classes: int, name: str, change: Any, reason: str, tmp_path: Path
) -> None:
    """No walk goes on for ever, or leaves the arrays."""
    baseline = grown(classes)
    changed(baseline, tmp_path / "baseline", name, change)
    with pytest.raises(ValueError, match=reason):
        load(tmp_path / "baseline", baseline.target)


def test_trees_of_another_target(tmp_path: Path) -> None:
    (tmp_path / "baseline").write_bytes(grown(2).packed())
    labels = MultiLabel.of(["x", "y"], np.eye(2, dtype=np.float32))
    with pytest.raises(ValueError, match="trees have no frequencies of 2 outputs"):
        load(tmp_path / "baseline", labels)
    changed(grown(2), tmp_path / "baseline", "document", lambda d: {**d, "outputs": 1})
    with pytest.raises(ValueError, match="feature, roots or known has numbers out of range"):
        load(tmp_path / "baseline", Regression())
