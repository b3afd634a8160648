"""The forecast of a training step's memory beside what one really takes, each case in a process of its own.

python benchmarks/forecast.py --out results.json
PYTHONPATH=src python benchmarks/forecast.py --device cuda --precision bf16 --out results.json

A step is forward, loss, backward and AdamW; two are taken, since the moments of AdamW come with the first. On a CPU
the peak is the process's resident memory (VmHWM) above its level before the model was built, once a small model has
loaded the libraries; on a GPU it is `torch.cuda.max_memory_allocated` of the second step. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.training import memory

SIZES = {"8 x 2,000": [2_000] * 8, "1 x 60,000": [60_000], "64 x 1,000": [1_000] * 64}
NETWORKS: dict[str, dict[str, Any]] = {
    "no norm": {},
    "layer norm": {"prenorm": "layer", "init": "identity"},
    "layer norm, reversible": {"prenorm": "layer", "init": "identity", "reversible": True},
}


def config(network: str, lengths: list[int]) -> ModelConfig:
    room = 1 << (max(lengths) - 1).bit_length()
    norm = "layer" if "prenorm" in NETWORKS[network] else None
    return ModelConfig(6, 2, final_norm=norm, network=ChordMixerConfig(max_length=room, **NETWORKS[network]))


def resident(field: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def steps(model: ModelConfig, lengths: list[int], device: str, precision: str) -> None:
    """Two training steps."""
    learner = Model(model).to(device)
    adam = torch.optim.AdamW(learner.parameters(), fused=True)
    ids = torch.randint(6, (sum(lengths),), dtype=torch.uint8)
    inputs, targets = Packed.from_lengths(ids, lengths).to(device), torch.zeros(len(lengths), dtype=torch.long)
    for _ in range(2):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            outputs = learner(inputs)
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
    terms = memory.peak(model, lengths, memory.Place.of(torch.device(device), precision))
    forecast = sum(terms.values())
    numbers = {"forecast": forecast, "measured": measured, "ratio": forecast / measured}
    return {"network": network, "size": size, **numbers, "terms": terms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs=2, metavar=("NETWORK", "SIZE"), help="this one alone, as JSON")
    arguments = parser.parse_args()
    device, precision = arguments.device, arguments.precision
    if arguments.case:
        print(json.dumps(case(*arguments.case, device, precision)))
        return
    rows = []
    print(f"{'network':<24}{'batch':<12}{'forecast':>12}{'measured':>12}{'ratio':>8}")
    for network, size in ((network, size) for network in NETWORKS for size in SIZES):
        alone = [sys.executable, __file__, "--device", device, "--precision", precision, "--case", network, size]
        row = json.loads(subprocess.run(alone, check=True, capture_output=True, text=True).stdout)
        rows.append(row)
        forecast, measured = (f"{row[kind] / 2**20:,.0f} MiB" for kind in ("forecast", "measured"))
        print(f"{network:<24}{size:<12}{forecast:>12}{measured:>12}{row['ratio']:>8.3f}", flush=True)
    if arguments.out:
        name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        about = {"command": f"python benchmarks/forecast.py --device {device} --precision {precision}"}
        about |= {"device": name, "torch": torch.__version__, "date": date.today().isoformat()}
        arguments.out.write_text(json.dumps({**about, "cases": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
