from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chordmixer import ops
from chordmixer.models.norms import BatchShare, Norm, Standard


def test_none_holds_nothing() -> None:
    norm = Norm(None, width=6)
    assert norm.state() is None and not norm.state_dict()


@pytest.mark.parametrize("kind", ["layer", "batch", "group"])
def test_starts_as_torchs_own(kind: str) -> None:
    torch_norm = {
        "layer": torch.nn.LayerNorm(6),
        "batch": torch.nn.BatchNorm1d(6),
        "group": torch.nn.GroupNorm(2, 6),
    }[kind]
    values = torch.randn(9, 6) * 3 + 1
    actual = ops.normalise(values, torch.tensor([0, 9]), Norm(kind, width=6, groups=2).state())
    expected = torch_norm(values.T[None])[0].T if kind == "group" else torch_norm(values)
    torch.testing.assert_close(actual, expected)


def test_only_batch_norm_keeps_statistics_that_are_saved_but_not_learnt() -> None:
    norm = Norm("batch", width=6)
    assert norm.state_dict().keys() == {"weight", "bias", "mean", "variance"}
    assert dict(norm.named_parameters()).keys() == {"weight", "bias"}
    assert (
        Norm("layer", width=6).state_dict().keys() == Norm("group", width=6).state_dict().keys() == {"weight", "bias"}
    )


def test_batch_norm_learns_in_training_only() -> None:
    norm = Norm("batch", width=6)
    values, offsets = torch.randn(50, 6) + 3, torch.tensor([0, 20, 50])
    ops.normalise(values, offsets, norm.eval().state())
    assert not norm.mean.any()
    ops.normalise(values, offsets, norm.train().state())
    torch.testing.assert_close(norm.mean, 0.1 * values.mean(0))
    torch.testing.assert_close(norm.variance, 0.9 + 0.1 * values.var(0))


def test_standard_uses_the_batch_in_training_and_running_statistics_for_one_record() -> None:
    standard, x = Standard(3), torch.randn(50, 3) * 0.01 + 5
    y = standard.train()(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(y.std(0), torch.ones(3), rtol=0.05, atol=0)
    single = standard(x[:1])
    torch.testing.assert_close(single, standard.eval()(x[:1]))
    torch.testing.assert_close(standard(x)[:1], single)


def test_shares_of_a_batch_are_standardised_as_the_whole() -> None:
    """Output, gradient and running statistics; a record that only fills up a rank does not count."""
    torch.manual_seed(0)
    x, weights = torch.randn(7, 3) * 1e-3 + 0.25, torch.randn(7, 3)
    full, rank0, rank1 = (Standard(3).train() for _ in range(3))
    x_full = x.clone().requires_grad_()
    (full(x_full) * weights).sum().backward()
    first, second, idle = x[:5].clone().requires_grad_(), x[5:].clone().requires_grad_(), torch.randn(1, 3)

    def reduce_with(rest: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        sums = torch.cat([rest.double().sum(0), rest.double().square().sum(0)])
        return lambda local: local + sums

    rank0.share, rank1.share = (BatchShare(7, True, reduce_with(rest)) for rest in (second, first))
    outputs = torch.cat([rank0(first), rank1(second)])
    (outputs * weights).sum().backward()
    torch.testing.assert_close(outputs, Standard(3).train()(x), rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.cat([first.grad, second.grad]), x_full.grad, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close([rank0.mean, rank0.variance], [full.mean, full.variance])
    rank0.share = BatchShare(7, False, reduce_with(x))
    rank0(idle)
    torch.testing.assert_close(rank0.mean, full.mean * 0.9 + 0.1 * x.mean(0))
    rank0.share, mean = BatchShare(1, True, lambda local: local), rank0.mean.clone()
    rank0(x[:1])
    torch.testing.assert_close(rank0.mean, mean)


def test_standard_settles_on_collected_statistics() -> None:
    standard, x = Standard(2).eval(), torch.randn(40, 2) * 1e-2 + 3
    before = standard(x)
    standard.collect()
    torch.testing.assert_close(torch.cat([standard(x[:15]), standard(x[15:])]), before)
    standard.settle()
    torch.testing.assert_close(standard.mean, x.mean(0))
    torch.testing.assert_close(standard(x).std(0, correction=0), torch.ones(2), rtol=0.01, atol=0)
    standard(x + 1)  # nothing is kept any more
    torch.testing.assert_close(standard.mean, x.mean(0))


def test_standard_takes_bfloat16_and_answers_in_float32() -> None:
    assert Standard(2).eval()(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.float32
