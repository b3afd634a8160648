"""Documents and arrays of baselines that do not fit together."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tests.forked import Forked

from chordmixer.data.features import TextWords
from chordmixer.data.tokenizers import Bytes, Characters
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines.candidates import Candidate
from chordmixer.training.baselines.fitting import fit_baselines
from chordmixer.training.baselines.linear import as_outputs
from chordmixer.training.baselines.nonlinear import fit_trees
from chordmixer.training.baselines.stored import FittedBaseline, Member, load_baseline
from chordmixer.training.combination import Combination

PARTS = {"training": np.arange(60), "validation": np.arange(60, 90), "test": np.arange(90, 120)}
CLASSES = np.arange(120) % 3


def write_changed(baseline: FittedBaseline, path: Path, name: str, change: Any) -> None:
    """Write a baseline with one array, or its document, changed; an array that becomes None is left out."""
    path.write_bytes(baseline.packed())
    arrays = load_file(path)
    with safe_open(path, "np") as file:
        document = json.loads(file.metadata()["baseline"])
    if name == "document":
        document = change(document)
    else:
        array = change(arrays.pop(f"0.{name}", None))
        arrays |= {} if array is None else {f"0.{name}": np.ascontiguousarray(array)}
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
        ("document", lambda d: {**d, "format": 1}, "format 1 is not 2"),
        ("document", lambda d: {**d, "weights": []}, "1 members have 0 weights"),
        ("document", lambda d: {**d, "outputs": 7}, "it has 7 outputs, where 3 are asked for"),
        ("document", lambda d: {**d, "members": [{**d["members"][0], "k": [40]}]}, "k=40 is not a k-mer's length"),
        ("document", lambda d: {**d, "members": [{**d["members"][0], "model": "neighbours"}]}, "values is missing"),
    ],
)
def test_errors_name_the_cause(name: str, change: Any, reason: str, tmp_path: Path) -> None:
    target, rng, path = Classification(["a", "b", "c"], CLASSES), np.random.default_rng(0), tmp_path / "baseline"
    records = [
        rng.integers(3 * c, 20, n).astype(np.uint8) for c, n in zip(CLASSES, rng.integers(1, 80, 120), strict=True)
    ]
    *_, baseline = fit_baselines(records, [len(s) for s in records], CLASSES, PARTS, target, "text", k=2)
    assert baseline.fitted
    write_changed(baseline.fitted, path, name, change)
    with pytest.raises(ValueError, match=reason) as error:
        load_baseline(path, target)
    assert str(error.value).endswith(": use another copy") and "\n" not in str(error.value)


def fitted_trees(classes: int) -> FittedBaseline:
    """Trees on the composition of proteins, which determines the class."""
    rng, answers = np.random.default_rng(0), np.arange(300) % classes
    records = [rng.integers(2 * c, 20, 40).astype(np.uint8) for c in answers]
    target = Classification([str(c) for c in range(classes)], answers)
    features, rows = Candidate("protein", (1,), length=True, dense=True).fit(records, room=100)
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
def test_damaged_trees_are_refused(classes: int, name: str, change: Any, reason: str, tmp_path: Path) -> None:
    """No path through a tree is endless or leaves the arrays."""
    baseline = fitted_trees(classes)
    write_changed(baseline, tmp_path / "baseline", name, change)
    with pytest.raises(ValueError, match=reason):
        load_baseline(tmp_path / "baseline", baseline.target)


def test_trees_of_another_target(tmp_path: Path) -> None:
    (tmp_path / "baseline").write_bytes(fitted_trees(2).packed())
    labels = MultiLabel.of(["x", "y"], np.eye(2, dtype=np.float32))
    with pytest.raises(ValueError, match="trees have no frequencies of 2 outputs"):
        load_baseline(tmp_path / "baseline", labels)
    write_changed(fitted_trees(2), tmp_path / "baseline", "document", lambda d: {**d, "outputs": 1})
    with pytest.raises(ValueError, match="feature, roots or known has numbers out of range"):
        load_baseline(tmp_path / "baseline", Regression())


PARTS = {"training": np.arange(60), "validation": np.arange(60, 90), "test": np.arange(90, 120)}
CLASSES = np.arange(120) % 3
LABELS = np.stack([CLASSES == 0, CLASSES == 1], axis=1).astype(np.float32)
TARGETS: dict[str, tuple[Any, np.ndarray]] = {
    "classes": (Classification(["a", "b", "c"], CLASSES), CLASSES),
    "labels": (MultiLabel.of(["x", "y"], LABELS), LABELS),
    "number": (Regression.of(CLASSES * 1.0), CLASSES * 1.0),
}


def sequences(kind: str) -> list[np.ndarray]:
    """Records of three classes, of one token or more."""
    rng, lengths = np.random.default_rng(0), np.random.default_rng(1).integers(1, 80, 120)
    if kind == "real":
        return [rng.normal(c, 1 + c, (n, 2)).astype(np.float32) for c, n in zip(CLASSES, lengths, strict=True)]
    size = {"dna": 4, "protein": 20, "text": 26}[kind]
    shares = [np.roll(np.linspace(1, 4, size), 3 * c) for c in range(3)]
    return [
        rng.choice(size, n, p=shares[c] / shares[c].sum()).astype(np.uint8)
        for c, n in zip(CLASSES, lengths, strict=True)
    ]


@cache
def fitted(kind: str, target_name: str) -> list[FittedBaseline]:
    target, answers = TARGETS[target_name]
    records = sequences(kind)
    baselines = fit_baselines(records, [len(s) for s in records], answers, PARTS, target, kind)
    return [baseline.fitted for baseline in baselines if baseline.fitted]


@pytest.mark.parametrize(
    ("kind", "target_name"),
    [("dna", "classes"), ("dna", "labels"), ("text", "classes"), ("real", "labels"), ("real", "number")]
    + [("protein", target_name) for target_name in TARGETS],
)
def test_the_same_answers_after_loading(kind: str, target_name: str, tmp_path: Path) -> None:
    """Equal to the bit for records alone or together, for none, and for one too short for any k-mer."""
    target, records = TARGETS[target_name][0], sequences(kind)
    for baseline in fitted(kind, target_name):
        path = tmp_path / "baseline.safetensors"
        path.write_bytes(baseline.packed())
        loaded, outputs = load_baseline(path, target), baseline.outputs(records)
        assert outputs.dtype == np.float32 and np.isfinite(outputs).all()
        assert (loaded.outputs(records) == outputs).all() and loaded.packed() == baseline.packed()
        assert all((loaded.outputs([records[i]])[0] == outputs[i]).all() for i in range(0, 120, 11))
        assert loaded.outputs([]).shape == (0, target.outputs)
        assert np.isfinite(loaded.outputs([records[0][:1]])).all()


@pytest.mark.parametrize("target_name", [*TARGETS])
def test_two_are_added_as_a_combination_does(target_name: str) -> None:
    target, records = TARGETS[target_name][0], sequences("protein")
    first, second = (baseline.members[0] for baseline in fitted("protein", target_name)[:2])
    combined = FittedBaseline(target, (first, second), (0.7, 1.3), 0.25 if target_name == "number" else 0.0)
    separate = [FittedBaseline(target, (member,)).outputs(records) for member in (first, second)]
    combination = Combination("both", {"both": (*combined.weights, combined.shift)}, {})
    expected = as_outputs(combination.outputs(target, *separate).astype(np.float64), target)
    assert combined.outputs(records) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("tokenizer", [Bytes(), Characters(" abcdefgz")], ids=["bytes", "characters"])
@pytest.mark.parametrize("target_name", [*TARGETS])
def test_words_answer_the_same_after_loading(tokenizer: Any, target_name: str, tmp_path: Path) -> None:
    """Equal to the bit, also for texts without a word, of one token, or of characters outside the vocabulary."""
    target, answers = TARGETS[target_name]
    rng, words = np.random.default_rng(0), TextWords.of(tokenizer)
    texts = [" ".join(rng.choice(["abc", "de", "fg", "Zz"], 6)) + " " + "abc"[c] * 4 for c in CLASSES]
    ids = [np.asarray(tokenizer.encode(text.replace("Z", "z"))) for text in texts]
    baselines = fit_baselines(ids, [len(s) for s in ids], answers, PARTS, target, "text", words=words)
    (baseline,) = [b.fitted for b in baselines if b.fitted and b.name.startswith("words")][:1]
    path, odd = tmp_path / "baseline.safetensors", [*ids, *map(tokenizer.encode, (" ", "a", "?", "abc" * 400_000))]
    path.write_bytes(baseline.packed())
    loaded, outputs = load_baseline(path, target), baseline.outputs(odd)
    assert (loaded.outputs(odd) == outputs).all() and loaded.packed() == baseline.packed()
    assert np.isfinite(outputs).all() and all((loaded.outputs([odd[i]])[0] == outputs[i]).all() for i in (0, 60, 121))


def test_files_of_18_bits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such files were written before the number of bits was stored."""
    target, answers = TARGETS["classes"]
    records, path = sequences("text"), tmp_path / "baseline.safetensors"
    monkeypatch.setattr("chordmixer.training.baselines.candidates.BITS", {})
    *_, baseline = fit_baselines(records, [len(s) for s in records], answers, PARTS, target, "text", k=2)
    assert baseline.fitted
    path.write_bytes(baseline.fitted.packed())
    arrays, document = load_file(path), _document(path)
    assert document["members"][0].pop("bits") == 18 and not document["members"][0].pop("words")
    save_file(arrays, path, metadata={"baseline": json.dumps(document)})
    assert (load_baseline(path, target).outputs(records) == baseline.fitted.outputs(records)).all()


