"""Shared by the tests: a hypothesis profile, a meter of memory, a cache folder, and two small FASTA files."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from chordmixer import cli
from chordmixer.training import evaluation, speed

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported, as torch's compiler does
torch.set_num_threads(1)  # small tensors wait for a second thread longer than they need it
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("house")


def pytest_collection_finish() -> None:
    """Freeze what is imported by now, so that the garbage collector does not scan it again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture
def peak_bytes() -> Callable[[Callable[[], Any]], int]:
    """Measure the peak bytes that a call allocates, beyond those allocated before it; custom ops are counted too."""

    def measure(call: Callable[[], Any]) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            result = call()
        live = peak = 0
        events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
        for event in sorted(events, key=lambda e: e.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        del result
        return peak

    return measure


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of the library, from level INFO on."""
    caplog.set_level(logging.INFO, "chordmixer")
    return caplog


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Stores of the tests never enter the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "chordmixer" / "stores"


GENERATORS: dict[str, dict[str, Any]] = {}
"""The state of each module's generator `RNG` after its import."""


@pytest.fixture(autouse=True)
def restart_generator(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers in whatever order the tests run, and in whichever process."""
    generator = getattr(request.module, "RNG", None) if hasattr(request, "module") else None
    if isinstance(generator, np.random.Generator):
        state = GENERATORS.setdefault(request.module.__name__, generator.bit_generator.state)  # type: ignore[arg-type]
        generator.bit_generator.state = state


@pytest.fixture(scope="session", autouse=True)
def auto_is_fp32() -> Iterator[None]:
    """Runs of the tests do not depend on how fast this CPU multiplies bf16 numbers at the moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "bf16_speedup", lambda *_: 1.0)
        yield


@pytest.fixture(scope="session")
def motifs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two FASTA files of 100 records of 30 to 120 letters, which differ by a motif; tests only read them."""
    folder, rng = tmp_path_factory.mktemp("motifs"), random.Random(0)
    for name, motif in (("with", "TATAAGC"), ("without", "")):
        with (folder / f"{name}.fa").open("w") as file:
            for number in range(100):
                letters = rng.choices("ACGT", k=rng.randint(30, 120))
                position = rng.randrange(len(letters) - 8)
                letters[position : position + len(motif)] = motif
                file.write(f">{name}{number} gene:g{number // 4}\n{''.join(letters)}\n")
    return [str(folder / "with.fa"), str(folder / "without.fa")]


MOTIFS = {"gattaca": "GATTACA", "cattaga": "CATTAGA"}


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two FASTA files beside it, of 120 records of 30 to 60 letters with one motif each; it predicts with
    its network, its baseline or both. Tests only read it."""
    from chordmixer.config import override
    from chordmixer.recipes import files as recipe
    from chordmixer.tasks.files import FilesConfig
    from chordmixer.training.loop import train
    from chordmixer.training.results import compare

    folder, rng = tmp_path_factory.mktemp("planted"), random.Random(0)
    for name, motif in MOTIFS.items():
        with (folder / f"{name}.fa").open("w") as file:
            for number in range(120):
                letters = rng.choices("ACGT", k=rng.randint(30, 60))
                position = rng.randrange(len(letters) - 7)
                letters[position : position + 7] = motif
                file.write(f">{name}-{number}\n{''.join(letters)}\n")
    settings = {
        "model": {"network": {"track_size": 4, "hidden": 8}, "words": {"lengths": []}, "stem": {"layers": 1}},
        "training": {"steps": 12, "trial": 0.0, "device": "cpu"},
    }
    config = FilesConfig(tuple(str(folder / f"{name}.fa") for name in MOTIFS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        train(override(recipe(config), settings), folder / "run")
        compare(folder / "run", deliver=True)
    return folder / "run"


@pytest.fixture(scope="session")
def quick_runs() -> Callable[[pytest.MonkeyPatch], None]:
    """Make runs quick, as long as the patch lasts: few resamples, small tables of words, no trial runs,
    and one evaluation at the end."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        recipe = import_module("chordmixer.recipes.files")  # its function has the same name
        patch.setattr(evaluation, "RESAMPLES", 10)
        patch.setattr(recipe, "WORD_BITS", dict.fromkeys(recipe.WORD_BITS, 6))
        patch.setattr(recipe, "TRIAL", 0.0)
        patch.setattr(recipe, "EVALUATIONS", 1)

    return apply


@pytest.fixture
def chordmixer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quick_runs: Callable[[pytest.MonkeyPatch], None],
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process, with quick runs: exit code, output, errors."""
    quick_runs(monkeypatch)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["chordmixer", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        return int(exit_info.value.code or 0), *capsys.readouterr()

    return run
