"""The largest batch, tried out, and memory that runs out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chordmixer.data import Batch
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.tasks.targets import Regression
from chordmixer.training.rehearsal import explained, rehearse

CPU = torch.device("cpu")


def batch_of(lengths: list[int]) -> Batch:
    return Batch(
        Packed.from_lengths(torch.randn(sum(lengths), 2), lengths), torch.rand(len(lengths)), [*range(len(lengths))]
    )


@pytest.mark.parametrize("reversible", [False, True])
def test_a_rehearsal_leaves_nothing(reversible: bool) -> None:
    network = ChordMixerConfig(
        max_length=64, track_size=2, hidden=4, dropout=0.3, prenorm="batch", reversible=reversible
    )
    model = Model(ModelConfig(2, 1, embedding="real", network=network)).eval()
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch, random = batch_of([60, 12]), torch.get_rng_state()
    seen: list[bool] = []
    model.encoder.register_forward_hook(lambda module, *_: seen.append(module.training))
    rehearse(model, batch, Regression())
    assert seen == [True] and not model.training, "as in training, and back"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(first.grad, torch.ones_like(first))
    assert all(p.grad is None for p in [*model.parameters()][1:])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 7 bytes"),
    ],
    ids=["gpu", "cpu"],
)
def test_memory_that_runs_out_is_explained(error: RuntimeError) -> None:
    model = Model(
        ModelConfig(2, 1, embedding="real", network=ChordMixerConfig(max_length=64, track_size=2, hidden=4))
    )

    def fail(*_: object) -> None:
        raise error

    model.encoder.register_forward_hook(fail)
    with pytest.raises(
        ValueError,
        match=r"the memory of cpu ran out over a batch of 72 tokens in 2 records: its longest record x has 60 "
        r"tokens; set a smaller training.batch_tokens, model.network.reversible=true or a smaller "
        r"model.network.track_size$",
    ):
        rehearse(model, batch_of([60, 12]), Regression(), "x")


def test_a_batch_of_pairs_is_told_by_its_records() -> None:
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4)
    model = Model(ModelConfig(2, 1, embedding="real", head="pair", network=network))

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    model.encoder.register_forward_hook(fail)
    batch = replace(batch_of([60, 12, 5, 9]), targets=torch.rand(2), indices=[1, 0])
    with pytest.raises(ValueError, match="86 tokens in 2 records: its longest record x has 72 tokens"):
        rehearse(model, batch, Regression(), "x")


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="a bug"), explained([5], CPU):
        raise RuntimeError("a bug")
