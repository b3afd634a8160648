"""How busy training keeps a GPU: the time its kernels run, of the time that steps take.

PYTHONPATH=src python benchmarks/steps.py --base-length 1000 --batch 20 --out results.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.recipes import adding
from chordmixer.training import Experiment
from chordmixer.training.loop import train


def experiment(base_length: int, batch: int, steps: int) -> Experiment:
    data = AddingConfig(base_length=base_length, training=steps * batch, validation=batch, test=batch)
    made = adding(data)
    training = replace(made.training, epochs=1, batch_sequences=batch, precision="bf16", device="cuda")
    return replace(made, training=training)


def kernels(base_length: int, batch: int, steps: int) -> list[tuple[float, float, str]]:
    """Start, duration in milliseconds, and name of all that ran on the device, in order."""
    with tempfile.TemporaryDirectory() as folder:
        train(experiment(base_length, batch, 60), Path(folder) / "warm")  # compiles
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            train(experiment(base_length, batch, steps), Path(folder) / "run")
    found = [event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sorted((e.time_range.start / 1e3, e.time_range.elapsed_us() / 1e3, e.name) for e in found)


def measure(base_length: int, batch: int, steps: int) -> dict[str, float]:
    """Of the middle of the run, away from start, validation and test."""
    everything = kernels(base_length, batch, steps)
    updates = [start for start, _, name in everything if "FusedAdam" in name or "fused_adam" in name.lower()]
    begin, end = updates[len(updates) // 10], updates[-len(updates) // 10]
    inside = [(start, duration, name) for start, duration, name in everything if begin <= start < end]
    taken = sum(begin <= start < end for start in updates) * steps / len(updates)
    ours = sum(d for _, d, name in inside if name.endswith("_kernel"))
    busy = sum(d for _, d, _ in inside)
    return {
        "base_length": base_length,
        "batch": batch,
        "milliseconds_a_step": (end - begin) / taken,
        "busy_share": busy / (end - begin),
        "block_kernels_share": ours / (end - begin),
        "kernels_a_step": len(inside) / taken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-length", type=int, nargs="+", default=[200, 1000, 1000])
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 20, 64])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = zip(arguments.base_length, arguments.batch, strict=True)
    rows = [measure(base, batch, arguments.steps) for base, batch in cases]
    print("base length  batch  ms a step  GPU busy  of which blocks  kernels a step")
    for r in rows:
        print(f"{r['base_length']:>11,} {r['batch']:>6} {r['milliseconds_a_step']:>10.2f}", end=" ")
        print(f"{r['busy_share']:>9.0%} {r['block_kernels_share']:>16.0%} {r['kernels_a_step']:>15.0f}")
    if arguments.out:
        about = {"command": "python benchmarks/steps.py", "device": torch.cuda.get_device_name()}
        about |= {"torch": torch.__version__, "date": date.today().isoformat()}
        arguments.out.write_text(json.dumps({**about, "cases": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
