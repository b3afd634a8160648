"""One block on a GPU: ours, the authors' way, and the floor that memory sets, in one run. Verify first, then time.

PYTHONPATH=src python benchmarks/kernels.py --out results.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from chordmixer import ops

CASES = (
    (16, 22, 128, 1, 1_500_000),
    (16, 22, 128, 4, 260_000),
    (16, 19, 128, 32, 33_000),
    (16, 14, 128, 2000, 422),
    (8, 22, 88, 1, 1_500_000),
)
"""Track size, tracks, hidden units, sequences, length."""
WIDE_CASES = (
    (16, 18, 196, 8, 33_000),
    (24, 11, 320, 150, 1_024),
    (28, 11, 420, 100, 1_024),
    (16, 18, 750, 8, 33_000),
)
"""Of the paper's documents, Pathfinder and Image, and its widest: both ways to compute a block, fused and by the
matrix library, whatever `ops.FUSED_HIDDEN` would choose."""


class Case:
    """Inputs of one block, and the three ways to compute it."""

    def __init__(self, track_size: int, tracks: int, hidden: int, sequences: int, length: int) -> None:
        torch.manual_seed(0)
        self.track_size, self.hidden, self.width = track_size, hidden, track_size * tracks
        self.sequences, self.length, self.tokens = sequences, length, sequences * length
        self.offsets = torch.arange(sequences + 1, device="cuda") * length
        sizes = ((hidden, self.width), (hidden,), (self.width, hidden), (self.width,))
        self.weights = [(torch.randn(s, device="cuda") / s[-1] ** 0.5).requires_grad_() for s in sizes]
        self.norm = [torch.ones(self.width, device="cuda"), torch.zeros(self.width, device="cuda")]

    def tokens_of(self, dtype: torch.dtype) -> Tensor:
        return torch.randn(self.tokens, self.width, device="cuda", dtype=dtype)

    def ours(self, x: Tensor) -> Tensor:
        return ops.block(x, self.offsets, self.track_size, ops.Mlp(*self.weights), backend="triton")

    def network(self, x: Tensor, prenorm: bool) -> Tensor:
        """Four blocks, each of which writes the row statistics that the next one's norm needs."""
        norms = [ops.NormState("layer", *self.norm) if prenorm else None] * 4
        exits = [(self.tokens, self.sequences)] * 4
        mlps = [ops.Mlp(*self.weights)] * 4
        return ops.blocks(x, self.offsets, exits, self.track_size, mlps, prenorms=norms, backend="triton")

    def batch_norm(self, x: Tensor) -> Tensor:
        norm = ops.NormState("batch", *self.norm, training=True)
        return ops.block(x, self.offsets, self.track_size, ops.Mlp(*self.weights), prenorm=norm, backend="triton")

    def authors(self, x: Tensor) -> Tensor:
        """Split into tracks, roll each, concatenate; two linear maps; add."""
        rotated = []
        for sequence in x.split(self.length):
            first, *others = sequence.split(self.track_size, dim=1)
            rolled = [torch.roll(track, -(2**i), dims=0) for i, track in enumerate(others)]
            rotated.append(torch.cat([first, *rolled], dim=1))
        w1, b1, w2, b2 = (w.to(x.dtype) for w in self.weights)
        return x + F.linear(F.gelu(F.linear(torch.cat(rotated), w1, b1)), w2, b2)

    def floors(self, bandwidth: float) -> tuple[float, float]:
        """Milliseconds forward and backward if only the bytes of bf16 counted (ops/README.md)."""
        forward = 3 * self.width * 2
        backward = 6 * self.width * 2 + 4 * self.hidden * 2
        return self.tokens * forward / bandwidth * 1e3, self.tokens * backward / bandwidth * 1e3


