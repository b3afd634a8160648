"""What pre-training is worth: the same labels learnt from scratch, from a pre-trained encoder, and with it frozen.

PYTHONPATH=src python benchmarks/transfer.py --data DATA --work WORK --out results.md

DATA holds introns/*.fa.gz, mitogenomes/*.fa.gz (a file a family), plasmids/*.fa.gz, and mpra with variants.tsv.gz and
elements.fa. Mitochondrial genomes are shared out first: those of validation and test are not pre-trained on. Then,
for each seed and in each of three ways:

- fragments: is a piece of a mitochondrial genome of Cyprinidae or of another family? Few are labelled.
- mpra: is a single-base change of a regulatory element significant? Each seed holds out other elements.

Runs that are there are not made again, or gone on with: the same command goes on after a kill.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy import ndarray

from chordmixer.data.entries import Entry
from chordmixer.paper.reproduction.page import commit
from chordmixer.recipes.variants import MPRA_WINDOW
from chordmixer.tasks.scores import areas, log_odds, mean_of_known
from chordmixer.training import Experiment
from chordmixer.training.baselines.fitting import fit_variant_baselines
from real import entries, fragment, write_fasta

SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
"""Of the genomes, by the names of the parts in the table."""
TASKS = ("fragments", "mpra")
MODES = ("scratch", "fine-tuned", "probe")
METRIC, SCORES, PLAIN, PREDICTIONS = "roc_auc", "evaluation-test.json", "baselines.json", "predictions.parquet"
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5th percentile of Student's t, for two values, three values, and so on."""


@dataclass(frozen=True)
class Task:
    """The arguments of `chordmixer`."""

    arguments: list[str]
    seeded: list[str]
    """Settings that take the seed."""


# --- Data ---


def genomes(data: Path) -> Iterator[tuple[str, str, Entry]]:
    """Part, class and genome: each class is shared out by itself."""
    rng = random.Random(0)
    families = sorted((data / "mitogenomes").glob("*.fa.gz"))
    for name in ("cyprinidae", "others"):
        members = entries(path for path in families if path.name.startswith("cyprinidae") == (name == "cyprinidae"))
        rng.shuffle(members)
        ends = [round(len(members) * share) for share in (SHARES["train"], SHARES["train"] + SHARES["val"], 1.0)]
        for part, start, end in zip(SHARES, [0, *ends], ends, strict=False):
            yield from ((part, name, genome) for genome in members[start:end])


