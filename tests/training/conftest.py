"""Fixtures of the training tests: an experiment that trains in two seconds, and a finished run of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.forked import Forked

from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.paper.adding import AddingConfig
from chordmixer.training import Experiment, TrainingConfig, evaluation
from chordmixer.training.loop import TrainingRun, train


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several threads may sum in different orders, which changes the last bits."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> Experiment:
    """An experiment of 24 steps over 96 sequences."""
    data = AddingConfig(base_length=32, max_length=64, training=96, validation=24, test=24)
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4, dropout=0.1)
    model = ModelConfig(inputs=2, outputs=1, embedding="real", network=network)
    training = TrainingConfig(epochs=2, batch_sequences=8, checkpoint_every=3, device="cpu")
    return Experiment("adding", data, model, training)


@pytest.fixture(scope="session")
def full_run(tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run of `tiny`, which tests only read."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(tiny, folder)
    return folder


class Stopped(Exception):
    """Raised in place of a crash."""


@pytest.fixture(scope="session")
def crash() -> Callable[[Experiment, Path, int], None]:
    """Train, or resume, and crash after so many steps."""
    original_step = TrainingRun._step

    def run(experiment: Experiment, folder: Path, steps: int) -> None:
        def step(self: TrainingRun, *arguments: Any) -> None:
            if self.state.step == steps:
                raise Stopped
            original_step(self, *arguments)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(TrainingRun, "_step", step)
            train(experiment, folder, resume=True)

    return run


@pytest.fixture
def quick_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few bootstrap samples where scores do not matter."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)


@pytest.fixture
def steps() -> Callable[..., None]:
    """Take two training steps of a model: the first one makes the moments of AdamW."""

    def run(config: ModelConfig, lengths: list[int], half: bool = False, freeze: bool = False) -> None:
        model = Model(config)
        if freeze:
            model.freeze()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
        inputs = Packed.from_lengths(torch.randint(6, (sum(lengths),), dtype=torch.uint8), lengths)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                outputs = model(inputs)
            values = outputs.values if isinstance(outputs, Packed) else outputs
            values.float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


@pytest.fixture(scope="session")
def kills() -> ModuleType:
    """The module benchmarks/kills.py, with forked processes in place of new ones."""
    spec = spec_from_file_location("kills", Path(__file__).parents[2] / "benchmarks" / "kills.py")
    assert spec and spec.loader
    sys.modules["kills"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["subprocess"] = SimpleNamespace(Popen=Forked, PIPE=None)
    return module
