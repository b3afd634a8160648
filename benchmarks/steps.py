"""Training steps per second on a GPU and how busy they keep it: with CUDA graphs, without, and at an older commit.

git worktree add OLD 9c7ea76
PYTHONPATH=src python benchmarks/steps.py --old OLD/src --rna nrc_ncrna13.csv --out results.json

Each case and each version is a process of its own: it takes steps of a training run as `train` does, first as many as
it needs to compile kernels and to record graphs, then those that are timed, then some under a profiler. `adding-N-B`
are batches of B sequences of the Adding problem with base length N; `rna` is the default run on that file, which at
older commits has another network.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

CASES = ("adding-1000-20", "adding-1000-64", "adding-200-64", "listops", "rna")
VERSIONS = ("old", "plain", "graphs")


def found(name: str, *modules: str) -> Any:
    """The first of these modules that has the name: older commits keep it elsewhere."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"chordmixer.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"no {name} in {', '.join(modules)}")


def experiment(case: str, rna: Path | None, graphs: bool) -> Any:
    """One that never ends by itself, with batches of the recipe's size."""
    if case == "rna":
        data = found("FilesConfig", "tasks.files")(files=(str(rna),))
        made = found("files", "recipes")(data)
    elif case == "listops":
        config = found("ListOpsConfig", "paper.lra.listops", "tasks.lra.listops")
        made = found("listops", "paper.recipes", "recipes")(config(training=6_000, validation=200, test=200))
    else:
        base, batch = map(int, case.split("-")[1:])
        config = found("AddingConfig", "paper.adding", "tasks.adding")
        made = found("adding", "paper.recipes", "recipes")(config(base, training=100 * batch, validation=9, test=9))
        made = replace(made, training=replace(made.training, batch_sequences=batch))
    settings: dict[str, Any] = {"precision": "bf16"}
    if hasattr(made.training, "cuda_graphs"):
        settings |= {"cuda_graphs": graphs, "trial": 0.0}
    return replace(made, training=replace(made.training, epochs=10_000, steps=0, **settings))


def measure(case: str, rna: Path | None, graphs: bool, warm: int, steps: int, profiled: int) -> dict[str, float]:
    kind = found("TrainingRun", "training.loop") if hasattr(_loop(), "TrainingRun") else _loop().Run
    with tempfile.TemporaryDirectory() as folder:
        run = kind(experiment(case, rna, graphs), Path(folder) / "run", False, Console(quiet=True))
        run.display.quiet = True
        with closing(run) if hasattr(run, "close") else nullcontext(), run.display:
            run.wrapped.train()
            batches = run.loader.epoch(0, 0)

            def take(count: int) -> float:
                nonlocal batches
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(count):
                    if run.state.batch == len(run.loader.sampler):
                        run.state.epoch, run.state.batch = run.state.epoch + 1, 0
                        batches = run.loader.epoch(run.state.epoch, 0)
                    run.advance(batches)
                torch.cuda.synchronize()
                return (time.perf_counter() - start) / count

            first = take(warm)
            seconds = min(take(steps // 3) for _ in range(3))
            with profile(activities=[ProfilerActivity.CUDA]) as recorded:
                take(profiled)
            events = [e for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            sizes = len(run.captured.buffers) if getattr(run, "captured", None) else 0
    busy = sum(e.time_range.elapsed_us() for e in events) / 1e6 / profiled
    return {"ms": 1e3 * seconds, "gpu_ms": 1e3 * busy, "busy": busy / seconds, "warm_ms": 1e3 * first, "sizes": sizes}


def _loop() -> Any:
    return importlib.import_module("chordmixer.training.loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="the src folder of another commit")
    parser.add_argument("--rna", type=Path, help="nrc_ncrna13.csv")
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--versions", nargs="+", choices=VERSIONS, default=VERSIONS)
    parser.add_argument("--warm", type=int, default=150)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--profiled", type=int, default=50)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "VERSION"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU: this measures how busy training keeps one")
    if given.one:
        case, version = given.one
        print(json.dumps(measure(case, given.rna, version == "graphs", given.warm, given.steps, given.profiled)))
        return
    cases = given.cases or [case for case in CASES if case != "rna" or given.rna]
    rows = []
    print(f"{'case':16}{'version':>8}{'ms a step':>11}{'GPU ms':>8}{'busy':>6}{'sizes':>7}{'times':>7}", flush=True)
    for case in cases:
        first = None
        for version in given.versions:
            if version == "old" and not given.old:
                continue
            row = _one(case, version, given)
            first = first or row["ms"]
            rows.append({"case": case, "version": version, **row})
            print(f"{case:16}{version:>8}{row['ms']:>11.2f}{row['gpu_ms']:>8.2f}{row['busy']:>6.0%}", end="")
            print(f"{row['sizes']:>7}{first / row['ms']:>7.2f}", flush=True)
            if given.out:
                about = {"command": "python benchmarks/steps.py", "device": torch.cuda.get_device_name()}
                about |= {"torch": torch.__version__}
                given.out.write_text(
                    json.dumps({**about, "date": date.today().isoformat(), "cases": rows}, indent=1) + "\n"
                )


def _one(case: str, version: str, given: argparse.Namespace) -> dict[str, float]:
    source = given.old if version == "old" else Path(found("__file__", "version")).parents[1]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(source)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source.resolve()), *others])}
    command = [sys.executable, __file__, "--one", case, version, *(["--rna", str(given.rna)] if given.rna else [])]
    command += ["--warm", str(given.warm), "--steps", str(given.steps), "--profiled", str(given.profiled)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{case}, {version}: {done.stderr[-2000:]}")
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


if __name__ == "__main__":
    main()
