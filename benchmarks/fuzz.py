"""Damaged inputs of every reader and damaged run folders: is each one refused in one line, or read without a loss?

python benchmarks/fuzz.py --mutants 20000 --workers 2 --json fuzz.json
python benchmarks/fuzz.py --only "genbank features" --number 17      one mutant again, with its traceback

Outcomes: `ok`; `refused` (a ValueError of one line); `traceback` (any other exception, or the end of the process);
`hang` (over 20 seconds); `silent` (records in are not those used and rejected, or a changed file of a run is accepted
against its manifest and changes a result). The first two are right, the others are faults, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from datetime import date
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # the targets and the mutations are shared with the tests

SECONDS = 20.0
"""A mutant that takes longer hangs."""
MEMORY = 24 << 30
"""Bytes of address space of a worker, so that a bomb ends it and not the machine."""
FAULTS = ("traceback", "hang", "silent")
SHOWN = 200
"""Faults that the result file describes."""


class Outcome(NamedTuple):
    """What became of one mutant."""

    target: str
    number: int
    kind: str
    detail: str


def targets(run: Path | None) -> dict[str, Any]:
    """Every reader, and the files of a run where there is one."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from tests.fuzzing.genomes import GENOMES
    from tests.fuzzing.readers import RECORDS

    if run is None:
        return RECORDS | GENOMES
    from tests.fuzzing.runs import run_targets

    return RECORDS | GENOMES | run_targets(run)


def attempt(available: dict[str, Any], name: str, number: int, seed: int, scratch: Path) -> Outcome:
    """One mutant of a target, the same for the same seed and number."""
    from tests.data.mutants import mutant
    from tests.fuzzing.targets import SilentChange

    target, rng, folder = available[name], random.Random(f"{seed} {name} {number}"), scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in target.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    damaged = rng.choice(target.damaged or [*target.files])
    (folder / damaged).write_bytes(mutant(target.files[damaged], rng, target.changes))
    try:
        target.call(folder, rng, damaged)
    except SilentChange as change:
        return Outcome(name, number, "silent", str(change))
    except ValueError as error:
        if isinstance(error, UnicodeError) or len(str(error).splitlines()) > 1:
            return Outcome(name, number, "traceback", _last_frame(error))
        return Outcome(name, number, "refused", str(error))
    except (Exception, SystemExit) as error:
        return Outcome(name, number, "traceback", _last_frame(error))
    return Outcome(name, number, "ok", "")


def _last_frame(error: BaseException) -> str:
    """The exception, and the last place in our own code that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/chordmixer/" in frame.filename]
    location = f"{frames[-1].filename.rpartition('/chordmixer/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{location} {type(error).__name__}: {' '.join(str(error).split())[:200]}"


# --- Workers ---


def _work(pipe: Connection, run: Path | None, scratch: Path, seed: int) -> None:
    """A process that tries one mutant after the other."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    scratch.mkdir(parents=True, exist_ok=True)
    os.chdir(scratch)  # where a name from a damaged file leads
    available = targets(run)
    pipe.send([*available])
    while (job := pipe.recv()) is not None:
        pipe.send(attempt(available, *job, seed, scratch))


class Worker:
    """A process with a watchdog; one that hangs or dies is replaced."""

    def __init__(self, run: Path | None, scratch: Path, seed: int) -> None:
        self.args = (run, scratch, seed)
        self.job: tuple[str, int] | None = None
        self.start()

    def start(self) -> None:
        connection, child_connection = multiprocessing.Pipe()
        self.pipe = connection
        self.process = multiprocessing.get_context("spawn").Process(
            target=_work, args=(child_connection, *self.args), daemon=True
        )
        self.process.start()
        child_connection.close()
        self.names: list[str] = connection.recv()

    def give(self, job: tuple[str, int]) -> None:
        self.job, self.started = job, time.monotonic()
        self.pipe.send(job)

    def answer(self) -> Outcome | None:
        """The outcome of the job, None while it goes on."""
        assert self.job is not None
        try:
            if self.pipe.poll():
                return self._done(self.pipe.recv())
            if time.monotonic() - self.started <= SECONDS:
                return None
            outcome = Outcome(*self.job, "hang", f"over {SECONDS:.0f} seconds")
        except (EOFError, ConnectionError):
            outcome = Outcome(*self.job, "traceback", f"the process ended with {self.process.exitcode}")
        self.process.kill()
        self.process.join()
        self.start()
        return self._done(outcome)

    def stop(self) -> None:
        self.pipe.send(None)
        self.process.join()

    def _done(self, outcome: Outcome) -> Outcome:
        self.job = None
        return outcome


