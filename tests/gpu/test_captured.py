"""Training steps as CUDA graphs: the same bits as without, and after a resume."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from chordmixer import fit
from chordmixer.dataset import Dataset
from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.recipes import adding
from chordmixer.training import Experiment
from chordmixer.training.captured import CapturedSteps
from chordmixer.training.loop import TrainingRun

pytestmark = pytest.mark.gpu


@pytest.fixture
def experiment() -> Experiment:
    """Batches of lengths 30 to 120, in several sizes, with dropout and an EMA."""
    base = adding(AddingConfig(base_length=30, max_length=120, training=1600, validation=64, test=64))
    network = replace(base.model.network, dropout=0.1)
    training = replace(base.training, batch_sequences=16, precision="bf16", device="cuda", ema=0.1)
    return replace(base, model=replace(base.model, network=network), training=training)


def advance(run: TrainingRun, steps: int) -> Iterator[Tensor]:
    """The results of the next steps."""
    run.wrapped.train()
    batches = run.loader.epoch(run.state.epoch, run.state.batch)
    for _ in range(steps):
        run.advance(batches)
        yield run.unread[-1].result.clone() if run.unread else torch.zeros(2)


def started(experiment: Experiment, folder: Path, resume: bool = False) -> closing[TrainingRun]:
    run = TrainingRun(experiment, folder, resume, Console(quiet=True))
    run.display.quiet = True
    return closing(run)


def weights(run: TrainingRun) -> dict[str, Tensor]:
    assert run.ema is not None
    return {**run.model.state_dict(), **{f"ema.{name}": value for name, value in run.ema.values.items()}}


def test_a_replayed_step_is_the_step(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits with graphs as without, dropout included."""
    runs = []
    for name in ("graphs", "static"):
        with monkeypatch.context() as patch, started(experiment, tmp_path / name) as run:
            if name == "static":
                patch.setattr(CapturedSteps, "_record", lambda self, buffers, size: None)
                patch.setattr(CapturedSteps, "_replayed", CapturedSteps._take)
            results = [*advance(run, 40)]
            assert run.captured is not None and not run.captured.reason
            graphs = sum(buffers.graph is not None for buffers in run.captured.buffers.values())
            assert graphs >= 2 if name == "graphs" else graphs == 0
            runs.append((torch.stack([result.cpu() for result in results]), weights(run)))
    (graph_results, graph_weights), (static_results, static_weights) = runs
    assert torch.equal(graph_results, static_results)
    assert all(torch.equal(graph_weights[name], static_weights[name]) for name in graph_weights)


def test_losses_are_those_of_usual_steps(experiment: Experiment, tmp_path: Path) -> None:
    """Without dropout, whose random numbers depend on the size of a batch."""
    network = replace(experiment.model.network, dropout=0.0)
    losses = []
    for graphs in (True, False):
        training = replace(experiment.training, cuda_graphs=graphs, precision="fp32")
        plain = replace(experiment, model=replace(experiment.model, network=network), training=training)
        with started(plain, tmp_path / str(graphs)) as run:
            losses.append(torch.stack([result.cpu() for result in advance(run, 30)]))
            assert (run.captured is not None) == graphs
    torch.testing.assert_close(*losses, rtol=2e-3, atol=2e-3)


def test_a_resumed_run_takes_the_same_steps(experiment: Experiment, tmp_path: Path) -> None:
    """The resumed run has no graphs yet for sizes that had one before."""
    with started(experiment, tmp_path / "whole") as run:
        _ = [*advance(run, 60)]
        expected = {name: value.cpu() for name, value in weights(run).items()}
    with started(experiment, tmp_path / "cut") as run:
        _ = [*advance(run, 30)]
        run._save()
    with started(experiment, tmp_path / "cut", resume=True) as run:
        assert run.state.step == 30
        _ = [*advance(run, 30)]
        resumed = weights(run)
    assert all(torch.equal(value, resumed[name].cpu()) for name, value in expected.items())


def test_memory_does_not_grow_with_the_sizes(experiment: Experiment, tmp_path: Path) -> None:
    """Graphs share the memory of the largest, and where it runs out usual steps go on."""
    reserved = []
    for graphs in (False, True):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        training = replace(experiment.training, cuda_graphs=graphs, batch_sequences=64)
        with started(replace(experiment, training=training), tmp_path / str(graphs)) as run:
            _ = [*advance(run, 24)]
            reserved.append(torch.cuda.memory_reserved() - before)
            if run.captured:
                run.captured.stop("memory")
                _ = [*advance(run, 1)]
                assert not run.captured.buffers
    assert reserved[1] < 3 * reserved[0] + (96 << 20)  # cuBLAS has 32 MB for each stream


def test_a_default_run_on_files_has_graphs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Stem, words, three poolings and class weights never wait for the host."""
    rng = random.Random(0)
    texts = ["".join(rng.choices("ACGT", k=40 + 5 * (i % 40))) for i in range(400)]
    data = Dataset.from_lists(texts, ["yes" if text.count("A") > len(text) / 4 else "no" for text in texts])
    settings = {"training.steps": 40, "training.trial": 0}
    with caplog.at_level("DEBUG", logger="chordmixer"):
        fit(data, tmp_path / "run", settings=settings, baselines=False, verbose=False)
    assert "CUDA graphs" not in caplog.text
