"""Baselines: what each can and cannot learn, in the model's layout, without a look at the test part."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.variant_files import rows, write_genome, write_vcf

from chordmixer import files
from chordmixer.data.alleles import Window
from chordmixer.data.features import TextWords
from chordmixer.data.splits import SplitConfig, split
from chordmixer.data.variants import VariantColumns
from chordmixer.models import ModelConfig
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.tasks.variants import Variants, VariantsConfig
from chordmixer.training import Experiment, evaluation
from chordmixer.training.baselines.fitting import Baseline, fit_baselines, variant_kind
from chordmixer.training.evaluation import Predictions
from chordmixer.training.results import compare

INTRONS = Path(__file__).parents[4] / "shared" / "data" / "introns"
PARTS = {"training": np.arange(200), "validation": np.arange(200, 260), "test": np.arange(260, 400)}
LENGTHS = np.random.default_rng(0).integers(30, 300, 400)
CLASSES = np.random.default_rng(1).integers(0, 2, 400)


def new_rng() -> np.random.Generator:
    """A new generator for each use, so that no test depends on those before it."""
    return np.random.default_rng(2)


def class_sequences(classes: np.ndarray, lengths: np.ndarray = LENGTHS, letters: int = 4) -> list[np.ndarray]:
    """Sequences whose letters lean a little to one end of the alphabet, which depends on the class."""
    tilt = np.linspace(-0.5, 0.5, letters)
    shares = [np.exp(sign * tilt) / np.exp(sign * tilt).sum() for sign in (-1, 1)]
    rng = new_rng()
    return [rng.choice(letters, n, p=shares[c]).astype(np.uint8) for c, n in zip(classes, lengths, strict=True)]


def run(sequences: Any, targets: np.ndarray, target: Any, kind: str, **settings: Any) -> dict[str, Baseline]:
    lengths = [len(s) for s in sequences]
    baselines = {b.name: b for b in fit_baselines(sequences, lengths, targets, PARTS, target, kind, **settings)}
    for baseline in baselines.values():
        assert baseline.outputs.shape == (140, target.outputs) and baseline.outputs.dtype == np.float32
        assert np.isfinite(baseline.outputs).all() and baseline.sentence
        assert baseline.validation.shape == (60, target.outputs) and baseline.validation.dtype == np.float32
        tensors = torch.from_numpy(baseline.validation), torch.from_numpy(targets[PARTS["validation"]])
        assert baseline.loss == pytest.approx(float(target.losses(*tensors).mean()))
        if baseline.fitted:
            assert (baseline.fitted.outputs([sequences[i] for i in PARTS["test"]]) == baseline.outputs).all()
    return baselines


def headline(baseline: Baseline, targets: np.ndarray, target: Any) -> float:
    return target.metrics(baseline.outputs, targets[PARTS["test"]])[target.headline]


@pytest.mark.parametrize(
    ("kind", "letters", "k", "name"),
    [
        ("dna", 4, 0, "4-mers"),
        ("dna", 4, 8, "8-mers"),
        ("operations", 15, 0, "2-grams"),
        ("protein", 20, 1, "1-mers"),
        ("protein", 20, 0, "composition and length"),
        ("text", 60, 1, "1-grams"),
    ],
)
def test_two_classes(kind: str, letters: int, k: int, name: str) -> None:
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    baselines = run(class_sequences(CLASSES, letters=letters), CLASSES, target, kind, k=k)
    assert [*baselines][:3] == ["majority class", "length alone", name]
    assert headline(baselines[name], CLASSES, target) > (0.9 if k < 8 else 0.6)
    assert headline(baselines["length alone"], CLASSES, target) < 0.65
    assert headline(baselines["majority class"], CLASSES, target) == 0.5
    for baseline in baselines.values():
        assert np.exp(baseline.outputs).sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_length_alone_finds_any_trend() -> None:
    """One class has middle lengths, the other short and long ones."""
    classes = ((LENGTHS > 100) & (LENGTHS < 200)).astype(int)
    target = Classification(["out", "in"], classes[PARTS["training"]])
    baselines = run(class_sequences(np.zeros(400, int)), classes, target, "dna")
    assert headline(baselines["length alone"], classes, target) > 0.95
    assert headline([*baselines.values()][2], classes, target) < 0.8


def test_records_of_one_length_have_no_baseline_of_it() -> None:
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    baselines = run(class_sequences(CLASSES, np.full(400, 90)), CLASSES, target, "dna", k=4)
    assert [*baselines] == ["majority class", "4-mers"]


def test_sequences_that_are_not_looked_at() -> None:
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    baselines = fit_baselines(None, LENGTHS, CLASSES, PARTS, target, "real")
    assert [baseline.name for baseline in baselines] == ["majority class", "length alone"]


@pytest.mark.parametrize("present", [[2], [0, 2]], ids=str)
def test_classes_that_no_training_record_has(present: list[int]) -> None:
    """Their probabilities are negligible, and the outputs keep the layout of the model."""
    classes = new_rng().integers(0, 3, 400)
    classes[PARTS["training"]] = new_rng().choice(present, 200)
    target = Classification.of_counts(["a", "b", "c"], [1, 1, 1])
    for baseline in run(class_sequences(classes % 2), classes, target, "dna").values():
        shares = np.exp(baseline.outputs.astype(np.float64))
        assert shares[:, present].sum(axis=1) == pytest.approx(1, abs=1e-5) and (shares[:, 1] < 1e-11).all()


def test_the_majority_is_of_the_training_part() -> None:
    classes = np.array([0] * 150 + [1] * 50 + [0, 1] * 100)
    target = Classification(["a", "b"], classes[PARTS["training"]])
    majority = run(class_sequences(classes), classes, target, "dna")["majority class"].outputs
    shares = np.exp(target.unweighted(majority))
    assert shares[0] / shares[0].sum() == pytest.approx([0.75, 0.25]) and (majority == majority[0]).all()
    entropy = -np.log([0.75, 0.25]) @ [0.75, 0.25]
    assert target.metrics(majority[:4], np.array([0, 0, 0, 1]))["log_loss"] == pytest.approx(entropy)


def test_three_classes() -> None:
    rng = new_rng()
    classes = rng.integers(0, 3, 400)
    target = Classification(["a", "b", "c"], classes[PARTS["training"]])
    sequences = [rng.choice(4, n, p=np.roll([0.4, 0.2, 0.2, 0.2], c)) for c, n in zip(classes, LENGTHS, strict=True)]
    assert headline(run(sequences, classes, target, "dna", k=4)["4-mers"], classes, target) > 0.8


def test_rare_classes_weigh_as_in_the_model() -> None:
    """Without weights, a class of one in ten records would hardly ever be predicted."""
    classes = (np.arange(400) % 10 == 0).astype(int)
    target = Classification(["common", "rare"], classes[PARTS["training"]])
    baseline = run(class_sequences(np.zeros(400, int)), classes, target, "dna")["length alone"]
    assert np.exp(baseline.outputs[:, 1]).mean() == pytest.approx(0.5, abs=0.15)


def test_several_labels() -> None:
    composition = CLASSES
    targets = np.stack([composition, LENGTHS > 150, np.arange(400) % 5 == 0], axis=1).astype(np.float32)
    target = MultiLabel.of(["rich", "long", "chance"], targets[PARTS["training"]])
    baselines = run(class_sequences(composition), targets, target, "dna", k=4)
    assert [*baselines] == ["label shares", "length alone", "4-mers"]
    metrics = [
        Classification(["no", "yes"], [0, 1]).metrics(
            np.stack([np.zeros(140), baselines[name].outputs[:, k]], axis=1), targets[PARTS["test"], k].astype(int)
        )["roc_auc"]
        for name, k in (("4-mers", 0), ("length alone", 1))
    ]
    assert metrics[0] > 0.9 and metrics[1] > 0.99


def test_a_label_that_all_training_records_have() -> None:
    targets = np.ones((400, 2), np.float32)
    targets[::2, 0] = 0
    target = MultiLabel.of(["half", "all"], targets[PARTS["training"]])
    *_, kmers = run(class_sequences(CLASSES), targets, target, "dna").values()
    assert (kmers.outputs[:, 1] > 10).all()


@pytest.mark.parametrize(("kind", "k"), [("dna", 0), ("text", 1)], ids=["dense", "sparse"])
def test_regression(kind: str, k: int) -> None:
    sequences = class_sequences(CLASSES)
    targets = np.array([1000 + 500 * (s == 3).mean() for s in sequences], dtype=np.float32)
    target = Regression.of(targets[PARTS["training"]])
    baselines = run(sequences, targets, target, kind, k=k)
    assert [*baselines][:2] == ["mean", "length alone"]
    scores = [headline(b, targets, target) for b in baselines.values()]
    assert scores[0] <= 0 and scores[1] < 0.2 and scores[2] > 0.8


def test_series() -> None:
    rng = new_rng()
    series = [rng.normal(c, 1, (n, 2)).astype(np.float32) for c, n in zip(CLASSES, LENGTHS, strict=True)]
    target = Classification(["low", "high"], CLASSES[PARTS["training"]])
    baselines = run(series, CLASSES, target, "real")
    assert [*baselines] == ["majority class", "length alone", "series features"]
    assert headline(baselines["series features"], CLASSES, target) > 0.99


def test_the_test_part_is_not_looked_at() -> None:
    sequences, target = class_sequences(CLASSES), Classification(["no", "yes"], CLASSES[PARTS["training"]])
    changed = CLASSES.copy()
    changed[PARTS["test"]] = 1 - changed[PARTS["test"]]
    baselines, repeated = run(sequences, CLASSES, target, "dna"), run(sequences, changed, target, "dna")
    assert all((baselines[name].outputs == repeated[name].outputs).all() for name in baselines)


def test_strength_is_chosen_on_the_validation_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The validation loss prefers a strength that fits to one that cannot, in either order."""
    sequences, target = class_sequences(CLASSES), Classification(["no", "yes"], CLASSES[PARTS["training"]])
    for strengths in ((0.01, 1e-9), (1e-9, 0.01)):
        monkeypatch.setattr("chordmixer.training.baselines.choosing.DENSE_STRENGTHS", strengths)
        outputs = run(sequences, CLASSES, target, "dna", k=4)["4-mers"].outputs
        loss = target.losses(torch.from_numpy(outputs), torch.from_numpy(CLASSES[PARTS["test"]])).mean()
        assert loss < 0.5


