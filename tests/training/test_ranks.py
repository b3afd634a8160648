"""Ranks (gloo) train, predict and embed as one process; a killed rank costs only time; errors are shown once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from tests.forked import Forked, free_port, start_ranks
from torch.distributed import HashStore

from chordmixer import files
from chordmixer.config import override
from chordmixer.paper.adding import AddingRecords
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, checkpoints, ranks
from chordmixer.training.evaluation import Predictions, evaluate
from chordmixer.training.loop import train
from chordmixer.training.prediction import embed, predict

MODEL, CHORDMIXER = "model.safetensors", ("-m", "chordmixer")

DYING = """
import os, signal, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from chordmixer.cli import main
from chordmixer.training.loop import TrainingRun

nodes, ranks, port, *deaths = sys.argv.pop(1).split()
original_step, begun_at = TrainingRun._step, []

def step(self, *arguments):
    begun_at[:] = begun_at or [self.state.step]
    if f"{begun_at[0]}:{self.accelerator.process_index}:{self.state.step}" in deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    original_step(self, *arguments)

def rank(*words):
    TrainingRun._step, sys.argv = step, ["chordmixer", *words]
    try:
        main()
    except SystemExit as leave:
        if leave.code:
            raise

place = {"rdzv_backend": "c10d", "rdzv_endpoint": f"127.0.0.1:{port}", "run_id": port}
config = LaunchConfig(
    min_nodes=int(nodes), max_nodes=int(nodes), nproc_per_node=int(ranks), max_restarts=2, start_method="fork",
    monitor_interval=0.1, **place,
)
elastic_launch(config, rank)(*sys.argv[1:])
"""
"""The command line under an agent of torchrun; a rank that began at one step dies at another: BEGUN:RANK:STEP."""
FAILING = """
import os, sys
from chordmixer.cli import main
from chordmixer.training.loop import TrainingRun

def step(self, *arguments):
    if self.accelerator.process_index == 1:
        raise ValueError("rank 1 is out of luck")
    original_step(self, *arguments)

original_step, TrainingRun._step = TrainingRun._step, step
main()
"""
KILLED = """
import os, signal
from chordmixer.cli import main
from chordmixer.training import output_files

write, output_files.SECONDS, remaining = output_files.PartialFile.write, 0.0, [3]

def dying(self, batch):
    write(self, batch)
    remaining[0] -= 1
    if not remaining[0]:
        os.kill(os.getpid(), signal.SIGKILL)

output_files.PartialFile.write = dying
main()
"""
"""The command line, whose main rank is killed when it has written the rows of three windows."""


def on_ranks(
    count: int, *words: str, code: Sequence[str] = CHORDMIXER, expected: Sequence[int] | None = None
) -> tuple[list[str], list[str]]:
    """Run a command on this number of ranks, without the launcher; return the outputs and errors of the ranks."""
    processes = start_ranks(count, [sys.executable, *code, *words])
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [*(expected or [0] * count)], outputs
    return [output for output, _ in outputs], [errors for _, errors in outputs]


# --- Training ---


@pytest.fixture(scope="module")
def steady(tiny: Experiment) -> Experiment:
    """50 steps of two batches of 5 or 3 records without dropout; the head standardises over each batch."""
    data = {"training": 23, "validation": 23, "test": 3}
    model = {"network": {"dropout": 0.0}, "head": "mean_maximum_attention"}
    training = {"epochs": 17, "steps": 50, "batch_sequences": 5, "accumulate": 2, "checkpoint_every": 5}
    return override(tiny, {"data": data, "model": model, "training": {**training, "evaluate_every": 10}})


@pytest.fixture(scope="module")
def single_run(steady: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    train(steady, run)
    return run


@pytest.fixture(scope="module")
def two_ranks(steady: Experiment, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An uninterrupted run on two ranks, and its output."""
    run = tmp_path_factory.mktemp("two") / "run"
    steady.save(run)
    return run, "".join(on_ranks(2, "train", "--resume", str(run))[0])


def losses(run: Path) -> list[tuple[str, int, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["split"], line["step"], pytest.approx(line["loss"], abs=1e-5)) for line in lines]


