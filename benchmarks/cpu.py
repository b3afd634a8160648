"""Encoders on a CPU in one run: the authors' way, ours of an older commit, ours now in float32 and in bf16.

python benchmarks/cpu.py                             # verify, then time: some minutes
python benchmarks/cpu.py --out results.json          # also write it down
python benchmarks/cpu.py --cpu-time                  # on a busy machine: processor time, OMP_NUM_THREADS=1
python benchmarks/cpu.py --longest                   # 1.5 million tokens in one sequence: seconds and peak memory

The older commit is taken out of git into a temporary folder and runs in a process of its own. All take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chordmixer import ChordMixer, ChordMixerConfig, Packed

ROOT = Path(__file__).parents[1]
BEFORE = "9c7ea76"
CASES = ((64, 420), (1_000, 128), (1, 33_000))
"""Sequences and their length; each network is built for the longest of its own case, with S = 16 and H = 128."""
LONGEST = 1_500_000
KINDS = ("authors", BEFORE, "float32", "bf16")
TARGETS = {
    "forward": {BEFORE: (2.0, 2.0, 2.0), "authors": (3.0, 3.0, 5.0)},
    "step": {BEFORE: (1.7, 1.7, 1.7)},
}
"""How many times as fast bf16 should be, by case."""
TOLERANCE = {"authors": 1e-4, BEFORE: 1e-4, "float32": 1e-4, "bf16": 2e-2}
"""Largest relative distance (in norm) from the authors' way, of outputs and of gradients."""


class PlainBlock(nn.Module):
    """The authors' way: for each sequence split the channels into tracks, roll each, concatenate."""

    def __init__(self, ours: nn.Module, track_size: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.track_size = ours.fc1, ours.fc2, track_size

    def forward(self, x: Tensor, lengths: list[int]) -> Tensor:
        rotated = []
        for sequence in x.split(lengths):
            first, *others = sequence.split(self.track_size, dim=1)
            rolled = [torch.roll(track, -(2**i), dims=0) for i, track in enumerate(others)]
            rotated.append(torch.cat([first, *rolled], dim=1))
        z = torch.cat(rotated)
        return x + self.fc2(nn.functional.gelu(self.fc1(z)))


class Contest:
    """One case: the same network and tokens for every way."""

    def __init__(self, sequences: int, length: int) -> None:
        torch.manual_seed(0)
        self.encoder = ChordMixer(ChordMixerConfig(max_length=length, track_size=16, hidden=128))
        self.plain = [PlainBlock(block, 16) for block in self.encoder.blocks]
        self.x = Packed.from_lengths(torch.randn(sequences * length, self.encoder.width), [length] * sequences)
        self.adam = torch.optim.AdamW(self.encoder.parameters(), lr=0.0, weight_decay=0.0, fused=True)

    def encoded(self, kind: str) -> Tensor:
        if kind == "authors":
            values, lengths = self.x.values, list(self.x.lengths)
            for block in self.plain:
                values = block(values, lengths)
            return values
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16"):
            return self.encoder(self.x).values

    def forward(self, kind: str) -> Tensor:
        self.encoder.eval()
        with torch.inference_mode():
            return self.encoded(kind)

    def step(self, kind: str) -> Tensor:
        """Forward pass, backward pass, AdamW; returns the gradient of the first block's first weights."""
        self.encoder.train()
        self.encoded(kind).square().mean().backward()
        gradient = self.encoder.blocks[0].fc1.weight.grad
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return gradient

    def seconds(self, operation: str, kind: str, clock: Callable[[], float]) -> float:
        start = clock()
        getattr(self, operation)(kind)
        return clock() - start


class OlderContest:
    """The same contest in a process that imports an older commit."""

    def __init__(self, case: tuple[int, int], source: Path, options: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        command = [sys.executable, __file__, *options, "--worker", *map(str, case)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def ask(self, operation: str, path: str = "") -> float:
        assert self.process.stdin and self.process.stdout
        print(json.dumps([operation, path]), file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))

    def result(self, operation: str) -> Tensor:
        with tempfile.NamedTemporaryFile(suffix=".pt") as file:
            self.ask(operation, file.name)
            return torch.load(file.name)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def work(sequences: int, length: int, clock: Callable[[], float]) -> None:
    """Answer for the older commit: seconds, or a file with the result."""
    contest = Contest(sequences, length)
    for line in sys.stdin:
        operation, path = json.loads(line)
        if path:
            torch.save(getattr(contest, operation)("float32").clone(), path)
        print(contest.seconds(operation, "float32", clock) if not path else 0.0, flush=True)


@contextmanager
def older_source() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.check_output(["git", "archive", BEFORE, "src"], cwd=ROOT)
        with tarfile.open(fileobj=BytesIO(archive)) as packed:
            packed.extractall(folder, filter="data")
        yield Path(folder) / "src"


def compare(case: tuple[int, int], number: int, repeats: int, source: Path, busy: bool) -> dict[str, Any]:
    """Verify all ways, then time them in turns: the median of each."""
    clock = time.process_time if busy else time.perf_counter
    contest, older = Contest(*case), OlderContest(case, source, ["--cpu-time"] if busy else [])
    row: dict[str, Any] = {"sequences": case[0], "length": case[1], "width": contest.encoder.width}
    row["blocks"] = len(contest.plain)
    for operation in ("forward", "step"):
        result: dict[str, Any] = {"distance": {}, "seconds": {}, "times_as_fast": {}}
        expected = getattr(contest, operation)("authors").clone()
        for kind in KINDS[1:]:
            output = older.result(operation) if kind == BEFORE else getattr(contest, operation)(kind)
            distance = float((output - expected).norm() / expected.norm())
            assert distance < TOLERANCE[kind], f"{kind} differs by {distance}"
            result["distance"][kind] = distance
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for repeat in range(repeats + 1):
            for kind, durations in times.items():
                time.sleep(0.02)  # threads of the way before come to rest
                seconds = older.ask(operation) if kind == BEFORE else contest.seconds(operation, kind, clock)
                durations += [seconds] if repeat else []
        result["seconds"] = {kind: statistics.median(durations) for kind, durations in times.items()}
        for kind in (BEFORE, "authors"):
            result["times_as_fast"][kind] = {
                new: result["seconds"][kind] / result["seconds"][new] for new in ("float32", "bf16")
            }
        result["target"] = {kind: targets[number] for kind, targets in TARGETS[operation].items()}
        row[operation] = result
    older.close()
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'case':>12} {'':>8} {'ns a token and block':^34} {'bf16, times as fast as':^24} {'float32':>8}",
        f"{'':>12} {'':>8} {'authors':>8} {BEFORE:>8} {'float32':>8} {'bf16':>7}"
        f" {'authors':>12} {BEFORE:>11} {'than ' + BEFORE:>12}",
    ]
    for row in rows:
        for operation in ("forward", "step"):
            result, count = row[operation], row["sequences"] * row["length"] * row["blocks"]
            times = [f"{result['seconds'][kind] / count * 1e9:>{8 if kind != 'bf16' else 7}.0f}" for kind in KINDS]
            faster = result["times_as_fast"]
            targets = {kind: f" ({result['target'][kind]:.1f})" if kind in result["target"] else "" for kind in KINDS}
            ratios = [f"{faster[kind]['bf16']:.2f}{targets[kind]}" for kind in ("authors", BEFORE)]
            case = f"{row['sequences']:,} x {row['length']:,}"
            lines.append(
                f"{case:>12} {operation:>8} {' '.join(times)} {ratios[0]:>12} {ratios[1]:>11} "
                f"{faster[BEFORE]['float32']:>12.2f}"
            )
    return "\n".join(lines)


