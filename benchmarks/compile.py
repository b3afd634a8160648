"""A user's model around the encoder under `torch.compile`: graphs and time over batches of random lengths.

python benchmarks/compile.py                                # this source alone, about a minute
python benchmarks/compile.py --old 9c7ea76 --out FILE.json  # beside the first batches of an older commit

Each batch is trained on twice, compiled and eagerly, by networks with the same weights, in turns; losses must agree.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from chordmixer import ChordMixer, ChordMixerConfig, Packed, ops

LONGEST = 400
SEQUENCES = 24


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = ChordMixer(ChordMixerConfig(max_length=LONGEST, track_size=8, hidden=64, prenorm="layer"))
        self.embedding = nn.Embedding(5, self.encoder.width)
        self.head = nn.Sequential(nn.Linear(self.encoder.width, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, x: Packed) -> Tensor:
        y = self.encoder(x.with_values(self.embedding(x.values)))
        return self.head(ops.segment_mean(y.values, y.offsets))


def batch() -> tuple[Packed, Tensor]:
    """Two to 24 sequences of random lengths, and their classes."""
    lengths = torch.randint(1, LONGEST + 1, (int(torch.randint(2, SEQUENCES + 1, ())),)).tolist()
    return Packed.from_list([torch.randint(5, (n,)) for n in lengths]), torch.randint(2, (len(lengths),))


def stepper(
    network: nn.Module, forward: Callable[[Packed], Tensor]
) -> Callable[[Packed, Tensor], tuple[float, float]]:
    """One step of training: seconds, and the loss before it."""
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-2)

    def step(x: Packed, classes: Tensor) -> tuple[float, float]:
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(forward(x), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - start, loss.item()

    return step


def measure(batches: int) -> dict[str, Any]:
    """Seconds of every step, compiled and eager, and how many graphs were compiled."""
    torch.manual_seed(0)
    network = Network()
    eager_network = copy.deepcopy(network)
    compiled = stepper(network, torch.compile(network, dynamic=True))
    eager = stepper(eager_network, eager_network)
    eager(*batch())  # loads libraries
    network.load_state_dict(eager_network.state_dict())
    seconds: dict[str, list[float]] = {"compiled": [], "eager": []}
    difference = 0.0
    for _ in range(batches):
        x, classes = batch()
        losses = []
        for name, step in (("compiled", compiled), ("eager", eager)):
            duration, loss = step(x, classes)
            seconds[name].append(round(duration, 4))
            losses.append(loss)
        difference = max(difference, abs(losses[0] - losses[1]))
    assert difference < 1e-3, f"compiled and eager losses differ by {difference}"
    graphs = counters["stats"]["unique_graphs"]
    return {"batches": batches, "graphs": graphs, "largest_difference_of_losses": difference, "seconds": seconds}


def measured(source: Path, batches: int) -> dict[str, Any]:
    """Measure in a separate process, with the package at `source` and an empty compiler cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": str(source), "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, __file__, "--here", "--batches", str(batches)]
        result: dict[str, Any] = json.loads(subprocess.check_output(command, env=environment))
    return result


def measured_at(commit: str, batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.check_output(["git", "archive", commit, "src"])
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        return measured(Path(folder) / "src", batches)


def show(name: str, result: dict[str, Any]) -> None:
    compiled, eager = result["seconds"]["compiled"], result["seconds"]["eager"]
    first = ", ".join(f"{seconds:.2f}" for seconds in compiled[:4])
    print(f"{name}: {result['graphs']} graphs for {result['batches']} batches; the first steps took {first} s")
    if result["batches"] >= 10:
        median, eager_median = statistics.median(compiled[4:]), statistics.median(eager[4:])
        print(f"{name}: from the fifth on {1e3 * median:.1f} ms a step, eager {1e3 * eager_median:.1f} ms (medians)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--old", help="a commit to compare with")
    parser.add_argument("--old-batches", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true", help="measure in this process, and print JSON")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measure(arguments.batches)))
        return
    results = {"new": measured(Path(__file__).parents[1] / "src", arguments.batches)}
    if arguments.old:
        results["old"] = measured_at(arguments.old, arguments.old_batches)
    for name, result in results.items():
        show(name, result)
    if arguments.out:
        header = {
            "date": date.today().isoformat(),
            "command": "python benchmarks/compile.py " + " ".join(sys.argv[1:]),
            "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip(),
            "old_commit": arguments.old,
            "device": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
            "torch": torch.__version__,
        }
        arguments.out.write_text(json.dumps({**header, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
