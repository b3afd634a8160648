"""Training steps per second on a GPU and how busy they keep it: with CUDA graphs, without, and at an older commit.

git worktree add OLD 9c7ea76
PYTHONPATH=src python benchmarks/steps.py --old OLD/src --rna nrc_ncrna13.csv --out results.json

Each case and each version is a process of its own: it takes steps of a training run as `train` does, first as many as
it needs to compile kernels and to record graphs, then those that are timed, then some under a profiler; then it
scores the training records as if they were for validation. `adding-N-B` are batches of B sequences of the Adding
problem with base length N; `rna` is the default run on that file, which at older commits has another network.
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
from collections import defaultdict
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

CASES = ("adding-1000-20", "adding-1000-64", "adding-200-64", "adding-128000-5", "listops", "rna")
VERSIONS = ("old", "plain", "graphs")
CACHE = str(Path(tempfile.gettempdir()) / "chordmixer-steps")
KERNELS = 12
"""Kernels whose milliseconds a step are listed, the longest first."""


def lookup(name: str, *modules: str) -> Any:
    """The attribute, from the first of these modules that has it: older commits keep it elsewhere."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"chordmixer.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"no {name} in {', '.join(modules)}")


def experiment(case: str, rna: Path | None, graphs: bool) -> Any:
    """An experiment that never ends by itself, with batches of the recipe's size."""
    if case == "rna":
        data = lookup("FilesConfig", "tasks.files")(files=(str(rna),), cache=CACHE)
        result = lookup("files", "recipes")(data)
    elif case == "listops":
        config = lookup("ListOpsConfig", "paper.lra.listops", "tasks.lra.listops")
        result = lookup("listops", "paper.recipes", "recipes")(
            config(training=6_000, validation=200, test=200, cache=CACHE)
        )
    else:
        base, batch = map(int, case.split("-")[1:])
        config = lookup("AddingConfig", "paper.adding", "tasks.adding")
        result = lookup("adding", "paper.recipes", "recipes")(
            config(base, training=(100 if base < 100_000 else 10) * batch, validation=9, test=9)
        )
        result = replace(result, training=replace(result.training, batch_sequences=batch))
    settings: dict[str, Any] = {"precision": "bf16"}
    if hasattr(result.training, "cuda_graphs"):
        settings |= {"cuda_graphs": graphs, "trial": 0.0}
    return replace(result, training=replace(result.training, epochs=10_000, steps=0, **settings))


def measure(case: str, rna: Path | None, graphs: bool, warm: int, steps: int, profiled: int) -> dict[str, Any]:
    run_class = lookup("TrainingRun", "training.loop") if hasattr(_loop(), "TrainingRun") else _loop().Run
    with tempfile.TemporaryDirectory() as folder:
        run = run_class(experiment(case, rna, graphs), Path(folder) / "run", False, Console(quiet=True))
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
            with profile(activities=[ProfilerActivity.CUDA]) as trace:
                take(profiled)
            events = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            scored = measure_evaluation(run)
            sizes = len(run.captured.buffers) if getattr(run, "captured", None) else 0
    busy = sum(e.time_range.elapsed_us() for e in events) / 1e6 / profiled
    kernels: dict[str, float] = defaultdict(float)
    for event in events:
        kernels[event.name[:60]] += event.time_range.elapsed_us() / 1e3 / profiled
    longest = sorted(kernels.items(), key=lambda kernel: -kernel[1])[:KERNELS]
    row = {"ms": 1e3 * seconds, "gpu_ms": 1e3 * busy, "busy": busy / seconds, "warm_ms": 1e3 * first, "sizes": sizes}
    return {**row, **scored, "kernels_ms": {name: round(ms, 4) for name, ms in longest}}


def measure_evaluation(run: Any) -> dict[str, float]:
    """Records scored per second without gradients, as validation does, and how busy that keeps the GPU."""
    records, predict = run.task.records("training"), lookup("predict_records", "training.evaluation")

    def seconds() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        predict(run.wrapped, records, run.config, torch.device("cuda"), run.task.target)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds()
    best = min(seconds() for _ in range(3))
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        seconds()
    events = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(e.time_range.elapsed_us() for e in events) / 1e6
    return {"scored_per_second": len(records.lengths) / best, "scoring_busy": busy / best}


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
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU: this measures how busy training keeps one")
    if args.one:
        case, version = args.one
        print(json.dumps(measure(case, args.rna, version == "graphs", args.warm, args.steps, args.profiled)))
        return
    cases = args.cases or [case for case in CASES if case != "rna" or args.rna]
    rows = []
    columns = f"{'ms a step':>11}{'GPU ms':>8}{'busy':>6}{'sizes':>7}{'times':>7}{'scored/s':>10}{'busy':>6}"
    print(f"{'case':16}{'version':>8}{columns}", flush=True)
    for case in cases:
        first = None
        for version in args.versions:
            if version == "old" and not args.old:
                continue
            row = _run_case(case, version, args)
            first = first or row["ms"]
            rows.append({"case": case, "version": version, **row})
            print(f"{case:16}{version:>8}{row['ms']:>11.2f}{row['gpu_ms']:>8.2f}{row['busy']:>6.0%}", end="")
            print(f"{row['sizes']:>7}{first / row['ms']:>7.2f}", end="")
            print(f"{row['scored_per_second']:>10,.0f}{row['scoring_busy']:>6.0%}", flush=True)
            if args.out:
                header = {"command": "python benchmarks/steps.py", "device": torch.cuda.get_device_name()}
                header |= {"torch": torch.__version__}
                args.out.write_text(
                    json.dumps({**header, "date": date.today().isoformat(), "cases": rows}, indent=1) + "\n"
                )


def _run_case(case: str, version: str, args: argparse.Namespace) -> dict[str, Any]:
    source = args.old if version == "old" else Path(lookup("__file__", "version")).parents[1]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(source)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source.resolve()), *others])}
    command = [sys.executable, __file__, "--one", case, version, *(["--rna", str(args.rna)] if args.rna else [])]
    command += ["--warm", str(args.warm), "--steps", str(args.steps), "--profiled", str(args.profiled)]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    if completed.returncode:
        raise SystemExit(f"{case}, {version}: {completed.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return row


if __name__ == "__main__":
    main()
