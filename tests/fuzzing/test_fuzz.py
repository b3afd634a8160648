"""A short run of `benchmarks/fuzz.py`; a thorough one takes 20,000 mutants."""

from __future__ import annotations

import random
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from tests.fuzzing.genomes import GENOMES
from tests.fuzzing.readers import RECORDS
from tests.fuzzing.runs import make_run, run_targets
from tests.fuzzing.targets import SilentChange, Target

READERS = RECORDS | GENOMES


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = spec_from_file_location("fuzz", Path(__file__).parents[2] / "benchmarks" / "fuzz.py")
    assert spec and spec.loader
    sys.modules["fuzz"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults(fuzz: ModuleType, targets: dict[str, Target], folder: Path, mutants: int) -> list[str]:
    descriptions = []
    for name in targets:
        for number in range(mutants):
            began = time.monotonic()
            outcome = fuzz.attempt(targets, name, number, 7, folder)
            if outcome.kind in fuzz.FAULTS or time.monotonic() - began > fuzz.SECONDS:
                descriptions.append(f"{outcome.kind}: {name} {number}: {outcome.detail}")
    return descriptions


def test_damaged_inputs(fuzz: ModuleType, tmp_path: Path) -> None:
    assert faults(fuzz, READERS, tmp_path, mutants=8) == []


def test_damaged_runs(fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chordmixer.training.loop.check_memory", lambda *args: None)  # slow
    targets = run_targets(make_run(tmp_path / "made"))
    assert {"run config.json", "run model.safetensors", "run predictions.parquet", "run checkpoints"} <= {*targets}
    assert faults(fuzz, targets, tmp_path / "scratch", mutants=3) == []


@pytest.mark.parametrize("name", [name for name in READERS if name != "npz"])
def test_inputs_that_are_whole_are_accepted(name: str, tmp_path: Path) -> None:
    for path, data in READERS[name].files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    READERS[name].call(tmp_path, random.Random(0), "")


def test_every_kind_of_outcome(fuzz: ModuleType, tmp_path: Path) -> None:
    def target(error: Exception | None) -> Target:
        def call(folder: Path, rng: random.Random, damaged: str) -> None:
            assert (folder / damaged).read_bytes() != b"whole"
            if error is not None:
                raise error

        return Target({"file": b"whole"}, call)

    cases = {
        "ok": None,
        "refused": ValueError("one line"),
        "traceback": ValueError("two\nlines"),
        "silent": SilentChange("lost"),
    }
    for kind, error in cases.items():
        assert fuzz.attempt({"x": target(error)}, "x", 0, 0, tmp_path).kind == kind
    assert fuzz.attempt({"x": target(KeyError("x"))}, "x", 0, 0, tmp_path) == ("x", 0, "traceback", "? KeyError: 'x'")


def test_a_worker_that_hangs_is_replaced(fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        exitcode = None

        def kill(self) -> None: ...
        def join(self) -> None: ...

    class Pipe:
        def poll(self) -> bool:
            return False

        def send(self, job: object) -> None: ...

    started: list[int] = []
    monkeypatch.setattr(fuzz.Worker, "start", lambda self: started.append(1))
    monkeypatch.setattr(fuzz, "SECONDS", 0.0)
    worker = fuzz.Worker(None, tmp_path, 0)
    worker.pipe, worker.process = Pipe(), Process()
    worker.give(("fasta", 3))
    assert worker.answer() == ("fasta", 3, "hang", "over 0 seconds") and worker.job is None and len(started) == 2