def test_two_ranks_train_as_one_process(single_run: Path, two_ranks: tuple[Path, str]) -> None:
    assert losses(two_ranks[0]) == losses(single_run) and losses(single_run)[-1][1] == 50
    outputs = [Predictions.read(run / "predictions.parquet").outputs for run in (two_ranks[0], single_run)]
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=0)


def test_four_ranks_train_as_one_process_and_one_goes_on_from_there(
    steady: Experiment, single_run: Path, tmp_path: Path
) -> None:
    """Some ranks have no share of a batch of three, and there are fewer test records than ranks."""
    steady.save(tmp_path / "run")
    on_ranks(4, "train", "--resume", str(tmp_path / "run"))
    assert losses(tmp_path / "run") == losses(single_run)
    newest, previous = checkpoints.newest_first(tmp_path / "run")
    shutil.rmtree(newest)
    train(steady, tmp_path / "run", resume=True)
    assert previous.name == "step-000000050" and losses(tmp_path / "run") == losses(single_run)


def test_each_record_is_evaluated_once(steady: Experiment, two_ranks: tuple[Path, str]) -> None:
    rows = pyarrow.parquet.read_table(two_ranks[0] / "predictions.parquet")
    assert rows["id"].to_pylist() == [f"test-{i}" for i in range(3)]
    assert rows["length"].to_pylist() == AddingRecords(steady.data, "test").lengths


def test_only_the_first_rank_speaks(two_ranks: tuple[Path, str]) -> None:
    for line in ("training sequences of", "validation at step 50", "test set: ", "plot:"):
        assert two_ranks[1].count(line) == 1


SMALL = ("model.network.track_size=2", "model.network.hidden=4", "model.words.lengths=[3]", "model.words.bits=6")
SHORT = ("training.steps=4", "training.trial=0.5", "training.device=cpu")


def test_trials_members_and_time_are_shared(motifs: list[str], tmp_path: Path) -> None:
    """Trials of words for each of two replicates, and baselines of the main rank while the other one waits."""
    settings = [word for setting in (*SMALL, *SHORT) for word in ("--set", setting)]
    run = tmp_path / "run"
    (output, other_output), _ = on_ranks(2, "train", *motifs, "--replicates", "2", *settings, "--out", str(run))
    assert output.count("continuing with") == 2 and "mean of 2 members" in output and other_output == ""
    assert "report: " in output and not list(run.rglob("trials"))


def test_a_given_time_is_that_of_the_main_rank(tiny: Experiment, tmp_path: Path) -> None:
    timed = override(tiny, {"training": {"minutes": 0.005, "epochs": 1000}})
    timed.save(tmp_path / "run")
    on_ranks(2, "train", "--resume", str(tmp_path / "run"))
    assert checkpoints.newest_first(tmp_path / "run")[0].name.endswith("-finished")


# --- Restarts ---


