"""The scores of `chordmixer train FILES` on real data, beside those of baseline and network and published ones.

PYTHONPATH=src python benchmarks/real.py --data DATA --work WORK --json results.json --page results.md

DATA holds real/*.csv and *.parquet (id, sequence, label or target, split), introns/*.fa.gz (a file a species),
mitogenomes/*.fa.gz (a file a family), plasmids/*.fa.gz (a file a phylum), imdb.parquet and arxiv_papers.parquet.
Introns are first thinned so that lengths are the same in both species, mitochondrial genomes cut into fragments,
Cyprinidae against the other families. No option but files and groups is given. What a run prints goes to
WORK/NAME-SEED/log.txt; results are added to those that the JSON file holds.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read

GENE = r"header:/(?:Transcript|CDS):([^.\s]+(?:\.\d+)?)/"
FRAGMENTS = 30_000
"""Fragments of each class."""


@dataclass(frozen=True)
class Prepared:
    """Files, and the options that say where their groups are."""

    files: list[Path]
    options: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Set:
    """A data set and what others reached on it."""

    title: str
    prepare: Callable[[Path, Path], Prepared]
    before: float | None = None
    """What `chordmixer train` reached at commit 9c7ea76."""
    published: str = ""
    """The scores of others, on the same split."""
    wanted: float = 0.0


def entries(paths: Iterable[Path]) -> list[Entry]:
    return list(read(sorted(paths), Reading(), Account()))


def write_fasta(path: Path, records: Iterable[tuple[str, bytes]]) -> Path:
    path.write_bytes(b"".join(b">" + header.encode() + b"\n" + letters + b"\n" for header, letters in records))
    return path


def introns(data: Path, work: Path) -> Prepared:
    """As many of each length, to 2 %, from either species, at random."""
    rng, bins = random.Random(0), [defaultdict(list), defaultdict(list)]
    for species, path in zip(bins, sorted((data / "introns").glob("*.fa.gz")), strict=True):
        for entry in entries([path]):
            species[round(50 * math.log(entry.length))].append((f"{entry.id} {entry.description}", entry.sequence))
    chosen: list[list[Any]] = [[], []]
    for length in sorted(bins[0].keys() & bins[1].keys()):
        count = min(len(species[length]) for species in bins)
        for records, species in zip(chosen, bins, strict=True):
            records += rng.sample(species[length], count)
    files = [write_fasta(work / f"{name}.fa", records) for name, records in zip(("worm", "fly"), chosen, strict=True)]
    return Prepared(files, ["--group", GENE])


def fragment(rng: random.Random, genomes: list[Entry]) -> tuple[Entry, bytes]:
    """A genome, and a piece of it: a log-normal length with median 650, at least 79, at a random place."""
    genome = rng.choice(genomes)
    length = min(max(round(650 * math.exp(rng.gauss(0, 0.8))), 79), genome.length)
    start = rng.randrange(genome.length - length + 1)
    return genome, genome.sequence[start : start + length]


def fragments(data: Path, work: Path) -> Prepared:
    rng = random.Random(0)
    families = sorted((data / "mitogenomes").glob("*.fa.gz"))
    files = []
    for name, paths in (
        ("cyprinidae", [p for p in families if p.name.startswith("cyprinidae")]),
        ("others", [p for p in families if not p.name.startswith("cyprinidae")]),
    ):
        genomes, cut = entries(paths), []
        for i in range(FRAGMENTS):
            genome, letters = fragment(rng, genomes)
            cut.append((f"{name}-{i} genome={genome.id}", letters))
        files.append(write_fasta(work / f"{name}.fa", cut))
    return Prepared(files, ["--group", "header:genome"])


def plasmids(data: Path, work: Path) -> Prepared:
    return Prepared(sorted((data / "plasmids").glob("*.fa.gz")))


def single_file(name: str) -> Callable[[Path, Path], Prepared]:
    """A table with everything in it."""
    return lambda data, work: Prepared([data / name])


SETS = {
    "plaid": Set(
        "11 appliances, electric current",
        single_file("real/plaid.parquet"),
        0.447,
        "InceptionTime 0.944, ROCKET 0.903",
        0.92,
    ),
    "fsdd": Set("spoken digits, raw audio", single_file("real/fsdd.parquet"), 0.970, "", 0.99),
    "nrc_ncrna13": Set("13 RNA families", single_file("real/nrc_ncrna13.csv"), 0.873, "RNAGCN 0.857", 0.955),
    "scop": Set(
        "7 structural classes of proteins",
        single_file("real/proteinbert_scop_class.csv"),
        0.666,
        "ProteinBERT from scratch 0.593, pre-trained 0.884",
        0.775,
    ),
    "esol": Set("solubility of proteins", single_file("real/esol_solubility.csv"), 0.360, "GraphSol 0.48", 0.42),
    "rnalight": Set(
        "location of long non-coding RNA",
        single_file("real/rnalight_lncrna_location.csv"),
        None,
        "LightGBM 0.783, CNN 0.718",
        0.76,
    ),
    "remote_homology": Set(
        "1,195 folds of proteins",
        single_file("real/tape_remote_homology.csv"),
        None,
        "from scratch: one-hot 0.09, ProteinBERT 0.063",
        0.12,
    ),
    "introns": Set("introns of a worm and a fly, by gene", introns, 0.968, "", 0.974),
    "fragments": Set("fragments of fish mitochondria, by genome", fragments, 0.995, "", 0.9997),
    "plasmids": Set("whole plasmids of two phyla", plasmids, 0.997, "", 0.999),
    "imdb": Set("film reviews", single_file("imdb.parquet"), 0.870, "", 0.965),
    "arxiv": Set("arXiv papers, 3 categories", single_file("arxiv_papers.parquet"), 0.860, "", 0.90),
}
BASELINES = 6
"""Runs whose baselines are fitted at the same time, at most."""
PREPARING = threading.Lock()


def run(
    name: str, seed: int, data: Path, work: Path, extra: list[str], device: threading.Semaphore
) -> dict[str, Any]:
    """Train, holding the device until the network is trained; baselines and report need it no more."""
    work.mkdir(parents=True, exist_ok=True)
    with PREPARING:  # of two seeds, the second finds the files
        prepared = SETS[name].prepare(data, work.parent)
    out = work / "run"
    command = ["train", *map(str, prepared.files), *prepared.options, "--out", str(out), "--seed", str(seed), *extra]
    command += ["--cache", str(work.parent / "stores")]
    command += ["--resume"] if (out / "config.json").exists() else []
    with (work / "log.txt").open("a") as log:
        with device:
            start = time.monotonic()
            process = subprocess.Popen([sys.executable, "-m", "chordmixer", *command], stdout=log, stderr=log)
            while process.poll() is None and not _trained(out):
                time.sleep(0.2)
            trained = time.monotonic() - start
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    seconds = time.monotonic() - start
    return {
        "name": name,
        "seed": seed,
        "seconds": round(seconds, 1),
        "trained_after": round(trained, 1),
        **_results(out),
    }


def _trained(out: Path) -> bool:
    """Whether the network is trained, so that baselines and report are all that is left."""
    try:
        return bool(_json(out / "run.json")["ends"])
    except (OSError, ValueError):
        return False


def _results(out: Path) -> dict[str, Any]:
    """The results in a run folder."""
    test, baselines = _json(out / "evaluation-test.json"), _json(out / "baselines.json")["baselines"]
    combined, config, timing = _json(out / "combination.json"), _json(out / "config.json"), _json(out / "run.json")
    metric = test["headline"]
    scores = {row["name"]: row["evaluation"]["scores"][metric] for row in baselines}
    networks = {"network alone", "local network"}
    best = max((name for name in scores if name not in networks), key=lambda name: scores[name]["value"])
    trials = _json(out / "trials.json") if (out / "trials.json").exists() else {}
    return {
        "records": _json(out / "data.json")["split"]["sizes"],
        "metric": metric,
        "delivered": test["scores"][metric],
        "using": combined["using"],
        "combined_with": combined["baseline"],
        "validation_losses": combined["losses"],
        "network": scores["network alone"],
        "local": scores.get("local network"),
        "baseline": {"name": best, **scores[best]},
        "less_baseline": next(row["difference"] for row in baselines if row["name"] == best),
        "trials": trials,
        "training_seconds": timing["seconds"],
        "steps": config["training"]["steps"],
        "words": config["model"]["words"]["lengths"],
    }


def _json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def page(rows: list[dict[str, Any]], setup: str) -> str:
    """A table with one row per data set; of several seeds the mean, and their range."""
    ladder = any(row["local"] for row in rows)
    local = (" local network |", "---|") if ladder else ("", "")
    lines = [
        f"# Default runs on real data, {date.today().isoformat()}",
        "",
        f"{setup} `chordmixer train FILES --out RUN`, no option but files and groups; each run scored the test",
        "records once. *Delivered* is what `predict` returns: the network, the best baseline or both, as the",
        "validation records chose. *Before* is commit 9c7ea76. The difference is paired, to the best baseline",
        "on the test records, with its 95 % interval, for the first seed. Of several seeds: the mean, and the range",
        "in brackets.",
        "",
        f"| data | metric | before | baseline |{local[0]} network | **delivered** | delivered minus baseline "
        "| published | trained, s |",
        f"|---|---|---|---|{local[1]}---|---|---|---|---|",
    ]
    for name, dataset in SETS.items():
        runs = [row for row in rows if row["name"] == name]
        if not runs:
            continue
        first, difference = runs[0], runs[0]["less_baseline"]
        interval = "" if difference["low"] is None else f" ({difference['low']:+.4f} to {difference['high']:+.4f})"
        with_local = [row for row in runs if row["local"]]
        local_cell = f"| {_mean(with_local, 'local') if with_local else '-'} " if ladder else ""
        lines.append(
            f"| {dataset.title} | {first['metric']} | {_number(dataset.before)} "
            f"| {_mean(runs, 'baseline')} ({first['baseline']['name']}) {local_cell}| {_mean(runs, 'network')} "
            f"| **{_mean(runs, 'delivered')}** ({first['using']}) | {difference['value']:+.4f}{interval} "
            f"| {dataset.published or '-'} | {_seconds(runs)} |"
        )
    return "\n".join([*lines, ""])


def _mean(rows: list[dict[str, Any]], key: str) -> str:
    values = [row[key]["value"] for row in rows]
    spread = f" [{min(values):.3f} to {max(values):.3f}]" if min(values) < max(values) else ""
    return f"{_number(sum(values) / len(values))}{spread}"


def _seconds(rows: list[dict[str, Any]]) -> str:
    """The mean time until the network was trained; older results do not say it."""
    values = [row["trained_after"] for row in rows if "trained_after" in row]
    return f"{sum(values) / len(values):.0f}" if values else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if value > 0.99 else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=SETS, nargs="+", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--at-once",
        type=int,
        default=1,
        help="networks that train at the same time; baselines of earlier runs are fitted beside them",
    )
    parser.add_argument("--ladder", action="store_true", help="also the network without its encoder")
    parser.add_argument("--set", action="append", default=[], help="a setting for all runs, to try others")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    extra = ["--ladder"] if args.ladder else []
    extra += [word for setting in args.set for word in ("--set", setting)]
    previous = _json(args.json)["runs"] if args.json and args.json.exists() else []
    rows, lock = {(row["name"], row["seed"]): row for row in previous}, threading.Lock()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"

    slots = threading.Semaphore(args.at_once)

    def one_run(task: tuple[str, int]) -> None:
        name, seed = task
        try:
            row = run(name, seed, args.data, args.work / f"{name}-{seed}", extra, slots)
        except (subprocess.CalledProcessError, OSError, KeyError) as error:
            print(f"{name}, seed {seed}: {error}; see its log.txt", flush=True)
            return
        with lock:
            rows[task] = {**row, "device": device, "date": date.today().isoformat(), "at_once": args.at_once}
            if args.json:
                args.json.write_text(json.dumps({"runs": list(rows.values())}, indent=1) + "\n")
        score = f"{row['metric']} {row['delivered']['value']:.4f} by {row['using']}"
        print(f"{name}, seed {seed}: {score}, trained after {row['trained_after']} s, {row['seconds']} s", flush=True)

    with ThreadPoolExecutor(args.at_once + BASELINES) as pool:
        list(pool.map(one_run, [(name, seed) for seed in range(args.seeds) for name in args.only]))
    text = page(list(rows.values()), f"{device}, {args.at_once} at once.")
    print(text)
    if args.page:
        args.page.write_text(text)


if __name__ == "__main__":
    main()