def longest(half: bool) -> None:
    """One sequence of 1.5 million tokens through the whole network; prints seconds and peak memory."""
    encoder = ChordMixer(ChordMixerConfig(max_length=LONGEST, track_size=16, hidden=128)).eval()
    embedding = nn.Linear(2, encoder.width)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half):
        tokens = embedding(torch.rand(LONGEST, 2)).float()
        start = time.perf_counter()
        mean = encoder(Packed.from_list([tokens])).values.mean()
        seconds = time.perf_counter() - start
    assert torch.isfinite(mean)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"1 x {LONGEST:,}, {'bf16' if half else 'float32'}: {seconds:.0f} s, peak {peak / 1e9:.2f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cpu-time", action="store_true", help="seconds of the processor, in place of the wall's")
    parser.add_argument("--longest", action="store_true", help="only the long sequence, in float32")
    parser.add_argument("--half", action="store_true", help="with --longest: in bf16")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker, time.process_time if arguments.cpu_time else time.perf_counter)
        return
    if arguments.longest:
        longest(arguments.half)
        return
    with older_source() as source:
        options = (arguments.repeats, source, arguments.cpu_time)
        rows = [compare(case, number, *options) for number, case in enumerate(CASES)]
    print(table(rows))
    print("In brackets: what bf16 should reach.")
    if arguments.out:
        commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
        document = {
            "command": " ".join(["python", "benchmarks/cpu.py", *sys.argv[1:]]),
            "clock": "processor" if arguments.cpu_time else "wall",
            "commit": commit,
            "device": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
            "torch": torch.__version__,
            "date": date.today().isoformat(),
            "cases": rows,
        }
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
