"""A trained run folder, and commands on runs with a damaged file: targets of `benchmarks/fuzz.py`."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from functools import lru_cache
from io import StringIO
from pathlib import Path

from tests.data.mutants import CHANGES, change_json
from tests.fuzzing.targets import SilentChange, Target

from chordmixer import files, recipes
from chordmixer.config import override
from chordmixer.data.reading import Reading
from chordmixer.paper.baselines import compare
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, evaluation
from chordmixer.training.evaluation import evaluate
from chordmixer.training.loop import train
from chordmixer.training.prediction import embed, predict
from chordmixer.views.explain import explain_tests
from chordmixer.views.report import write_report

TINY = {
    "model": {"network": {"track_size": 2, "hidden": 4}, "stem": {"layers": 1}, "words": {"bits": 6}},
    "training": {
        "steps": 6,
        "checkpoint_every": 2,
        "trial": 0.5,
        "evaluate_every": 6,
        "device": "cpu",
        "ema": 0.0,
    },
}
NEW = ">new1\nACGTTATAAGCACGTACGT\n>new2\nACGGGTTTACGATCA\n"
evaluation.RESAMPLES = 5


def make_run(folder: Path) -> Path:
    """A run with every file that `train` leaves, of two files of 40 records."""
    rng, paths = random.Random(0), []
    for name in ("with", "without"):
        motif = "TATAAGC" if name == "with" else ""
        records = (f">{name}{i}\n{''.join(rng.choices('ACGT', k=rng.randint(20, 40)))}{motif}\n" for i in range(40))
        files.write_text(folder / f"{name}.fa", "".join(records))
        paths.append(str(folder / f"{name}.fa"))
    experiment = recipes.files(FilesConfig(tuple(paths), Reading(labels="files")))
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        train(override(experiment, TINY), folder / "run")
        compare(folder / "run")
        explain_tests(folder / "run")
        write_report(folder / "run")
    return folder / "run"


# --- What commands make of a run ---


def _evaluated(run: Path) -> str:
    return json.dumps(asdict(evaluate(run)))


def _predicted(run: Path) -> str:
    files.write_text(run.parent / "new.fa", NEW)
    predict(run, [run.parent / "new.fa"], run.parent / "out.tsv", device="cpu", force=True)
    return (run.parent / "out.tsv").read_text()


def _embedded(run: Path) -> str:
    files.write_text(run.parent / "new.fa", NEW)
    embed(run, [run.parent / "new.fa"], run.parent / "out.parquet", device="cpu", force=True)
    return (run.parent / "out.parquet").read_bytes().hex()


def _reported(run: Path) -> str:
    """The report without the folder's name and the time of day."""
    return re.sub(r"\d\d:\d\d(:\d\d)?", "", write_report(run).read_text().replace(str(run.parent), ""))


def _resumed(run: Path) -> str:
    train(Experiment.load(run), run, resume=True)
    return files.read_tensors(run / "model.safetensors").__repr__()


COMMANDS: dict[str, Callable[[Path], str]] = {
    "evaluate": _evaluated,
    "predict": _predicted,
    "embed": _embedded,
    "report": _reported,
    "resume": _resumed,
}


def run_targets(run: Path, commands: Sequence[str] = tuple(COMMANDS)) -> dict[str, Target]:
    """A target for each file of a run, by its name with `run` before it."""
    contents = {
        f"run/{path.relative_to(run).as_posix()}": path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.suffix not in (".html", ".png")
    }

    @lru_cache
    def undamaged_output(command: str, folder: Path) -> str:
        for name, data in contents.items():
            files.write_bytes(folder / name, data)
        return _quietly(command, folder / "run")

    def call(folder: Path, rng: random.Random, damaged: str) -> None:
        path = folder / damaged
        command = (
            "resume"
            if "checkpoints" in damaged
            else rng.choice([*commands] + ["report"] * 5 * ("report" in commands))
        )
        in_manifest = _listed(path)
        if rng.random() < 0.5 and in_manifest and path.name != files.MANIFEST:
            if command == "resume" and path.name == "config.json":
                command = "evaluate"  # a run may well be told to train for years
            files.write_manifest(path.parent, [path.name])
            _quietly(command, folder / "run")
            return
        expected = undamaged_output(command, folder.with_name(f"sound-{command}"))
        if _quietly(command, folder / "run") != expected and in_manifest:
            raise SilentChange(f"{command} accepts {damaged}, which is not as its manifest says, and differs")

    plain_files = [name for name in contents if "checkpoints" not in name]
    targets = {name.replace("/", " "): (name,) for name in plain_files}
    targets["run checkpoints"] = tuple(name for name in contents if name not in plain_files)
    json_changes = (*CHANGES, *[change_json] * 20)
    return {
        title: Target(contents, call, names, json_changes if ".json" in names[0] else CHANGES)
        for title, names in targets.items()
    }


def _listed(path: Path) -> bool:
    """Whether the manifest beside a file records it, or is the file."""
    try:
        return path.name == files.MANIFEST or path.name in files.read_json(path.with_name(files.MANIFEST))
    except ValueError:
        return False


def _quietly(command: str, run: Path) -> str:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return COMMANDS[command](run)
