"""A training step on one sequence over several gloo processes: results against one process, memory, bytes, seconds.

PYTHONPATH=src python benchmarks/context_parallel.py --out results.json

The model has a stem, words, a reversible encoder and a pooling head. One process computes it as any model; of
several, each has its share. In float64 outputs and all gradients must agree to 1e-5 of the largest number of each
tensor. In float32 their distance from that result is given: there the gradients of one process are rounded too, as
torch on a CPU adds up a million tokens in float32, and of more ranks each adds up fewer. The bytes of rotations
must be those of the formula in docs/scaling.md. Memory is the peak resident size above its level after a step on a
short sequence. Linux only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from chordmixer import ChordMixerConfig, Model, ModelConfig, Packed
from chordmixer.models.context_parallel import ContextParallel, reduce_gradients, shard
from chordmixer.models.stem import StemConfig
from chordmixer.models.words import WordsConfig

TOLERANCE = 1e-5
PASSES = 3
"""Rotations of a block in a training step: forward, again when activations are recomputed, and in reverse."""


def build(length: int, dtype: torch.dtype) -> Model:
    """A model with these weights; its standardised head always computes in float32."""
    torch.manual_seed(0)
    network = ChordMixerConfig(max_length=length, track_size=2, hidden=8, prenorm="layer", reversible=True)
    model = Model(
        ModelConfig(
            inputs=5,
            outputs=2,
            head="mean_maximum",
            final_norm="layer",
            stem=StemConfig(layers=2, taps=7, width=16),
            words=WordsConfig(lengths=(4,), bits=8, width=4, dropout=0.0),
            network=network,
        )
    ).to(dtype)
    model.head.standard.float()
    model.head.linear.float()
    return model


def sequence(length: int) -> Packed:
    return Packed.from_list([torch.randint(5, (length,), generator=torch.Generator().manual_seed(1))])


def step(model: Model, x: Packed) -> Tensor:
    """Forward and backward; alone, or with the other ranks."""
    target = torch.tensor([1])
    if dist.get_world_size() == 1:
        outputs: Tensor = model(x)
        torch.nn.functional.cross_entropy(outputs, target).backward()
        return outputs.detach()
    outputs = ContextParallel(model)(shard(x))
    torch.nn.functional.cross_entropy(outputs, target).backward()
    reduce_gradients(model)
    return outputs.detach()


class Meter:
    """Counts what `all_to_all_single` sends to other ranks: of rotations, and of neighbours."""

    def __init__(self) -> None:
        self.send, self.rotations, self.neighbours = dist.all_to_all_single, 0, 0

    def __call__(self, received: Tensor, sent: Tensor, *arguments: Any, **options: Any) -> Any:
        size = sent.numel() * sent.element_size()
        if sent.shape[1] == 2:  # a track; neighbours travel with all their channels
            self.rotations += size
        else:
            self.neighbours += size
        return self.send(received, sent, *arguments, **options)


def resident(field: str) -> int:
    """Bytes of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def rank(number: int, ranks: int, length: int, dtype: torch.dtype, folder: str) -> None:
    """One process: its measurements and results go into the folder."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/{dtype}-{ranks}-store", ranks)
    dist.init_process_group("gloo", store=store, rank=number, world_size=ranks)
    step(build(64, dtype), sequence(64))
    model, x = build(length, dtype), sequence(length)
    dist.all_to_all_single = meter = Meter()  # type: ignore[assignment]
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before, start = resident("VmRSS"), time.perf_counter()
    outputs = step(model, x)
    seconds, peak = time.perf_counter() - start, resident("VmHWM") - before
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    torch.save({"outputs": outputs, **gradients}, f"{folder}/{dtype}-{ranks}-{number}.pt")
    row = {"peak_bytes": peak, "seconds": seconds, "rotations": meter.rotations, "neighbours": meter.neighbours}
    Path(folder, f"{dtype}-{ranks}-{number}.json").write_text(json.dumps(row))
    dist.barrier()
    dist.destroy_process_group()


def difference(folder: str, ranks: int, dtype: torch.dtype) -> float:
    """The largest distance on any rank from one process in float64, of the largest number of each tensor."""
    expected = torch.load(f"{folder}/{torch.float64}-1-0.pt")
    worst = 0.0
    for number in range(ranks):
        results = torch.load(f"{folder}/{dtype}-{ranks}-{number}.pt")
        assert results.keys() == expected.keys()
        for name, tensor in expected.items():
            worst = max(worst, float((results[name] - tensor).abs().max() / tensor.abs().max().clamp(min=1e-30)))
    return worst


def sent_by_formula(length: int, ranks: int, dtype: torch.dtype, config: ChordMixerConfig) -> int:
    """Bytes that the rotations of a training step send from one rank, for powers of two."""
    rows = length // ranks * (1 + (ranks - 1).bit_length()) - 1 if ranks > 1 else 0
    return PASSES * config.depth * rows * config.track_size * dtype.itemsize


def measure(length: int, ranks: int, dtype: torch.dtype, folder: str) -> dict[str, Any]:
    torch.multiprocessing.spawn(rank, (ranks, length, dtype, folder), nprocs=ranks)
    rows = [json.loads(Path(folder, f"{dtype}-{ranks}-{number}.json").read_text()) for number in range(ranks)]
    formula = sent_by_formula(length, ranks, dtype, build(length, dtype).config.network)
    worst = difference(folder, ranks, dtype)
    assert worst <= TOLERANCE or dtype == torch.float32, f"{ranks} ranks differ from one by {worst}"
    assert all(row["rotations"] == formula for row in rows), (formula, rows)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "ranks": ranks,
        "distance_from_one_in_float64": worst,
        "peak_megabytes_by_rank": [round(row["peak_bytes"] / 1e6, 1) for row in rows],
        "seconds": max(row["seconds"] for row in rows),
        "rotation_bytes_by_rank": rows[0]["rotations"],
        "rotation_bytes_by_formula": formula,
        "neighbour_bytes_by_rank": [row["neighbours"] for row in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log-length", type=int, default=20, help="of the sequence: 2 to this power")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="powers of two, 1 first")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    length = 1 << arguments.log_length
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # of the processes: what is freed leaves the resident size
    print("dtype    ranks  difference  peak MB by rank            seconds  MB sent by a rank (rotations, neighbours)")
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype, ranks in itertools.product((torch.float64, torch.float32), arguments.ranks):
            row = measure(length, ranks, dtype, folder)
            peaks = ", ".join(f"{peak:.0f}" for peak in row["peak_megabytes_by_rank"])
            print(f"{row['dtype']:>7}  {ranks:>5}  {row['distance_from_one_in_float64']:>10.1e}", end="  ")
            print(f"{peaks:<25}  {row['seconds']:>7.1f}", end="  ")
            print(
                f"{row['rotation_bytes_by_rank'] / 1e6:.1f}, {max(row['neighbour_bytes_by_rank']) / 1e6:.3f}",
                flush=True,
            )
            cases.append(row)
    if arguments.out:
        header = {
            "command": "python benchmarks/context_parallel.py",
            "device": f"{platform.machine()}, {os.cpu_count()} cores, gloo",
        }
        header |= {"torch": torch.__version__, "date": date.today().isoformat(), "length": length}
        arguments.out.write_text(json.dumps({**header, "cases": cases}, indent=2) + "\n")


if __name__ == "__main__":
    main()
