from __future__ import annotations

import pytest
import torch

from chordmixer import ops
from chordmixer.models.norms import Norm, Standard


def test_none_holds_nothing() -> None:
    norm = Norm(None, width=6)
    assert norm.state() is None and not norm.state_dict()


@pytest.mark.parametrize("kind", ["layer", "batch", "group"])
def test_starts_as_torchs_own(kind: str) -> None:
    theirs = {
        "layer": torch.nn.LayerNorm(6),
        "batch": torch.nn.BatchNorm1d(6),
        "group": torch.nn.GroupNorm(2, 6),
    }[kind]
    values = torch.randn(9, 6) * 3 + 1
    ours = ops.normalise(values, torch.tensor([0, 9]), Norm(kind, width=6, groups=2).state())
    expected = theirs(values.T[None])[0].T if kind == "group" else theirs(values)
    torch.testing.assert_close(ours, expected)


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


def test_standard_in_training_looks_at_the_batch_and_alone_at_what_it_knows() -> None:
    standard, x = Standard(3), torch.randn(50, 3) * 0.01 + 5
    y = standard.train()(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(y.std(0), torch.ones(3), rtol=0.05, atol=0)
    alone = standard(x[:1])
    torch.testing.assert_close(alone, standard.eval()(x[:1]))
    torch.testing.assert_close(standard(x)[:1], alone)


def test_standard_settles_on_what_passed() -> None:
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
