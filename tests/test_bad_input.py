"""Odd and damaged input through the default pipeline: a rule that is stated here, or a ValueError of one line.

Records go from a file through network, baselines and combination to answers; the network is tiny.
What a single part does is tested in its own file: stem, words, features, stored baselines, delivery.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer import files
from chordmixer.config import override
from chordmixer.data.features import TextWords
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import FilesConfig
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training import evaluation
from chordmixer.training.baselines.fitting import fit_baselines
from chordmixer.training.baselines.stored import load_baseline
from chordmixer.training.inference import Engine
from chordmixer.training.loop import train
from chordmixer.training.prediction import predict
from chordmixer.training.results import compare

SMALL = {
    "model": {"network": {"track_size": 2, "hidden": 4}, "words": {"bits": 8}},
    "training": {"steps": 4, "trial": 0.0, "device": "cpu"},
}
LETTERS = {"dna": "ACGT", "protein": "ACDEFGHIKLMNPQRSTVWY", "bytes": "a b!é日"}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)


def write_jsonl(path: Path, sequences: Sequence[Any], targets: Sequence[Any], **columns: Sequence[Any]) -> str:
    """Write a JSONL file; targets that are numbers go into `target`, all others into `label`."""
    key = "target" if isinstance(targets[0], float) else "label"
    table = {"sequence": sequences, key: targets, **columns}
    rows = [{"id": f"r{i}", **{name: values[i] for name, values in table.items()}} for i in range(len(sequences))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def train_run(path: str, run: Path, **config: Any) -> Path:
    """Train a run on this file, with its baseline and combination."""
    experiment = override(recipe(FilesConfig((path,), **config)), SMALL)
    train(experiment, run)
    compare(run, deliver=True)
    return run


def predicted_rows(run: Path, path: str, using: Any = None, **options: Any) -> list[dict[str, Any]]:
    """The predictions of all records; their numbers must be finite."""
    out = run / f"{using}-{'-'.join(options.values())}.jsonl"
    predict(run, [path], out, using=using, **options)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(np.isfinite([v for v in row.values() if isinstance(v, float)]).all() for row in rows)
    return rows


def check_predictions(run: Path, path: str, records: int) -> None:
    """The network, the baseline and both must predict all records."""
    for using in ("network", "baseline", "both"):
        assert len(predicted_rows(run, path, using)) == records


def split_of(i: int) -> str:
    return "training" if i < 36 else "validation" if i < 48 else "test"


@pytest.mark.parametrize("tokenizer", [*LETTERS])
def test_records_shorter_than_kmers_taps_and_words(tokenizer: Any, tmp_path: Path) -> None:
    """Down to one token, in training and in prediction: a record without k-mers has no counts, but a prediction."""
    rng = random.Random(0)
    sequences = ["".join(rng.choices(LETTERS[tokenizer], k=1 + i % 4)).strip() or "a" for i in range(60)]
    path = write_jsonl(tmp_path / "short.jsonl", sequences, ["ab"[i % 2] for i in range(60)])
    check_predictions(train_run(path, tmp_path / "run", tokenizer=TokenizerConfig(tokenizer)), path, 60)


def constant(i: int) -> list[Any]:
    return [3.0] * (1 + i)


def one_sample(i: int) -> list[Any]:
    return [i % 2 + i / 1000]


def constant_channel(i: int) -> list[Any]:
    return [[1.0, i % 2 + step / 7 + i / 99] for step in range(2 + i % 5)]


def largest(i: int) -> list[Any]:
    return np.random.default_rng(i).uniform(-3e38, 3e38, 12).tolist()


@pytest.mark.parametrize("series", [constant, one_sample, constant_channel, largest])
def test_degenerate_series(series: Callable[[int], list[Any]], tmp_path: Path) -> None:
    """Accepted: a channel without spread is only centred, and a record of one sample has no spectrum."""
    path = write_jsonl(tmp_path / "series.jsonl", [series(i) for i in range(60)], ["ab"[i % 2] for i in range(60)])
    check_predictions(train_run(path, tmp_path / "run"), path, 60)


def test_a_number_from_one_sample(tmp_path: Path) -> None:
    """Where neither network nor baseline earns a weight, the answer is one number for all, and no error."""
    numbers = [random.Random(i).random() for i in range(60)]
    path = write_jsonl(tmp_path / "series.jsonl", [one_sample(i) for i in range(60)], numbers)
    check_predictions(train_run(path, tmp_path / "run"), path, 60)


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "1e39"])
def test_numbers_that_are_not_finite(bad: str, tmp_path: Path) -> None:
    """Refused with the record's position, or replaced by the mean where that is asked for, also in prediction."""
    path, rng = tmp_path / "series.csv", random.Random(0)
    rows = [f'r{i},"[{i % 2}, {bad if i == 7 else 2}, {rng.random()}]",{"ab"[i % 2]}' for i in range(60)]
    path.write_text("\n".join(["id,sequence,label", *rows]) + "\n")
    line = r"series\.csv, row 8 \(r7\): .* at position 2 is missing or not finite in float32: fix the record, leave"
    with pytest.raises(ValueError, match=line):
        recipe(FilesConfig((str(path),)))
    if bad == "inf":
        run = train_run(str(path), tmp_path / "run", tokenizer=TokenizerConfig(on_bad="unknown"))
        assert len(predicted_rows(run, str(path))) == 60