def with_words(letters: int, share: float = 0.9) -> list[np.ndarray]:
    """Sequences of even composition: most of the second class hold one of two words, most of the first one of these
    with its halves exchanged, so that only whole words distinguish the classes."""
    rng, half = new_rng(), letters // 2
    words = [rng.integers(0, 4, letters).astype(np.uint8) for _ in range(2)]
    sequences = [rng.integers(0, 4, n).astype(np.uint8) for n in LENGTHS]
    for sequence, label in zip(sequences, CLASSES, strict=True):
        word = words[rng.integers(2)]
        if rng.random() < share:
            sequence[5 : 5 + letters] = word if label else np.concatenate([word[half:], word[:half]])
    return sequences


def test_the_length_of_kmers_is_chosen_on_the_validation_part() -> None:
    """Long k-mers are chosen where only whole words differ, and short ones where the composition does."""
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    sequences = with_words(16)
    baselines = [*run(sequences, CLASSES, target, "dna").values()]
    *_, kmers = run(sequences, CLASSES, target, "dna", k=4).values()
    counts, neighbours = baselines[2], next(b for b in baselines if b.name.startswith("neighbours by "))
    assert "8" in counts.name and "8-mers" in neighbours.name
    assert min(headline(b, CLASSES, target) for b in (counts, neighbours)) > 0.9 > headline(kmers, CLASSES, target)
    assert counts.sentence.endswith(" (TF-IDF); chosen from 8 sets of features by the validation loss")
    assert neighbours.sentence.startswith("the answers of the 50 nearest training records by hashed counts of ")
    assert kmers.sentence == "logistic regression on the frequencies of all 256 4-mers, standardised"
    *_, single = run(sequences, CLASSES, target, "dna", single=True).values()
    assert single.name in ("8-mers", "10-mers")
    assert "4-mers" in run(class_sequences(CLASSES), CLASSES, target, "dna")


