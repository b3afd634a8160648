"""Models in which every number matters: none keeps its initial zero or one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from chordmixer import Packed


@pytest.fixture
def scrambled() -> Callable[[nn.Module], nn.Module]:
    """The same module with random norms, biases and running statistics, in evaluation mode."""

    def scramble(module: nn.Module) -> nn.Module:
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            with torch.no_grad():
                if name.endswith(("variance", "running_var")):
                    value.uniform_(1.0, 2.0)
                elif "norm" in name and name.endswith("weight"):
                    value.uniform_(0.8, 1.2)
                elif value.ndim == 1 and value.is_floating_point():
                    value.normal_(std=0.1)
        return module.eval()

    return scramble


@pytest.fixture
def random_batch() -> Callable[..., Packed]:
    """Normally distributed tokens of a given width, for sequences of the given lengths."""

    def make(lengths: Iterable[int], width: int, dtype: torch.dtype = torch.float32) -> Packed:
        lengths = list(lengths)
        return Packed.from_lengths(torch.randn(sum(lengths), width, dtype=dtype), lengths)

    return make


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def process_group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
