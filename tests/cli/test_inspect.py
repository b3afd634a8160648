"""`inspect`, `evaluate`, `report`."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chordmixer import files

Command = Callable[..., tuple[int, str, str]]


def test_inspect(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    code, output, errors = chordmixer(
        "inspect", *motifs, "--plot", tmp_path / "lengths.png", "--cache", tmp_path / "c"
    )
    assert (code, errors) == (0, "")
    assert "each file is a class: with, without" in output and "200 records read: 200 used, 0 rejected" in output
    assert "200 records, " in output and "length percentiles" in output and "padding avoided" in output
    assert (tmp_path / "lengths.png").stat().st_size > 0 and [*(tmp_path / "c").iterdir()]


def test_inspect_needs_no_labels(chordmixer: Command, motifs: list[str]) -> None:
    code, output, _ = chordmixer("inspect", motifs[0])
    assert code == 0 and "classes" not in output and "100 records" in output


TINY = ["--set", "model.network.track_size=4", "--set", "model.network.hidden=8", "--set", "training.device=cpu"]
SHORT = ["--set", "training.epochs=1", "--no-baselines"]


def write_new(folder: Path, motifs: list[str]) -> list[str]:
    """Two files under other names: of each class 20 records of the training files and 20 new ones."""
    rng, paths = random.Random(9), []
    for path, name in zip(motifs, ("new_with.fa", "new_without.fa"), strict=True):
        seen_records = "".join(Path(path).read_text().splitlines(keepends=True)[:40])
        new_records = "".join(f">new{i}\n{''.join(rng.choices('ACGT', k=50))}\n" for i in range(20))
        (folder / name).write_text(seen_records + new_records)
        paths.append(str(folder / name))
    return paths


def test_evaluate_says_what_was_trained_on(chordmixer: Command, run: Path, motifs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "scores"
    code, output, errors = chordmixer("evaluate", run, *motifs)
    assert (code, errors) == (0, "")
    assert output.startswith(
        "warning: 160 of 200 records were seen in training (140 training, 20 validation): their scores show recall, "
        "not skill; the 40 unseen records are scored separately\n"
    )
    assert "each file is a class: with, without" in output and "not saved: add -o FOLDER" in output
    assert not (run / "lengths-files.png").exists()

    new = write_new(tmp_path, motifs)
    code, _, errors = chordmixer("evaluate", run, *new)
    assert code == 2 and "label 'new_with', which this run never saw: it knows with, without" in errors
    assert "name the class of a file, such as with=FILE" in errors
    command = ["evaluate", run, f"with={new[0]}", f"without={new[1]}", "-o", out]
    code, output, errors = chordmixer(*command)
    assert (code, errors) == (0, "")
    for metric in ("ROC-AUC", "accuracy", "average precision", "Matthews correlation", "log loss"):
        assert f"\n{metric} " in output, metric
    assert f"saved in {out}: evaluation.json, predictions.tsv, lengths.png" in output
    evaluation = json.loads((out / "evaluation.json").read_text())
    seen = sum(evaluation["seen"].values())
    assert output.startswith(f"warning: {seen} of 80 records were seen") and 20 < seen <= 40
    assert evaluation["all"]["records"] == 80 and evaluation["unseen"]["records"] == 80 - seen
    rows = [line.split("\t") for line in (out / "predictions.tsv").read_text().splitlines()]
    assert rows[0][3:5] == ["truth", "seen"] and [row[3] for row in rows[1:]] == ["with"] * 40 + ["without"] * 40
    assert all(row[4] == "no" for row in rows if row[0].startswith("new"))
    assert (out / "lengths.png").stat().st_size > 0

    code, _, errors = chordmixer(*command)
    assert code == 2 and "evaluation.json is there already: give another name with -o, or replace it with" in errors
    assert chordmixer(*command, "--force")[0] == 0
    code, _, errors = chordmixer("evaluate", run, "-o", out)
    assert code == 2 and "is for the scores of files" in errors


def test_train_and_inspect_take_classes_beside_files(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    new = write_new(tmp_path, motifs)
    inputs = [f"worm={new[0]}", f"fly={new[1]}"]
    code, output, errors = chordmixer("inspect", *inputs)
    assert (code, errors) == (0, "") and re.search(r"worm +40 +50.0%.*fly +40 +50.0%", output, re.S)
    run = tmp_path / "run"
    assert chordmixer("train", *inputs, "--out", run, *TINY, *SHORT)[::2] == (0, "")
    assert chordmixer("train", *inputs, "--out", run, *TINY, *SHORT, "--resume")[::2] == (0, "")
    for name, path in zip(("worm", "fly"), new, strict=True):
        (tmp_path / "held-out").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "held-out" / f"{name}.fa")
    code, output, _ = chordmixer("evaluate", run, *sorted((tmp_path / "held-out").iterdir()))
    assert code == 0 and "each file is a class: fly, worm" in output
    code, _, errors = chordmixer("train", *inputs, "--labels", "header:gene", "--out", tmp_path / "other")
    assert (code, errors.count("\n")) == (2, 1) and "--labels header:gene says where the classes are" in errors


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A table with a target, some of them missing."""
    rng, rows = random.Random(3), []
    for i in range(90):
        letters = rng.choices("ACGT", k=rng.randint(20, 80))
        target = {7: "NA", 20: "", 41: "nan", 55: "null"}.get(i, f"{100 * letters.count('A') / len(letters):.1f}")
        rows.append(f"r{i},{''.join(letters)},{target}\n")
    (tmp_path / "gc.csv").write_text("id,sequence,target\n" + "".join(rows))
    return tmp_path / "gc.csv"


