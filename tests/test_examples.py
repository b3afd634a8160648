"""The examples run, on small data."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def quick(quick_runs: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quick_runs(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_backbone() -> None:
    lines = (EXAMPLES / "backbone.py").read_text().split('"""\n', 1)[1].splitlines()
    code = [line for line in lines if line.strip() and "argparse" not in line]
    assert len(code) <= 45
    assert loaded("backbone").main(steps=60) > 0.6


def test_series_cross_validation() -> None:
    assert loaded("series_cross_validation").main(records=30, steps=2, folds=2).shape == (2,)


def test_own_fasta(tmp_path: Path) -> None:
    for name, motif in (("gat", "GATTACA"), ("cat", "CATTAGA")):
        records = (f">{name}{i}\n{'ACGT'[i % 4] * (i % 9)}{motif}{'ACGT'[i % 3] * 5}\n" for i in range(30))
        (tmp_path / f"{name}.fa").write_text("".join(records))
    files = [str(tmp_path / f"{name}.fa") for name in ("gat", "cat")]
    predictor = loaded("own_fasta").main(files, str(tmp_path / "run"), 0.01)
    assert predictor.classes == ["cat", "gat"] and (predictor.folder / "README.md").exists()
