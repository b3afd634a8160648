"""`train`, `pretrain` and `plan`, from end to end, and what they refuse."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chordmixer import files, recipes
from chordmixer.models import Model
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, forecast

Command = Callable[..., tuple[int, str, str]]

SMALL = ["model.network.track_size=4", "model.network.hidden=8", "training.device=cpu", "model.words.lengths=[]"]
TINY = [word for setting in SMALL for word in ("--set", setting)]
WORDS = ["--set", "model.words.lengths=[4]", "--set", "model.words.bits=6"]
TINIER = [word for setting in ("network.track_size=2", "network.hidden=4") for word in ("--set", f"model.{setting}")]
TINIER += ["--set", "training.epochs=1", "--set", "training.evaluate_epochs=1", "--set", "training.device=cpu"]
SHORT = ["--set", "training.epochs=2", "--set", "training.evaluate_epochs=1"]


def test_from_files_to_a_report(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [*TINY, *SHORT, *WORDS, "--set", "training.trial=0.15", "--group", "header:gene", "--rc"]
    code, output, errors = chordmixer("train", *motifs, "--out", run, *options, "--ladder")
    assert (code, errors) == (0, "")
    for line in (
        "each file is a class: with, without",
        "200 records read: 200 used, 0 rejected",
        "split (grouped): ",
        "files: ",
        "2 epochs",
        "validation at step",
        "majority class: ROC-AUC 0.500",
        "-mers: ROC-AUC ",
        "trial runs: validation loss ",
        "network alone: ROC-AUC 0.",
        "local network: ROC-AUC 0.",
        "the model: ROC-AUC ",
        "Predictions are made by ",
        "-mers, reaches",
        f"report: {run / 'report.html'}",
        f"chordmixer predict {run} NEW_FILES -o answers.tsv",
        f"chordmixer explain {run} FILES -o why.html",
        "small data: --folds 5 gives cross-validated scores and an ensemble",
    ):
        assert line in output, line
    rows = files.read_json(run / "baselines.json")
    assert len(rows["baselines"]) >= 5 and len(rows["ladder"]) >= 3
    assert '<section id="explanations">' in (run / "report.html").read_text()
    weights = (run / "model.safetensors").read_bytes()

    code, resumed, errors = chordmixer("train", "--resume", run, "--no-baselines")
    assert (code, errors) == (0, "") and "going on from" in resumed
    assert (run / "model.safetensors").read_bytes() == weights

    moved = [str(shutil.copy(path, tmp_path)) for path in motifs]
    resume_options = ["--out", run, *options, "--no-baselines", "--resume"]
    assert chordmixer("train", *moved, *resume_options)[::2] == (0, "")
    code, _, errors = chordmixer("train", *moved, *resume_options, "--split", "random")
    assert code == 2 and "was started with other settings: resume with the same ones" in errors


def test_a_run_at_work(chordmixer: Command, run: Path, motifs: list[str], tmp_path: Path) -> None:
    """predict, embed, evaluate and report of the same run."""
    assert not (run / "baselines.json").exists()

    code, output, errors = chordmixer("predict", run, motifs[0])
    rows = [line.split("\t") for line in output.splitlines()]
    assert code == 0 and rows[0] == ["id", "length", "windows", "class", "probability", "with", "without"]
    assert [row[0] for row in rows[1:]] == [f"with{i}" for i in range(100)]
    assert "100 records read: 100 used, 0 rejected" in errors

    code, output, errors = chordmixer(
        "predict", run, *motifs, "-o", tmp_path / "a.jsonl", "--min-confidence", 0.99999
    )
    assert code == 0 and output == ""
    assert "unclassified" in {json.loads(line)["class"] for line in (tmp_path / "a.jsonl").read_text().splitlines()}

    assert chordmixer("embed", run, motifs[1], "-o", tmp_path / "e.parquet")[0] == 0
    code, output, _ = chordmixer("evaluate", run, *motifs)
    assert code == 0 and "files, unseen set: ROC-AUC in % by length" in output
    code, output, _ = chordmixer("evaluate", run, "--split", "training")
    assert code == 0 and "files, training set: ROC-AUC" in output
    assert chordmixer("report", run) == (0, f"report: {run / 'report.html'}\n", "")


def test_shorthands_for_settings_and_a_folder_with_a_space(
    chordmixer: Command, motifs: list[str], tmp_path: Path
) -> None:
    """What was changed is said before training starts, and what to paste next has quotes."""
    run = tmp_path / "my run"
    short = ["--epochs", 1, "--seed", 3, "--device", "cpu", "--no-baselines"]
    code, output, errors = chordmixer("train", *motifs, "--out", run, *TINY, *short)
    assert (code, errors) == (0, "")
    training = Experiment.load(run).training
    assert (training.epochs, training.seed, training.device) == (1, 3, "cpu")
    changed = output.index("settings changed: training.epochs=1 (default 224), training.seed=3 (default 0)")
    assert changed < output.index("files: ") and "model.network.hidden=8 (default 64)" in output
    assert f"chordmixer predict '{run}' NEW_FILES" in output and f"chordmixer evaluate '{run}' OTHER" in output


def test_a_task_of_the_paper_beside_baselines(chordmixer: Command, tmp_path: Path) -> None:
    sizes = ["training=64", "validation=16", "test=32", "min_length=20", "max_length=60", "max_depth=4"]
    options = [word for setting in [*sizes, f"cache={tmp_path / 'cache'}"] for word in ("--set", f"data.{setting}")]
    code, output, errors = chordmixer("train", "listops", "--out", tmp_path / "run", *TINY, *SHORT, *options)
    assert (code, errors) == (0, "")
    for line in ("majority class: accuracy 0.", "length alone: accuracy 0.", "2-grams: accuracy 0."):
        assert line in output, line
    assert "the model: accuracy 0." in output and "The best baseline, " in output and "baseline: " in output
    assert f"report: {tmp_path / 'run' / 'report.html'}" in output and "NEW_FILES" not in output
    assert len(files.read_json(tmp_path / "run" / "baselines.json")["baselines"]) == 3
    code, output, errors = chordmixer(
        "train", "listops", "--out", tmp_path / "b", *TINY, *SHORT, *options, "--no-baselines"
    )
    assert (code, errors) == (0, "") and "baseline" not in output and not (tmp_path / "b" / "baselines.json").exists()


def test_classes_in_a_table_and_its_settings(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text(
        "".join(["name\tkind\n", *(f"with{i}\t{'ab'[i % 2]}\n" for i in range(99)), "other\ta\n"])
    )
    options = [motifs[0], "--labels", tmp_path / "labels.tsv", "--column", "label=kind", "--out", tmp_path / "run"]
    code, _, errors = chordmixer("train", *options)
    assert code == 2 and "has no row in" in errors and "--on-unmatched reject" in errors
    code, output, errors = chordmixer("train", *options, "--on-unmatched", "reject", *TINY, *SHORT, "--no-baselines")
    assert (code, errors) == (0, "") and "100 records read: 99 used, 1 rejected" in output
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
        (["{0}", "{1}", "--out", "{run}", "--base-length", "3"], "--base-length is an option of the task adding"),
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
    code, _, errors = chordmixer("train", *(argument.format(*motifs, run=tmp_path / "run") for argument in arguments))
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
    options = [tmp_path / "long.fa", "--labels", labels, "--set", "training.device=cpu", *SHORT, "--no-baselines"]
    code, output, errors = chordmixer("train", *options, "--from", first, "--out", second)
    assert (code, errors) == (0, "") and f"starting from the weights of {first}, with a new head" in output
    network = Experiment.load(second).model.network
    assert (network.track_size, network.hidden, network.max_length) == (4, 8, 512)
    code, output, errors = chordmixer("train", *options, "--from", second, "--freeze", "--out", probe)
    assert (code, errors) == (0, "") and "embedding and encoder are frozen: only the head learns" in output
    before, after = (files.read_tensors(run / "model.safetensors") for run in (second, probe))
    changed = {name for name in after if not after[name].equal(before[name])}
    assert all(name.startswith("head.") for name in changed) and "head.linear.weight" in changed

    assert chordmixer("train", *options, "--from", first, "--out", second, "--resume")[::2] == (0, "")
    shutil.rmtree(first)
    assert chordmixer("train", "--resume", second, "--no-baselines")[::2] == (0, "")
    code, _, errors = chordmixer(
        "train", *options, "--from", second, "--tokenizer", "bytes", "--out", tmp_path / "no"
    )
    assert code == 2 and f"the tokenizer of {second} is Dna(" in errors and "and that of these data Bytes()" in errors


def test_a_file_that_is_called_like_a_task(
    chordmixer: Command, motifs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(motifs[0], "adding")
    code, output, errors = chordmixer("train", "adding", "--out", "run")
    assert code == 2 and "no record has a label" in errors
    assert "adding is here as a file or folder, and is read as one; for the task" in " ".join(output.split())


# --- pretrain ---


def test_from_files_to_embeddings(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    args = [
        "--set",
        "data.longest=40",
        "--set",
        "data.shortest=10",
        "--set",
        "data.segments=60",
        "--set",
        "model.decoder=none",
        "--group",
        "header:gene",
    ]
    code, output, errors = chordmixer("pretrain", *motifs, "--out", run, *TINIER, *args)
    assert (code, errors) == (0, "")
    for line in (
        "200 records read: 200 used, 0 rejected",
        "split (grouped): ",
        "segments of 10 to 40 tokens: ",
        "validation at step",
        "Markov order 0: accuracy 0.",
        "Markov order 5, both sides: accuracy 0.",
        "the model: accuracy 0.",
        "  of A: accuracy ",
        "The best baseline, Markov order ",
        f"chordmixer embed {run} FILES -o embeddings.parquet",
    ):
        assert line in output, line
    assert len(files.read_json(run / "baselines.json")["baselines"]) == 11
    assert Experiment.load(run).model.decoder is None
    weights = (run / "model.safetensors").read_bytes()

    code, resumed, errors = chordmixer("pretrain", "--resume", run, "--no-baselines")
    assert (code, errors) == (0, "") and "going on from" in resumed and "Markov" not in resumed
    assert (run / "model.safetensors").read_bytes() == weights
    assert chordmixer("pretrain", *motifs, "--out", run, *TINIER, *args, "--resume", "--no-baselines")[::2] == (0, "")

    assert chordmixer("embed", run, motifs[0], "-o", tmp_path / "e.parquet", "--over-length", "windows")[0] == 0
    code, _, errors = chordmixer("predict", run, motifs[0])
    assert code == 2 and "was pre-trained" in errors and "train LABELLED_FILES --from" in errors
    code, output, _ = chordmixer("evaluate", run, "--split", "validation")
    assert code == 0 and "masking, validation set: accuracy in % by length" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}"], "no folder for the run: add --out RUN"),
        (["none.fa", "--out", "{run}"], "none.fa cannot be read"),
        (["{0}", "--out", "{run}", "--set", "data.share=2"], "share=2.0 is not a part of the tokens"),
        (["{0}", "--out", "{run}", "--split", "even"], "--split even is not a choice"),
        (
            ["{0}", "--out", "{run}", "--set", "model.decoder=large"],
            "model.decoder='large' is not a choice: give one",
        ),
        (
            ["{run}", "--resume", "--group", "files"],
            "--resume RUN takes its settings from the run: leave out the oth",
        ),
        (["{run}", "{0}", "--resume"], "--resume RUN takes its settings from the run"),
        (["{run}", "--resume"], "is not a folder: give the --out folder of a training run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_pretrain_refuses_in_one_line(
    chordmixer: Command, motifs: list[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    run = tmp_path / "run"
    code, _, errors = chordmixer("pretrain", *(word.format(motifs[0], run=run) for word in arguments))
    assert code == 2 and message in errors and len(errors.splitlines()) == 1


def test_pretrain_resumes_only_pretraining(chordmixer: Command, run: Path) -> None:
    code, _, errors = chordmixer("pretrain", "--resume", run)
    assert code == 2 and f"is a run of files: continue with chordmixer train --resume {run}" in errors


def test_the_commands_of_the_page_on_pretraining(
    chordmixer: Command, motifs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On files with the names that the page uses, with a small network."""
    monkeypatch.chdir(tmp_path)
    for name, source in {"genomes": 0, "genes": 1, "worm": 0, "fly": 1}.items():
        for suffix in (".fa", ".fa.gz"):  # told by its content
            shutil.copy(motifs[source], tmp_path / f"{name}{suffix}")
    page = (Path(__file__).parents[2] / "docs" / "pretraining.md").read_text()
    for line in re.findall(r"```sh\n(.*?)```", page, flags=re.S)[0].splitlines():
        args = line.split()[1:]
        code, output, errors = chordmixer(*args, *([] if args[0] == "embed" else [*TINIER, "--no-baselines"]))
        assert code == 0, f"{line}: {output}{errors}"
    assert (tmp_path / "embeddings.parquet").exists() and (tmp_path / "RUN" / "labels.json").exists()


