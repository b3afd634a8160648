"""The compiled kernels on a GPU, against the definition in float64. Run with `make test-gpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

import pytest
import torch

from chordmixer import ChordMixer, ChordMixerConfig, Packed
from chordmixer.ops import Mlp, NormState, block, reference, rotate, segment_mean

pytestmark = pytest.mark.gpu
MIXED = (1, 2, 3, 17, 5000, 400, 399, 64, 128)


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    return float(error.detach().nan_to_num(float("inf")))


def compare(
    lengths: tuple[int, ...], track_size: int, tracks: int, hidden: int, dtype: torch.dtype, order: str, prenorm: bool
) -> float:
    """The largest relative error of output and gradients; memory that nothing has written holds NaN."""
    torch.manual_seed(0)
    torch.utils.deterministic.fill_uninitialized_memory = True
    tokens, width = sum(lengths), track_size * tracks
    offsets = torch.tensor([0, *accumulate(lengths)], device="cuda")
    weights = [torch.randn(hidden, width) / width**0.5, torch.randn(hidden)]
    weights += [torch.randn(width, hidden) / hidden**0.5, torch.randn(width)]
    weights += [1 + 0.3 * torch.randn(width), torch.randn(width)] if prenorm else []
    x, gradient = torch.randn(2, tokens, width, device="cuda").to(dtype)
    results = []
    for backend, compute_dtype in (("triton", None), ("torch", torch.float64)):
        inputs = [x.to(compute_dtype or dtype), *(w.to("cuda", compute_dtype or torch.float32) for w in weights)]
        inputs = [value.detach().clone().requires_grad_() for value in inputs]
        norm = NormState("layer", *inputs[5:]) if prenorm else None
        out = block(inputs[0], offsets, track_size, Mlp(*inputs[1:5]), order=order, prenorm=norm, backend=backend)
        results.append([out, *torch.autograd.grad(out, inputs, gradient.to(out.dtype))])
    return max(distance(actual, expected) for actual, expected in zip(*results, strict=True))


@pytest.mark.parametrize("hidden", [128, 420], ids=["fused", "wide"])
@pytest.mark.parametrize("prenorm", [False, True], ids=["plain", "layer-norm"])
@pytest.mark.parametrize("order", ["paper", "released"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 1e-2)], ids=str
)
def test_every_gradient(dtype: torch.dtype, tolerance: float, order: str, prenorm: bool, hidden: int) -> None:
    assert compare(MIXED, 16, 14, hidden, dtype, order, prenorm) < tolerance


@pytest.mark.parametrize(
    ("track_size", "hidden"),
    [(4, 96), (8, 88), (10, 128), (12, 128), (16, 196), (20, 96), (24, 320), (28, 420), (32, 350), (16, 750)],
)
def test_any_track_and_hidden_size(track_size: int, hidden: int) -> None:
    """In bf16; float32 at these sizes runs in the interpreter, and takes long to compile."""
    assert compare((1, 300, 2, 45), track_size, 10, hidden, torch.bfloat16, "paper", False) < 1e-2


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
def test_lengths_from_one_to_300_000(dtype: torch.dtype, tolerance: float) -> None:
    assert compare((300_000, 1, 70_000, 2, 999, 31), 16, 20, 128, dtype, "paper", False) < tolerance


def test_more_than_two_to_the_31_elements() -> None:
    """The far end of a long tensor: addresses must not wrap at 32 bits."""
    length, width = 7_000_000, 400
    x = torch.zeros(length, width, device="cuda", dtype=torch.bfloat16)
    x[-1000:] = torch.randn(1000, width, device="cuda")
    weights = [torch.randn(128, width) / 20, torch.randn(128), torch.randn(width, 128) / 11, torch.randn(width)]
    mlp = Mlp(*(w.cuda() for w in weights))
    with torch.no_grad():
        far = block(x, torch.tensor([0, length - 1000, length], device="cuda"), 16, mlp)[-1000:]
        near = block(x[-1000:].clone(), torch.tensor([0, 1000], device="cuda"), 16, mlp)
    assert torch.equal(far, near)


def test_rotation_and_pooling() -> None:
    x = torch.randn(sum(MIXED), 48, device="cuda")
    offsets = torch.tensor([0, *accumulate(MIXED)], device="cuda")
    for reverse in (False, True):
        assert torch.equal(rotate(x, offsets, 4, reverse), reference.rotate(x, offsets, 4, reverse))
    assert distance(segment_mean(x, offsets), reference.segment_mean(x.double(), offsets)) < 1e-6


@pytest.mark.parametrize("reversible", [False, True])
def test_a_sequence_is_the_same_alone_and_in_a_batch(reversible: bool) -> None:
    torch.manual_seed(0)
    config = ChordMixerConfig(max_length=5000, track_size=16, hidden=64, prenorm="layer", reversible=reversible)
    encoder = ChordMixer(config).cuda().eval()
    sequences = [torch.randn(n, encoder.width, device="cuda") for n in MIXED]
    with torch.no_grad():
        batched = encoder(Packed.from_list(sequences)).to_list()
        for sequence, output in zip(sequences, batched, strict=True):
            torch.testing.assert_close(output, encoder(Packed.from_list([sequence])).values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [64, 320], ids=["fused", "wide"])
@pytest.mark.parametrize("reversible", [False, True])
def test_gradients_with_dropout(reversible: bool, hidden: int) -> None:
    """Gradients of a whole network, compared with a finite difference: the mask must be the same each time."""
    torch.manual_seed(0)
    config = ChordMixerConfig(max_length=3000, track_size=16, hidden=hidden, dropout=0.1, reversible=reversible)
    encoder = ChordMixer(config).cuda()
    x = torch.randn(3400, encoder.width, device="cuda", requires_grad=True)
    direction, weight = torch.randn(2, 3400, encoder.width, device="cuda")

    def loss(values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return (encoder(Packed.from_lengths(values, [3000, 400])).values.double() * weight).sum()

    (gradient,) = torch.autograd.grad(loss(x), x)
    with torch.no_grad():
        slope = (loss(x + 1e-3 * direction) - loss(x - 1e-3 * direction)) / 2e-3
    torch.testing.assert_close((gradient.double() * direction).sum(), slope, rtol=2e-3, atol=1.0)


def in_both_precisions(
    config: ChordMixerConfig, compared: Callable[[str], bool]
) -> Iterator[tuple[list[torch.Tensor], ChordMixer]]:
    """Output and gradients, of the tokens and of the parameters with these names: float32, then float64."""
    encoder, exact = ChordMixer(config).cuda(), ChordMixer(config).cuda().double()
    exact.load_state_dict(encoder.state_dict())
    x, gradient = torch.randn(2, sum(MIXED), encoder.width, device="cuda")
    for network in (encoder, exact):
        dtype = network.blocks[0].fc1.weight.dtype
        values = x.to(dtype).requires_grad_()
        output = network(Packed.from_lengths(values, list(MIXED))).values
        weights = [parameter for name, parameter in network.named_parameters() if compared(name)]
        yield [output, *torch.autograd.grad(output, [values, *weights], gradient.to(dtype))], network


@pytest.mark.parametrize("hidden", [64, 320], ids=["fused", "wide"])
@pytest.mark.parametrize("prenorm", [None, "layer"])
@pytest.mark.parametrize("order", ["paper", "released"])
def test_a_whole_network_equals_the_definition(order: str, prenorm: str | None, hidden: int) -> None:
    """All blocks as one operation, in float32 against float64: sequences leave after different blocks."""
    torch.manual_seed(0)
    config = ChordMixerConfig(max_length=5000, track_size=16, hidden=hidden, order=order, prenorm=prenorm)
    results = [result for result, _ in in_both_precisions(config, lambda name: True)]
    assert max(distance(actual, expected) for actual, expected in zip(*results, strict=True)) < 1e-4


@pytest.mark.parametrize("hidden", [64, 320], ids=["fused", "wide"])
@pytest.mark.parametrize("order", ["paper", "released"])
def test_batch_norms_on_both_sides_of_blocks(order: str, hidden: int) -> None:
    """As the released code has them. What a norm makes zero, gradients of biases and means, is not compared."""
    torch.manual_seed(0)
    config = ChordMixerConfig(5000, track_size=16, hidden=hidden, order=order, prenorm="batch", norm="batch")
    results = []
    for result, network in in_both_precisions(config, lambda name: name.endswith("weight")):
        running = [value for name, value in network.named_buffers() if name.endswith("variance")]
        x = torch.randn(sum(MIXED), network.width, generator=torch.Generator().manual_seed(1)).to(result[0])
        results.append([*result, *running, network.eval()(Packed.from_lengths(x, list(MIXED))).values])
    assert max(distance(actual, expected) for actual, expected in zip(*results, strict=True)) < 1e-3


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32")  # of torch's own compiler
def test_torch_compile() -> None:
    """The operator runs the same kernels: in bf16, gradients too, one graph for all lengths."""
    encoder = ChordMixer(ChordMixerConfig(max_length=1000, track_size=16, hidden=64, prenorm="layer")).cuda()
    compiled = torch.compile(encoder, fullgraph=True, dynamic=True)
    counters = torch._dynamo.utils.counters
    counters.clear()
    for lengths in ([1000, 17], [600, 5, 900]):
        x = Packed.from_list([torch.randn(n, encoder.width, device="cuda") for n in lengths])
        results = []
        for network in (compiled, encoder):
            with torch.autocast("cuda", torch.bfloat16):
                output = network(x).values
            results.append([output, *torch.autograd.grad(output.float().square().mean(), [*encoder.parameters()])])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert output.dtype == torch.bfloat16 and counters["stats"]["unique_graphs"] == 1