def launched(nodes: int, count: int, deaths: str, *words: str) -> str:
    """The output of a command under agents of torchrun, one for each node, with `count` ranks each."""
    shape = f"{nodes} {count} {free_port()} {deaths}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    agents = [Forked([sys.executable, "-c", DYING, shape, *words], environment) for _ in range(nodes)]
    outputs = [agent.communicate(timeout=300) for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * nodes, outputs
    assert all(errors.count("another rank has ended") <= len(deaths.split()) for _, errors in outputs)
    return "".join(output + errors for output, errors in outputs)


def test_a_rank_that_dies_costs_nothing_but_time(
    steady: Experiment, two_ranks: tuple[Path, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    steady.save(run)
    output = launched(1, 2, "0:1:13 10:0:32", "train", "--resume", str(run))
    assert output.count("going on from") == 2 and "chordmixer: another rank has ended: see its output;" in output
    assert (run / MODEL).read_bytes() == (two_ranks[0] / MODEL).read_bytes()
    assert (run / "metrics.jsonl").read_bytes() == (two_ranks[0] / "metrics.jsonl").read_bytes()
    assert checkpoints.newest_first(run)[0].name == "step-000000050-finished"
    assert not list(run.rglob(".writing-*"))


def test_two_nodes_train_as_one_process_after_a_death_too(
    steady: Experiment, single_run: Path, two_ranks: tuple[Path, str], tmp_path: Path
) -> None:
    """Two agents meet by c10d; only that of the killed rank counts a restart."""
    steady.save(tmp_path / "run")
    output = launched(2, 1, "0:1:13", "train", "--resume", str(tmp_path / "run"))
    assert output.count("going on from") == 1 and losses(tmp_path / "run") == losses(single_run)
    assert (tmp_path / "run" / MODEL).read_bytes() == (two_ranks[0] / MODEL).read_bytes()


def test_ranks_meet_anew_where_dead_ones_have_met(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    for rank in range(3):
        store.set(f"visitor/{rank}", f"dead-{rank}")
    store.set("answer/dead-1", "old")
    with ThreadPoolExecutor(3) as pool:
        names = [*pool.map(lambda rank: ranks._group_name(store, rank, 3), range(3))]
    assert len({*names}) == 1 and names[0] != "old"
    monkeypatch.setattr(ranks, "TIMEOUT", timedelta(0))
    with pytest.raises(ValueError, match=r"ranks \[1, 2\] of 3 did not start within 0:00:00: see their output"):
        ranks._group_name(HashStore(), 0, 3)


# --- One sequence over all ranks ---

SPLITTING = """
import sys
from pathlib import Path
from chordmixer.models import Model
from chordmixer.training import Experiment
from chordmixer.training.loop import train

Model.forward, run = None, Path(sys.argv[1])
train(Experiment.load(run), run, resume=True)
"""
"""A run in which no rank can compute a whole sequence."""
UNSETTLED = ("final_norm", "head.score.bias", "head.standard")
"""Weights that the loss does not depend on, since the head standardises and takes a softmax: rounding decides."""


@pytest.fixture(scope="module")
def both_strands(motifs: list[str]) -> Experiment:
    """20 steps of two batches on letters, as the recipe for files has it but for dropout."""
    model = {
        "network": {"track_size": 2, "hidden": 4, "dropout": 0.0},
        "words": {"lengths": [3], "bits": 6, "dropout": 0.0},
        "drop_tokens": 0.0,
        "head_dropout": 0.0,
    }
    training = {"epochs": 2, "steps": 20, "batch_sequences": 5, "batch_tokens": 0, "accumulate": 2, "trial": 0.0}
    training |= {"evaluate_every": 10, "device": "cpu", "precision": "fp32"}
    return override(recipe(FilesConfig(tuple(motifs))), {"model": model, "training": training})


@pytest.mark.parametrize("name", ["both_strands", "steady"])
def test_ranks_that_split_sequences_train_as_one_process(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    experiment: Experiment = request.getfixturevalue(name)
    assert experiment.model.head == "mean_maximum_attention"
    train(experiment, tmp_path / "one")
    override(experiment, {"training": {"context_parallel": 2}}).save(tmp_path / "two")
    on_ranks(2, str(tmp_path / "two"), code=("-c", SPLITTING))
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    split_weights, single_weights = (files.read_tensors(tmp_path / run / MODEL) for run in ("two", "one"))
    for weight in {*single_weights} - {name for name in single_weights if name.startswith(UNSETTLED)}:
        torch.testing.assert_close(split_weights[weight], single_weights[weight], atol=1e-5, rtol=0)
    assert evaluate(tmp_path / "two").loss == pytest.approx(evaluate(tmp_path / "one").loss, abs=1e-5)


def test_a_rank_that_dies_costs_nothing_where_they_split_sequences(steady: Experiment, tmp_path: Path) -> None:
    split = override(steady, {"training": {"context_parallel": 2}})
    for name in ("calm", "run"):
        split.save(tmp_path / name)
    on_ranks(2, "train", "--resume", str(tmp_path / "calm"))
    launched(1, 2, "0:1:13 10:0:32", "train", "--resume", str(tmp_path / "run"))
    assert (tmp_path / "run" / MODEL).read_bytes() == (tmp_path / "calm" / MODEL).read_bytes()
    _, errors = on_ranks(3, "train", "--resume", str(tmp_path / "run"), expected=[2, 2, 2])
    (line,) = error_lines(errors)
    assert "context_parallel=2 is neither 1 nor the number of ranks, which is 3: start 2 ranks" in line


def test_a_loss_that_is_not_finite_stops_ranks_that_split_sequences(steady: Experiment, tmp_path: Path) -> None:
    settings = {"learning_rate": 1e30, "warmup": 0.0, "context_parallel": 2}
    override(steady, {"training": settings}).save(tmp_path / "run")
    _, errors = on_ranks(2, "train", "--resume", str(tmp_path / "run"), expected=[2, 2])
    (line,) = error_lines(errors)
    assert "is not finite at step" in line and "weights stay as after step" in line


# --- Prediction ---


def test_ranks_predict_and_embed_the_same_bytes(planted: Path, tmp_path: Path) -> None:
    inputs = [str(planted.parent / f"{name}.fa") for name in ("gattaca", "cattaga")]
    common_options = ["--batch-tokens", "200", "--resume"]  # windows of 800 of some 10,000 tokens
    for command, name, options in (("predict", "rows.tsv", ["--using", "both"]), ("embed", "vectors.parquet", [])):
        single, shared = tmp_path / name, tmp_path / f"shared-{name}"
        if command == "predict":
            predict(planted, inputs, single, batch_tokens=200, using="both")
        else:
            embed(planted, inputs, single, batch_tokens=200)
        arguments = [command, str(planted), *inputs, *options, *common_options, "-o", str(shared)]
        on_ranks(3, *arguments, code=("-c", KILLED), expected=[-9, 1, 1])
        assert not shared.exists() and files.read_json(Path(f"{shared}.journal"))["windows"] == 3
        _, errors = on_ranks(3, *arguments)
        assert "".join(errors).count("240 records read: 240 used, 0 rejected") == 1
        assert shared.read_bytes() == single.read_bytes()
        assert not list(tmp_path.glob("*.partial"))


# --- Failing ---


def error_lines(errors: Sequence[str]) -> list[str]:
    """The lines of chordmixer, without those of torch about a lost store."""
    return [line for text in errors for line in text.splitlines() if line.startswith("chordmixer: ")]


def test_an_error_of_the_main_rank_is_told_once(motifs: list[str], tmp_path: Path) -> None:
    words = ("train", *motifs, "--set", "model.network.max_length=7", "--out", str(tmp_path / "run"))
    _, errors = on_ranks(2, *words, expected=[2, 2])
    assert len(error_lines(errors)) == 1 and "above model.network.max_length=7" in error_lines(errors)[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["predict", "run", "-"], "2 ranks cannot share standard input: name a file"),
        (
            ["report", "run"],
            "report runs in one process, and 2 were started: start it without torchrun or accelerate",
        ),
        (
            ["variants", "new.vcf", "--reference", "genome.fa", "--run", "run"],
            "--run scores in one process, and 2 were started: start it without torchrun",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_ranks_cannot_do_is_told_once(words: list[str], line: str) -> None:
    (message,) = error_lines(on_ranks(2, *words, expected=[2, 2])[1])
    assert message.startswith(f"chordmixer: {line}")


def test_an_error_of_another_rank_is_told_once_and_ends_all(steady: Experiment, tmp_path: Path) -> None:
    steady.save(tmp_path / "run")
    _, errors = on_ranks(3, "train", "--resume", str(tmp_path / "run"), code=("-c", FAILING), expected=[1, 2, 1])
    assert error_lines(errors) == ["chordmixer: rank 1 is out of luck"] and "Traceback" not in "".join(errors)


def test_a_killed_rank_is_told() -> None:
    assert ranks.is_lost(RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:3210"))
    assert ranks.is_lost(torch.distributed.DistBackendError("NCCL")) and not ranks.is_lost(RuntimeError("a mistake"))


@pytest.mark.parametrize(("code", "exit_code"), [("0", 0), ("3", 3), ("None", 0), ("'why'", 1)])
def test_a_rank_ends_with_its_code_and_without_the_interpreter(code: str, exit_code: int, tmp_path: Path) -> None:
    """Printed output is kept, and functions of atexit do not run. A process without ranks does not end."""
    program = f"""
import atexit
from torch import distributed
from chordmixer.training import ranks
ranks.end_rank(5)
distributed.init_process_group("gloo", init_method="file://{tmp_path / "store"}", rank=0, world_size=1)
atexit.register(print, "too much")
print("whole", end="")
ranks.end_rank({code})
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (exit_code, "whole"), result.stderr
