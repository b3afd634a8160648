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
        ("document", lambda d: {**d, "format": 1}, "format 1 is not 2"),
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
        load_baseline(path, target)
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
        load_baseline(tmp_path / "baseline", baseline.target)


def test_trees_of_another_target(tmp_path: Path) -> None:
    (tmp_path / "baseline").write_bytes(grown(2).packed())
    labels = MultiLabel.of(["x", "y"], np.eye(2, dtype=np.float32))
    with pytest.raises(ValueError, match="trees have no frequencies of 2 outputs"):
        load_baseline(tmp_path / "baseline", labels)
    changed(grown(2), tmp_path / "baseline", "document", lambda d: {**d, "outputs": 1})
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
    """Three kinds of records, of lengths from one on."""
    chance, lengths = np.random.default_rng(0), np.random.default_rng(1).integers(1, 80, 120)
    if kind == "real":
        return [chance.normal(c, 1 + c, (n, 2)).astype(np.float32) for c, n in zip(CLASSES, lengths, strict=True)]
    size = {"dna": 4, "protein": 20, "text": 26}[kind]
    shares = [np.roll(np.linspace(1, 4, size), 3 * c) for c in range(3)]
    return [
        chance.choice(size, n, p=shares[c] / shares[c].sum()).astype(np.uint8)
        for c, n in zip(CLASSES, lengths, strict=True)
    ]


@cache
def fitted(kind: str, asked: str) -> list[FittedBaseline]:
    target, answers = TARGETS[asked]
    own = sequences(kind)
    found = fit_baselines(own, [len(s) for s in own], answers, PARTS, target, kind)
    return [baseline.fitted for baseline in found if baseline.fitted]


@pytest.mark.parametrize(
    ("kind", "asked"),
    [("dna", "classes"), ("dna", "labels"), ("text", "classes"), ("real", "labels"), ("real", "number")]
    + [("protein", asked) for asked in TARGETS],
)
def test_the_same_answers_after_loading(kind: str, asked: str, tmp_path: Path) -> None:
    """Bit for bit, of records alone or together, of none, and of one too short for any k-mer."""
    target, own = TARGETS[asked][0], sequences(kind)
    for baseline in fitted(kind, asked):
        path = tmp_path / "baseline.safetensors"
        path.write_bytes(baseline.packed())
        again, outputs = load_baseline(path, target), baseline.outputs(own)
        assert outputs.dtype == np.float32 and np.isfinite(outputs).all()
        assert (again.outputs(own) == outputs).all() and again.packed() == baseline.packed()
        assert all((again.outputs([own[i]])[0] == outputs[i]).all() for i in range(0, 120, 11))
        assert again.outputs([]).shape == (0, target.outputs)
        assert np.isfinite(again.outputs([own[0][:1]])).all()


@pytest.mark.parametrize("asked", [*TARGETS])
def test_two_are_added_as_a_combination_does(asked: str) -> None:
    target, own = TARGETS[asked][0], sequences("protein")
    first, second = (baseline.members[0] for baseline in fitted("protein", asked)[:2])
    both = FittedBaseline(target, (first, second), (0.7, 1.3), 0.25 if asked == "number" else 0.0)
    alone = [FittedBaseline(target, (member,)).outputs(own) for member in (first, second)]
    combination = Combination("both", {"both": (*both.weights, both.shift)}, {})
    expected = as_outputs(combination.outputs(target, *alone).astype(np.float64), target)
    assert both.outputs(own) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("tokenizer", [Bytes(), Characters(" abcdefgz")], ids=["bytes", "characters"])
@pytest.mark.parametrize("asked", [*TARGETS])
def test_words_answer_the_same_after_loading(tokenizer: Any, asked: str, tmp_path: Path) -> None:
    """Bit for bit, also of texts without a word, of one token, and of characters that the vocabulary lacks."""
    target, answers = TARGETS[asked]
    chance, words = np.random.default_rng(0), TextWords.of(tokenizer)
    texts = [" ".join(chance.choice(["abc", "de", "fg", "Zz"], 6)) + " " + "abc"[c] * 4 for c in CLASSES]
    own = [np.asarray(tokenizer.encode(text.replace("Z", "z"))) for text in texts]
    found = fit_baselines(own, [len(s) for s in own], answers, PARTS, target, "text", words=words)
    (baseline,) = [b.fitted for b in found if b.fitted and b.name.startswith("words")][:1]
    path, odd = tmp_path / "baseline.safetensors", [*own, *map(tokenizer.encode, (" ", "a", "?", "abc" * 400_000))]
    path.write_bytes(baseline.packed())
    again, outputs = load_baseline(path, target), baseline.outputs(odd)
    assert (again.outputs(odd) == outputs).all() and again.packed() == baseline.packed()
    assert np.isfinite(outputs).all() and all((again.outputs([odd[i]])[0] == outputs[i]).all() for i in (0, 60, 121))


def test_files_of_18_bits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they were written before the number of bits was."""
    target, answers = TARGETS["classes"]
    own, path = sequences("text"), tmp_path / "baseline.safetensors"
    monkeypatch.setattr("chordmixer.training.baselines.candidates.BITS", {})
    *_, baseline = fit_baselines(own, [len(s) for s in own], answers, PARTS, target, "text", k=2)
    assert baseline.fitted
    path.write_bytes(baseline.fitted.packed())
    arrays, document = load_file(path), _document(path)
    assert document["members"][0].pop("bits") == 18 and not document["members"][0].pop("words")
    save_file(arrays, path, metadata={"baseline": json.dumps(document)})
    assert (load_baseline(path, target).outputs(own) == baseline.fitted.outputs(own)).all()


def test_another_process_answers_the_same(tmp_path: Path) -> None:
    *_, baseline = fitted("dna", "classes")
    (tmp_path / "baseline.safetensors").write_bytes(baseline.packed())
    own = sequences("dna")[:20]
    np.savez(tmp_path / "records.npz", *own)
    code = (
        "import sys, numpy as np; from chordmixer.training.baselines.stored import load_baseline; "
        "from chordmixer.tasks.targets import Classification as C; "
        "records = [*np.load(sys.argv[2]).values()]; "
        "target = C(['a', 'b', 'c'], np.arange(120) % 3); "
        "print(load_baseline(sys.argv[1], target).outputs(records).tobytes().hex())"
    )
    given = [str(tmp_path / "baseline.safetensors"), str(tmp_path / "records.npz")]
    said, _ = Forked([sys.executable, "-c", code, *given]).communicate(timeout=60)
    assert said.strip() == baseline.outputs(own).tobytes().hex()


@pytest.mark.parametrize(("kind", "asked"), [("dna", "classes"), ("real", "number"), ("protein", "number")])
def test_damaged_files_are_one_line(kind: str, asked: str, tmp_path: Path) -> None:
    """Cut anywhere, or a byte of the header flipped: refused in one line, or as good as new."""
    target, path = TARGETS[asked][0], tmp_path / "baseline.safetensors"
    data = fitted(kind, asked)[0].packed()
    header = 8 + int.from_bytes(data[:8], "little")
    chance = np.random.default_rng(0)
    cut = [data[:n] for n in (0, 5, 8, header // 2, header, len(data) - 1)]
    flipped = []
    for at in [*range(8), *chance.integers(8, header, 150).tolist()]:
        changed = bytearray(data)
        changed[at] ^= 1 << int(chance.integers(8))
        flipped.append(bytes(changed))
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
