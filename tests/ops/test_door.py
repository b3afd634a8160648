"""The choice of the backend, and its messages."""

from __future__ import annotations

import sys

import pytest
import torch

from chordmixer import ops
from chordmixer.ops import reference

X, OFFSETS = torch.randn(9, 6), torch.tensor([0, 4, 9])


def test_a_cpu_tensor_takes_torch() -> None:
    assert not ops.on_kernels(X)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_an_argument_chooses_the_backend(backend: ops.Backend) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    assert torch.equal(ops.rotate(X, OFFSETS, 2, backend=backend), reference.rotate(X, OFFSETS, 2))


@pytest.mark.parametrize(
    ("version", "reason"), [(None, "triton is not installed"), ("2.1.0", r"triton 2\.1\.0 is older than 3\.2")]
)
def test_without_triton_torch_is_used_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str
) -> None:
    fake = None if version is None else type(sys)("triton")
    if fake is not None:
        fake.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ops._triton_missing.cache_clear()
    try:
        with pytest.warns(UserWarning, match=f"{reason}, so its GPU kernels are off and plain torch is used"):
            ops._triton_missing()
        assert not ops.on_kernels(X)
        with pytest.raises(ValueError, match=f"backend='triton' but {reason}: install a newer triton, or use"):
            ops.rotate(X, OFFSETS, 2, backend="triton")
    finally:
        ops._triton_missing.cache_clear()


def test_tracks_must_divide_the_channels() -> None:
    with pytest.raises(ValueError, match=r"shape \(9, 6\) do not divide into tracks of 4 channels"):
        ops.rotate(X, OFFSETS, 4)
