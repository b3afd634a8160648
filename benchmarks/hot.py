"""Where a training step's time goes: the kernels (on a CPU, the operators) that take most of it, for any encoder.

PYTHONPATH=src python benchmarks/hot.py --models luna,nystromformer --base-length 128000
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from datetime import date
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.benching.cases import BenchConfig, Case, adding
from chordmixer.paper.benching.measuring import BenchModel, seconds

Row = tuple[float, int, str]
"""Milliseconds of a step, calls, and a name."""


def measure(encoder: str, base_length: int, batch: int) -> tuple[float, list[Row]]:
    """Milliseconds of a step, the mean over all batches of the bench's setting, and what takes them."""
    setting = adding(base_length, batch)
    config = BenchConfig(batch=batch).here()
    model = BenchModel(Case(encoder, ENCODERS[encoder], config, setting), setting.longest)
    inputs = [model.batch(lengths) for lengths in setting.batches]

    def all_batches() -> None:
        for x in inputs:
            model.learn(x)

    all_batches()
    all_batches()
    duration = seconds(all_batches, model.device)
    kinds = [ProfilerActivity.CUDA if model.device.type == "cuda" else ProfilerActivity.CPU]
    with profile(activities=kinds) as profiled:
        all_batches()
    times, calls = Counter[str](), Counter[str]()
    for event in profiled.key_averages():
        times[event.key] += event.self_device_time_total if model.device.type == "cuda" else event.self_cpu_time_total
        calls[event.key] += event.count
    rows = [(time / 1e3 / len(inputs), calls[name] // len(inputs), name) for name, time in times.most_common()]
    return 1e3 * duration / len(inputs), rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="chordmixer", help="encoders, with commas between them")
    parser.add_argument("--base-length", type=int, default=200, help="of the Adding problem")
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--top", type=int, default=12, help="how many rows are shown")
    parser.add_argument("--out", type=Path, help="all rows, as JSON")
    arguments = parser.parse_args()
    results = {}
    for encoder in arguments.models.split(","):
        total, rows = measure(encoder, arguments.base_length, arguments.batch)
        results[encoder] = {"milliseconds_a_step": total, "rows": rows}
        busy = sum(time for time, _, _ in rows)
        print(f"{encoder}: {total:.2f} ms a step, of which {busy:.2f} in {sum(row[1] for row in rows):,} calls")
        for time, count, name in rows[: arguments.top]:
            print(f"{time:10.3f} ms {count:6,} x  {name[:110]}")
    if arguments.out:
        cuda = torch.cuda.is_available()
        header = {"command": "python benchmarks/hot.py", "device": torch.cuda.get_device_name() if cuda else "CPU"}
        header |= {"torch": torch.__version__, "date": date.today().isoformat(), "base_length": arguments.base_length}
        arguments.out.write_text(
            json.dumps({**header, "batch": arguments.batch, "encoders": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
