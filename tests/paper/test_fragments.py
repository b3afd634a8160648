"""Fragments of genomes: where they are from, how long they are, and that they depend on few numbers alone."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chordmixer.config import from_dict, to_dict
from chordmixer.data import Loader, TokenSampler
from chordmixer.data.reading import Reading
from chordmixer.data.splits import PARTS
from chordmixer.paper.fragments import Fragments, FragmentsConfig
from chordmixer.tasks import task_class

SHARED = Path(__file__).parents[3] / "shared" / "data" / "mitogenomes"
SMALL: dict[str, Any] = {
    "training": 300,
    "validation": 60,
    "test": 90,
    "median": 60,
    "shortest": 20,
    "longest": 500,
}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Genomes of three families, one of which has longer ones: only to be read."""
    folder, rng = tmp_path_factory.mktemp("families"), random.Random(0)
    for name, count, longest in (("carps", 20, 700), ("loaches", 12, 300), ("suckers", 12, 260)):
        with (folder / f"{name}.fa").open("w") as file:
            for number in range(count):
                letters = "".join(rng.choices("ACGT", k=rng.randint(100, longest)))
                file.write(f">{name}{number}.1 {name} mitochondrion, complete genome\n{letters}\n")
    return tuple(str(folder / f"{name}.fa") for name in ("carps", "loaches", "suckers"))


def letters_of(families: tuple[str, ...]) -> dict[str, str]:
    text = "".join(Path(path).read_text() for path in families)
    return {part.split()[0]: part.split("\n")[1] for part in text.split(">")[1:]}


# --- Where they are from ---


@pytest.mark.parametrize("circular", [True, False], ids=["circles", "lines"])
def test_fragments_are_pieces_of_genomes_of_their_class(families: tuple[str, ...], circular: bool) -> None:
    task = Fragments(FragmentsConfig(families, circular=circular, **SMALL))
    genomes, across = letters_of(families), 0
    for part in ("validation", "test"):
        records = task.records(part)
        for index in range(len(records)):
            letters = task.genomes.store.tokenizer.decode(records[index].values.numpy())
            name, _, span = records.name(index).partition(":")
            start, stop = map(int, span.split("-"))
            assert letters == (genomes[name] * 2)[start - 1 : stop] and len(letters) == records.lengths[index]
            assert name.startswith(task.names[int(records[index].target)])
            across += stop > len(genomes[name])
    assert (across > 0) == circular


def test_genomes_do_not_cross_the_split(families: tuple[str, ...]) -> None:
    task = Fragments(FragmentsConfig(families, **SMALL))
    drawn = {part: set(task.records(part)._draw(0).genomes.tolist()) for part in PARTS}
    assert sum(map(len, drawn.values())) == len(set().union(*drawn.values())) > 30
    for part, genomes in drawn.items():
        assert genomes <= {*task.genomes.split.parts[part].tolist()}


def test_classes_are_balanced_in_every_epoch(families: tuple[str, ...]) -> None:
    task = Fragments(FragmentsConfig(families, **SMALL))
    records = task.records("training")
    assert task.target.labels == ["carps", "loaches", "suckers"] and task.target.weights.tolist() == [1, 1, 1]
    for epoch in (0, 1, 7):
        assert Counter(int(records.drawn(i, epoch).target) for i in range(300)) == {0: 100, 1: 100, 2: 100}


def test_one_class_against_the_others(families: tuple[str, ...]) -> None:
    task = Fragments(FragmentsConfig(families, against="loaches", **SMALL))
    assert task.target.labels == ["loaches", "others"] and task.target.headline == "roc_auc"
    records = task.records("test")
    classes = {(int(records[i].target), records.name(i).rstrip("0123456789:-.")) for i in range(90)}
    assert classes == {(0, "loaches"), (1, "carps"), (1, "suckers")}
    with pytest.raises(
        ValueError, match="against='eels' is no class of these genomes: they are of carps, loaches, s"
    ):
        Fragments(FragmentsConfig(families, against="eels", **SMALL))


# --- Lengths ---


def test_lengths_are_log_normal_and_any_class_can_have_them(families: tuple[str, ...]) -> None:
    config = FragmentsConfig(families, training=4_000, validation=10, test=10, median=60, shortest=20, longest=500)
    task = Fragments(config)
    records = task.records("training")
    lengths = np.array(records.lengths)
    training = task.genomes.split.training
    classes_of, lengths_of = task.genomes.question.targets[training], task.genomes.store.lengths[training]
    longest = [lengths_of[classes_of == k].max() for k in range(3)]
    assert min(lengths) == 20 and max(lengths) == min(longest) < max(longest)
    assert np.quantile(lengths, [0.159, 0.5, 0.841]) == pytest.approx(60 * np.exp([-0.8, 0, 0.8]), rel=0.06)
    classes = records.classes
    assert abs(np.log(lengths[classes == 0]).mean() - np.log(lengths[classes == 1]).mean()) < 0.1
    assert task.max_length == max(max(task.records(part).lengths) for part in PARTS)


def test_an_index_keeps_its_length(families: tuple[str, ...]) -> None:
    records = Fragments(FragmentsConfig(families, **SMALL)).records("training")
    for epoch in range(3):
        assert [len(records.drawn(i, epoch).values) for i in range(300)] == records.lengths


# --- What they depend on ---


