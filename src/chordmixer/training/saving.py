"""A trained run as a folder to share: what its answers need, and nothing that names the user's own folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from chordmixer import files
from chordmixer.models.model import read_config
from chordmixer.training import ensemble
from chordmixer.training.run_folder import CONFIG, MODEL

CARD = "README.md"
SHARED = tuple(name for name in MODEL if name != "data.json")
"""Files that answers need; data.json names records of the training set."""
PATTERNS = (*SHARED, files.MANIFEST, CARD, *(f"{ensemble.FOLDER}/*/{name}" for name in (*SHARED, files.MANIFEST)))
"""What is downloaded of a repository."""


def save(run: Path, out: Path, card: str) -> None:
    """Copy a finished run into a new or empty folder, with a model card; a run folder itself has all of this."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already: a model is saved into a new or empty folder; give another name")
    for folder in _folders(run):
        place = out / folder.relative_to(run)
        place.mkdir(parents=True, exist_ok=True)
        files.write_recorded(place, contents(folder))
    files.write_text(out / CARD, card)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run that answers need, by name."""
    found = {name: (folder / name).read_bytes() for name in SHARED if (folder / name).exists()}
    return found | {CONFIG: files.json_bytes(_without_paths(read_config(folder)))}


def _folders(run: Path) -> Iterator[Path]:
    """The run, and the members of an ensemble."""
    yield run
    known = ensemble.read(run) if (run / ensemble.FILE).exists() else None
    yield from (ensemble.folder_of(run, number) for number in range(known.size if known else 0))


def _without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """Files by their names alone."""
    data, training = dict(config.get("data") or {}), dict(config.get("training") or {})
    if "files" in data:
        data["files"] = [PurePath(path).name for path in data["files"]]
    labels = (data.get("reading") or {}).get("labels")
    if labels is not None and not labels.startswith("header:"):
        data["reading"] = {**data["reading"], "labels": PurePath(labels).name}
    if training.get("start"):
        training["start"] = PurePath(training["start"]).name
    return {**config, "data": data, "training": training}
