"""The page of a reproduction: small dated files, Markdown for people and JSON for programs, and its pictures."""

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
    """Where and when it was run, and with what."""

    date: str
    commit: str  # of the checkout; elsewhere the version
    device: str
    torch_version: str

    @staticmethod
    def of(device: torch.device) -> Origin:
        return Origin(date.today().isoformat(), commit(), device_name(device), torch.__version__)


@dataclass(frozen=True)
class PageContent:
    """What a page shows of one entry."""

    name: str
    entry: RunEntry | Figure
    body: list[str]  # lines of Markdown: the numbers
    numbers: dict[str, Any]  # the same for programs
    warnings: list[str] = field(default_factory=list)  # what has to be read first
    differences: list[str] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)  # PNG by what it shows, which ends its name


def publish(result: PageContent, place: Origin, command: str, folder: Path) -> Path:
    """Write <date>-<name>-<device>.md, .json and .png into a folder; the path of the first."""
    stem = f"{place.date}-{result.name}-{slug(place.device)}"
    pictures = {end: f"{stem}{f'-{end}' if end else ''}.png" for end in result.pictures}
    for end, name in pictures.items():
        files.write_bytes(folder / name, result.pictures[end])
    files.write_json(folder / f"{stem}.json", document(result, place, command))
    path = folder / f"{stem}.md"
    files.write_text(path, markdown(result, place, command, pictures))
    return path


def document(result: PageContent, place: Origin, command: str) -> dict[str, Any]:
    entry = result.entry
    paper: dict[str, Any] = {"where": entry.where, "says": entry.claim}
    if isinstance(entry, RunEntry):
        paper |= {"metric": entry.metric, "per_cent": dict(entry.paper)}
    return {
        "format": 1,
        "name": result.name,
        "title": entry.title,
        "warnings": result.warnings,
        **asdict(place),
        "command": command,
        "paper": paper,
        "differences": result.differences,
        **result.numbers,
    }


def markdown(result: PageContent, place: Origin, command: str, pictures: dict[str, str]) -> str:
    """The page, with pictures that lie beside it: their files, by what they show."""
    entry = result.entry
    origin = f"Of the paper: {entry.where}." if entry.where else "Not in the paper."
    made = f"{origin} Made on {place.date} on {place.device} with torch {place.torch_version}, commit {place.commit}."
    parts = [
        f"# {entry.title}, {place.date}",
        *(f"**{warning}**" for warning in result.warnings),
        made,
        f"```sh\n{command}\n```",
        *([f"The paper: {entry.claim}"] if entry.claim else []),
        "\n".join(result.body),
        *(f"{shown and f'{shown}: '}![{shown or entry.title}]({name})" for shown, name in pictures.items()),
    ]
    if result.differences:
        parts += ["## Where this differs from the paper", "\n".join(f"- {line}" for line in result.differences)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return ReportTable(header, rows).markdown().splitlines()


def png(draw: Callable[[Path], Path]) -> bytes:
    """A picture that is drawn into a file."""
    with tempfile.TemporaryDirectory() as folder:
        return draw(Path(folder) / "picture.png").read_bytes()


# --- Where it was run ---


def commit() -> str:
    """Of the checkout that this package lies in, `-dirty` where files were changed; else the version."""
    package = Path(chordmixer.__file__).resolve().parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / "chordmixer" != package:  # a checkout of something else
        return f"none, version {__version__}"
    return _git(package, "describe", "--always", "--dirty", "--exclude=*") or f"none, version {__version__}"


def _git(folder: Path, *words: str) -> str | None:
    try:
        said = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() or None if said.returncode == 0 else None


def slug(device: str) -> str:
    """
    >>> slug("NVIDIA H200"), slug("CPU (x86_64, 2 cores)"), slug("Tesla V100-SXM2-32GB")
    ('h200', 'cpu', 'tesla-v100-sxm2-32gb')
    """
    words = re.sub(r"\(.*\)", "", device.lower()).replace("nvidia", "")
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")
