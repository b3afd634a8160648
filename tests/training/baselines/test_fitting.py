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


def chance() -> np.random.Generator:
    """Anew for each use, so that no test depends on which ran before."""
    return np.random.default_rng(2)


def of_classes(classes: np.ndarray, lengths: np.ndarray = LENGTHS, letters: int = 4) -> list[np.ndarray]:
    """Letters that lean a little to one or the other end."""
    tilt = np.linspace(-0.5, 0.5, letters)
    shares = [np.exp(sign * tilt) / np.exp(sign * tilt).sum() for sign in (-1, 1)]
    draw = chance()
    return [draw.choice(letters, n, p=shares[c]).astype(np.uint8) for c, n in zip(classes, lengths, strict=True)]


def run(sequences: Any, targets: np.ndarray, target: Any, kind: str, **more: Any) -> dict[str, Baseline]:
    lengths = [len(s) for s in sequences]
    found = {b.name: b for b in fit_baselines(sequences, lengths, targets, PARTS, target, kind, **more)}
    for baseline in found.values():
        assert baseline.outputs.shape == (140, target.outputs) and baseline.outputs.dtype == np.float32
        assert np.isfinite(baseline.outputs).all() and baseline.sentence
        assert baseline.validation.shape == (60, target.outputs) and baseline.validation.dtype == np.float32
        own = torch.from_numpy(baseline.validation), torch.from_numpy(targets[PARTS["validation"]])
        assert baseline.loss == pytest.approx(float(target.losses(*own).mean()))
        if baseline.fitted:
            assert (baseline.fitted.outputs([sequences[i] for i in PARTS["test"]]) == baseline.outputs).all()
    return found


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
    found = run(of_classes(CLASSES, letters=letters), CLASSES, target, kind, k=k)
    assert [*found][:3] == ["majority class", "length alone", name]
    assert headline(found[name], CLASSES, target) > (0.9 if k < 8 else 0.6)
    assert headline(found["length alone"], CLASSES, target) < 0.65
    assert headline(found["majority class"], CLASSES, target) == 0.5
    for baseline in found.values():
        assert np.exp(baseline.outputs).sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_length_alone_finds_any_trend() -> None:
    """Middle lengths against short and long ones."""
    classes = ((LENGTHS > 100) & (LENGTHS < 200)).astype(int)
    target = Classification(["out", "in"], classes[PARTS["training"]])
    found = run(of_classes(np.zeros(400, int)), classes, target, "dna")
    assert headline(found["length alone"], classes, target) > 0.95
    assert headline([*found.values()][2], classes, target) < 0.8


def test_records_of_one_length_have_no_baseline_of_it() -> None:
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    found = run(of_classes(CLASSES, np.full(400, 90)), CLASSES, target, "dna", k=4)
    assert [*found] == ["majority class", "4-mers"]


def test_sequences_that_are_not_looked_at() -> None:
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    found = fit_baselines(None, LENGTHS, CLASSES, PARTS, target, "real")
    assert [baseline.name for baseline in found] == ["majority class", "length alone"]


@pytest.mark.parametrize("known", [[2], [0, 2]], ids=str)
def test_classes_that_no_training_record_has(known: list[int]) -> None:
    """They get no probability to speak of, and the layout stays the model's."""
    classes = chance().integers(0, 3, 400)
    classes[PARTS["training"]] = chance().choice(known, 200)
    target = Classification.of_counts(["a", "b", "c"], [1, 1, 1])
    for baseline in run(of_classes(classes % 2), classes, target, "dna").values():
        shares = np.exp(baseline.outputs.astype(np.float64))
        assert shares[:, known].sum(axis=1) == pytest.approx(1, abs=1e-5) and (shares[:, 1] < 1e-11).all()


def test_the_majority_is_of_the_training_part() -> None:
    classes = np.array([0] * 150 + [1] * 50 + [0, 1] * 100)
    target = Classification(["a", "b"], classes[PARTS["training"]])
    majority = run(of_classes(classes), classes, target, "dna")["majority class"].outputs
    shares = np.exp(target.unweighted(majority))
    assert shares[0] / shares[0].sum() == pytest.approx([0.75, 0.25]) and (majority == majority[0]).all()
    entropy = -np.log([0.75, 0.25]) @ [0.75, 0.25]
    assert target.metrics(majority[:4], np.array([0, 0, 0, 1]))["log_loss"] == pytest.approx(entropy)


def test_three_classes() -> None:
    draw = chance()
    classes = draw.integers(0, 3, 400)
    target = Classification(["a", "b", "c"], classes[PARTS["training"]])
    sequences = [draw.choice(4, n, p=np.roll([0.4, 0.2, 0.2, 0.2], c)) for c, n in zip(classes, LENGTHS, strict=True)]
    assert headline(run(sequences, classes, target, "dna", k=4)["4-mers"], classes, target) > 0.8


