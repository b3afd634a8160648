"""What the training tests share: an experiment of two seconds' work, and a finished run of it."""

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
    """Sums of several threads need not be the same bytes."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> Experiment:
    """24 steps over 96 sequences."""
    data = AddingConfig(base_length=32, max_length=64, training=96, validation=24, test=24)
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4, dropout=0.1)
    model = ModelConfig(inputs=2, outputs=1, embedding="real", network=network)
    training = TrainingConfig(epochs=2, batch_sequences=8, checkpoint_every=3, device="cpu")
    return Experiment("adding", data, model, training)


@pytest.fixture(scope="session")
def whole(tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `tiny` that nothing disturbed: only to be read."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(tiny, folder)
    return folder


class Stopped(Exception):
    """In place of a crash."""


@pytest.fixture(scope="session")
def crash() -> Callable[[Experiment, Path, int], None]:
    """Train, or go on, and crash before the step after `steps`."""
    take = TrainingRun._step

    def run(experiment: Experiment, folder: Path, steps: int) -> None:
        def step(self: TrainingRun, *arguments: Any) -> None:
            if self.state.step == steps:
                raise Stopped
            take(self, *arguments)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(TrainingRun, "_step", step)
            train(experiment, folder, resume=True)

    return run


@pytest.fixture
def quick_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bootstrap samples, where scores do not matter."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)


@pytest.fixture
def steps() -> Callable[..., None]:
    """Two training steps of a model: the moments of AdamW come with the first."""

    def take(config: ModelConfig, lengths: list[int], half: bool = False, freeze: bool = False) -> None:
        learner = Model(config)
        if freeze:
            learner.freeze()
        adam = torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], fused=True)
        inputs = Packed.from_lengths(torch.randint(6, (sum(lengths),), dtype=torch.uint8), lengths)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                answers = learner(inputs)
            outputs = answers.values if isinstance(answers, Packed) else answers
            outputs.float().square().sum().backward()
            adam.step()
            adam.zero_grad(set_to_none=True)

    return take


@pytest.fixture(scope="session")
def kills() -> ModuleType:
    """benchmarks/kills.py, with forked processes."""
    spec = spec_from_file_location("kills", Path(__file__).parents[2] / "benchmarks" / "kills.py")
    assert spec and spec.loader
    sys.modules["kills"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["subprocess"] = SimpleNamespace(Popen=Forked, PIPE=None)
    return module
