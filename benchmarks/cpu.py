"""Our network on a CPU against a plain split-roll-cat one, in the same run: verify first, then time.

python benchmarks/cpu.py                     # the three cases and the long sequence, a few minutes
python benchmarks/cpu.py --out results.json  # also write them down
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
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn

from chordmixer import ChordMixer, ChordMixerConfig, Packed

CASES = ((64, 420), (1, 33_000), (1, 260_000))
"""Sequences and their length; each network is built for the longest of its own case."""
LONGEST = 1_500_000


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


def compare(sequences: int, length: int, repeats: int) -> dict[str, float]:
    """Tokens a second of both networks over all blocks, and the ratio."""
    torch.manual_seed(0)
    encoder = ChordMixer(ChordMixerConfig(max_length=length, track_size=16, hidden=128)).eval()
    plain = [PlainBlock(block, 16) for block in encoder.blocks]
    x = Packed.from_lengths(torch.randn(sequences * length, encoder.width), [length] * sequences)

    def theirs() -> Tensor:
        values = x.values
        for block in plain:
            values = block(values, list(x.lengths))
        return values

    with torch.inference_mode():
        error = float((encoder(x).values - theirs()).abs().max())
        assert error < 1e-4, f"the two networks differ by {error}"
        seconds = _median_seconds([theirs, lambda: encoder(x).values], repeats)
    return {
        "sequences": sequences,
        "length": length,
        "width": encoder.width,
        "blocks": len(plain),
        "largest_difference": error,
        "plain_tokens_per_second": x.tokens / seconds[0],
        "our_tokens_per_second": x.tokens / seconds[1],
        "ratio": seconds[0] / seconds[1],
    }


def _median_seconds(functions: list[Callable[[], Tensor]], repeats: int) -> list[float]:
    """Taken in turns, so that a slow moment of the machine meets them all."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for own, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def longest() -> None:
    """One sequence of 1.5 million tokens through the whole network; prints seconds and peak memory."""
    encoder = ChordMixer(ChordMixerConfig(max_length=LONGEST, track_size=16, hidden=128)).eval()
    embedding = nn.Linear(2, encoder.width)
    with torch.inference_mode():
        inputs = torch.rand(LONGEST, 2)
        start = time.perf_counter()
        mean = encoder(Packed.from_list([embedding(inputs)])).values.mean()
        seconds = time.perf_counter() - start
    assert torch.isfinite(mean)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"length": LONGEST, "seconds": seconds, "peak_gigabytes": peak / 1e9}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--longest", action="store_true", help="only the long sequence, in this process")
    arguments = parser.parse_args()
    if arguments.longest:
        longest()
        return
    rows = [compare(*case, arguments.repeats) for case in CASES]
    long = json.loads(subprocess.check_output([sys.executable, __file__, "--longest"]))
    print(f"{'case':>14} {'plain tokens/s':>15} {'our tokens/s':>13} {'ratio':>6}")
    for row in rows:
        case = f"{row['sequences']:.0f} x {row['length']:,.0f}"
        speeds = f"{row['plain_tokens_per_second']:>15,.0f} {row['our_tokens_per_second']:>13,.0f}"
        print(f"{case:>14} {speeds} {row['ratio']:>6.2f}")
    print(f"1 x {LONGEST:,}: {long['seconds']:.0f} s, peak {long['peak_gigabytes']:.2f} GB")
    if arguments.out:
        commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
        device = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
        about = {
            "command": "python benchmarks/cpu.py",
            "commit": commit,
            "device": device,
            "torch": torch.__version__,
        }
        result = {**about, "date": date.today().isoformat(), "cases": rows, "longest": long}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