def test_another_process_answers_the_same(tmp_path: Path) -> None:
    *_, baseline = fitted("dna", "classes")
    (tmp_path / "baseline.safetensors").write_bytes(baseline.packed())
    records = sequences("dna")[:20]
    np.savez(tmp_path / "records.npz", *records)
    code = (
        "import sys, numpy as np; from chordmixer.training.baselines.stored import load_baseline; "
        "from chordmixer.tasks.targets import Classification as C; "
        "records = [*np.load(sys.argv[2]).values()]; "
        "target = C(['a', 'b', 'c'], np.arange(120) % 3); "
        "print(load_baseline(sys.argv[1], target).outputs(records).tobytes().hex())"
    )
    arguments = [str(tmp_path / "baseline.safetensors"), str(tmp_path / "records.npz")]
    output, _ = Forked([sys.executable, "-c", code, *arguments]).communicate(timeout=60)
    assert output.strip() == baseline.outputs(records).tobytes().hex()


@pytest.mark.parametrize(("kind", "target_name"), [("dna", "classes"), ("real", "number"), ("protein", "number")])
def test_damaged_files_are_one_line(kind: str, target_name: str, tmp_path: Path) -> None:
    """A file that is cut, or has a flipped bit in its header, is refused in one line or works."""
    target, path = TARGETS[target_name][0], tmp_path / "baseline.safetensors"
    data = fitted(kind, target_name)[0].packed()
    header = 8 + int.from_bytes(data[:8], "little")
    rng = np.random.default_rng(0)
    cut = [data[:n] for n in (0, 5, 8, header // 2, header, len(data) - 1)]
    flipped = []
    for position in [*range(8), *rng.integers(8, header, 150).tolist()]:
        mutant = bytearray(data)
        mutant[position] ^= 1 << int(rng.integers(8))
        flipped.append(bytes(mutant))
    for damaged in [*cut, *flipped]:
        path.write_bytes(damaged)
        try:
            load_baseline(path, target).outputs(sequences(kind)[:2])
        except ValueError as error:
            assert str(error).startswith(f"{path} is ") and str(error).endswith(": use another copy")
            assert "\n" not in str(error)
    for damaged in cut:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="use another copy"):
            load_baseline(path, target)


def _document(path: Path) -> Any:
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["baseline"])
