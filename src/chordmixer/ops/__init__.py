"""The public operations on packed tokens: pure functions of tensors.

`reference.py` defines them; this module chooses the implementation. `backend="auto"` uses the Triton kernels for
tensors on a GPU if Triton is installed, and torch otherwise; `torch` and `triton` force one of them.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from chordmixer.ops import cpu_blocks, rotation, sums, torch_block, vectorised
from chordmixer.ops.reference import Exits, Mlp, NormState, mix
from chordmixer.ops.torch_block import layer_norm, normalise

__all__ = [
    "Backend",
    "Exits",
    "Mlp",
    "NormState",
    "activations",
    "block",
    "blocks",
    "exporting",
    "joins",
    "layer_norm",
    "mix",
    "normalise",
    "on_kernels",
    "rotate",
    "segment_max",
    "segment_mean",
]

Backend = Literal["auto", "torch", "triton"]
OLDEST_TRITON = (3, 2)
FUSED_HIDDEN = 256
"""Number of hidden units up to which the fused Triton kernels are used; for more, `triton_wide.py`."""


def rotate(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    track_size: int,
    reverse: bool = False,
    backend: Backend = "auto",
) -> Float[Tensor, "T C"]:
    """Track t >= 1 of position j takes position (j + 2^(t-1)) mod N of its own sequence; `reverse` is the inverse.

    >>> x = torch.arange(4).float()[:, None].expand(4, 3)
    >>> rotate(x, torch.tensor([0, 4]), track_size=1).T
    tensor([[0., 1., 2., 3.],
            [1., 2., 3., 0.],
            [2., 3., 0., 1.]])
    """
    if values.ndim != 2 or values.shape[1] % track_size:
        raise ValueError(
            f"values of shape {tuple(values.shape)} do not divide into tracks of {track_size} channels: give a "
            "(T, C) tensor with C a multiple of track_size"
        )
    module = _kernels("rows") if _on_kernels(values, backend) else rotation
    rotated: Tensor = module.rotate(values, offsets, track_size, reverse)
    return rotated


def segment_mean(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], backend: Backend = "auto"
) -> Float[Tensor, "B C"]:
    """The mean of each sequence's tokens, in float32 or better."""
    if exporting():
        return vectorised.segment_mean(values, offsets)
    module = _kernels("rows") if _on_kernels(values, backend) else sums
    means: Tensor = module.segment_mean(values, offsets)
    return means


def segment_max(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """The maximum of each channel over a sequence's tokens; tied tokens share its gradient equally."""
    module = vectorised if exporting() else sums
    maxima: Tensor = module.segment_max(values, offsets)
    return maxima


def block(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    track_size: int,
    mlp: Mlp,
    *,
    order: str = "paper",
    prenorm: NormState | None = None,
    norm: NormState | None = None,
    dropout: float = 0.0,
    residual: Float[Tensor, "T C"] | None = None,
    out: Float[Tensor, "T C"] | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "T C"]:
    """One ChordMixer block: see `reference.block`.

    Without gradients the result may be written to `out`, which may be `residual` but not `values`.
    """
    if _on_kernels(values, backend):
        norms = {"prenorm": prenorm, "norm": norm}
        mixed: Tensor = _kernels("block").block(
            values, offsets, track_size, mlp, order=order, **norms, dropout=dropout, residual=residual, out=out
        )
        return mixed
    residual = values if residual is None else residual
    updates_statistics = any(each is not None and each.training for each in (prenorm, norm))
    if torch.is_grad_enabled() or dropout or updates_statistics or torch.compiler.is_compiling():
        return torch_block.block(values, offsets, track_size, mlp, order, prenorm, norm, residual, dropout)
    out = torch.empty_like(residual, memory_format=torch.contiguous_format) if out is None else out
    return torch_block.tiled_block(values, offsets, track_size, mlp, order, prenorm, norm, residual, out)


def blocks(
    values: Float[Tensor, "T C"],
    offsets: Int[Tensor, "B+1"],
    exits: Exits,
    track_size: int,
    mlps: Sequence[Mlp],
    *,
    order: str = "paper",
    prenorms: Sequence[NormState | None],
    dropout: float = 0.0,
    counts: Int[Tensor, "D 4"] | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "T C"]:
    """All blocks as one operation, with layer norms before Rotate or none: see `reference.blocks`.

    The kernels read `counts` on the device instead of the numbers in `exits`: see `StaticPacked`.
    """
    if _on_kernels(values, backend):
        settings = {"order": order, "prenorms": prenorms, "dropout": dropout, "counts": counts}
        mixed: Tensor = _kernels("block").blocks(values, offsets, exits, track_size, mlps, **settings)
        return mixed
    if joins(values, order):
        dtype = cpu_blocks.product_type(values)
        return cpu_blocks.blocks(values, offsets, exits, track_size, mlps, prenorms, dropout, dtype)
    finished = []
    for mlp, prenorm, (tokens, sequences) in zip(mlps, prenorms, exits, strict=True):
        finished.append(values[tokens:])
        inputs = (values[:tokens], offsets[: sequences + 1], track_size, mlp)
        values = block(*inputs, order=order, prenorm=prenorm, dropout=dropout, backend="torch")
    return torch.cat([values, *reversed(finished)])


def exporting() -> bool:
    """Whether `torch.export` is tracing, but not `torch.compile`, for which torch 2.11 says so too."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def on_kernels(values: Tensor) -> bool:
    """Whether `auto` uses the Triton kernels for these tensors."""
    return _on_kernels(values, "auto")


def joins(values: Tensor, order: str) -> bool:
    """Whether `blocks` runs as one operation: with the kernels, or on a CPU in the paper's order."""
    tiled = values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64) and order == "paper"
    return on_kernels(values) or (tiled and not torch.compiler.is_compiling())


def activations(values: Tensor) -> torch.dtype:
    """The dtype of a network's tokens between blocks: with the kernels, that of autocast."""
    device = values.device.type
    if torch.is_autocast_enabled(device) and _fits(values):
        return torch.get_autocast_dtype(device)
    return values.dtype


def _on_kernels(values: Tensor, backend: Backend) -> bool:
    if backend == "auto":
        return not torch.compiler.is_compiling() and _fits(values)
    if backend == "triton" and (reason := _triton_missing()):
        raise ValueError(f"backend='triton' but {reason}: install a newer triton, or use backend='torch'")
    return backend == "triton"


def _fits(values: Tensor) -> bool:
    return values.is_cuda and values.dtype != torch.float64 and _triton_missing() is None


def _kernels(part: str) -> ModuleType:
    """Import a module of Triton kernels, only when it is used."""
    return importlib.import_module(f"chordmixer.ops.triton_{part}")


@cache
def _triton_missing() -> str | None:
    """Why Triton cannot be used, or None if it can; warns once if there is a GPU."""
    try:
        import triton
    except ImportError:
        reason = "triton is not installed"
    else:
        version = tuple(int(n) for n in re.findall(r"\d+", triton.__version__)[:2])
        reason = f"triton {triton.__version__} is older than {OLDEST_TRITON[0]}.{OLDEST_TRITON[1]}"
        if version >= OLDEST_TRITON:
            return None
    if torch.cuda.is_available():
        warnings.warn(f"chordmixer: {reason}, so its GPU kernels are off and plain torch is used", stacklevel=3)
    return reason
