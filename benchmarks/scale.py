"""The whole network on a GPU: peak memory of a training step on one long sequence, and time a token against length.

PYTHONPATH=src python benchmarks/scale.py --out results.json --plot results.png
"""

from __future__ import annotations

import argparse
import json
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import torch

from chordmixer import ChordMixerConfig, Model, ModelConfig, Packed

STEPS = ((1_500_000, False), (1_500_000, True), (10_000_000, True))
"""Length, and whether the network is reversible."""
LENGTHS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)


def model_for(length: int, reversible: bool) -> Model:
    """The paper's sizes, S = 16 and H = 128, on two real channels."""
    network = ChordMixerConfig(max_length=length, track_size=16, hidden=128, reversible=reversible)
    return Model(ModelConfig(inputs=2, outputs=1, embedding="real", network=network)).cuda()


def training_step(length: int, reversible: bool) -> dict[str, Any]:
    """Seconds and peak bytes of forward, backward and optimiser; the first of two steps warms up."""
    model = model_for(length, reversible)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = Packed.from_list([torch.rand(length, 2, device="cuda")])
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        end.synchronize()
    assert torch.isfinite(loss)
    return {
        "length": length,
        "reversible": reversible,
        "blocks": model.config.network.depth,
        "seconds": start.elapsed_time(end) / 1e3,
        "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9,
    }


def inference(length: int, model: Model) -> dict[str, Any]:
    """Nanoseconds a token of one network, built for the longest, on batches of about a million tokens."""
    sequences = max(1, 1_000_000 // length)
    x = Packed.from_lengths(torch.rand(sequences * length, 2, device="cuda"), [length] * sequences)
    times = []
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        for _ in range(5):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            model(x)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    nanoseconds = statistics.median(times[1:]) * 1e6 / x.tokens
    return {"length": length, "blocks": (length - 1).bit_length(), "nanoseconds_per_token": nanoseconds}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time a token against length: a straight line over a logarithmic axis, as blocks grow with log2 N."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    lengths, times = [r["length"] for r in rows], [r["nanoseconds_per_token"] for r in rows]
    axes.semilogx(lengths, times, "o-", color="#1f5fbf", label="measured")
    slope = statistics.mean(t / r["blocks"] for t, r in zip(times, rows, strict=True))
    axes.semilogx(lengths, [slope * r["blocks"] for r in rows], "--", color="grey", label=f"{slope:.2f} ns x log2 N")
    axes.set(
        xlabel="length N", ylabel="nanoseconds a token", ylim=(0, None), title="Inference, S = 16, H = 128, bf16"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    steps = []
    for length, reversible in STEPS:
        steps.append(training_step(length, reversible))
        torch.cuda.empty_cache()
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in steps[-1].items()}, flush=True)
    model = model_for(LENGTHS[-1], reversible=False).eval()
    rows = [inference(length, model) for length in LENGTHS]
    for row in rows:
        print(f"{row['length']:>12,} tokens: {row['nanoseconds_per_token']:.1f} ns a token, {row['blocks']} blocks")
    if arguments.plot:
        draw(rows, arguments.plot)
    if arguments.out:
        header = {"command": "python benchmarks/scale.py", "device": torch.cuda.get_device_name()}
        header |= {"torch": torch.__version__, "date": date.today().isoformat()}
        arguments.out.write_text(json.dumps({**header, "training_steps": steps, "inference": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