def test_index_and_epoch_alone_make_a_fragment(families: tuple[str, ...]) -> None:
    config = FragmentsConfig(families, **SMALL)
    first, second = Fragments(config).records("training"), Fragments(config).records("training")
    drawn = {(i, epoch): first.drawn(i, epoch) for epoch in (0, 1, 5) for i in range(50)}
    unpickled = pickle.loads(pickle.dumps(second))
    for (i, epoch), record in reversed(drawn.items()):
        for repeated in (second.drawn(i, epoch), unpickled.drawn(i, epoch)):
            assert torch.equal(repeated.values, record.values) and repeated.target == record.target
    assert sum(not torch.equal(drawn[i, 0].values, drawn[i, 1].values) for i in range(50)) > 45
    assert torch.equal(first[3].values, drawn[3, 0].values) and first.name(3) == "training-3"


def test_training_draws_and_scoring_does_not(families: tuple[str, ...]) -> None:
    records = Fragments(FragmentsConfig(families, **SMALL)).records("training")
    sampler = TokenSampler(records.lengths, tokens=10**6, sequences=300)
    fixed, drawing = Loader(records, sampler), Loader(records, sampler, drawing=True)
    numbers = [*range(20)]
    assert torch.equal(fixed.batch(numbers, 0).inputs.values, fixed.batch(numbers, 3).inputs.values)
    assert not torch.equal(drawing.batch(numbers, 0).inputs.values, drawing.batch(numbers, 3).inputs.values)


def test_names_stay_when_others_are_drawn(families: tuple[str, ...]) -> None:
    records = Fragments(FragmentsConfig(families, **SMALL)).records("test")
    name = records.name(4)
    records.drawn(4, 9)
    assert records.name(4) == name


def test_seeds(families: tuple[str, ...]) -> None:
    first, second = (Fragments(FragmentsConfig(families, seed=seed, **SMALL)) for seed in (0, 1))
    assert first.records("test").lengths != second.records("test").lengths
    assert np.array_equal(first.genomes.split.test, second.genomes.split.test)


# --- What a run folder says ---


def test_the_config_is_json_and_knows_its_store(families: tuple[str, ...], tmp_path: Path) -> None:
    task = Fragments(FragmentsConfig(families, Reading(group="header:/^([a-z]+\\d)/"), **SMALL))
    restored = from_dict(FragmentsConfig, json.loads(json.dumps(to_dict(task.config))), "data")
    assert task_class("fragments") is Fragments and restored == task.config and restored.key is not None
    moved = Fragments(replace(restored, files=("gone.fa",)))
    assert moved.records("test").name(5) == task.records("test").name(5)
    saved = json.loads(json.dumps(task.documents()))
    assert saved["tokenizer.json"]["tokenizer"] == "dna" and saved["data.json"]["account"]["used"] == 44
    assert saved["data.json"]["fragments"] == {"training": 300, "validation": 60, "test": 90}
    assert (
        saved["data.json"]["split"]["method"] == "grouped"
        and sum(saved["data.json"]["split"]["sizes"].values()) == 44
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": ()}, r"""data\.files names no genomes: give FASTA or GenBank files.*--set 'data\.files=\["cypr"""),
        ({"files": ("none.fa",)}, r"none\.fa cannot be read"),
        ({"training": 0}, "training=0 is too small: give 1 or more"),
        ({"median": 10}, "shortest=20, median=10, longest=500 are not in this order, or below 1: correct them"),
        ({"spread": -0.1}, r"spread=-0\.1 is too small: give 0 or more"),
        (
            {"shortest": 400, "median": 450},
            r"no genome of '\w+' in the training part has shortest=400 letters, the longest has \d+: give more or",
        ),
    ],
    ids=str,
)
def test_refusals(families: tuple[str, ...], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fragments(FragmentsConfig(**{"files": families, **SMALL, **settings}))


def test_from_the_command_line(
    families: tuple[str, ...], tmp_path: Path, chordmixer: Callable[..., tuple[int, str, str]]
) -> None:
    sizes = [f"data.{name}={value}" for name, value in SMALL.items()]
    small = ["training.epochs=2", "training.device=cpu", "model.network.track_size=2", "model.network.hidden=4"]
    settings = [f"data.files={json.dumps(families)}", "data.against=carps", *sizes, *small]
    options = [word for setting in settings for word in ("--set", setting)]
    code, out, err = chordmixer("train", "fragments", *options, "--out", tmp_path / "run")
    assert code == 0, err
    assert "44 records read: 44 used, 0 rejected" in out and "fragments, test set: ROC-AUC" in " ".join(out.split())
    assert chordmixer("report", tmp_path / "run")[0] == 0
    code, out, err = chordmixer("predict", tmp_path / "run", families[1], "--over-length", "windows")
    assert code == 0 and out.splitlines()[0].split("\t")[3:] == ["class", "probability", "carps", "others"]
    code, _, err = chordmixer("train", "fragments", "--out", tmp_path / "none")
    assert code == 2 and "data.files names no genomes" in err and len(err.strip().splitlines()) == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not beside this checkout")
def test_real_mitochondria() -> None:
    paths = tuple(str(path) for path in sorted(SHARED.glob("*.fa.gz")))
    task = Fragments(FragmentsConfig(paths, against="cyprinidae"))
    assert task.genomes.account.used == 635 and task.max_length < 17_000
    lengths = task.records("training").lengths
    assert min(lengths) == 79 and np.median(lengths) == pytest.approx(650, rel=0.05)
