"""A saved model holds what answers need, and nothing that tells of the user's folders or records."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer import files
from chordmixer.training import saving


def test_files_without_paths(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "saved"
    run.mkdir()
    config = {
        "format": 2,
        "task": "files",
        "data": {"files": ["/home/me/genes.fa"], "reading": {"labels": "/home/me/labels.csv"}},
        "model": {},
        "training": {"start": "/home/me/other"},
    }
    contents = {"config.json": files.json_bytes(config), "labels.json": b"{}", "data.json": b'{"sources": "secret"}'}
    files.write_recorded(run, {**contents, "model.safetensors": b"weights"})
    saving.save(run, out, "# A card\n")
    assert {path.name for path in out.iterdir()} - {".lock"} == {
        "README.md",
        "config.json",
        "labels.json",
        "manifest.json",
        "model.safetensors",
    }
    written = files.read_json(out / "config.json")
    assert written["data"] == {"files": ["genes.fa"], "reading": {"labels": "labels.csv"}}
    assert written["training"] == {"start": "other"}
    files.verify(out, ["config.json", "labels.json", "model.safetensors"])
    with pytest.raises(ValueError, match="saved is there already: a model is saved into a new or empty folder"):
        saving.save(run, out, "")
