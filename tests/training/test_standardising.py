from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chordmixer import Model, Packed, files
from chordmixer.config import override
from chordmixer.data import Loader, TokenSampler
from chordmixer.ops import segment_mean
from chordmixer.training import Experiment, standardising, train
from chordmixer.training.standardising import standardise


@pytest.fixture
def standard(tiny: Experiment) -> Experiment:
    return override(tiny, {"model": {"head": "standard"}})


def loader(experiment: Experiment, **settings: Any) -> Loader:
    records = experiment.build_task().records("training")
    return Loader(records, TokenSampler(records.lengths, tokens=2_000, sequences=5, **settings), drawing=True)


def pooled(model: Model, made: Loader, indices: list[int]) -> torch.Tensor:
    """Each record alone."""
    rows = []
    with torch.inference_mode():
        for index in indices:
            x: Packed = model.eval().encode(made.batch([index]).inputs)
            rows.append(segment_mean(x.values, x.offsets))
    return torch.cat(rows)


def test_mean_and_spread_over_records(standard: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    made, model = loader(standard), Model(standard.model)
    everyone = pooled(model, made, list(range(len(made.records.lengths))))
    standardise(model, made, 0, half=False)
    head: Any = model.head
    torch.testing.assert_close(head.standard.mean, everyone.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.standard.variance, everyone.var(0, correction=0), rtol=1e-3, atol=1e-7)
    monkeypatch.setattr(standardising, "RECORDS", 7)
    standardise(model, made, 0, half=False)
    assert not torch.allclose(head.standard.mean, everyone.mean(0), rtol=1e-4, atol=1e-5)


def test_the_same_on_every_rank(standard: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standardising, "RECORDS", 9)
    model, found = Model(standard.model), []
    head: Any = model.head
    for rank in (0, 1):
        standardise(model, loader(standard, rank=rank, ranks=2), 0, half=False)
        found.append(head.standard.mean.clone())
    assert torch.equal(*found)


def test_other_heads_are_left_alone(tiny: Experiment) -> None:
    model = Model(tiny.model).train()
    standardise(model, loader(tiny), 0, half=False)
    assert model.training


def test_going_on_gives_the_same_weights(standard: Experiment, crash: Any, tmp_path: Path) -> None:
    experiment = override(standard, {"training": {"ema": 0.2, "evaluate_every": 5}})
    train(experiment, tmp_path / "whole")
    crash(experiment, tmp_path / "run", 13)
    train(experiment, tmp_path / "run", resume=True)
    one, other = (files.read_tensors(tmp_path / run / "model.safetensors") for run in ("whole", "run"))
    assert "head.standard.mean" in one and all(torch.equal(one[name], other[name]) for name in one)
