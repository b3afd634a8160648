"""A user's files as a task: the target, the split, the records, and the documents of a run folder."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chordmixer.config import from_dict, override, to_dict
from chordmixer.data import Loader, TokenSampler, leakage
from chordmixer.data.columns import Columns
from chordmixer.data.reading import Reading
from chordmixer.data.splits import SplitConfig, Units
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.tasks import files, task_class
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.tasks.questions import settle_rare
from chordmixer.tasks.targets import Classification, Regression

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def clear_cache() -> None:
    files._cached_data.cache_clear()


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., str]:
    def write(name: str, header: str, rows: list[str]) -> str:
        (tmp_path / name).write_text("\n".join([header, *rows]) + "\n")
        return str(tmp_path / name)

    return write


def test_two_files_are_two_classes(motifs: list[str], log: pytest.LogCaptureFixture) -> None:
    task = Files(FilesConfig(tuple(motifs)))
    assert task_class("files") is Files
    assert "each file is a class: with, without" in log.messages[0]
    assert (task.embedding, task.inputs, task.kind) == ("tokens", 5, "dna")
    assert isinstance(task.target, Classification) and task.target.labels == ["with", "without"]
    assert {part: len(indices) for part, indices in task.split.parts.items()} == {
        "training": 140,
        "validation": 20,
        "test": 40,
    }
    assert task.complement is None and task.max_length == max(task.store.lengths)
    assert task.config.reading.labels == "files" and task.config.key is not None


def test_a_record_is_its_letters(motifs: list[str]) -> None:
    task = Files(FilesConfig(tuple(motifs)))
    records = task.records("test")
    text = "".join(Path(path).read_text() for path in motifs)
    for index in range(len(records)):
        values, target = records[index]
        name, label = records.name(index), task.target.labels[int(target)]
        letters = text.split(f">{name} ")[1].split("\n")[1]
        assert task.store.tokenizer.decode(values.numpy()) == letters
        assert name.rstrip("0123456789") == label and len(values) == records.lengths[index]
        assert values.dtype == torch.uint8 and target.dtype == torch.int64


def test_parts_do_not_overlap_and_groups_stay_together(motifs: list[str]) -> None:
    task = Files(FilesConfig(tuple(motifs), reading=Reading(labels="files", group="header:gene")))
    assert task.split.method == "grouped"
    groups = task.store.column("group")
    groups_by_part = [{groups[i] for i in task.question.records[indices]} for indices in task.split.parts.values()]
    assert sum(map(len, groups_by_part)) == 25
    assert len({*task.split.training, *task.split.validation, *task.split.test}) == 200


def test_records_travel_to_a_worker_by_path(motifs: list[str]) -> None:
    records = Files(FilesConfig(tuple(motifs))).records("training")
    data = pickle.dumps(records)
    assert len(data) < 20_000
    assert torch.equal(pickle.loads(data)[7].values, records[7].values)


def test_the_config_is_json(motifs: list[str]) -> None:
    config = FilesConfig(
        tuple(motifs),
        Reading(columns=Columns(label="x")),
        TokenizerConfig("kmers", 4),
        target_type="labels",
        separator=",",
    )
    loaded = from_dict(FilesConfig, json.loads(json.dumps(to_dict(config))), "data")
    assert loaded == config and loaded.files == config.files
    with pytest.raises(
        ValueError, match=r"data\.target_type='sums' is not a choice: give one of auto, classes, labels, numb"
    ):
        override(FilesConfig(), {"target_type": "sums"}, "data")


def test_the_key_depends_on_content_and_not_on_place(motifs: list[str], tmp_path: Path) -> None:
    copied = tuple(str(shutil.copy(path, tmp_path)) for path in motifs)
    first, second = Files(FilesConfig(tuple(motifs))), Files(FilesConfig(copied, cache=str(tmp_path / "cache")))
    assert first.config == second.config and first.config.files != second.config.files
    for path in copied:
        Path(path).unlink()
    files._cached_data.cache_clear()
    assert Files(second.config).records("test").name(3) == first.records("test").name(3)
    shutil.rmtree(tmp_path / "cache")
    files._cached_data.cache_clear()
    with pytest.raises(ValueError, match="neither the files of this run nor their store are here"):
        Files(second.config)


def test_a_table_with_everything(table: Callable[..., str]) -> None:
    parts = ("train", "train", "dev", "dev", "test", "test")
    rows = [f"{'ACGT' * 5}{'A' * i},{'ab'[i % 2]},{parts[i % 6]},{1 + i % 2}" for i in range(60)]
    task = Files(FilesConfig((table("all.csv", "seq,label,split,weight", rows),)))
    assert task.split.method == "given" and [len(indices) for indices in task.split.parts.values()] == [20, 20, 20]
    training = task.records("training")
    assert training.weights is not None and training.weights.mean() == pytest.approx(1)
    assert {round(w, 3) for w in training.weights.tolist()} == {0.667, 1.333}
    (batch,) = Loader(training, TokenSampler(training.lengths, tokens=10**6, sequences=20)).epoch()
    assert batch.weights is not None and batch.weights.tolist() == pytest.approx(training.weights[batch.indices])
    assert task.records("test").weights is None


def test_texts_numbers_and_several_labels(table: Callable[..., str]) -> None:
    words = [f'"{("good", "bad", "fine", "ill")[i % 4]} book, number {i}"' for i in range(40)]
    texts = [f"{word},{i / 7}" for i, word in enumerate(words)]
    task = Files(FilesConfig((table("texts.csv", "text,target", texts),)))
    assert (task.inputs, task.kind, task.target.outputs) == (256, "text", 1)
    assert isinstance(task.target, Regression) and task.records("test")[0].target.dtype == torch.float64
    rows = [f"{word},{('a', 'b', 'a;b', '')[i % 4]}" for i, word in enumerate(words)]
    several = Files(FilesConfig((table("several.csv", "text,label", rows),), target_type="labels"))
    assert several.target.outputs == 2 and several.records("training")[0].target.shape == (2,)


def test_rare_classes_are_refused_or_left_out(table: Callable[..., str]) -> None:
    """By the units of the split: class c has five records of two genes, class d two copies of one sequence."""
    rows = [f"{'ACGT' * 5}{'A' * i},{'ab'[i % 2]},gene{i}" for i in range(40)]
    rows += [f"{'CCGT' * 5}{'C' * i},c,other{i % 2}" for i in range(5)] + ["GGGTTTGGG,d,x", "GGGTTTGGG,d,y"]
    config = FilesConfig((table("rare.csv", "seq,label,group", rows),))
    with pytest.raises(
        ValueError, match=r"^2 of 4 classes have fewer than 3 groups, 'd' \(2\), 'c' \(2\): .*--on-rare"
    ):
        Files(config)
    task = Files(replace(config, on_rare="reject"))
    reason = "of 2 classes with fewer than 3 groups (c, d)"
    assert task.question.names == ["a", "b"] and set(task.question.targets.tolist()) == {0, 1}
    assert (task.account.used, task.account.rejected) == (40, {reason: 7})
    labels = np.array(task.store.column("label").tolist())[task.question.records]
    assert [task.question.names[k] for k in task.question.targets] == labels.tolist()
    assert sorted(np.concatenate([*task.split.parts.values()])) == [*range(40)]
    alone = replace(config, split=SplitConfig("random"))
    with pytest.raises(ValueError, match=r"^1 of 4 classes have fewer than 3 different records, 'd' \(1\)"):
        Files(alone)
    folds = Files(replace(alone, on_rare="reject", split=SplitConfig("random", folds=4)))
    assert folds.question.names == ["a", "b"], "class c has five records, and four folds and the test need six"
    with pytest.raises(
        ValueError, match=r"^--on-rare reject leaves 0 of 2 classes, without those with fewer than 52"
    ):
        settle_rare(folds.question, Units("random", np.arange(40), "records"), 52, "reject", str)


def test_rare_labels_are_left_out_and_their_records_stay(table: Callable[..., str]) -> None:
    rows = [f"{'ACGT' * 5}{'A' * i},{('a', 'b', 'a;b')[i % 3]}" for i in range(30)] + ["CCCCC,a;rare", "GGGGG,rarer"]
    config = FilesConfig((table("rare.csv", "seq,label", rows),), target_type="labels")
    with pytest.raises(
        ValueError, match=r"^2 of 4 labels have fewer than 3 different records, 'rarer' \(1\), 'rare' \(1\)"
    ):
        Files(config)
    task = Files(replace(config, on_rare="reject"))
    assert task.question.names == ["a", "b"] and task.question.targets[-2:].tolist() == [[1, 0], [0, 0]]
    assert task.account.notes == {"labels left out, with fewer than 3 different records (rare, rarer)": 2}
    assert task.account.used == 32 and task.target.outputs == 2


def test_a_given_split_leaves_no_class_out(table: Callable[..., str]) -> None:
    rows = [f"{'ACGT' * 5}{'A' * i},{'ab'[i % 2]},{('train', 'dev', 'test')[i % 3]}" for i in range(30)]
    path = table("given.csv", "seq,label,split", [*rows, "CCCCC,c,train"])
    assert Files(FilesConfig((path,), on_rare="reject")).question.names == ["a", "b", "c"]


def test_series(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("up", "down"):
        (tmp_path / "series" / name).mkdir(parents=True)
        for i in range(10):
            steps = np.cumsum(rng.normal(size=(20 + i, 2)), axis=0)
            np.save(tmp_path / "series" / name / f"{i}.npy", steps if name == "up" else -steps)
    task = Files(FilesConfig((str(tmp_path / "series"),)))
    assert (task.embedding, task.inputs, task.kind, task.target.labels) == ("real", 2, "real", ["down", "up"])
    assert task.records("training")[0].values.dtype == torch.float32
    assert task.documents()["data.json"]["near_copies_looked_for"] is False


def test_both_strands_are_drawn_by_epoch_and_index_alone(motifs: list[str]) -> None:
    task = Files(FilesConfig(tuple(motifs), both_strands=True, seed=3))
    records, repeated = task.records("training"), task.records("training")
    tokenizer = task.store.tokenizer
    flipped = np.zeros((6, len(records)), dtype=bool)
    for epoch in range(6):
        for index in reversed(range(len(records))):
            drawn, plain = records.drawn(index, epoch).values.numpy(), records[index].values.numpy()
            flipped[epoch, index] = not np.array_equal(drawn, plain)
            if flipped[epoch, index]:
                assert np.array_equal(drawn, tokenizer.reverse_complement(plain))
    assert np.array_equal(repeated.drawn(5, 4).values, records.drawn(5, 4).values)
    assert 0.4 < flipped.mean() < 0.6 and len({row.tobytes() for row in flipped}) == 6
    reseeded = Files(FilesConfig(tuple(motifs), both_strands=True, seed=4)).records("training")
    assert any(not torch.equal(reseeded.drawn(i, 0).values, records.drawn(i, 0).values) for i in range(20))
    assert task.complement is not None and task.complement.tolist() == [3, 2, 1, 0, 4]


def test_without_rc_nothing_is_reversed(motifs: list[str]) -> None:
    records = Files(FilesConfig(tuple(motifs))).records("training")
    assert all(torch.equal(records.drawn(i, 1).values, records[i].values) for i in range(len(records)))


def test_what_a_run_says_of_its_data(table: Callable[..., str], tmp_path: Path) -> None:
    rows = [f"r{i},{'ACGT'[i % 4]}{'CCGTAATG' * 4}{'A' * (i // 4)},{'ab'[i % 2] if i else ''}" for i in range(60)]
    path = table("some.csv", "id,sequence,label", rows)
    with pytest.raises(ValueError, match="1 of 60 records have no label, r0: fill them in"):
        Files(FilesConfig((path,)))
    task = Files(FilesConfig((path,), Reading(on_unmatched="reject")))
    assert [*task.account.lines()][:2] == ["60 records read: 59 used, 1 rejected", "1 rejected, without a label: r0"]
    documents = json.loads(json.dumps(task.documents()))
    data = documents["data.json"]
    assert set(documents) == {"tokenizer.json", "data.json"} and documents["tokenizer.json"]["tokenizer"] == "dna"
    assert (data["format"], data["sources"], data["target_type"]) == (1, [path], "classes")
    assert data["split"]["method"] == "random" and sum(data["split"]["sizes"].values()) == 59
    assert data["account"]["rejected"] == {"without a label": 1}
    assert data["inspection"]["classes"] == {"b": 30, "a": 29} and data["inspection"]["account"]["used"] == 60
    leak = data["leakage"]["test"]
    assert leak["near"] == leak["records"] == data["split"]["sizes"]["test"]
    assert all(name.startswith("r") for pair in leak["examples"]["near"] for name in pair)
    assert data["near_copies_looked_for"] is True


def test_the_records_seen_are_those_of_training_and_validation(motifs: list[str]) -> None:
    task = Files(FilesConfig(tuple(motifs), cut=60))
    seen, tokenizer = task.seen(), task.store.tokenizer
    assert {part: len(hashes) for part, hashes in seen.items()} == {"training": 140, "validation": 20}
    for part in ("training", "validation", "test"):
        records = task.records(part)
        hashes = leakage.seen_hashes((records[i].values.numpy() for i in range(len(records))), tokenizer)
        assert {*leakage.find_seen(hashes, seen)} == {part if part != "test" else "no"}


def test_cut_records_are_what_everyone_sees(motifs: list[str]) -> None:
    uncut, cut = Files(FilesConfig(tuple(motifs))), Files(FilesConfig(tuple(motifs), cut=60))
    assert uncut.config.key == cut.config.key and uncut.config != cut.config
    longer = int((uncut.store.lengths > 60).sum())
    assert 0 < longer < 200 and f"{longer} records cut at 60 tokens" in cut.account.lines()
    assert not any("cut" in line for line in uncut.account.lines())
    data = json.loads(json.dumps(cut.documents()))["data.json"]
    assert data["account"]["notes"] == data["inspection"]["account"]["notes"] == {"records cut at 60 tokens": longer}
    lengths = np.minimum(uncut.store.lengths, 60)
    assert cut.max_length == 60 and data["inspection"]["tokens"] == lengths.sum()
    assert data["inspection"]["percentiles"]["100"] == 60
    for part in ("training", "validation", "test"):
        records = cut.records(part)
        assert (
            records.lengths
            == lengths[records.indices].tolist()
            == [len(records[i].values) for i in range(len(records))]
        )
        assert torch.equal(records[0].values, torch.from_numpy(uncut.store.tokens(records.indices[0])[:60].copy()))


def test_records_that_agree_up_to_the_cut_are_copies(table: Callable[..., str]) -> None:
    rows = [f"{'ACCTGA' * (1 + i // 6)}{'ACGT'[i % 4]}{'TTAGGC'[i % 6 :]},{'ab'[i % 2]}" for i in range(60)]
    path = table("some.csv", "sequence,label", [*rows, *[f"{'CAGGATTA' * 3}{'A' * i},a" for i in range(20)]])
    cut = Files(FilesConfig((path,), cut=20))
    copied = [i for i in range(60, 80) if cut.store.lengths[i] == 20]
    parts = [part for part, indices in cut.split.parts.items() if {*copied} & {*indices.tolist()}]
    assert len(copied) == 20 and len(parts) == 1
    assert cut.inspection.duplicates.exact >= 19 and all(leak.exact == 0 for leak in cut.leaks.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": ()}, "no files were given: name at least one, or - for standard input"),
        ({"files": ("none.fa",)}, r"none\.fa (does not exist|cannot be read)"),
        ({"split": SplitConfig("grouped")}, "split method 'grouped' needs groups, which the data lack"),
        (
            {"tokenizer": TokenizerConfig("bytes"), "both_strands": True},
            "--rc asks for both strands, and bytes tokens",
        ),
        ({"target_type": "number"}, "label 'with' of record 'with0' is not a finite number"),
        ({"cut": 0}, "cut=0 is too small: give 1 or more"),
        ({"on_rare": "merge"}, "--on-rare merge is not a choice: give one of error, reject"),
    ],
    ids=str,
)
def test_refusals(motifs: list[str], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Files(replace(FilesConfig(tuple(motifs)), **settings))


def test_a_file_without_labels(motifs: list[str]) -> None:
    with pytest.raises(ValueError, match="no record has a label or a number to learn: give one file for each class"):
        Files(FilesConfig((motifs[0],)))
    with pytest.raises(ValueError, match="all 100 records are of one class, 'with'"):
        Files(FilesConfig((motifs[0],), Reading(labels="files")))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not beside this checkout")
def test_real_introns() -> None:
    paths = tuple(str(SHARED / "introns" / f"{name}.fa.gz") for name in ("caenorhabditis", "drosophila"))
    task = Files(FilesConfig(paths))
    assert task.target.labels == ["caenorhabditis", "drosophila"] and task.max_length == 16_515
    assert sum(map(len, task.split.parts.values())) == 67_968 == task.account.used


def test_weights_that_float32_cannot_tell_from_nothing(table: Callable[..., str]) -> None:
    rows = [f"{'ACGT' * (3 + i)},{'ab'[i % 2]},{(1e-300, 1.0, 1e300)[i % 3]}" for i in range(30)]
    task = Files(FilesConfig((table("weights.csv", "sequence,label,weight", rows),)))
    with pytest.raises(ValueError, match=r"record weights from 1e-300 to 1e\+300 are too far apart: in float32 the"):
        task.records("training")


@pytest.mark.parametrize("text", ["1_0", "inf", "\N{ARABIC-INDIC DIGIT TWO}"])
def test_numbers_are_digits(table: Callable[..., str], text: str) -> None:
    rows = [f"{'ACGT' * (3 + i)},{i / 3}" for i in range(12)] + [f"ACGTT,{text}"]
    with pytest.raises(ValueError, match="is not a finite number"):
        Files(FilesConfig((table("numbers.csv", "sequence,target", rows),)))