# --- plan ---


def test_a_plan(chordmixer: Command, motifs: list[str]) -> None:
    code, output, errors = chordmixer("plan", *motifs, "--group", "header:gene", "--set", "training.epochs=7")
    assert (code, errors) == (0, "")
    for line in (
        "each file is a class: with, without",
        "  200 records read: 200 used, 0 rejected",
        "2 classes: with, without",
        "  split (grouped): ",
        "  chordmixer for up to 128 tokens: 7 blocks, layer norm",
        "  8 tracks x 8 = 64 channels, 64 hidden, ",
        "  7 epochs of ",
        "  together, about",
        " free: fits",
        " an epoch with validation, ",
        "  the whole process, about",
        "Next:  chordmixer train with the same files and options, and --out RUN",
    ):
        assert line in output, line
    assert "To need less memory" not in output


def test_a_plan_without_the_measurement(chordmixer: Command, motifs: list[str]) -> None:
    code, output, _ = chordmixer("plan", *motifs, "--no-time")
    assert code == 0 and "an epoch" not in output


def test_a_plan_of_members(chordmixer: Command, motifs: list[str]) -> None:
    code, output, errors = chordmixer("plan", *motifs, "--no-time", "--folds", 4)
    assert (code, errors) == (0, "") and "4 members: this is what one of them takes" in output
    code, _, errors = chordmixer("plan", *motifs, "--pretrain", "--replicates", 4)
    assert code == 2 and "--replicates is an option of train, not of pretrain" in errors


