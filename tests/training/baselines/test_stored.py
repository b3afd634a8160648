"""A baseline that is saved and read again, in the same and in another process, and files that are damaged."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.forked import Forked

from chordmixer.data.features import TextWords
from chordmixer.data.tokenizers import Bytes, Characters
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines import FittedBaseline, fit_baselines, load
from chordmixer.training.baselines.linear import as_outputs
from chordmixer.training.combination import Combination

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
        again, outputs = load(path, target), baseline.outputs(own)
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
    again, outputs = load(path, target), baseline.outputs(odd)
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
    assert (load(path, target).outputs(own) == baseline.fitted.outputs(own)).all()


def test_another_process_answers_the_same(tmp_path: Path) -> None:
    *_, baseline = fitted("dna", "classes")
    (tmp_path / "baseline.safetensors").write_bytes(baseline.packed())
    own = sequences("dna")[:20]
    np.savez(tmp_path / "records.npz", *own)
    code = (
        "import sys, numpy as np; from chordmixer.training.baselines import load; "
        "from chordmixer.tasks.targets import Classification as C; "
        "records = [*np.load(sys.argv[2]).values()]; "
        "target = C(['a', 'b', 'c'], np.arange(120) % 3); "
        "print(load(sys.argv[1], target).outputs(records).tobytes().hex())"
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
            load(path, target).outputs(sequences(kind)[:2])
        except ValueError as error:
            assert str(error).startswith(f"{path} is ") and str(error).endswith(": use another copy")
            assert "\n" not in str(error)
    for damaged in cut:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="use another copy"):
            load(path, target)


def _document(path: Path) -> Any:
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["baseline"])