def prepare(data: Path, work: Path, fragments: int) -> None:
    """Genomes to pre-train on, and a table of labelled fragments, as many of each class."""
    work.mkdir(parents=True, exist_ok=True)
    shared, rng = list(genomes(data)), random.Random(1)
    write_fasta(work / "genomes.fa", ((g.id, g.sequence) for part, _, g in shared if part == "train"))
    with (work / "fragments.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "sequence", "label", "split"])
        for part, count in (("train", fragments), ("val", 2_000), ("test", 6_000)):
            for name in ("cyprinidae", "others"):
                pool = [g for member_part, label, g in shared if (member_part, label) == (part, name)]
                for i in range(count // 2):
                    letters = fragment(rng, pool)[1].decode()
                    table.writerow([f"{part}-{name}-{i}", letters, name, part])


def tasks(data: Path, work: Path) -> dict[str, Task]:
    mpra = data / "mpra"
    columns = ["--column", "contig=element", "--column", "label=significant", "--on-unmatched", "reject"]
    return {
        "fragments": Task(["train", str(work / "fragments.csv"), "--split", "given"], ["training.seed"]),
        "mpra": Task(
            ["variants", str(mpra / "variants.tsv.gz"), "--reference", str(mpra / "elements.fa"),
             "--window", str(MPRA_WINDOW), *columns],
            ["training.seed", "data.split.seed"],
        ),
    }  # fmt: skip


# --- Runs ---


def options(mode: str, pre: Path) -> list[str]:
    """From scratch the network has the size of the pre-trained one, and baselines are scored, once for all."""
    if mode == "scratch":
        network = read(pre, "config.json")["model"]["network"]
        return [w for name in ("track_size", "hidden") for w in ("--set", f"model.network.{name}={network[name]}")]
    return ["--from", str(pre), "--no-baselines", *(["--freeze"] if mode == "probe" else [])]


def chordmixer(arguments: list[str], out: Path) -> float | None:
    """Run a command; return its seconds, None if it was interrupted. Its output goes into a log beside the folder."""
    seconds_file = out.with_suffix(".seconds")
    if (out / SCORES).exists() and ("--no-baselines" in arguments or (out / PLAIN).exists()):
        return float(seconds_file.read_text()) if seconds_file.exists() else None
    resume = ["--resume"] if out.exists() else []
    start = time.monotonic()
    with out.with_suffix(".log").open("a") as log:
        command = [sys.executable, "-m", "chordmixer", *arguments, "--out", str(out), *resume]
        subprocess.run(command, check=True, stdout=log, stderr=log)
    if resume:
        return None
    seconds = time.monotonic() - start
    seconds_file.write_text(f"{seconds:.1f}\n")
    return seconds


def pretrain(data: Path, work: Path, extra: list[str]) -> dict[str, Any]:
    files = [*sorted((data / "introns").glob("*.fa.gz")), *sorted((data / "plasmids").glob("*.fa.gz"))]
    arguments = ["pretrain", *map(str, files), str(work / "genomes.fa"), *extra]
    seconds = chordmixer(arguments, work / "pre")
    evaluation, baselines = (read(work / "pre", name) for name in (SCORES, PLAIN))
    chains = {baseline["name"]: baseline["evaluation"]["scores"]["accuracy"] for baseline in baselines["baselines"]}
    return {"seconds": seconds, "accuracy": evaluation["scores"]["accuracy"], "chains": chains}


def learn(name: str, task: Task, mode: str, seed: int, work: Path, extra: list[str]) -> dict[str, Any]:
    out = work / f"{name}-{mode}-{seed}"
    seed_options = [word for setting in task.seeded for word in ("--set", f"{setting}={seed}")]
    seconds = chordmixer([*task.arguments, *options(mode, work / "pre"), *seed_options, *extra], out)
    row = {"task": name, "way": mode, "seed": seed, "seconds": seconds, METRIC: read(out, SCORES)["scores"][METRIC]}
    if name == "mpra":
        names, targets, outputs = read_predictions(out)
        row["within"] = within(names, targets, outputs)
    if mode == "scratch":
        baselines = {b["name"]: b["evaluation"]["scores"][METRIC] for b in read(out, PLAIN)["baselines"]}
        best = max(baselines, key=lambda key: baselines[key]["value"])
        row["best_baseline"] = {"name": best, **baselines[best]}
        if name == "mpra":
            refitted = next(b for b in fit_variant_baselines(Experiment.load(out).build_task()) if b.name == best)
            row["best_baseline"]["within"] = within(names, targets, refitted.outputs)
    return row


def read_predictions(out: Path) -> tuple[list[str], ndarray, ndarray]:
    """Names, classes and outputs of the test records."""
    table = pq.read_table(out / PREDICTIONS)
    outputs = np.stack([table[f"output_{k}"].to_numpy() for k in range(2)], axis=1)
    return table["id"].to_pylist(), table["target"].to_numpy(), outputs


def within(names: list[str], targets: ndarray, outputs: ndarray) -> float:
    """ROC-AUC in each element by itself, the mean of those that have both classes.

    Over all of them at once an answer is also judged by the element it is for: of some, every other change is
    significant, of others none in twenty.
    """
    elements = np.array([name.split(":")[0] for name in names])
    scores, positive = log_odds(outputs)[:, 1], targets == 1
    masks = [elements == element for element in sorted(set(elements))]
    return float(mean_of_known(np.array([areas(scores[None, mask], positive[None, mask])[0][0] for mask in masks])))


def read(folder: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / name).read_text())
    return document


# --- The page ---


def over_seeds(values: list[float]) -> str:
    """Mean, and the 95 % interval of Student's t for so few.

    >>> over_seeds([0.8, 0.82, 0.84])
    '0.820 (0.770 to 0.870)'
    """
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    student = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    half = student * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"


def inside(rows: list[dict[str, Any]]) -> str:
    values = [row["within"] for row in rows if "within" in row]
    return over_seeds(values) if values else ""


def took(seconds: list[float | None]) -> str:
    """Their mean.

    >>> took([3.0, 4.0]), took([3.0, None])
    ('4', 'more than 3')
    """
    finished = [value for value in seconds if value is not None]
    mean = f"{statistics.mean(finished):.0f}" if finished else "0"
    return mean if len(finished) == len(seconds) else f"more than {mean}"


def markdown(pre: dict[str, Any], rows: list[dict[str, Any]], header: dict[str, str], fragments: int) -> str:
    name, chain = max(pre["chains"].items(), key=lambda item: item[1]["value"])
    score, verdict = pre["accuracy"], "beats" if pre["accuracy"]["low"] > chain["high"] else "does not beat"
    seeds = len({row["seed"] for row in rows})
    lines = [
        f"# Learning before labels, {header['date']}, {header['device']}",
        "",
        f"`{header['command']}`, commit {header['commit']}, torch {header['torch']}.",
        "",
        f"{seeds} seeds, {fragments:,} labelled fragments to train on. Pre-training",
        f"on introns, plasmids and the mitochondrial genomes of the training part took {took([pre['seconds']])} s:",
        f"{score['value']:.2%} ({score['low']:.2%} to {score['high']:.2%}) of the masked test letters are right, and",
        f"{chain['value']:.2%} by the best Markov chain ({name}): it {verdict} it.",
        "",
        "Test ROC-AUC, means over seeds with 95 % intervals of Student's t; differences are paired by seed.",
        "",
        "Within: in each regulatory element by itself, the mean of these.",
        "",
        "| task | way | ROC-AUC | more than from scratch | within | seconds a run |",
        "|---|---|---|---|---|---|",
    ]
    for task in dict.fromkeys(row["task"] for row in rows):
        task_rows = [row for row in rows if row["task"] == task]
        scratch = {row["seed"]: row[METRIC]["value"] for row in task_rows if row["way"] == "scratch"}
        for mode in MODES:
            runs = [row for row in task_rows if row["way"] == mode]
            gains = [row[METRIC]["value"] - scratch[row["seed"]] for row in runs]
            lines.append(
                f"| {task} | {mode} | {over_seeds([row[METRIC]['value'] for row in runs])} "
                f"| {over_seeds(gains) if mode != 'scratch' else ''} "
                f"| {inside(runs)} "
                f"| {took([row['seconds'] for row in runs])} |"
            )
        baselines = [row["best_baseline"] for row in task_rows if row["way"] == "scratch"]
        names = " or ".join(dict.fromkeys(b["name"] for b in baselines))
        lines.append(
            f"| {task} | plain: {names} | {over_seeds([b['value'] for b in baselines])} | | {inside(baselines)} | |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fragments", type=int, default=4_000, help="labelled ones to train on")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="those to learn")
    parser.add_argument("--at-once", type=int, default=1, help="runs that share the device, after the pre-training")
    parser.add_argument("--set-pre", action="append", default=[], help="a setting of the pre-training")
    parser.add_argument("--set", action="append", default=[], help="a setting of all other runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    before, after = ([w for s in settings for w in ("--set", s)] for settings in (arguments.set_pre, arguments.set))
    prepare(arguments.data, arguments.work, arguments.fragments)
    pre = pretrain(arguments.data, arguments.work, before)
    jobs = [
        (name, task, mode, seed)
        for seed in range(arguments.seeds)
        for name, task in tasks(arguments.data, arguments.work).items()
        if name in arguments.tasks
        for mode in MODES
    ]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        rows = list(pool.map(lambda job: learn(*job, arguments.work, after), jobs))
    header = {
        "command": shlex.join(["python", "benchmarks/transfer.py", *sys.argv[1:]]),
        "commit": commit(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU",
        "torch": torch.__version__,
        "date": date.today().isoformat(),
    }
    page = markdown(pre, rows, header, arguments.fragments)
    print(page)
    if arguments.out:
        arguments.out.write_text(page)
        arguments.out.with_suffix(".json").write_text(
            json.dumps({**header, "pretraining": pre, "runs": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
