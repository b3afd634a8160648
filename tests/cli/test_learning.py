"""`train` on files, from end to end, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chordmixer import files
from chordmixer.training import Experiment

Command = Callable[..., tuple[int, str, str]]

SMALL = ["model.network.track_size=4", "model.network.hidden=8", "training.device=cpu", "model.words.lengths=[]"]
TINY = [word for setting in SMALL for word in ("--set", setting)]
WORDS = ["--set", "model.words.lengths=[4]", "--set", "model.words.bits=6"]
SHORT = ["--set", "training.epochs=2", "--set", "training.evaluate_epochs=1"]


def test_from_files_to_a_report(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = [*TINY, *SHORT, *WORDS, "--set", "training.trial=0.15", "--group", "header:gene", "--rc"]
    code, said, errors = chordmixer("train", *motifs, "--out", run, *given, "--ladder")
    assert (code, errors) == (0, "")
    for line in (
        "each file is a class: with, without",
        "200 records read: 200 used, 0 rejected",
        "split (grouped): ",
        "files: ",
        "2 epochs",
        "validation at step",
        "majority class: roc_auc 0.500",
        "-mers: roc_auc ",
        "tried words and no words in short runs: validation loss ",
        "network alone: roc_auc 0.",
        "local network: roc_auc 0.",
        "the model: roc_auc ",
        "Its answers are those of ",
        "-mers, reaches",
        f"report: {run / 'report.html'}",
        f"chordmixer predict {run} NEW_FILES -o answers.tsv",
        f"chordmixer explain {run} FILES -o why.html",
        "small data: --folds 5 gives cross-validated scores and an ensemble",
    ):
        assert line in said, line
    rows = files.read_json(run / "baselines.json")
    assert len(rows["baselines"]) >= 5 and len(rows["ladder"]) >= 3
    assert "Where answers come from" in (run / "report.html").read_text()
    weights = (run / "model.safetensors").read_bytes()

    code, again, errors = chordmixer("train", "--resume", run, "--no-baselines")
    assert (code, errors) == (0, "") and "going on from" in again
    assert (run / "model.safetensors").read_bytes() == weights

    moved = [str(shutil.copy(path, tmp_path)) for path in motifs]
    same = ["--out", run, *given, "--no-baselines", "--resume"]
    assert chordmixer("train", *moved, *same)[::2] == (0, "")
    code, _, errors = chordmixer("train", *moved, *same, "--split", "random")
    assert code == 2 and "was started with other settings: resume with the same ones" in errors


def test_a_run_at_work(chordmixer: Command, run: Path, motifs: list[str], tmp_path: Path) -> None:
    """predict, embed, evaluate and report of the same run."""
    assert not (run / "baselines.json").exists()

    code, said, errors = chordmixer("predict", run, motifs[0])
    rows = [line.split("\t") for line in said.splitlines()]
    assert code == 0 and rows[0] == ["id", "length", "windows", "class", "probability", "with", "without"]
    assert [row[0] for row in rows[1:]] == [f"with{i}" for i in range(100)]
    assert "100 records read: 100 used, 0 rejected" in errors

    code, said, errors = chordmixer("predict", run, *motifs, "-o", tmp_path / "a.jsonl", "--min-confidence", 0.99999)
    assert code == 0 and said == ""
    assert "unclassified" in {json.loads(line)["class"] for line in (tmp_path / "a.jsonl").read_text().splitlines()}

    assert chordmixer("embed", run, motifs[1], "-o", tmp_path / "e.parquet")[0] == 0
    code, said, _ = chordmixer("evaluate", run, *motifs)
    assert code == 0 and "files, unseen set: roc_auc in % by length" in said
    code, said, _ = chordmixer("evaluate", run, "--split", "training")
    assert code == 0 and "files, training set: roc_auc" in said
    assert chordmixer("report", run) == (0, f"report: {run / 'report.html'}\n", "")


def test_shorthands_for_settings_and_a_folder_with_a_space(
    chordmixer: Command, motifs: list[str], tmp_path: Path
) -> None:
    """What was changed is said before training starts, and what to paste next has quotes."""
    run = tmp_path / "my run"
    short = ["--epochs", 1, "--seed", 3, "--device", "cpu", "--no-baselines"]
    code, said, errors = chordmixer("train", *motifs, "--out", run, *TINY, *short)
    assert (code, errors) == (0, "")
    training = Experiment.load(run).training
    assert (training.epochs, training.seed, training.device) == (1, 3, "cpu")
    changed = said.index("settings changed: training.epochs=1 (default 224), training.seed=3 (default 0)")
    assert changed < said.index("files: ") and "model.network.hidden=8 (default 64)" in said
    assert f"chordmixer predict '{run}' NEW_FILES" in said and f"chordmixer evaluate '{run}' OTHER" in said


def test_a_task_of_the_paper_beside_plain_baselines(chordmixer: Command, tmp_path: Path) -> None:
    few = ["training=64", "validation=16", "test=32", "min_length=20", "max_length=60", "max_depth=4"]
    small = [word for own in [*few, f"cache={tmp_path / 'cache'}"] for word in ("--set", f"data.{own}")]
    code, said, errors = chordmixer("train", "listops", "--out", tmp_path / "run", *TINY, *SHORT, *small)
    assert (code, errors) == (0, "")
    for line in ("majority class: accuracy 0.", "length alone: accuracy 0.", "2-grams: accuracy 0."):
        assert line in said, line
    assert "the model: accuracy 0." in said and "The best baseline, " in said and "baseline: " in said
    assert f"report: {tmp_path / 'run' / 'report.html'}" in said and "NEW_FILES" not in said
    assert len(files.read_json(tmp_path / "run" / "baselines.json")["baselines"]) == 3
    code, said, errors = chordmixer(
        "train", "listops", "--out", tmp_path / "b", *TINY, *SHORT, *small, "--no-baselines"
    )
    assert (code, errors) == (0, "") and "baseline" not in said and not (tmp_path / "b" / "baselines.json").exists()


def test_classes_in_a_table_and_its_settings(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text(
        "".join(["name\tkind\n", *(f"with{i}\t{'ab'[i % 2]}\n" for i in range(99)), "other\ta\n"])
    )
    given = [motifs[0], "--labels", tmp_path / "labels.tsv", "--column", "label=kind", "--out", tmp_path / "run"]
    code, _, errors = chordmixer("train", *given)
    assert code == 2 and "has no row in" in errors and "--on-unmatched reject" in errors
    code, said, errors = chordmixer("train", *given, "--on-unmatched", "reject", *TINY, *SHORT, "--no-baselines")
    assert (code, errors) == (0, "") and "100 records read: 99 used, 1 rejected" in said
    data = Experiment.load(tmp_path / "run").data
    assert data.reading.columns.label == "kind" and data.target_type == "auto" and data.split.method == "auto"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}", "{1}"], "no folder for the run: add --out RUN"),
        (["{0}", "--out", "{run}"], "no record has a label or a number to learn: give one file for each class"),
        (["{0}", "none.fa", "--out", "{run}"], "none.fa is neither a file nor a task"),
        (
            ["{0}", "{1}", "--out", "{run}", "--target-type", "sums"],
            "--target-type sums is not a choice: give one of auto",
        ),
        (["{0}", "{1}", "--out", "{run}", "--split", "even"], "--split even is not a choice"),
        (["{0}", "{1}", "--out", "{run}", "--split", "grouped"], "split method 'grouped' needs groups"),
        (["{0}", "{1}", "--out", "{run}", "--base-length", "3"], "--base-length is of the Adding problem"),
        (
            ["{0}", "{1}", "--out", "{run}", "--set", "model.network.max_length=40"],
            "above model.network.max_length=40",
        ),
        (["{0}", "{1}", "--out", "{run}", "--tokenizer", "bytes", "--rc"], "--rc asks for both strands"),
        (
            ["adding", "--rc", "--out", "{run}"],
            "adding is a task, not a file, and takes no files beside it: leave them out; if it needs data",
        ),
        (["adding", "{0}", "--out", "{run}"], "adding is a task, not a file"),
        (
            ["{0}", "{1}", "--out", "{run}", "--freeze"],
            "--freeze keeps the encoder of a trained run as it is: add --from",
        ),
        (
            ["{0}", "{1}", "--out", "{run}", "--from", "no"],
            "no has no model.safetensors to start from: give the folder",
        ),
        (["{0}", "{1}", "--out", "{run}", "--folds", "21"], "--folds 21 is not possible: give 2 to 20"),
        (["{0}", "{1}", "--out", "{run}", "--replicates", "1"], "--replicates 1 is not possible: give 2 to 20"),
        (["{0}", "{1}", "--out", "{run}", "--folds", "5", "--replicates", "3"], "--folds and --replicates are two"),
        (["{0}", "{1}", "--out", "{run}", "--folds", "5", "--ladder"], "--ladder is of one network, and this run"),
        (["adding", "--out", "{run}", "--folds", "5"], "--folds is for files with labels: leave it out with a task"),
        (["{run}", "--resume", "--folds", "5"], "--resume RUN takes its settings from the run"),
        (["{run}", "--resume", "--from", "no"], "--resume RUN takes its settings from the run"),
        (["{run}", "--resume", "--freeze"], "--resume RUN takes its settings from the run"),
        (["{run}", "--resume", "--rc"], "--resume RUN takes its settings from the run: leave out the other options"),
        (["{run}", "{0}", "--resume"], "--resume RUN takes its settings from the run"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_refusals_are_one_line_and_leave_no_folder(
    chordmixer: Command, motifs: list[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, errors = chordmixer("train", *(a.format(*motifs, run=tmp_path / "run") for a in arguments))
    assert (code, errors.count("\n")) == (2, 1) and message in errors
    assert not (tmp_path / "run").exists()


def test_from_a_trained_run(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    """The sizes of the run, longer records than it was built for, a frozen encoder, and resume without the run."""
    first, second, probe, labels = (tmp_path / name for name in ("first", "second", "probe", "labels.csv"))
    grows = ["--set", "model.stem.layers=0"]
    assert chordmixer("train", *motifs, "--out", first, *TINY, *SHORT, *grows, "--no-baselines")[0] == 0
    records = "".join(f">r{i}\n{'ACGTTGCA'[i % 5 :] * (20 + i)}\n" for i in range(40))
    (tmp_path / "long.fa").write_text(records)
    labels.write_text("id,label\n" + "".join(f"r{i},{'ab'[i % 2]}\n" for i in range(40)))
    given = [tmp_path / "long.fa", "--labels", labels, "--set", "training.device=cpu", *SHORT, "--no-baselines"]
    code, said, errors = chordmixer("train", *given, "--from", first, "--out", second)
    assert (code, errors) == (0, "") and f"starting from the weights of {first}, with a new head" in said
    network = Experiment.load(second).model.network
    assert (network.track_size, network.hidden, network.max_length) == (4, 8, 512)
    code, said, errors = chordmixer("train", *given, "--from", second, "--freeze", "--out", probe)
    assert (code, errors) == (0, "") and "embedding and encoder are frozen: only the head learns" in said
    was, now = (files.read_tensors(run / "model.safetensors") for run in (second, probe))
    changed = {name for name in now if not now[name].equal(was[name])}
    assert all(name.startswith("head.") for name in changed) and "head.linear.weight" in changed

    assert chordmixer("train", *given, "--from", first, "--out", second, "--resume")[::2] == (0, "")
    shutil.rmtree(first)
    assert chordmixer("train", "--resume", second, "--no-baselines")[::2] == (0, "")
    code, _, errors = chordmixer("train", *given, "--from", second, "--tokenizer", "bytes", "--out", tmp_path / "no")
    assert code == 2 and f"the tokenizer of {second} is Dna(" in errors and "and that of these data Bytes()" in errors


def test_a_file_that_is_called_like_a_task(
    chordmixer: Command, motifs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(motifs[0], "adding")
    code, said, errors = chordmixer("train", "adding", "--out", "run")
    assert code == 2 and "no record has a label" in errors
    assert "adding is here as a file or folder, and is read as one; for the task" in " ".join(said.split())


def test_a_ladder_is_of_one_process(
    chordmixer: Command, motifs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks would leave, and the first wait for them."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, errors = chordmixer("train", *motifs, "--out", tmp_path / "run", "--ladder")
    assert code == 2 and "--ladder trains a second network in one process" in errors
    assert not (tmp_path / "run").exists()
