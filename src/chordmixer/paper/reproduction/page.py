"""The page of a reproduction: small dated files in Markdown and JSON, and pictures."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

import chordmixer
from chordmixer import files
from chordmixer.paper.reproduction.entries import Figure, RunEntry
from chordmixer.training.devices import device_name
from chordmixer.version import __version__
from chordmixer.views.tables import ReportTable


@dataclass(frozen=True)
class Origin:
    """When and where results were computed, and with which versions."""

    date: str
    commit: str  # of the checkout; without a checkout, the version
    device: str
    torch_version: str

    @staticmethod
    def of(device: torch.device) -> Origin:
        return Origin(date.today().isoformat(), commit(), device_name(device), torch.__version__)


@dataclass(frozen=True)
class PageContent:
    """The content of the page of an entry."""

    name: str
    entry: RunEntry | Figure
    body: list[str]  # lines of Markdown with the results
    numbers: dict[str, Any]  # the results for JSON
    warnings: list[str] = field(default_factory=list)  # shown at the head of the page
    differences: list[str] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)  # PNG by name, which is also the end of its file name


def publish(result: PageContent, origin: Origin, command: str, folder: Path) -> Path:
    """Write <date>-<name>-<device>.md, .json and .png to a folder; return the path of the .md file."""
    stem = f"{origin.date}-{result.name}-{slug(origin.device)}"
    pictures = {key: f"{stem}{f'-{key}' if key else ''}.png" for key in result.pictures}
    for key, name in pictures.items():
        files.write_bytes(folder / name, result.pictures[key])
    files.write_json(folder / f"{stem}.json", document(result, origin, command))
    path = folder / f"{stem}.md"
    files.write_text(path, markdown(result, origin, command, pictures))
    return path


def document(result: PageContent, origin: Origin, command: str) -> dict[str, Any]:
    entry = result.entry
    paper: dict[str, Any] = {"where": entry.where, "says": entry.claim}
    if isinstance(entry, RunEntry):
        paper |= {"metric": entry.metric, "per_cent": dict(entry.paper)}
    return {
        "format": 1,
        "name": result.name,
        "title": entry.title,
        "warnings": result.warnings,
        **asdict(origin),
        "command": command,
        "paper": paper,
        "differences": result.differences,
        **result.numbers,
    }


def markdown(result: PageContent, origin: Origin, command: str, pictures: dict[str, str]) -> str:
    """The page in Markdown; `pictures` has file names beside the page by picture name."""
    entry = result.entry
    where = f"Of the paper: {entry.where}." if entry.where else "Not in the paper."
    made = (
        f"{where} Made on {origin.date} on {origin.device} with torch {origin.torch_version}, commit {origin.commit}."
    )
    parts = [
        f"# {entry.title}, {origin.date}",
        *(f"**{warning}**" for warning in result.warnings),
        made,
        f"```sh\n{command}\n```",
        *([f"The paper: {entry.claim}"] if entry.claim else []),
        "\n".join(result.body),
        *(f"{key and f'{key}: '}![{key or entry.title}]({name})" for key, name in pictures.items()),
    ]
    if result.differences:
        parts += ["## Where this differs from the paper", "\n".join(f"- {line}" for line in result.differences)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return ReportTable(header, rows).markdown().splitlines()


def png(draw: Callable[[Path], Path]) -> bytes:
    """The bytes of a picture that `draw` writes to a file."""
    with tempfile.TemporaryDirectory() as folder:
        return draw(Path(folder) / "picture.png").read_bytes()


# --- Where it was run ---


def commit() -> str:
    """Commit of the checkout of this package, with `-dirty` for changed files; without a checkout, the version."""
    package = Path(chordmixer.__file__).resolve().parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / "chordmixer" != package:  # the checkout of another project
        return f"none, version {__version__}"
    return _git(package, "describe", "--always", "--dirty", "--exclude=*") or f"none, version {__version__}"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def slug(device: str) -> str:
    """
    >>> slug("NVIDIA H200"), slug("CPU (x86_64, 2 cores)"), slug("Tesla V100-SXM2-32GB")
    ('h200', 'cpu', 'tesla-v100-sxm2-32gb')
    """
    words = re.sub(r"\(.*\)", "", device.lower()).replace("nvidia", "")
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")