def texts_of(separator: str) -> list[np.ndarray]:
    """The same twelve words in every text; the classes differ in which of two words comes first."""
    rng, names = new_rng(), ["".join(new_rng().choice([*"abcdefgh"], 9)) + str(i) for i in range(12)]
    sequences = []
    for label in CLASSES:
        order = [names[i] for i in 2 + rng.permutation(10)]
        pair, position = ([names[0], names[1]] if label else [names[1], names[0]]), int(rng.integers(10))
        text = separator.join([*order[:position], *pair, *order[position:]])
        sequences.append(np.frombuffer((text.upper() if rng.random() < 0.5 else text).encode(), np.uint8))
    return sequences


def test_words_tell_where_characters_do_not() -> None:
    """Pairs of words are chosen, whatever their case. Texts without blanks have none, and characters are chosen."""
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    baselines = run(texts_of("   \n     "), CLASSES, target, "text", words=TextWords())
    losses = {name: baseline.loss for name, baseline in baselines.items()}
    assert min(losses, key=losses.__getitem__).split(" ")[0] == "words"
    assert headline(baselines["words and pairs of them"], CLASSES, target) > 0.99
    glued = run([97 + sequence for sequence in with_words(9)], CLASSES, target, "text", words=TextWords())
    losses = {name: baseline.loss for name, baseline in glued.items() if baseline.fitted}
    assert "grams" in min(losses, key=losses.__getitem__)


