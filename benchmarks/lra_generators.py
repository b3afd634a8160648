"""Seconds for 100,000 ListOps sequences and Pathfinder pictures on all cores: verified against one at a time, timed.

python benchmarks/lra_generators.py                      # 100,000 of ListOps and of 32 x 32, some minutes
python benchmarks/lra_generators.py --count 10000        # fewer
python benchmarks/lra_generators.py --path-x 10000       # 128 x 128 too
python benchmarks/lra_generators.py --out results.json   # also write it down
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from chordmixer.paper.lra import BytesRecords, listops, pathfinder
from chordmixer.paper.lra.listops import ListOps, ListOpsConfig
from chordmixer.paper.lra.pathfinder import Pathfinder, PathfinderConfig
from chordmixer.paper.subprocesses import cores


def timed(task: ListOps | Pathfinder, name: str, count: int) -> dict[str, Any]:
    """Make a training set; some of its records must equal those that are generated from their index alone."""
    start, cpu = time.perf_counter(), sum(os.times()[:4])
    records = task.records("training")
    seconds, cpu = time.perf_counter() - start, sum(os.times()[:4]) - cpu
    assert len(records) == count
    generate = listops.generate if isinstance(task, ListOps) else pathfinder.generate
    for index in (0, count // 3, count - 1):
        values, lengths, targets = generate(task.config, "training", np.array([index]))  # type: ignore[arg-type]
        assert records.lengths[index] == lengths[0] and records.targets[index] == targets[0]
        assert np.array_equal(records.bytes(index), values.ravel())
    print(f"{name:>14} {count:>9,} {seconds:>8.1f} s {count / seconds:>9,.0f}/s {cpu:>8.1f} s of one core")
    row = {"task": name, "count": count, "seconds": seconds, "per_second": count / seconds, "core_seconds": cpu}
    return row | summarise(records)


def summarise(records: BytesRecords) -> dict[str, Any]:
    shares = np.bincount(records.targets.numpy()) / len(records)
    quartiles = np.quantile(records.lengths, [0, 0.25, 0.5, 0.75, 1]).tolist()
    return {"class_shares": shares.round(4).tolist(), "length_quartiles": quartiles}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--path-x", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    count, path_x = arguments.count, arguments.path_x
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as cache:
        rows = [
            timed(ListOps(ListOpsConfig(training=count, cache=cache)), "listops", count),
            timed(Pathfinder(PathfinderConfig(training=count, cache=cache)), "pathfinder 32", count),
        ]
        if path_x:
            config = PathfinderConfig(size=128, training=path_x, cache=cache)
            rows.append(timed(Pathfinder(config), "path-x 128", path_x))
    if arguments.out:
        header = {
            "command": f"python benchmarks/lra_generators.py --count {count} --path-x {path_x}",
            "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip(),
            "device": f"{platform.processor() or platform.machine()}, {cores()} cores",
            "load_before_and_after": [round(load, 2), round(os.getloadavg()[0], 2)],
            "python": platform.python_version(),
            "date": date.today().isoformat(),
        }
        arguments.out.write_text(json.dumps({**header, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