def test_numbers_from_inspect_to_report(chordmixer: Command, numbers: Path, tmp_path: Path) -> None:
    code, output, errors = chordmixer("inspect", numbers, "--target-type", "number")
    assert (code, errors) == (0, "") and "86 records, 4 without a target" in output and "standard deviation" in output
    code, _, errors = chordmixer("inspect", numbers, "--target-type", "sums")
    assert code == 2 and "--target-type sums is not a choice: give one of auto, classes, labels, number" in errors

    run = tmp_path / "run"
    code, _, errors = chordmixer("train", numbers, "--out", run, *TINY, *SHORT)
    assert (code, errors.count("\n")) == (2, 1)
    assert "4 of 90 records have no target, r7, r20, r41, r55: fill them in, or leave such records out" in errors
    reject = ["--on-unmatched", "reject"]
    code, output, errors = chordmixer("train", numbers, "--out", run, *TINY, *SHORT, *reject)
    assert (code, errors) == (0, "") and "4 rejected, without a target: r7, r20, r41, r55" in output
    assert "mean absolute error by length" in output and "r2 in %" not in output
    report = (run / "report.html").read_text()
    for part in (
        "Histogram of targets",
        "Spearman correlation",
        "Mean absolute error by length",
        "4 without a target",
    ):
        assert part in report, part
    code, output, errors = chordmixer("evaluate", run, numbers, *reject)
    assert (
        (code, errors) == (0, "") and "Spearman correlation" in output and "mean absolute error by length" in output
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "none.fa"], "none.fa cannot be read (No such file or directory)"),
        (["report", "none"], "none is not a folder: give the --out folder of a training run"),
        (["evaluate", "none", "x.fa"], "none is not a folder: give the --out folder of a training run"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_path_is_one_line(chordmixer: Command, arguments: list[str], message: str) -> None:
    code, _, errors = chordmixer(*arguments)
    assert (code, errors.count("\n")) == (2, 1) and message in errors


# --- Hostile run folders ---


def write_hostile_config(run: Path, **data: str) -> None:
    """Write a config.json as an attacker would, with a manifest that fits it."""
    config = files.read_json(run / "config.json")
    config["data"] |= data
    files.write_recorded(run, {"config.json": files.json_bytes(config)})


@pytest.mark.parametrize("manifest", [True, False], ids=["signed", "unverified"])
def test_a_config_deletes_nothing(chordmixer: Command, run: Path, tmp_path: Path, manifest: bool) -> None:
    """Whatever it says of the cache, and whatever the key of its store is."""
    keys = ("thesis", "a" * 64, "../home/thesis")
    for key in keys:
        (tmp_path / "home" / key).mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / key / "thesis.tex").write_text("years")
    before = sorted((tmp_path / "home").rglob("*"))
    for key in keys:
        write_hostile_config(run, cache=str(tmp_path / "home"), key=key)
        if not manifest:
            (run / "manifest.json").unlink()
        for command in (
            ["evaluate", run],
            ["train", "--resume", run],
            ["evaluate", run, "--cache", tmp_path / "home"],
        ):
            code, _, errors = chordmixer(*command, *([] if manifest else ["--unverified"]))
            assert (code, errors.count("\n")) == (2, 1)
    assert sorted((tmp_path / "home").rglob("*")) == before


def test_a_link_overwrites_nothing(chordmixer: Command, run: Path, tmp_path: Path) -> None:
    """Neither under the old temporary names nor under the final ones."""
    target = tmp_path / "target"
    target.write_text("mine")
    for name in ("report.html", "evaluation-test.json", "predictions.parquet", "manifest.json", "lengths-test.png"):
        (run / f".writing-{name}").symlink_to(target)
    (run / "report.html").unlink()
    (run / "report.html").symlink_to(target)
    assert chordmixer("report", run)[0] == 0 and chordmixer("evaluate", run)[0] == 0
    assert target.read_text() == "mine" and not (run / "report.html").is_symlink()


def test_every_command_verifies_the_run(chordmixer: Command, run: Path, motifs: list[str], tmp_path: Path) -> None:
    commands = [
        ["evaluate", run],
        ["evaluate", run, *motifs],
        ["predict", run, *motifs],
        ["embed", run, *motifs, "-o", tmp_path / "e.parquet", "--force"],
        ["report", run],
        ["train", "--resume", run],
        ["train", *motifs, "--from", run, "--out", tmp_path / "next"],
    ]
    (run / "manifest.json").rename(tmp_path / "manifest.json")
    for command in commands:
        code, _, errors = chordmixer(*command)
        assert (code, errors.count("\n")) == (2, 1) and "add --unverified" in errors, command
    for command in commands[:5]:
        assert chordmixer(*command, "--unverified")[0] == 0, command
    (run / "manifest.json").unlink(missing_ok=True)
    (tmp_path / "manifest.json").rename(run / "manifest.json")
    (run / "config.json").write_text((run / "config.json").read_text() + " ")
    for command in commands:
        code, _, errors = chordmixer(*command)
        assert code == 2 and "config.json was changed or damaged" in errors, command


def test_a_changed_byte_of_the_cache_is_said(
    chordmixer: Command, run: Path, motifs: list[str], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = chordmixer("evaluate", run, "--cache", cache)
    (store,) = cache.iterdir()
    data = bytearray((store / "tokens.bin").read_bytes())
    data[7] ^= 1
    (store / "tokens.bin").write_bytes(data)
    code, output, errors = chordmixer("evaluate", run, "--cache", cache)
    damaged = f"{store / 'tokens.bin'} was changed or damaged since it was written: rebuild it; doing so"
    assert (code, output, errors) == (0, first[1], f"warning: {damaged}\n")
    assert chordmixer("evaluate", run, "--cache", cache) == first
