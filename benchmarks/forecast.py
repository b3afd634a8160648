"""The forecast of a training step's memory beside the memory that it takes, each case in a process of its own.

python benchmarks/forecast.py --out results.json
PYTHONPATH=src python benchmarks/forecast.py --device cuda --precision bf16 --out results.json
python benchmarks/forecast.py --runs --out results.json [--files A.fa B.fa]

A step is forward, loss, backward and AdamW; two are taken, since the moments of AdamW come with the first. On a CPU
the peak is the process's resident memory (VmHWM) above its level before the model was built, once a small model has
loaded the libraries; on a GPU it is `torch.cuda.max_memory_allocated` of the second step. Linux only.

With --runs it is the whole process of a training run on a CPU (`ru_maxrss`), over batches of many sizes: on random
records of different lengths, or on files. Baselines are not fitted.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from chordmixer import recipes
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import forecast, memory
from chordmixer.training.loop import train

SIZES = {"8 x 2,000": [2_000] * 8, "1 x 60,000": [60_000], "64 x 1,000": [1_000] * 64}
NETWORKS: dict[str, dict[str, Any]] = {
    "no norm": {},
    "layer norm": {"prenorm": "layer", "init": "identity"},
    "layer norm, reversible": {"prenorm": "layer", "init": "identity", "reversible": True},
}


RUNS: dict[str, tuple[int, float, float, int]] = {
    "short": (2_000, 4.2, 0.4, 600),
    "even": (600, 6.9, 0.06, 120),
    "uneven": (1_500, 4.6, 1.3, 150),
}
"""Records, the mean and deviation of the logarithm of their lengths, and steps."""


def config(network: str, lengths: list[int]) -> ModelConfig:
    max_length = 1 << (max(lengths) - 1).bit_length()
    norm = "layer" if "prenorm" in NETWORKS[network] else None
    return ModelConfig(6, 2, final_norm=norm, network=ChordMixerConfig(max_length=max_length, **NETWORKS[network]))


def resident(field: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def steps(model: ModelConfig, lengths: list[int], device: str, precision: str) -> None:
    """Two training steps."""
    network = Model(model).to(device)
    adam = torch.optim.AdamW(network.parameters(), fused=True)
    ids = torch.randint(6, (sum(lengths),), dtype=torch.uint8)
    inputs, targets = Packed.from_lengths(ids, lengths).to(device), torch.zeros(len(lengths), dtype=torch.long)
    for _ in range(2):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            outputs = network(inputs)
        torch.nn.functional.cross_entropy(outputs.float(), targets.to(device)).backward()
        adam.step()
        adam.zero_grad(set_to_none=True)


def measure(model: ModelConfig, lengths: list[int], device: str, precision: str) -> int:
    """The peak of a step, in bytes."""
    if device == "cuda":
        steps(model, lengths, device, precision)
        return torch.cuda.max_memory_allocated()
    steps(config("layer norm", [64]), [64], device, precision)  # loads the libraries
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    steps(model, lengths, device, precision)
    return resident("VmHWM") - before


def case(network: str, size: str, device: str, precision: str) -> dict[str, Any]:
    lengths = SIZES[size]
    model = config(network, lengths)
    measured = measure(model, lengths, device, precision)
    terms = memory.peak(model, lengths, memory.Hardware.of(torch.device(device), precision))
    forecast = sum(terms.values())
    numbers = {"forecast": forecast, "measured": measured, "ratio": forecast / measured}
    return {"network": network, "size": size, **numbers, "terms": terms}


def run(name: str, user_files: list[str]) -> dict[str, Any]:
    """A training run with its default settings, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        records, mean, deviation, steps = RUNS.get(name, (0, 0.0, 0.0, 100))
        files, rng = user_files or [f"{folder}/{label}.fa" for label in "ab"], random.Random(0)
        for path in files if not user_files else []:
            lengths = (max(30, min(int(rng.lognormvariate(mean, deviation)), 10_000)) for _ in range(records // 2))
            letters = ("".join(rng.choices("ACGT", k=n)) for n in lengths)
            Path(path).write_text("".join(f">{Path(path).stem}{i}\n{text}\n" for i, text in enumerate(letters)))
        experiment = recipes.files(FilesConfig(files=tuple(files), cache=f"{folder}/cache"))
        experiment = replace(
            experiment, training=replace(experiment.training, device="cpu", steps=steps, epochs=1_000)
        )
        lengths = experiment.build_task().records("training").lengths
        estimate = forecast.forecast(experiment, lengths, torch.device("cpu"))
        train(experiment, f"{folder}/run", console=Console(quiet=True))
    measured = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    terms = {**estimate.memory, "freed, kept by the heap": estimate.kept, "before the run": estimate.resident}
    numbers = {"forecast": estimate.process, "measured": measured, "ratio": estimate.process / measured}
    return {"network": "default", "size": name, "steps": steps, **numbers, "terms": terms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs=2, metavar=("NETWORK", "SIZE"), help="this one alone, as JSON")
    parser.add_argument("--runs", action="store_true", help="whole training runs on a CPU")
    parser.add_argument("--files", nargs="*", default=[], help="of --runs: FASTA files, one a class")
    arguments = parser.parse_args()
    device, precision = arguments.device, arguments.precision
    if arguments.case:
        names = arguments.case
        print(json.dumps(run(names[1], arguments.files) if arguments.runs else case(*names, device, precision)))
        return
    rows = []
    print(f"{'network':<24}{'batch':<12}{'forecast':>12}{'measured':>12}{'ratio':>8}")
    sizes = ["files"] if arguments.files else [*RUNS]
    cases = [("default", size) for size in sizes] if arguments.runs else [(n, s) for n in NETWORKS for s in SIZES]
    for network, size in cases:
        command = [sys.executable, __file__, "--device", device, "--precision", precision, "--case", network, size]
        command += ["--runs", "--files", *arguments.files] if arguments.runs else []
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append(row)
        forecast, measured = (f"{row[kind] / 2**20:,.0f} MiB" for kind in ("forecast", "measured"))
        print(f"{network:<24}{size:<12}{forecast:>12}{measured:>12}{row['ratio']:>8.3f}", flush=True)
    if arguments.out:
        name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        options = "--runs" if arguments.runs else f"--device {device} --precision {precision}"
        header = {"command": f"python benchmarks/forecast.py {options}"}
        header |= {"device": name, "torch": torch.__version__, "date": date.today().isoformat()}
        arguments.out.write_text(json.dumps({**header, "cases": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