def test_a_plan_where_memory_is_short(
    chordmixer: Command, motifs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "free_bytes", lambda device: 1_500_000)
    code, output, errors = chordmixer("plan", *motifs, "--no-time")
    assert (code, errors) == (0, "")
    assert "MB of 2 MB free: does not fit" in output and "records would not fit: with" in output
    assert "To need less memory, add one of these, here and to the run\n  --set training.batch_tokens=" in output
    assert "--set model.network.reversible=true" in output and "--set model.network.track_size=4" in output
    assert ", still too much" in output


@pytest.fixture(scope="module")
def initial(motifs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a run that another run needs to start from it; tests only read them."""
    folder = tmp_path_factory.mktemp("trained")
    experiment = recipes.files(FilesConfig(files=tuple(motifs)))
    network = replace(experiment.model.network, track_size=2, hidden=4)
    Model(replace(experiment.model, network=network)).save_pretrained(folder)
    for name, document in experiment.build_task().documents().items():
        files.write_recorded(folder, {name: files.json_bytes(document)})
    return folder


def test_a_plan_of_a_run_that_starts_from_another(chordmixer: Command, motifs: list[str], initial: Path) -> None:
    outputs = {}
    for freeze in ([], ["--freeze"]):
        code, outputs[len(freeze)], errors = chordmixer("plan", *motifs, "--from", initial, *freeze, "--no-time")
        assert (code, errors) == (0, "")
    assert f"  starting from the weights of {initial}, with a new head" in outputs[0] and "to learn" not in outputs[0]
    assert "8 tracks x 2 = 16 channels, 4 hidden" in outputs[0], "the plan is not of the network of the run"
    assert re.search(r"only the head learns\n  \d+ weights to learn", outputs[1])
    assert "gradients" in outputs[0] and "tokens around a block" in outputs[1]
    assert _peak(outputs[1]) < _peak(outputs[0])


def _peak(output: str) -> int:
    match = re.search(r"together, about +(\d+) MB", output)
    assert match
    return int(match[1])


def test_a_plan_of_pretraining(chordmixer: Command, motifs: list[str]) -> None:
    arguments = [*motifs, "--group", "header:gene", *TINIER, "--set", "data.longest=40", "--set", "data.shortest=10"]
    code, output, errors = chordmixer("plan", *arguments, "--pretrain", "--out", "RUN", "--no-baselines")
    assert (code, errors) == (0, "") and not Path("RUN").exists()
    for line in (
        "  200 records read: 200 used, 0 rejected",
        " a record; 30 % masked\n  split (grouped): ",
        "  in segments of 10 to 40 tokens:\n",
        "  half of them are the decoder's",
        " an epoch with validation, ",
        "  the whole process, about",
        "Next:  chordmixer pretrain with the same files and options\n",
    ):
        assert line in output, line


@pytest.mark.parametrize("command", ["pretrain", "train"])
def test_a_plan_is_the_forecast_that_the_run_makes_first(
    chordmixer: Command, motifs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The same options give the same experiment, and the same numbers."""
    forecasts: list[forecast.Forecast] = []

    def stop(estimate: forecast.Forecast) -> None:
        forecasts.append(estimate)
        raise ValueError("seen")

    original = forecast.forecast
    monkeypatch.setattr(forecast, "forecast", lambda *args, **_: stop(original(*args)))
    monkeypatch.setattr(forecast, "free_bytes", lambda device: 1 << 40)
    options = [*motifs, *TINIER, "--out", tmp_path / "run", "--no-baselines"]
    for arguments in (["plan", *(["--pretrain"] if command == "pretrain" else [])], [command]):
        assert chordmixer(*arguments, *options)[::2] == (2, "chordmixer: seen\n")
    planned, run = forecasts
    assert planned == run and planned.weights == planned.trainable


@pytest.mark.parametrize(
    "option", ["--labels=files", "--rank=genus", "--target-type=number", "--rc", "--from=x", "--freeze"]
)
def test_a_plan_of_pretraining_has_no_labels(chordmixer: Command, motifs: list[str], option: str) -> None:
    code, _, errors = chordmixer("plan", *motifs, "--pretrain", option)
    name = option.partition("=")[0]
    assert code == 2 and f"{name} is an option of train, not of pretrain: leave out {name} or --pretrain" in errors


def test_a_plan_with_weights_that_do_not_fit(chordmixer: Command, motifs: list[str], initial: Path) -> None:
    code, _, errors = chordmixer("plan", *motifs, "--from", initial, "--set", "model.network.track_size=8")
    assert code == 2 and "model.network.track_size=8 does not fit the weights to start from, which have 2" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.fa"], "none.fa cannot be read (No such file or directory)"),
        (["{0}"], "no record has a label or a number to learn"),
        (["{0}", "{1}", "--set", "model.network.max_length=40"], "above model.network.max_length=40"),
        (["{0}", "{1}", "--set", "training.batch_tokens=40"], "above training.batch_tokens=40"),
        (["{0}", "{1}", "--set", "model.encoder=pointwise"], "encoder 'pointwise' has no count of its memory"),
        (["{0}", "{1}", "--model", "s4d"], "encoder 's4d' has no count of its memory"),
        (["{0}", "{1}", "--target-type", "sums"], "--target-type sums is not a choice"),
        (["{0}", "{1}", "--freeze"], "--freeze keeps the encoder of a trained run as it is: add --from RUN"),
        (["{0}", "{1}", "--from", "none"], "none has no model.safetensors to start from"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_plan_refuses_in_one_line(chordmixer: Command, motifs: list[str], arguments: list[str], message: str) -> None:
    code, _, errors = chordmixer("plan", *(argument.format(*motifs) for argument in arguments))
    assert (code, errors.count("\n")) == (2, 1) and message in errors