def test_three_models_together() -> None:
    """Models that err on different records are better together; `run` checks that they repeat their outputs."""
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    rng, sequences = new_rng(), []
    for label in CLASSES:
        hints = [label if rng.random() < 0.75 else 1 - label for _ in range(2)]
        letters = "".join(rng.choice([*("abcde" if hints[0] else "defgh")], 30))
        position = int(rng.integers(31))  # anywhere: its position is not to say it
        text = f"{letters[:position]} {'yes' if hints[1] else 'no'} {letters[position:]}"
        sequences.append(np.frombuffer(text.encode(), np.uint8))
    baselines = [*run(sequences, CLASSES, target, "text", words=TextWords()).values()]
    together = baselines[-1]
    assert together.fitted is not None and len(together.fitted.members) >= 2 and " and " in together.name
    assert together.loss < min(baseline.loss for baseline in baselines[:-1]) and "words" in together.name


def test_records_shorter_than_the_longest_kmers() -> None:
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    assert len(run(class_sequences(CLASSES, np.full(400, 5)), CLASSES, target, "dna")) >= 2


def test_rows_are_in_the_order_of_the_test_part() -> None:
    """Rows can then be scored by length like those of the model: long records are easier."""
    sequences, target = class_sequences(CLASSES), Classification(["no", "yes"], CLASSES[PARTS["training"]])
    outputs = run(sequences, CLASSES, target, "dna", k=4)["4-mers"].outputs
    test_part = PARTS["test"]
    predictions = Predictions([str(i) for i in test_part], LENGTHS[test_part], CLASSES[test_part], outputs)
    losses = [
        Predictions(predictions.names, lengths, predictions.targets[mask], predictions.outputs[mask]).loss(target)
        for mask in (predictions.lengths < 100, predictions.lengths > 200)
        if len(lengths := predictions.lengths[mask])
    ]
    assert losses[1] < losses[0]


def test_unknown_kinds_are_refused() -> None:
    target = Classification(["a", "b"], [0, 1])
    with pytest.raises(ValueError, match="kind='rna' is not one of tokens: give one of dna, operations, protein"):
        next(fit_baselines([], [], np.zeros(0, int), {}, target, "rna"))


@pytest.mark.skipif(not INTRONS.is_dir(), reason="needs ../shared/data/introns beside the repository")
def test_introns_of_worm_and_fly() -> None:
    """The first 1,500 of each; on all, with matched lengths and split by gene, 6-mers reach 0.956, 4-mers 0.936."""
    table = np.full(256, 4, np.uint8)
    table[list(b"ACGT")] = range(4)
    sequences, classes = [], []
    for label, name in enumerate(("caenorhabditis", "drosophila")):
        records = gzip.decompress((INTRONS / f"{name}.fa.gz").read_bytes()).split(b">")[1:1501]
        letters = [record.partition(b"\n")[2].replace(b"\n", b"") for record in records]
        sequences += [table[np.frombuffer(text, np.uint8)] for text in letters]
        classes += [label] * len(letters)
    targets, parts = np.array(classes), split(classes, SplitConfig(), sequences=sequences, kind="dna").parts
    target = Classification(["worm", "fly"], targets[parts["training"]])
    *_, kmers = fit_baselines(sequences, [len(s) for s in sequences], targets, parts, target, "dna")
    assert 0.9 < target.metrics(kmers.outputs, targets[parts["test"]])["roc_auc"] < 0.985


@pytest.mark.parametrize("columns", [VariantColumns(label="CLASS", context="T"), VariantColumns(target="BETA")])
def test_the_kind_of_change_is_found(
    tmp_path: Path, columns: VariantColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)
    data = VariantsConfig((str(write_vcf(tmp_path / "calls.vcf", rows())),), str(write_genome(tmp_path)), 64, columns)
    task, run = Variants(data), tmp_path / "run"
    run.mkdir()
    Experiment("variants", task.config, ModelConfig(task.inputs, task.target.outputs, head="variant")).save(run)
    scores = {result.encoder: result.scores[result.headline].value for result in compare(run)}
    assert list(scores)[1:] == ["position alone", "kind of change", "letters around"]
    assert scores["kind of change"] > 0.95 and scores["letters around"] > 0.8 and scores["position alone"] < 0.7
    assert len(files.read_json(run / "baselines.json")["baselines"]) == 4


@pytest.mark.parametrize(
    ("ref", "alt", "name"), [("A", "N", "other"), ("AC", "TG", "other"), ("AC", "A", "deletion")]
)
def test_kinds(ref: str, alt: str, name: str) -> None:
    assert variant_kind(Window("chr1", 0, 9, 4, ref, alt)) == name
