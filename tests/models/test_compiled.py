"""The encoder between other layers under `torch.compile`: one graph, with the results of eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shutil import which
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chordmixer import ChordMixer, ChordMixerConfig, Packed, ops
from chordmixer.models import compiled as operator

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's compiler warns of itself
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
KINDS = [{"prenorm": "layer"}, {"order": "released", "prenorm": "group", "norm": "layer"}]


@pytest.fixture(autouse=True)
def reset_compiler() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    """The number of graphs compiled in this test."""
    count: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return count


class Network(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.encoder = ChordMixer(ChordMixerConfig(max_length=100, track_size=2, hidden=8, **settings))
        self.embedding = nn.Embedding(5, self.encoder.width)
        self.head = nn.Linear(self.encoder.width, 3)

    def forward(self, x: Packed) -> Tensor:
        y = self.encoder(x.with_values(self.embedding(x.values)))
        return self.head(ops.segment_mean(y.values, y.offsets))


def batch(longest: int = 100) -> Packed:
    """One to nine sequences of random lengths; any compiler makes a separate graph for a batch of one token."""
    lengths = torch.randint(2, longest + 1, (int(torch.randint(1, 10, ())),))
    return Packed.from_list([torch.randint(5, (int(n),)) for n in lengths])


def gradients(network: nn.Module, forward: Callable[[Packed], Tensor], x: Packed) -> list[Tensor]:
    """The output, and the gradient of every weight; zeros where no sequence reached a weight."""
    network.zero_grad()
    out = forward(x)
    out.square().sum().backward()
    return [out.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters())]


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_fifty_batches_of_random_lengths_are_two_graphs(settings: dict[str, Any]) -> None:
    """One graph for batches and one for a single sequence, whose mean has another shape for the compiler."""
    network = Network(**settings)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True, dynamic=True)
    for longest in [100] * 25 + [8] * 25:  # the second half does not reach the last blocks
        x = batch(longest)
        torch.testing.assert_close(gradients(network, compiled, x), gradients(network, network, x))
        assert not operator._SAVED_GRAPHS
    assert graphs() <= 2


@pytest.mark.parametrize("settings", [{"prenorm": "batch"}, {"prenorm": "layer", "reversible": True}, {}], ids=str)
def test_what_cannot_be_an_operator_runs_outside_the_graph(settings: dict[str, Any]) -> None:
    """Batch norms, reversible networks, and hooks without either: no batch is compiled again."""
    network, shapes = Network(**settings), list[torch.Size]()
    if not settings:
        network.encoder.blocks[0].register_forward_hook(lambda _, __, out: shapes.append(out.shape))
    compiled = torch.compile(network, backend="aot_eager", dynamic=True)
    for x in (batch().select([0]), batch(), *(batch() for _ in range(8))):
        torch.testing.assert_close(gradients(network, compiled, x), gradients(network, network, x))
    assert graphs() <= 5
    assert shapes[::2] == shapes[1::2] and len(shapes) == (0 if settings else 20)


def test_dropout_draws_its_seed_from_torch() -> None:
    network = Network(dropout=0.5)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    x = batch()
    torch.manual_seed(7)
    actual, after, second_output = gradients(network, compiled, x), torch.rand(()), compiled(x)
    torch.manual_seed(7)
    seed, expected_after = int(torch.randint(1 << 62, ())), torch.rand(())
    torch.manual_seed(seed)
    torch.testing.assert_close(actual, gradients(network, network, x))
    assert after == expected_after and not torch.equal(second_output, actual[0])


def test_autocast_inference_and_frozen_weights() -> None:
    network = Network(prenorm="layer")
    network.encoder.blocks[1].requires_grad_(False)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True, dynamic=True)
    x = batch()
    exact = network(x).detach()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(gradients(network, compiled, x), gradients(network, network, x))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), network(x))
            assert not torch.allclose(compiled(x).float(), exact, rtol=1e-5, atol=1e-5)
    assert network.encoder.blocks[1].fc1.weight.grad is None and network.encoder.blocks[2].fc1.weight.grad is not None


def test_what_was_recorded_is_freed_without_a_backward_pass() -> None:
    compiled = torch.compile(Network(), backend="aot_eager", fullgraph=True)
    first, second = compiled(batch()), compiled(batch())
    assert len(operator._SAVED_GRAPHS) == 2
    del first
    assert len(operator._SAVED_GRAPHS) == 1
    second.sum().backward()
    del second
    assert not operator._SAVED_GRAPHS


def test_encoders_with_equal_weights_and_other_settings_are_told_apart() -> None:
    """Two encoders share the compiled code; their settings must not be confused."""
    x = Packed.from_lengths(torch.randn(90, 16), [60, 30])
    for order in ("paper", "released"):
        encoder = ChordMixer(ChordMixerConfig(max_length=100, track_size=2, hidden=8, order=order))
        output = torch.compile(encoder, backend="eager", fullgraph=True)(x)
        assert output.lengths == (60, 30)
        torch.testing.assert_close(output.values, encoder(x).values)


def test_errors_are_those_of_eager() -> None:
    compiled = torch.compile(Network(), backend="aot_eager", dynamic=True)
    with pytest.raises(
        ValueError, match="sequence 1 of the batch has 101 tokens, above this network's max_length=100"
    ):
        compiled(Packed.from_lengths(torch.zeros(103, dtype=torch.int64), [2, 101]))


@pytest.mark.skipif(not any(map(which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler")
def test_inductor() -> None:
    network = Network(prenorm="layer")
    compiled = torch.compile(network, fullgraph=True, dynamic=True)
    for lengths in ([3, 100, 40], [1, 17], [5, 5, 5, 5]):
        x = Packed.from_list([torch.randint(5, (n,)) for n in lengths])
        torch.testing.assert_close(
            gradients(network, compiled, x), gradients(network, network, x), rtol=1e-4, atol=1e-5
        )
    assert graphs() == 1