def test_rare_classes_weigh_as_in_the_model() -> None:
    """One in ten: unweighted, hardly any answer would be the rare class."""
    classes = (np.arange(400) % 10 == 0).astype(int)
    target = Classification(["common", "rare"], classes[PARTS["training"]])
    found = run(of_classes(np.zeros(400, int)), classes, target, "dna")["length alone"]
    assert np.exp(found.outputs[:, 1]).mean() == pytest.approx(0.5, abs=0.15)


def test_several_labels() -> None:
    composition = CLASSES
    targets = np.stack([composition, LENGTHS > 150, np.arange(400) % 5 == 0], axis=1).astype(np.float32)
    target = MultiLabel.of(["rich", "long", "chance"], targets[PARTS["training"]])
    found = run(of_classes(composition), targets, target, "dna", k=4)
    assert [*found] == ["label shares", "length alone", "4-mers"]
    metrics = [
        Classification(["no", "yes"], [0, 1]).metrics(
            np.stack([np.zeros(140), found[name].outputs[:, k]], axis=1), targets[PARTS["test"], k].astype(int)
        )["roc_auc"]
        for name, k in (("4-mers", 0), ("length alone", 1))
    ]
    assert metrics[0] > 0.9 and metrics[1] > 0.99


def test_a_label_that_all_training_records_have() -> None:
    targets = np.ones((400, 2), np.float32)
    targets[::2, 0] = 0
    target = MultiLabel.of(["half", "all"], targets[PARTS["training"]])
    *_, kmers = run(of_classes(CLASSES), targets, target, "dna").values()
    assert (kmers.outputs[:, 1] > 10).all()


@pytest.mark.parametrize(("kind", "k"), [("dna", 0), ("text", 1)], ids=["dense", "sparse"])
def test_regression(kind: str, k: int) -> None:
    sequences = of_classes(CLASSES)
    targets = np.array([1000 + 500 * (s == 3).mean() for s in sequences], dtype=np.float32)
    target = Regression.of(targets[PARTS["training"]])
    found = run(sequences, targets, target, kind, k=k)
    assert [*found][:2] == ["mean", "length alone"]
    scores = [headline(b, targets, target) for b in found.values()]
    assert scores[0] <= 0 and scores[1] < 0.2 and scores[2] > 0.8


def test_series() -> None:
    draw = chance()
    series = [draw.normal(c, 1, (n, 2)).astype(np.float32) for c, n in zip(CLASSES, LENGTHS, strict=True)]
    target = Classification(["low", "high"], CLASSES[PARTS["training"]])
    found = run(series, CLASSES, target, "real")
    assert [*found] == ["majority class", "length alone", "series features"]
    assert headline(found["series features"], CLASSES, target) > 0.99


def test_the_test_part_is_not_looked_at() -> None:
    sequences, target = of_classes(CLASSES), Classification(["no", "yes"], CLASSES[PARTS["training"]])
    other = CLASSES.copy()
    other[PARTS["test"]] = 1 - other[PARTS["test"]]
    found, again = run(sequences, CLASSES, target, "dna"), run(sequences, other, target, "dna")
    assert all((found[name].outputs == again[name].outputs).all() for name in found)


