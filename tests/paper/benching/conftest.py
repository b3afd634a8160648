"""Cases of troubled encoders, and results that nobody measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.benching.cases import BenchConfig, Case, Phase, Result, fixed

HOME = "troubled_encoders"


@pytest.fixture
def troubled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Case]:
    """A case of an encoder of `troubled_encoders`, which is known by the name of its class."""
    monkeypatch.syspath_prepend(Path(__file__).parent)

    def case(cls: str, time_limit: float = 120.0) -> Case:
        monkeypatch.setitem(ENCODERS, cls.lower(), f"{HOME}:{cls}")
        config = BenchConfig(device="cpu", precision="fp32", batch=2, time_limit=time_limit)
        return Case(cls.lower(), f"{HOME}:{cls}", config, fixed(20, batch=2))

    return case


@pytest.fixture
def result() -> Callable[..., Result]:
    """A result with these milliseconds in training, and a third of them in inference."""

    def make(encoder: str, milliseconds: float, setting: str = "length 20", **others: object) -> Result:
        learn = Phase(milliseconds, 1e6, int(milliseconds * 1e7), 7)
        infer = Phase(milliseconds / 3, 3e6, int(milliseconds * 1e6), 7)
        numbers = {"parameters": 1000, "inference": infer, "training": learn, **others}
        return Result(encoder, setting, **numbers)  # type: ignore[arg-type]

    return make
