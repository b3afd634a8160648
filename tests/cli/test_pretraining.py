"""`pretrain`, from end to end, and what it refuses."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from chordmixer import files
from chordmixer.cli.pretraining import _verdict
from chordmixer.training import Evaluation, Experiment
from chordmixer.training.intervals import Difference, Score
from chordmixer.views.runs import Run, Scored

Command = Callable[..., tuple[int, str, str]]

TINY = [
    word
    for setting in (
        "model.network.track_size=2",
        "model.network.hidden=4",
        "training.epochs=1",
        "training.evaluate_epochs=1",
        "training.device=cpu",
    )
    for word in ("--set", setting)
]


def test_from_files_to_embeddings(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    cut = [
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
    code, said, errors = chordmixer("pretrain", *motifs, "--out", run, *TINY, *cut)
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
        "best baseline, Markov order ",
        f"chordmixer embed {run} FILES -o embeddings.parquet",
    ):
        assert line in said, line
    assert len(files.read_json(run / "baselines.json")["baselines"]) == 11
    assert Experiment.load(run).model.decoder is None
    weights = (run / "model.safetensors").read_bytes()

    code, again, errors = chordmixer("pretrain", "--resume", run, "--no-baselines")
    assert (code, errors) == (0, "") and "going on from" in again and "Markov" not in again
    assert (run / "model.safetensors").read_bytes() == weights
    assert chordmixer("pretrain", *motifs, "--out", run, *TINY, *cut, "--resume", "--no-baselines")[::2] == (0, "")

    assert chordmixer("embed", run, motifs[0], "-o", tmp_path / "e.parquet", "--over-length", "windows")[0] == 0
    code, _, errors = chordmixer("predict", run, motifs[0])
    assert code == 2 and "was pre-trained" in errors and "train LABELLED_FILES --from" in errors
    code, said, _ = chordmixer("evaluate", run, "--split", "validation")
    assert code == 0 and "masking, validation set: accuracy in % by length" in said


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
def test_refusals(chordmixer: Command, motifs: list[str], tmp_path: Path, arguments: list[str], message: str) -> None:
    run = tmp_path / "run"
    code, _, errors = chordmixer("pretrain", *(word.format(motifs[0], run=run) for word in arguments))
    assert code == 2 and message in errors and len(errors.splitlines()) == 1


def test_a_run_of_another_kind(chordmixer: Command, run: Path) -> None:
    code, _, errors = chordmixer("pretrain", "--resume", run)
    assert code == 2 and f"is a run of files: go on with chordmixer train --resume {run}" in errors


def test_the_commands_of_the_page_run(
    chordmixer: Command, motifs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On files of the names that it uses, with a small network."""
    monkeypatch.chdir(tmp_path)
    for name, source in {"genomes": 0, "genes": 1, "worm": 0, "fly": 1}.items():
        for ending in (".fa", ".fa.gz"):  # told by its content
            shutil.copy(motifs[source], tmp_path / f"{name}{ending}")
    page = (Path(__file__).parents[2] / "docs" / "pretraining.md").read_text()
    for line in re.findall(r"```sh\n(.*?)```", page, flags=re.S)[0].splitlines():
        words = line.split()[1:]
        code, said, errors = chordmixer(*words, *([] if words[0] == "embed" else [*TINY, "--no-baselines"]))
        assert code == 0, f"{line}: {said}{errors}"
    assert (tmp_path / "embeddings.parquet").exists() and (tmp_path / "RUN" / "labels.json").exists()


def test_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere, by the paired difference."""

    def verdict(low: float, high: float) -> str:
        scores = {"accuracy": Score(0.33, 0.3, 0.36)}
        chain = Evaluation("masking", "test", "Markov order 4", "accuracy", 99, 1.0, scores, {}, [])
        beside = Difference("accuracy", (low + high) / 2, low, high, "records")
        run = SimpleNamespace(baselines=[Scored("Markov order 4", "", chain, beside)])
        monkeypatch.setattr(Run, "load", lambda folder: run)
        return " ".join(_verdict(Path("run")))

    assert verdict(0.01, 0.03).startswith("best baseline, Markov order 4: 0.330. The model is better by 0.020 (0.010")
    assert "worse by 0.020 (0.010 to 0.030). Counting neighbours does better" in verdict(-0.03, -0.01)
    assert verdict(-0.01, 0.01).endswith("Tied: the test set cannot separate them.")
