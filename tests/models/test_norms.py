from __future__ import annotations

import pytest
import torch

from chordmixer import ops
from chordmixer.models.norms import Norm


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
