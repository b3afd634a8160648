"""What has to be given, and what is said where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chordmixer.models.model import Model
from chordmixer.paper.reproduction import entries
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.entries import DataNeeded, RunEntry, find
from chordmixer.paper.reproduction.experiments import build

FILES = DataNeeded(needs="two files", get="a friend has them", setting="files", least=2, several=True)


def test_enough_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.fa"
    path.touch()
    FILES.check("pair", [str(path), str(path)])
    DataNeeded().check("made", [])
    DataNeeded(setting="folder").check("made", [str(tmp_path)])


@pytest.mark.parametrize(
    ("data", "paths", "message"),
    [
        (
            FILES,
            [],
            "pair was given no data and needs two files: a friend has them; then add --data PATH --data PATH to",
        ),
        (FILES, ["."], "pair was given 1 of 2 paths and needs two files: a friend has them; then add --data PATH"),
        (FILES, [".", "gone.fa"], "--data gone.fa does not exist: pair needs two files; a friend has them"),
        (DataNeeded(), ["."], "pair makes its own data and was given .: leave --data out"),
        (DataNeeded(setting="folder"), [".", "."], "pair takes one --data and was given 2: give one folder"),
        (DataNeeded(setting="folder"), ["gone"], "--data gone does not exist: give a path that is there"),
        (DataNeeded("one file", "", "source"), [".", "."], "pair takes one --data and was given 2: give one file"),
    ],
)
def test_what_is_refused(data: DataNeeded, paths: list[str], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        data.check("pair", paths)
    assert str(refused.value).startswith(message)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"'adding200' is not in the list .* did you mean adding-200\?"):
        find("adding200", ENTRIES)
    with pytest.raises(
        ValueError, match=r"'xyz' is not in the list .*: chordmixer reproduce alone lists what there is"
    ):
        find("xyz", ENTRIES)


RUNS = {name: entry for name, entry in ENTRIES.items() if isinstance(entry, RunEntry)}
ALONE = ["adding-200", "adding-1000", "adding-16k", "adding-128k", "listops", "image", "text", "pathfinder", "pathx"]
"""Those whose recipe looks into no file."""


def test_every_run_of_the_paper_has_the_released_settings() -> None:
    trained = {
        name: entry for name, entry in RUNS.items() if name not in ("ablation", "ablation-mitogenomes", "padding")
    }
    assert {name for name, entry in trained.items() if entry.released} == set(entries.RELEASED)
    assert set(entries.RELEASED) == {name for name, entry in trained.items() if entry.hyper}


@pytest.mark.parametrize("name", ALONE)
def test_like_the_released_code(name: str) -> None:
    code, made = entries.RELEASED[name], build(RUNS[name], like="released")
    network, training = made.model.network, made.training
    assert (network.hidden, network.track_size) == (code.hidden, code.track_size)
    assert (network.order, network.init, network.prenorm, network.norm) == (
        "released", "xavier", code.prenorm, code.norm,
    )  # fmt: skip
    assert (training.learning_rate, training.batch_sequences, training.accumulate) == (code.rate, code.batch, 1)
    assert (training.epochs, training.weight_decay, training.warmup) == (code.epochs, code.weight_decay, code.warmup)
    assert (made.model.head, made.model.final_norm, made.model.drop_tokens) == ("average", None, 0)
    with torch.device("meta"):
        Model(made.model)


@pytest.mark.parametrize("name", ALONE)
def test_like_the_paper(name: str) -> None:
    hyper, ours, made = RUNS[name].hyper, build(RUNS[name]), build(RUNS[name], like="paper")
    assert hyper is not None
    assert (made.training.learning_rate, made.training.batch_sequences) == (hyper.rate, hyper.batch)
    assert (made.model.network.prenorm, made.model.network.norm, made.model.network.dropout) == (None, None, 0)
    assert (made.training.epochs, made.training.warmup) == (ours.training.epochs, ours.training.warmup)


SMALL = {"training": 40, "validation": 10, "test": 10}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("listops", "3 convolutions over 7 tokens, head mean_maximum_attention, with the logarithm of the length"),
        (
            "pathfinder",
            "3 convolutions over 9 tokens, a vector for each position, channels standardised within each record, "
            "head mean_maximum_attention",
        ),
        ("adding-200", "3 convolutions over 9 tokens, head mean_maximum_attention"),
    ],
)
def test_like_a_network_on_files(name: str, parts: str, tmp_path: Path) -> None:
    data = SMALL if name == "adding-200" else {**SMALL, "cache": str(tmp_path)}
    ours, made = (build(RUNS[name], changes={"data": data}, like=like) for like in ("ours", "files"))
    network, training = made.model.network, made.training
    assert (network.track_size, network.hidden) == (ours.model.network.track_size, ours.model.network.hidden)
    assert (training.epochs, training.batch_sequences) == (ours.training.epochs, ours.training.batch_sequences)
    batch_norms = name == "pathfinder"
    assert (network.prenorm, network.norm) == (("batch", "batch") if batch_norms else ("layer", None))
    assert training.learning_rate == (ours.training.learning_rate if batch_norms else 1e-3)
    rows = {row[0]: row[1] for row in entries.rows(made, None, None)}
    assert rows["around the blocks"] == parts
    assert "around the blocks" not in {row[0] for row in entries.rows(ours, None, None)}
    with torch.device("meta"):
        Model(made.model)


def test_files_of_dna_have_words(motifs: list[str]) -> None:
    made = build(RUNS["introns"], motifs, like="files")
    assert made.model.words.lengths == (4, 6, 8) and made.model.network.prenorm == "layer"


def test_a_pair_keeps_its_head() -> None:
    experiment = build(RUNS["listops"])
    pair = replace(experiment, model=replace(experiment.model, head="pair"))
    assert entries.with_published(pair, entries.RELEASED["retrieval"]).model.head == "pair"
    with pytest.raises(ValueError, match="--like files: its pooling would replace the head pair of listops"):
        entries.with_parts(pair)


def test_changes_come_after_it() -> None:
    made = build(RUNS["listops"], changes={"training": {"epochs": 3}}, like="released")
    assert made.training.epochs == 3 and made.training.learning_rate == 0.01


def test_whose_settings_are_not_known() -> None:
    with pytest.raises(ValueError, match="--like theirs is not known: choose from ours, paper, released, files"):
        build(RUNS["listops"], like="theirs")
    with pytest.raises(
        ValueError, match=r"--like paper: the paper says nothing of Introns of a worm .*; leave it out"
    ):
        build(RUNS["introns"], ["a.fa", "b.fa"], like="paper")
    with pytest.raises(ValueError, match="--like released: the released code has no settings for Plasmids"):
        build(RUNS["plasmids"], ["a.fa", "b.fa"], like="released")


def test_in_words() -> None:
    rows = {row[0]: row[1:] for row in entries.rows(build(RUNS["text"]), RUNS["text"].hyper, RUNS["text"].released)}
    assert rows["block"][1:] == ["no norm", "order released, layer norm before and batch norm behind, start xavier"]
    assert rows["epochs"][1:] == ["not said", "90"] and rows["warm-up"][2] == "about 60.0%"
    assert rows["tokens hidden in training"] == ["30%", "", ""]
    assert all(row[2:] == ["", ""] for row in entries.rows(build(RUNS["listops"]), None, None))