def verify(case: Case) -> float:
    """Largest relative error of output and gradients in bf16 against the authors' way in float32."""
    small = Case(case.track_size, case.width // case.track_size, case.hidden, 3, min(case.length, 20_000))
    x, gradient = small.tokens_of(torch.bfloat16), small.tokens_of(torch.bfloat16)
    results = []
    for function, dtype in ((small.ours, torch.bfloat16), (small.authors, torch.float32)):
        inputs = x.to(dtype).requires_grad_()
        out = function(inputs)
        results.append([out, *torch.autograd.grad(out, [inputs, *small.weights], gradient.to(dtype))])
    with torch.no_grad():
        errors = [float((a - b.to(a.dtype)).float().norm() / b.float().norm()) for a, b in zip(*results, strict=True)]
    assert max(errors) < 1e-2, f"the kernels differ from the authors' way by {errors}"
    return max(errors)


def milliseconds(function: Callable[[], Any], repeats: int = 10) -> float:
    """Median of device time, after one call to warm up; the device sleeps first, so that the host is ahead of it."""
    function()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def time_passes(
    case: Case, function: Callable[[Tensor], Tensor], dtype: torch.dtype, repeats: int
) -> tuple[float, float]:
    """Forward alone, then forward and backward."""
    x, gradient = case.tokens_of(dtype).requires_grad_(), case.tokens_of(dtype)

    def forward_backward() -> None:
        torch.autograd.grad(function(x), [x, *case.weights], gradient)

    with torch.no_grad():
        forward = milliseconds(lambda: function(x), repeats)
    return forward, milliseconds(forward_backward, repeats)


def measure(sizes: tuple[int, ...], bandwidth: float) -> dict[str, float]:
    case = Case(*sizes)
    error = verify(case)
    slow = 3 if case.sequences > 100 else 10
    ours = time_passes(case, case.ours, torch.bfloat16, 10)
    plain, normed = (time_passes(case, lambda x, p=p: case.network(x, p), torch.bfloat16, 5) for p in (False, True))
    batch = time_passes(case, case.batch_norm, torch.bfloat16, 5)
    half, full = (time_passes(case, case.authors, dtype, slow) for dtype in (torch.bfloat16, torch.float32))
    forward, backward = case.floors(bandwidth)
    return {
        "width": case.width, "hidden": case.hidden, "sequences": case.sequences, "length": case.length,
        "error": error, "forward": ours[0], "both": ours[1], "forward_floor": forward,
        "both_floor": forward + backward, "forward_of_floor": forward / ours[0],
        "both_of_floor": (forward + backward) / ours[1], "authors_bf16_both": half[1], "authors_fp32_both": full[1],
        "faster_than_bf16": half[1] / ours[1], "faster_than_fp32": full[1] / ours[1],
        "layer_norm_forward": normed[0] / plain[0], "layer_norm_both": normed[1] / plain[1],
        "batch_norm_forward": batch[0] / ours[0], "batch_norm_both": batch[1] / ours[1],
    }  # fmt: skip


def measure_variants(sizes: tuple[int, ...]) -> dict[str, float]:
    """Milliseconds in bf16, fused and by the library; and which of them `FUSED_HIDDEN` chooses."""
    case, original = Case(*sizes), ops.FUSED_HIDDEN
    row = {"width": case.width, "hidden": case.hidden, "sequences": case.sequences, "length": case.length}
    row["library_is_chosen"] = case.hidden > original
    try:
        for variant, limit in (("fused", case.hidden), ("library", 0)):
            ops.FUSED_HIDDEN = limit
            row[f"{variant}_error"] = verify(case)
            row[f"{variant}_forward"], row[f"{variant}_both"] = time_passes(case, case.ours, torch.bfloat16, 10)
    finally:
        ops.FUSED_HIDDEN = original
    return row | {"library_faster": row["fused_both"] / row["library_both"]}


def copy_bandwidth() -> float:
    """Bytes read plus written a second by a large copy."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * len(source) / milliseconds(lambda: target.copy_(source)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    rows = [measure(sizes, bandwidth) for sizes in CASES]
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s; milliseconds, bf16; floor reached in per cent")
    print("   C    H             case    fwd    %   both    %  x bf16  x fp32  LN fwd  LN both  BN fwd  BN both")
    for r in rows:
        case = f"{r['sequences']} x {r['length']:,}"
        print(
            f"{r['width']:>4} {r['hidden']:>4} {case:>16} {r['forward']:>6.2f} {r['forward_of_floor']:>4.0%}", end=" "
        )
        print(f"{r['both']:>6.2f} {r['both_of_floor']:>4.0%} {r['faster_than_bf16']:>7.1f}", end=" ")
        print(f"{r['faster_than_fp32']:>7.1f} {r['layer_norm_forward']:>7.2f} {r['layer_norm_both']:>8.2f}", end=" ")
        print(f"{r['batch_norm_forward']:>7.2f} {r['batch_norm_both']:>8.2f}")
    wide = [measure_variants(sizes) for sizes in WIDE_CASES]
    print("   C    H             case   fused fwd   both   library fwd   both   times faster")
    for r in wide:
        case = f"{r['sequences']} x {r['length']:,}"
        print(
            f"{r['width']:>4} {r['hidden']:>4} {case:>16} {r['fused_forward']:>11.2f} {r['fused_both']:>6.2f}",
            end=" ",
        )
        print(f"{r['library_forward']:>13.2f} {r['library_both']:>6.2f} {r['library_faster']:>14.1f}")
    if arguments.out:
        header = {"command": "python benchmarks/kernels.py", "device": torch.cuda.get_device_name()}
        header |= {"torch": torch.__version__, "date": date.today().isoformat(), "bandwidth": bandwidth}
        arguments.out.write_text(json.dumps({**header, "cases": rows, "wide": wide}, indent=2) + "\n")


if __name__ == "__main__":
    main()