def test_strength_is_chosen_on_the_validation_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a strength that fits and one that cannot, the validation loss takes the first, in either order."""
    sequences, target = of_classes(CLASSES), Classification(["no", "yes"], CLASSES[PARTS["training"]])
    for strengths in ((0.01, 1e-9), (1e-9, 0.01)):
        monkeypatch.setattr("chordmixer.training.baselines.choosing.DENSE_STRENGTHS", strengths)
        outputs = run(sequences, CLASSES, target, "dna", k=4)["4-mers"].outputs
        loss = target.losses(torch.from_numpy(outputs), torch.from_numpy(CLASSES[PARTS["test"]])).mean()
        assert loss < 0.5


def with_words(letters: int, share: float = 0.9) -> list[np.ndarray]:
    """Of even composition; most records of the second class hold one of two words, those of the first the same ones
    with their halves exchanged, so that only whole words tell."""
    draw, half = chance(), letters // 2
    words = [draw.integers(0, 4, letters).astype(np.uint8) for _ in range(2)]
    sequences = [draw.integers(0, 4, n).astype(np.uint8) for n in LENGTHS]
    for sequence, of_class in zip(sequences, CLASSES, strict=True):
        word = words[draw.integers(2)]
        if draw.random() < share:
            sequence[5 : 5 + letters] = word if of_class else np.concatenate([word[half:], word[:half]])
    return sequences


def test_the_length_of_kmers_is_chosen_on_the_validation_part() -> None:
    """Whole words tell, which four letters do not; where composition says all, the shortest do."""
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    sequences = with_words(16)
    found = [*run(sequences, CLASSES, target, "dna").values()]
    *_, four = run(sequences, CLASSES, target, "dna", k=4).values()
    counts, near = found[2], next(own for own in found if own.name.startswith("neighbours by "))
    assert "8" in counts.name and "8-mers" in near.name
    assert min(headline(own, CLASSES, target) for own in (counts, near)) > 0.9 > headline(four, CLASSES, target)
    assert counts.sentence.endswith(" (TF-IDF); chosen from 8 sets of features by the validation loss")
    assert near.sentence.startswith("the answers of the 50 nearest training records by hashed counts of ")
    assert four.sentence == "logistic regression on the frequencies of all 256 4-mers, standardised"
    *_, alone = run(sequences, CLASSES, target, "dna", single=True).values()
    assert alone.name in ("8-mers", "10-mers")
    assert "4-mers" in run(of_classes(CLASSES), CLASSES, target, "dna")


def texts_of(join: str) -> list[np.ndarray]:
    """The same twelve words in every text; which of two of them comes first is what tells the classes apart."""
    draw, names = chance(), ["".join(chance().choice([*"abcdefgh"], 9)) + str(i) for i in range(12)]
    sequences = []
    for of_class in CLASSES:
        order = [names[i] for i in 2 + draw.permutation(10)]
        pair, at = ([names[0], names[1]] if of_class else [names[1], names[0]]), int(draw.integers(10))
        text = join.join([*order[:at], *pair, *order[at:]])
        sequences.append(np.frombuffer((text.upper() if draw.random() < 0.5 else text).encode(), np.uint8))
    return sequences


def test_words_tell_where_characters_do_not() -> None:
    """Pairs of words, whatever their case. Without blanks there are none, and characters are chosen."""
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    found = run(texts_of("   \n     "), CLASSES, target, "text", words=TextWords())
    losses = {name: own.loss for name, own in found.items()}
    assert min(losses, key=losses.__getitem__).split(" ")[0] == "words"
    assert headline(found["words and pairs of them"], CLASSES, target) > 0.99
    glued = run([97 + own for own in with_words(9)], CLASSES, target, "text", words=TextWords())
    losses = {name: own.loss for name, own in glued.items() if own.fitted}
    assert "grams" in min(losses, key=losses.__getitem__)


def test_three_models_together() -> None:
    """Models that err on other records are better together, and answer so when asked again, as `run` does."""
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    draw, sequences = chance(), []
    for of_class in CLASSES:
        shown = [of_class if draw.random() < 0.75 else 1 - of_class for _ in range(2)]
        letters = "".join(draw.choice([*("abcde" if shown[0] else "defgh")], 30))
        at = int(draw.integers(31))  # anywhere: its position is not to say it
        text = f"{letters[:at]} {'yes' if shown[1] else 'no'} {letters[at:]}"
        sequences.append(np.frombuffer(text.encode(), np.uint8))
    found = [*run(sequences, CLASSES, target, "text", words=TextWords()).values()]
    together = found[-1]
    assert together.fitted is not None and len(together.fitted.members) >= 2 and " and " in together.name
    assert together.loss < min(own.loss for own in found[:-1]) and "words" in together.name


def test_records_too_short_for_longer_ones() -> None:
    target = Classification(["no", "yes"], CLASSES[PARTS["training"]])
    assert len(run(of_classes(CLASSES, np.full(400, 5)), CLASSES, target, "dna")) >= 2


def test_rows_are_in_the_order_of_the_test_part() -> None:
    """So that they can be scored by length beside the model's: long records are easier."""
    sequences, target = of_classes(CLASSES), Classification(["no", "yes"], CLASSES[PARTS["training"]])
    outputs = run(sequences, CLASSES, target, "dna", k=4)["4-mers"].outputs
    own = PARTS["test"]
    whole = Predictions([str(i) for i in own], LENGTHS[own], CLASSES[own], outputs)
    losses = [
        Predictions(whole.names, own_lengths, whole.targets[chosen], whole.outputs[chosen]).loss(target)
        for chosen in (whole.lengths < 100, whole.lengths > 200)
        if len(own_lengths := whole.lengths[chosen])
    ]
    assert losses[1] < losses[0]


def test_kinds_that_are_none() -> None:
    target = Classification(["a", "b"], [0, 1])
    with pytest.raises(ValueError, match="kind='rna' is not one of tokens: give one of dna, operations, protein"):
        next(fit_baselines([], [], np.zeros(0, int), {}, target, "rna"))


@pytest.mark.skipif(not INTRONS.is_dir(), reason="needs ../shared/data/introns beside the repository")
def test_introns_of_worm_and_fly() -> None:
    """The first of them; of all, lengths matched and split by gene, 6-mers reach 0.956, and 4-mers 0.936."""
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
    found = {each.encoder: each.scores[each.headline].value for each in compare(run)}
    assert list(found)[1:] == ["position alone", "kind of change", "letters around"]
    assert found["kind of change"] > 0.95 and found["letters around"] > 0.8 and found["position alone"] < 0.7
    assert len(files.read_json(run / "baselines.json")["baselines"]) == 4


@pytest.mark.parametrize(
    ("ref", "alt", "name"), [("A", "N", "other"), ("AC", "TG", "other"), ("AC", "A", "deletion")]
)
def test_kinds(ref: str, alt: str, name: str) -> None:
    assert variant_kind(Window("chr1", 0, 9, 4, ref, alt)) == name
