"""Training steps on long records on a CPU, with freed memory returned to the system and with it kept.

python benchmarks/heap.py [--out results.json]    # two minutes

Each case runs in two processes, whose losses must be equal. One thread; S = 8, H = 64, layer norm, dropout 0.2.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

from chordmixer import ChordMixer, ChordMixerConfig, Packed
from chordmixer.training.devices import keep_freed_memory

CASES = ((33_000, False), (100_000, False), (100_000, True))
"""Tokens of the one record of a step, and whether the network is reversible."""
STEPS = 6


def measure(tokens: int, reversible: bool, keep: bool) -> dict[str, float]:
    """Median seconds of a step but for the first, the last loss, and the peak of the process in MB."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if keep:
        keep_freed_memory()
    network = ChordMixerConfig(
        max_length=tokens, track_size=8, hidden=64, prenorm="layer", dropout=0.2, reversible=reversible
    )
    encoder = ChordMixer(network).train()
    x = Packed.from_list([torch.randn(tokens, encoder.width)])
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        loss = encoder(x.with_values(x.values.clone().requires_grad_())).values.square().mean()
        loss.backward()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"seconds": statistics.median(seconds[1:]), "loss": loss.item(), "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs=3, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        tokens, reversible, keep = args.case
        print(json.dumps(measure(tokens, bool(reversible), bool(keep))))
        return
    rows = []
    for tokens, reversible in CASES:
        returned, kept = (
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, "--case", str(tokens), str(int(reversible)), str(keep)],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
            for keep in (0, 1)
        )
        assert returned["loss"] == kept["loss"], "the losses differ"
        speed, memory = returned["seconds"] / kept["seconds"], kept["peak"] / returned["peak"]
        rows.append({"tokens": tokens, "reversible": reversible, "returned": returned, "kept": kept})
        print(
            f"{tokens:,} tokens, reversible={reversible}: {speed:.2f} times as fast with {memory:.2f} of the memory"
        )
    if args.out:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        header = {
            "commit": commit,
            "device": platform.machine(),
            "torch": torch.__version__,
            "date": str(date.today()),
        }
        args.out.write_text(json.dumps({"command": "python benchmarks/heap.py", **header, "cases": rows}, indent=2))


if __name__ == "__main__":
    main()
