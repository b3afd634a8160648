"""What `chordmixer train FILES --out RUN` reaches by itself: four data sets, no option but files, labels and groups.

PYTHONPATH=src python benchmarks/own_files.py --data DATA --work WORK --out results.md

DATA holds introns/*.fa.gz (a file a species), mitogenomes/*.fa.gz (a file a family), plasmids/*.fa.gz (a file a
phylum) and imdb.parquet (text, label, split). Introns are first thinned so that lengths are the same in both species,
mitochondrial genomes cut into fragments, Cyprinidae against the other families. What a run prints goes to
WORK/NAME/log.txt.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read

GENE = r"header:/(?:Transcript|CDS):([^.\s]+(?:\.\d+)?)/"
FRAGMENTS = 30_000
"""Of each class."""


@dataclass(frozen=True)
class Prepared:
    """Files, and the options that say where their groups are."""

    files: list[Path]
    options: list[str]


def entries(paths: Iterable[Path]) -> list[Entry]:
    return list(read(sorted(paths), Reading(), Account()))


def write_fasta(path: Path, records: Iterable[tuple[str, bytes]]) -> Path:
    path.write_bytes(b"".join(b">" + header.encode() + b"\n" + letters + b"\n" for header, letters in records))
    return path


def introns(data: Path, work: Path) -> Prepared:
    """As many of each length, to 2 %, from either species, at random."""
    draw, bins = random.Random(0), [defaultdict(list), defaultdict(list)]
    for species, path in zip(bins, sorted((data / "introns").glob("*.fa.gz")), strict=True):
        for entry in entries([path]):
            species[round(50 * math.log(entry.length))].append((f"{entry.id} {entry.description}", entry.sequence))
    chosen: list[list[Any]] = [[], []]
    for length in sorted(bins[0].keys() & bins[1].keys()):
        count = min(len(species[length]) for species in bins)
        for own, species in zip(chosen, bins, strict=True):
            own += draw.sample(species[length], count)
    files = [write_fasta(work / f"{name}.fa", own) for name, own in zip(("worm", "fly"), chosen, strict=True)]
    return Prepared(files, ["--group", GENE])


def fragment(draw: random.Random, genomes: list[Entry]) -> tuple[Entry, bytes]:
    """A genome, and a piece of it: a log-normal length with median 650, at least 79, at a random place."""
    genome = draw.choice(genomes)
    length = min(max(round(650 * math.exp(draw.gauss(0, 0.8))), 79), genome.length)
    start = draw.randrange(genome.length - length + 1)
    return genome, genome.sequence[start : start + length]


def fragments(data: Path, work: Path) -> Prepared:
    draw = random.Random(0)
    families = sorted((data / "mitogenomes").glob("*.fa.gz"))
    files = []
    for name, paths in (
        ("cyprinidae", [p for p in families if p.name.startswith("cyprinidae")]),
        ("others", [p for p in families if not p.name.startswith("cyprinidae")]),
    ):
        genomes, cut = entries(paths), []
        for i in range(FRAGMENTS):
            genome, letters = fragment(draw, genomes)
            cut.append((f"{name}-{i} genome={genome.id}", letters))
        files.append(write_fasta(work / f"{name}.fa", cut))
    return Prepared(files, ["--group", "header:genome"])


def plasmids(data: Path, work: Path) -> Prepared:
    return Prepared(sorted((data / "plasmids").glob("*.fa.gz")), [])


def imdb(data: Path, work: Path) -> Prepared:
    return Prepared([data / "imdb.parquet"], [])


SETS = {"introns": introns, "fragments": fragments, "plasmids": plasmids, "imdb": imdb}


def run(name: str, data: Path, work: Path, extra: list[str]) -> dict[str, Any]:
    work.mkdir(parents=True, exist_ok=True)
    prepared = SETS[name](data, work)
    out = work / f"run-{name}"
    again = ["--resume"] if out.exists() else []
    command = ["train", *map(str, prepared.files), *prepared.options, "--out", str(out), *extra, *again]
    start = time.monotonic()
    with (work / "log.txt").open("a") as log:
        subprocess.run([sys.executable, "-m", "chordmixer", *command], check=True, stdout=log, stderr=log)
    seconds = time.monotonic() - start
    evaluation = json.loads((out / "evaluation-test.json").read_text())
    plain = json.loads((out / "baselines.json").read_text())["baselines"]
    config = json.loads((out / "config.json").read_text())
    metric = evaluation["headline"]
    best = max(plain, key=lambda b: b["evaluation"]["scores"][metric]["value"])
    shown = [f"chordmixer train {' '.join(p.name for p in prepared.files)}", *prepared.options, *extra, "--out RUN"]
    return {
        "name": name,
        "command": " ".join(shown),
        "seconds": seconds,
        "test_records": evaluation["records"],
        "metric": metric,
        "model": evaluation["scores"][metric],
        "accuracy": evaluation["scores"]["accuracy"],
        "best_baseline": {"name": best["name"], **best["evaluation"]["scores"][metric]},
        "by_length": [
            {"longest": b["longest"], "records": b["records"], **b["scores"][metric]} for b in evaluation["by_length"]
        ],
        "training": config["training"],
        "network": config["model"]["network"],
    }


def markdown(rows: list[dict[str, Any]], device: str, together: bool) -> str:
    lines = [
        f"# Default runs on files, {date.today().isoformat()}, {device}",
        "",
        "`python benchmarks/own_files.py`: no option but files, labels and groups. Seconds are of the whole command,",
        "with reading, validation, test, baselines and report. Intervals are 95 % bootstrap over the test records.",
        *(["The runs shared the device and its host: each alone takes less time."] if together else []),
        "",
        "| data | metric | the model | best plain baseline | seconds |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        own, plain = row["model"], row["best_baseline"]
        lines.append(
            f"| {row['name']} | {row['metric']} | {own['value']:.3f} ({own['low']:.3f} to {own['high']:.3f}) "
            f"| {plain['name']}: {plain['value']:.3f} | {row['seconds']:.0f} |"
        )
    lines += ["", *(f"- {row['name']}: `{row['command']}`" for row in rows), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=SETS, nargs="+", default=list(SETS))
    parser.add_argument("--set", action="append", default=[], help="a setting for all runs, to try others")
    parser.add_argument("--together", action="store_true", help="all runs at once, which share the device")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    extra = [word for setting in arguments.set for word in ("--set", setting)]
    with ThreadPoolExecutor(len(arguments.only) if arguments.together else 1) as pool:
        rows = list(pool.map(lambda name: run(name, arguments.data, arguments.work / name, extra), arguments.only))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"
    page = markdown(rows, device, arguments.together)
    print(page)
    if arguments.out:
        arguments.out.write_text(page)
        arguments.out.with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
