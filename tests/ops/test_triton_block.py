"""The block in Triton's interpreter, fused or not: forward and every gradient against the definition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from unittest.mock import Mock

import pytest
import torch

from chordmixer import ChordMixer, ChordMixerConfig, Packed, ops
from chordmixer.models.chordmixer import depth
from chordmixer.ops import Mlp, NormState, reference

triton_plan = pytest.importorskip("chordmixer.ops.triton_plan", reason="Triton is not installed")
triton_block = pytest.importorskip("chordmixer.ops.triton_block", reason="Triton is not installed")
pytestmark = [
    pytest.mark.usefixtures("unwritten_is_nan"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),  # the interpreter's random numbers
]
MIXED = (1, 2, 3, 17, 40, 150)


@pytest.fixture(params=["fused", "wide"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels that compute blocks, for any size of the hidden layer."""
    monkeypatch.setattr(ops, "FUSED_HIDDEN", 10**6 if request.param == "fused" else 0)
    implementation: str = request.param
    return implementation


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("prenorm", [None, "layer", "batch", "group"])
@pytest.mark.parametrize("order", ["paper", "released"])
def test_equals_the_definition(gradients: Callable, distance: Callable, order: str, prenorm: str | None) -> None:
    """Every order and every norm; the residual is the input, or another tensor."""
    separate = (order == "paper") == (prenorm in ("layer", "group"))
    actual, expected = (
        gradients(block, MIXED, 4, 5, 20, prenorm=prenorm, separate=separate, order=order)
        for block in (triton_block.block, reference.block)
    )
    assert distance(actual, expected) < 2e-6


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(
    ("order", "prenorm", "lengths"),
    [
        ("paper", None, (150, 40, 17, 3, 2, 1)),
        ("released", "layer", (150, 40, 17, 3, 2, 1)),
        ("released", None, (200, 90)),
        ("paper", "layer", (8, 8)),
        ("released", "layer", (1,)),
    ],
    ids=str,
)
def test_many_blocks_at_once(order: str, prenorm: str | None, lengths: tuple[int, ...]) -> None:
    """The output and every gradient; sequences leave after different blocks."""
    torch.manual_seed(0)
    depths = [max(1, (n - 1).bit_length() // 2) for n in lengths]
    staying = [sum(d > i for d in depths) for i in range(max(depths))]
    exits = [(sum(lengths[:count]), count) for count in staying]
    width, hidden, depth = 12, 16, len(exits)
    x, gradient = torch.randn(2, sum(lengths), width)
    shapes = ((hidden, width), (hidden,), (width, hidden), (width,), (width,), (width,))
    weights = [[torch.randn(shape) / shape[-1] ** 0.5 for shape in shapes] for _ in range(depth)]
    answers = []
    for function in (triton_block.blocks, reference.blocks):
        values = x.clone().requires_grad_()
        parameters = [[w.clone().requires_grad_() for w in block] for block in weights]
        mlps = [Mlp(*block[:4]) for block in parameters]
        norms = [prenorm and NormState(prenorm, *block[4:]) for block in parameters]
        offsets = torch.tensor([0, *accumulate(lengths)])
        actual = function(values, offsets, exits, 4, mlps, order=order, prenorms=norms)
        inputs = [values, *(w for block in parameters for w in block[: 6 if prenorm else 4])]
        answers.append([actual, *torch.autograd.grad(actual, inputs, gradient)])
    for actual, expected in zip(*answers, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_a_compiled_network_runs_on_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward within the operator of `torch.compile`, as if these tensors were on a GPU."""
    encoder = ChordMixer(ChordMixerConfig(max_length=16, track_size=4, hidden=16, prenorm="layer"))
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True, dynamic=True)
    calls = Mock(wraps=triton_block.blocks)
    monkeypatch.setattr(triton_block, "blocks", calls)
    for lengths in ([3, 16], [1, 5, 2]):
        x = Packed.from_lengths(torch.randn(sum(lengths), encoder.width), lengths)
        weights = [*encoder.blocks[: depth(max(lengths))].parameters()]
        expected = torch.autograd.grad(encoder(x).values.square().sum(), weights)
        with monkeypatch.context() as patch:
            patch.setattr(ops, "_fits", lambda _: True)
            actual = torch.autograd.grad(compiled(x).values.square().sum(), weights)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert calls.call_count == 2
    torch._dynamo.reset()


@pytest.mark.usefixtures("implementation")
def test_batch_norm_keeps_running_statistics() -> None:
    x = torch.randn(300, 12) * 3 + 1
    mlp = Mlp(torch.randn(16, 12), torch.randn(16), torch.randn(12, 16), torch.randn(12))
    results = []
    for block in (triton_block.block, reference.block):
        norm = NormState(
            "batch", torch.ones(12), torch.zeros(12), mean=torch.zeros(12), variance=torch.ones(12), training=True
        )
        block(x, torch.tensor([0, 300]), 4, mlp, prenorm=norm)
        evaluated = block(x, torch.tensor([0, 300]), 4, mlp, prenorm=norm._replace(training=False))
        results.append((norm.mean, norm.variance, evaluated))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("implementation")
def test_dropout_differs_between_blocks() -> None:
    x, zero = torch.ones(200, 8), torch.zeros(8)
    mlp = Mlp(torch.eye(8), torch.full((8,), 8.0), torch.eye(8), zero)
    with torch.no_grad():
        one_block, two_blocks = (
            triton_block.blocks(
                x, torch.tensor([0, 200]), [(200, 1)] * n, 4, [mlp] * n, prenorms=[None] * n, dropout=0.5
            )
            for n in (1, 2)
        )
    assert len(one_block.unique()) == 2
    assert len(two_blocks.round().unique()) > 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits(gradients: Callable, distance: Callable, implementation: str, dtype: torch.dtype) -> None:
    if implementation == "fused" and dtype == torch.bfloat16:
        pytest.skip("the interpreter cannot multiply bf16 matrices; tests/gpu has those")
    actual = gradients(triton_block.block, MIXED, 8, 4, 32, dtype=dtype)
    expected = gradients(reference.block, MIXED, 8, 4, 32, dtype=dtype, compute_dtype=torch.float64)
    assert actual["out"].dtype == actual["x"].dtype == dtype
    assert actual["w1"].dtype == torch.float32
    assert distance(actual, expected) < 1e-2


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("order", ["paper", "released"])
def test_dropout_repeats_its_mask_backward(order: str) -> None:
    """With dropout the block is still linear in what it drops: its gradient must match a finite difference."""
    torch.manual_seed(0)
    x = torch.randn(50, 12)
    mlp = Mlp(torch.randn(16, 12) / 4, torch.randn(16), torch.randn(12, 16) / 4, torch.randn(12))
    offsets, direction, weight = torch.tensor([0, 3, 50]), torch.randn(50, 12), torch.randn(50, 12)

    def loss(values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)  # the seed of the mask is drawn from torch's generator
        return (triton_block.block(values, offsets, 4, mlp, order=order, dropout=0.4) * weight).sum()

    (gradient,) = torch.autograd.grad(loss(x.requires_grad_()), x)
    with torch.no_grad():
        slope = (loss(x + 1e-2 * direction).double() - loss(x - 1e-2 * direction).double()) / 2e-2
    torch.testing.assert_close(slope.float(), (gradient * direction).sum(), rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("implementation")
def test_dropout_drops_its_share() -> None:
    x = torch.ones(400, 16)
    mlp = Mlp(torch.eye(16), torch.full((16,), 8.0), torch.eye(16), torch.zeros(16))  # gelu(8 + z) is 8 + z
    with torch.no_grad():
        z = triton_block.block(x, torch.tensor([0, 400]), 4, mlp, dropout=0.25) - 9
    mask = z > 0.5
    torch.testing.assert_close(z[mask], torch.full_like(z[mask], 1 / 0.75), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(z[~mask], torch.zeros_like(z[~mask]), rtol=0, atol=1e-4)
    assert abs(mask.float().mean() - 0.75) < 0.02


@pytest.mark.usefixtures("implementation")
def test_writes_into_out_and_over_the_residual() -> None:
    x, residual = torch.randn(70, 12), torch.randn(70, 12)
    mlp = Mlp(torch.randn(16, 12), torch.randn(16), torch.randn(12, 16), torch.randn(12))
    offsets = torch.tensor([0, 70])
    with torch.no_grad():
        expected = reference.block(x, offsets, 4, mlp, residual=residual)
        actual = triton_block.block(x, offsets, 4, mlp, residual=residual, out=residual)
    assert actual.data_ptr() == residual.data_ptr()
    torch.testing.assert_close(residual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("kind", ["layer", "group"])
def test_a_norm_behind_the_residual_is_in_out_too(kind: str) -> None:
    x, weight, bias = torch.randn(70, 12), torch.randn(12), torch.randn(12)
    mlp = Mlp(torch.randn(16, 12), torch.randn(16), torch.randn(12, 16), torch.randn(12))
    norm, offsets, out = NormState(kind, weight, bias, groups=3), torch.tensor([0, 30, 70]), torch.empty(70, 12)
    with torch.no_grad():
        actual = triton_block.block(x, offsets, 4, mlp, norm=norm, out=out)
    assert actual.data_ptr() == out.data_ptr()
    torch.testing.assert_close(out, reference.block(x, offsets, 4, mlp, norm=norm), rtol=1e-4, atol=1e-4)