def outcomes(workers: list[Worker], jobs: Iterator[tuple[str, int]]) -> Iterator[Outcome]:
    """The outcomes of all jobs, in the order in which they finish."""
    for worker, job in zip(workers, jobs, strict=False):
        worker.give(job)
    while busy := [worker for worker in workers if worker.job is not None]:
        wait([worker.pipe for worker in busy], timeout=0.5)
        for worker in busy:
            if (outcome := worker.answer()) is not None:
                yield outcome
                if (job := next(jobs, None)) is not None:
                    worker.give(job)


# --- The run of it all ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=2000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="NAME", help="targets whose name this regular expression finds")
    parser.add_argument("--number", type=int, help="this mutant of the targets alone, in this process")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="where the result is kept, every few seconds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
        sys.exit(_run(args, scratch))


def _run(args: argparse.Namespace, scratch: Path) -> int:
    run = None
    if not args.only or not any(re.search(args.only, name) for name in targets(None)):
        from tests.fuzzing.runs import make_run

        print("training a run to damage", flush=True)
        run = make_run(scratch / "made")
    if args.number is not None:
        return _repeat(targets(run), args, scratch)
    workers = [Worker(run, scratch / f"worker-{k}", args.seed) for k in range(args.workers)]
    names = [name for name in workers[0].names if re.search(args.only or "", name)]
    if not names:
        raise SystemExit(f"--only {args.only} finds no name: choose from {', '.join(workers[0].names)}")
    jobs = ((names[k % len(names)], k // len(names)) for k in range(args.mutants))
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    faults: list[Outcome] = []
    start = reported = time.monotonic()
    for done, outcome in enumerate(outcomes(workers, jobs), start=1):
        counts[outcome.target][outcome.kind] += 1
        if outcome.kind in FAULTS:
            faults.append(outcome)
            print(f"{outcome.kind}: {outcome.target} {outcome.number}: {outcome.detail}", flush=True)
        if time.monotonic() - reported > 10 or done == args.mutants:
            reported = time.monotonic()
            print(f"{done:,} of {args.mutants:,} mutants, {len(faults)} faults, {reported - start:.0f} s", flush=True)
            _keep(args, counts, faults, reported - start)
    for worker in workers:
        worker.stop()
    print(_table(counts))
    return 1 if faults else 0


def _repeat(available: dict[str, Any], args: argparse.Namespace, scratch: Path) -> int:
    """Try one mutant in this process, and keep its files."""
    for name in (name for name in available if re.search(args.only or "", name)):
        print(*attempt(available, name, args.number, args.seed, scratch), sep="\n  ")
        copy = Path(tempfile.mkdtemp(prefix="fuzz-")) / "case"
        print(f"  kept in {shutil.copytree(scratch / 'case', copy)}")
    return 0


def _keep(args: argparse.Namespace, counts: dict[str, Counter[str]], faults: list[Outcome], seconds: float) -> None:
    if args.json is None:
        return
    total = sum(counts.values(), Counter())
    result = {
        **{"date": date.today().isoformat(), "seed": args.seed, "mutants": total.total(), "seconds": round(seconds)},
        "outcomes": {kind: total[kind] for kind in ("ok", "refused", *FAULTS)},
        "targets": {name: dict(count) for name, count in counts.items()},
        "faults": [fault._asdict() for fault in faults[:SHOWN]],
    }
    temporary = args.json.with_name(args.json.name + ".part")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(args.json)


def _table(counts: dict[str, Counter[str]]) -> str:
    kinds = ("ok", "refused", *FAULTS)
    rows = [*counts.items(), ("all", sum(counts.values(), Counter()))]
    lines = [f"{name:<32}" + "".join(f"{count[kind]:>11,}" for kind in kinds) for name, count in rows]
    return "\n".join([f"{'target':<32}" + "".join(f"{kind:>11}" for kind in kinds), *lines])


if __name__ == "__main__":
    main()