@pytest.mark.parametrize(("classes", "missing"), [("abc", "c"), ("ab", "b")], ids=["one of three", "one of two"])
def test_a_class_without_validation_records(classes: str, missing: str, tmp_path: Path) -> None:
    """Accepted. Where ROC-AUC is undefined by that, the loss decides which weights are kept."""
    rng = random.Random(0)
    pairs = [(classes[i % len(classes)], split_of(i)) for i in range(60)]
    pairs = [pair for pair in pairs if pair != (missing, "validation")]
    letters = ["".join(rng.choices("ACGT", k=20)) for _ in pairs]
    path = write_jsonl(tmp_path / "dna.jsonl", letters, [c for c, _ in pairs], split=[part for _, part in pairs])
    rows = predicted_rows(train_run(path, tmp_path / "run"), path)
    assert len(rows) == len(pairs) and all(sum(row[c] for c in classes) == pytest.approx(1, abs=1e-4) for row in rows)


def test_a_label_without_validation_records(tmp_path: Path) -> None:
    rng = random.Random(0)
    labels = [("y" if i % 2 else "x") + (";z" if i < 9 else "") for i in range(60)]
    letters = ["".join(rng.choices("ACGT", k=20)) for _ in labels]
    path = write_jsonl(tmp_path / "dna.jsonl", letters, labels, split=[split_of(i) for i in range(60)])
    rows = predicted_rows(train_run(path, tmp_path / "run", target_type="labels"), path)
    assert len(rows) == 60 and all(0 <= row["z"] <= 1 for row in rows)


@pytest.mark.parametrize("target_type", ["classes", "labels"])
def test_a_class_without_training_records(target_type: Any, tmp_path: Path) -> None:
    labels = ["c" if split_of(i) != "training" and i % 3 else "ab"[i % 2] for i in range(60)]
    letters = ["".join(random.Random(i).choices("ACGT", k=20)) for i in range(60)]
    path = write_jsonl(tmp_path / "dna.jsonl", letters, labels, split=[split_of(i) for i in range(60)])
    with pytest.raises(ValueError, match="class 'c' has no training record: every class needs one; leave the class"):
        recipe(FilesConfig((path,), target_type=target_type))


