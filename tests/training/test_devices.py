"""Devices and ranks. Two ranks (gloo, torchrun) train as one, and a killed rank costs nothing but time."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet
import pytest
import torch
from tests.forked import Forked

from chordmixer import files
from chordmixer.config import override
from chordmixer.data import TokenSampler
from chordmixer.paper.adding import AddingRecords
from chordmixer.training import Experiment, TrainingConfig, checkpoints, devices, train

CPU, MODEL = torch.device("cpu"), "model.safetensors"

DYING = """
import os, signal, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from chordmixer.cli import main
from chordmixer.training.loop import TrainingRun

take = TrainingRun._step

def step(self, *arguments):
    life = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if (life, self.accelerator.process_index, self.state.step) in {("0", 1, 3), ("1", 0, 5)}:
        os.kill(os.getpid(), signal.SIGKILL)
    take(self, *arguments)

def rank(*words):
    TrainingRun._step, sys.argv = step, ["chordmixer", *words]
    try:
        main()
    except SystemExit as leave:
        if leave.code:
            raise

place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": str(os.getpid())}
config = LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=2, start_method="fork", monitor_interval=0.1, **place
)
elastic_launch(config, rank)(*sys.argv[1:])
"""
"""The command line under torchrun's agent; rank 1 is killed at step 3, and after the restart rank 0 at step 5."""


def test_what_a_container_allows(tmp_path: Path) -> None:
    assert devices._container_bytes(tmp_path) == 1 << 62
    for name, text in {
        "memory.max": "max",
        "memory.current": "600",
        "memory.stat": "anon 5\ninactive_file 50",
    }.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert devices._container_bytes(tmp_path) == 1 << 62
    (tmp_path / "memory.max").write_text("1000\n")
    assert devices._container_bytes(tmp_path) == 450
    assert 1 << 20 < devices.free_bytes(CPU) < 1 << 50


def test_where_a_run_computes() -> None:
    assert devices.choose_device(TrainingConfig(device="cpu")) == CPU
    if not torch.cuda.is_available():
        assert devices.choose_device(TrainingConfig()) == CPU
        with pytest.raises(ValueError, match="--device cuda, but torch sees no GPU: use --device auto or cpu"):
            devices.choose_device(TrainingConfig(device="cuda"))


@pytest.fixture(scope="module")
def steady(tiny: Experiment) -> Experiment:
    """All sequences in every step, so that it does not matter who takes which; 23 is no even share."""
    data, network = {"training": 23, "validation": 23, "test": 23}, {"dropout": 0.0}
    training = {"epochs": 7, "batch_sequences": 4, "accumulate": 100, "checkpoint_every": 1}
    return override(tiny, {"data": data, "model": {"network": network}, "training": training})


def ranks_of_their_own(*words: str) -> list[str]:
    """A command on two ranks, without the launcher: what each of them says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    both = [
        Forked([sys.executable, "-m", "chordmixer", *words], os.environ | place | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    ended = [rank.communicate(timeout=300) for rank in both]
    assert [rank.returncode for rank in both] == [0, 0], ended
    return [said for said, _ in ended]


@pytest.fixture(scope="module")
def two_ranks(steady: Experiment, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that nothing disturbed, and what it said."""
    run = tmp_path_factory.mktemp("ranks") / "run"
    steady.save(run)
    return run, "".join(ranks_of_their_own("train", "--resume", str(run)))


def test_two_ranks_train_as_one(steady: Experiment, two_ranks: tuple[Path, str], tmp_path: Path) -> None:
    records = AddingRecords(steady.data, "training")
    sampler = TokenSampler(records.lengths, steady.training.tokens_for(records.lengths), 4, ranks=2)
    for epoch in range(steady.training.epochs):
        sampler.set_epoch(epoch)
        assert sampler.left_out == []
    train(steady, tmp_path / "one")
    one, two = (files.read_tensors(run / MODEL) for run in (tmp_path / "one", two_ranks[0]))
    torch.testing.assert_close(two, one, atol=1e-5, rtol=0)


def test_each_record_is_evaluated_once(steady: Experiment, two_ranks: tuple[Path, str]) -> None:
    rows = pyarrow.parquet.read_table(two_ranks[0] / "predictions.parquet")
    assert rows["id"].to_pylist() == [f"test-{i}" for i in range(23)]
    assert rows["length"].to_pylist() == AddingRecords(steady.data, "test").lengths


def test_only_the_first_rank_speaks(two_ranks: tuple[Path, str]) -> None:
    for once in ("training sequences of", "epoch 7 of 7", "test set: ", "plot:"):
        assert two_ranks[1].count(once) == 1


def test_two_ranks_make_one_folder(motifs: list[str], tmp_path: Path) -> None:
    """With the device left to the machine: ranks that know nothing of each other would each make the folder."""
    settings = [word for s in ("steps=2", "evaluate_epochs=9") for word in ("--set", f"training.{s}")]
    said, _ = ranks_of_their_own("train", *motifs, "--no-baselines", *settings, "--out", str(tmp_path / "run"))
    assert torch.cuda.is_available() or " on cpu:0 x 2; " in said


def test_the_first_rank_decides_and_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it found, or that it failed: it says why, and the others end without a word."""
    told: list[Any] = []

    def tell(values: list[Any]) -> list[Any]:
        told[:] = told or values
        return told

    def refuse() -> str:
        raise ValueError("run already holds a run")

    monkeypatch.setattr(devices, "broadcast_object_list", tell)
    first, second = (cast(Any, SimpleNamespace(is_main_process=main)) for main in (True, False))
    assert [devices.from_main_rank(rank, lambda: "step-9") for rank in (first, second)] == ["step-9", "step-9"]
    told.clear()
    with pytest.raises(ValueError, match="already holds a run"):
        devices.from_main_rank(first, refuse)
    with pytest.raises(SystemExit, match="2"):
        devices.from_main_rank(second, refuse)


def test_a_rank_that_dies_costs_nothing_but_time(
    steady: Experiment, two_ranks: tuple[Path, str], tmp_path: Path
) -> None:
    steady.save(tmp_path / "run")
    command = [sys.executable, "-c", DYING, "train", "--resume", str(tmp_path / "run")]
    torchrun = Forked(command, os.environ | {"OMP_NUM_THREADS": "1"})
    said, errors = torchrun.communicate(timeout=300)
    assert torchrun.returncode == 0, errors
    assert said.count("going on from") == 2
    assert (tmp_path / "run" / MODEL).read_bytes() == (two_ranks[0] / MODEL).read_bytes()
    assert checkpoints.found(tmp_path / "run")[0].name == "step-000000007-finished"
    assert not list((tmp_path / "run").rglob(".writing-*"))


@pytest.mark.parametrize(
    ("machine", "avx512", "amx", "onednn", "expected"),
    [
        ("x86_64", True, False, True, True),
        ("x86_64", False, True, True, True),
        ("x86_64", False, False, True, False),
        ("x86_64", True, True, False, False),
        ("aarch64", False, False, True, True),
    ],
    ids=["AVX-512 BF16", "AMX", "AVX-512 alone", "no oneDNN", "ARM"],
)
def test_bf16_is_native_where_torch_says_so(
    monkeypatch: pytest.MonkeyPatch, machine: str, avx512: bool, amx: bool, onednn: bool, expected: bool
) -> None:
    monkeypatch.setattr(devices.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert devices.native_bf16() is expected
