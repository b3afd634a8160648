"""Weak scaling: time of a training step when each further rank brings as many records of its own.

PYTHONPATH=src python benchmarks/ranks.py --ranks 1 2 4 --out results.json

Ranks on a CPU share its cores: with more ranks than cores the wall time of a step must grow, and the CPU seconds of a
rank, which waits without working, tell what sharing costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

WARM = 5
"""Steps before the measured ones."""


def measure(base_length: int, batch: int, steps: int, out: Path) -> None:
    """Time the steps of this rank; the main rank writes the results of all."""
    from rich.console import Console

    from chordmixer.paper.adding import AddingConfig
    from chordmixer.paper.recipes import adding
    from chordmixer.terminal import rank_count
    from chordmixer.training import ranks
    from chordmixer.training.loop import TrainingRun

    total = batch * rank_count()
    experiment = adding(AddingConfig(base_length=base_length, training=(steps + WARM) * total, validation=8, test=8))
    training = replace(experiment.training, epochs=1, batch_sequences=total, batch_tokens=10**9, device="cpu")
    experiment = replace(experiment, training=training)
    with closing(TrainingRun(experiment, out / "run", False, Console(quiet=True))) as run, run.display:
        batches, sampler = run.loader.epoch(0, 0), run.loader.sampler
        run.wrapped.train()
        for _ in range(WARM):
            run.advance(batches)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            run.advance(batches)
        seconds = (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps
        gathered = ranks.gather(seconds)
    loads = [
        [sum(sampler.lengths[i] for i in share) for share in sampler.shares(records)]
        for records in sampler.batches[WARM : WARM + steps]
    ]
    if gathered:
        row = {
            "ranks": rank_count(),
            "seconds_a_step": max(wall for wall, _ in gathered),
            "cpu_seconds_a_rank_and_step": sum(cpu for _, cpu in gathered) / len(gathered),
            "tokens_a_step": sum(map(sum, loads)) / steps,
            "balance": sum(map(sum, loads)) / sum(len(load) * max(load) for load in loads),
            "gradient_bytes": 4 * sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        }
        (out / "row.json").write_text(json.dumps(row))


def run_ranks(ranks: int, arguments: list[str]) -> dict[str, Any]:
    """The results of so many ranks, under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        launch = ["--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        command = [sys.executable, "-m", "torch.distributed.run", *launch, __file__, *arguments, "--worker", folder]
        subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
        row: dict[str, Any] = json.loads((Path(folder) / "row.json").read_text())
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--base-length", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16, help="records that each rank brings")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--rounds", type=int, default=2, help="each number of ranks so often, in turns; the best counts"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        from chordmixer.training.ranks import end_rank

        measure(args.base_length, args.batch, args.steps, args.worker)
        end_rank(0)
    worker_args = ["--base-length", str(args.base_length), "--batch", str(args.batch), "--steps", str(args.steps)]
    runs = [run_ranks(count, worker_args) for _ in range(args.rounds) for count in args.ranks]
    rows = [
        min((row for row in runs if row["ranks"] == count), key=lambda row: row["seconds_a_step"])
        for count in args.ranks
    ]
    base = rows[0]
    print("ranks  ms a step  tokens/s  CPU ms a rank  efficiency: wall   CPU  balance")
    for row in rows:
        speed = row["tokens_a_step"] / row["seconds_a_step"]
        row["efficiency"] = {
            name: base[name] / base["tokens_a_step"] * row["tokens_a_step"] / row["ranks"] * base["ranks"] / row[name]
            for name in ("seconds_a_step", "cpu_seconds_a_rank_and_step")
        }
        wall, cpu = row["efficiency"].values()
        print(f"{row['ranks']:>5} {1e3 * row['seconds_a_step']:>10.1f} {speed:>9,.0f}", end=" ")
        print(f"{1e3 * row['cpu_seconds_a_rank_and_step']:>14.1f} {wall:>17.0%} {cpu:>5.0%} {row['balance']:>8.0%}")
    if args.out:
        header = {"command": f"python benchmarks/ranks.py {' '.join(sys.argv[1:])}", "cores": os.cpu_count()}
        args.out.write_text(json.dumps({**header, "date": date.today().isoformat(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