# --- Files of a run ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on series of two kinds, with trees among its baselines; tests only read it."""
    folder, rng = tmp_path_factory.mktemp("bad"), np.random.default_rng(0)
    series = [rng.normal(i % 2, 1, 3 + i % 5).tolist() for i in range(450)]
    path = write_jsonl(folder / "series.jsonl", series, ["ab"[i % 2] for i in range(450)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        return train_run(path, folder / "run")


def set_all_weights(weights: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Give all three choices of a combination these weights."""
    return lambda combination: combination | {"weights": dict.fromkeys(combination["weights"], weights)}


def set_weights(name: str, *weights: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Give one choice of a combination these weights."""
    return lambda combination: combination | {"weights": combination["weights"] | {name: weights}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: [d], "holds list, not an object"),
        (lambda d: None, "holds NoneType, not an object"),
        (lambda d: {}, "using is missing"),
        (lambda d: d | {"format": "1"}, "format='1' is not of type int"),
        (lambda d: d | {"format": 1.0}, "format=1.0 is not of type int"),
        (lambda d: d | {"baseline": 5}, "baseline=5 is not of type str"),
        (lambda d: d | {"using": ["both"]}, "is not a choice"),
        (lambda d: d | {"losses": dict.fromkeys(d["losses"])}, "losses.network=None is not of type float"),
        (lambda d: d | {"weights": None}, "weights=None is not a table"),
        (set_all_weights(["1", "0", "0"]), "network='1' is not of type float"),
        (set_all_weights([True, 0, 0]), "network=True is not of type float"),
        (set_all_weights([[1], [0], [0]]), r"network=\[1\] is not of type float"),
        (set_weights("both", 1.0, 1.0), r"both=\[1.0, 1.0\] has 2 items: give 3"),
        (set_weights("both", 1e300, 1.0, 0.0), "weights of both are .*, not three numbers in their range"),
        (set_weights("both", 1.0, -1.0, 0.0), "weights of both are .*, not three numbers in their range"),
        (set_weights("both", 1.0, 1.0, 1e300), "weights of both are .*, not three numbers in their range"),
        (set_weights("baseline", 1.0, 1.0, 0.0), "weights of baseline are .*, not three numbers in their range"),
        (set_weights("network", 1.0, 1.0, 0.0), "weights of network are .*, not three numbers in their range"),
    ],
)
def test_a_combination_of_other_types(run: Path, change: Any, reason: str, tmp_path: Path) -> None:
    """Also where the manifest agrees with it."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    changed = change(files.read_json(copy / "combination.json"))
    files.write_recorded(copy, {"combination.json": json.dumps(changed).encode()})
    with pytest.raises(
        ValueError, match=rf"combination\.json is not whole .*{reason}.*: use another copy$"
    ) as raised:
        Engine(copy)
    assert "\n" not in str(raised.value)


def corrupted_copies(data: bytes, start: int, count: int) -> list[bytes]:
    """Copies with one bit flipped, somewhere from `start` on."""
    rng, copies = np.random.default_rng(1), []
    for position in rng.integers(start, len(data), count).tolist():
        changed = bytearray(data)
        changed[position] ^= 1 << int(rng.integers(8))
        copies.append(bytes(changed))
    return copies


def test_a_flipped_byte_of_a_run_is_named(run: Path, tmp_path: Path) -> None:
    """Any byte: the manifest covers all of them."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    for data in corrupted_copies((copy / "baseline.safetensors").read_bytes(), 0, 20):
        (copy / "baseline.safetensors").write_bytes(data)
        with pytest.raises(ValueError, match=r"baseline\.safetensors was changed or damaged") as raised:
            Engine(copy)
        assert "\n" not in str(raised.value)


def separable_data() -> dict[str, tuple[list[np.ndarray], np.ndarray, Any]]:
    """Records whose baselines together have every kind of model and of features."""
    rng, classes = np.random.default_rng(0), np.arange(420) % 2
    classification = Classification(["a", "b"], classes)
    words = [[*"abcdef", "good" if c and i % 3 else "bad"] for i, c in enumerate(classes)]
    texts = [" ".join(rng.permutation(text_words)) for text_words in words]
    frequencies = np.array([[4, 3, 3, 3], [3, 4, 3, 3]]) / 13
    return {
        "text": ([np.frombuffer(text.encode(), np.uint8) for text in texts], classes, classification),
        "dna": ([rng.choice(4, 50, p=frequencies[c]).astype(np.uint8) for c in classes], classes, classification),
        "real": ([rng.normal(c, 1, (30, 1)).astype(np.float32) for c in classes], classes, classification),
        "protein": (
            [rng.integers(20 - 5 * c, size=50).astype(np.uint8) for c in classes],
            classes / 2,
            Regression(),
        ),
    }


@pytest.mark.parametrize("kind", ["text", "dna", "real", "protein"])
def test_a_flipped_byte_of_a_baseline_without_a_manifest(kind: str, tmp_path: Path) -> None:
    """A flip in the numbers of any model is refused in one line, or gives finite outputs without a warning."""
    sequences, targets, target = separable_data()[kind]
    parts = {"training": np.arange(300), "validation": np.arange(300, 400), "test": np.arange(400, 420)}
    words, path, refused = TextWords() if kind == "text" else None, tmp_path / "baseline", 0
    lengths = [len(sequence) for sequence in sequences]
    for baseline in fit_baselines(sequences, lengths, targets, parts, target, kind, words=words):
        packed = baseline.fitted.packed() if baseline.fitted else b""
        for data in corrupted_copies(packed, 8 + int.from_bytes(packed[:8], "little"), 40) if packed else ():
            path.write_bytes(data)
            try:
                assert np.isfinite(load_baseline(path, target).outputs(sequences[:3])).all()
            except ValueError as error:
                refused += 1
                assert str(error).endswith(": use another copy") and "\n" not in str(error)
    assert refused > 0
