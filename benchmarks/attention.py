"""Which attention suits which encoder: torch's kernels and `softmax_attention`, at their shapes, both passes, bf16.

The limits in `models/encoders/layers.py` rest on it. The first call of a shape is listed apart: cuDNN plans in it.

PYTHONPATH=src python benchmarks/attention.py --longest 1048576
"""

from __future__ import annotations

import argparse
import time
import warnings
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from chordmixer.models.encoders.layers import softmax_attention

KERNELS = {
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}
OURS = "as encoders do"
ROUNDS = 3

Parts = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""


class Shape(NamedTuple):
    """The shape of one attention; 0 `queries` or `keys` stand for all tokens."""

    name: str
    heads: int
    queries: int
    keys: int
    channels: int
    masked: bool


SHAPES = (
    Shape("Luna packs", 1, 16, 0, 32, masked=True),
    Shape("Luna unpacks", 1, 0, 16, 32, masked=False),
    Shape("Longformer's first token", 2, 1, 0, 64, masked=True),
    Shape("Linformer", 2, 0, 128, 64, masked=False),
    Shape("Longformer's windows", 2, 256, 769, 64, masked=True),
)


def inputs(shape: Shape, tokens: int, device: torch.device) -> tuple[Parts, Tensor | None]:
    """Queries, keys and values, and the mask; there are as many windows as the tokens fill."""
    rows = max(1, tokens // shape.queries) if shape.queries and shape.keys else 1
    queries, keys = shape.queries or tokens, shape.keys or tokens
    q, k, v = (
        torch.randn(rows, shape.heads, n, shape.channels, dtype=torch.bfloat16, device=device, requires_grad=True)
        for n in (queries, keys, keys)
    )
    mask_shape = (rows, 1, queries if rows > 1 else 1, keys)
    return (q, k, v), torch.rand(mask_shape, device=device) > 0.1 if shape.masked else None


def measure(kernel: SDPBackend | None, parts: Parts, mask: Tensor | None) -> list[float] | None:
    """Milliseconds of each round, or None if the kernel rejects the inputs. Without a kernel: `softmax_attention`."""
    (q, k, v), times = parts, []
    for _ in range(1 + ROUNDS):
        wait(q.device)
        start = time.perf_counter()
        try:
            with sdpa_kernel(kernel) if kernel else nullcontext(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                attend = F.scaled_dot_product_attention if kernel else softmax_attention
                out = attend(q, k, v, mask)
                out.backward(torch.ones_like(out))
        except RuntimeError:
            return None
        wait(q.device)
        times.append(1e3 * (time.perf_counter() - start))
    return times


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=1 << 20, help="tokens; shorter ones by steps of 8 times")
    longest, device = parser.parse_args().longest, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print("| | tokens |", " | ".join(f"{name}, ms" for name in (*KERNELS, OURS)), "|")
    print("|---|---|" + "---|" * (len(KERNELS) + 1))
    for shape in SHAPES:
        for tokens in (longest // 64, longest // 8, longest):
            parts, mask = inputs(shape, tokens, device)
            times = [measure(kernel, parts, mask) for kernel in (*KERNELS.values(), None)]
            cells = ["" if t is None else f"{min(t[1:]):.2f} ({t[0]:.0f})" for t in times]
            print(f"| {shape.name} | {tokens:,} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
