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


def attempt(known: dict[str, Any], name: str, number: int, seed: int, scratch: Path) -> Outcome:
    """One mutant of a target, the same for the same seed and number."""
    from tests.data.mutants import mutant
    from tests.fuzzing.targets import SilentChange

    target, draw, folder = known[name], random.Random(f"{seed} {name} {number}"), scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in target.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    damaged = draw.choice(target.damaged or [*target.files])
    (folder / damaged).write_bytes(mutant(target.files[damaged], draw, target.changes))
    try:
        target.call(folder, draw, damaged)
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
    """The exception, and where in our own code it passed last."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/chordmixer/" in frame.filename]
    where = f"{own[-1].filename.rpartition('/chordmixer/')[2]}:{own[-1].lineno}" if own else "?"
    return f"{where} {type(error).__name__}: {' '.join(str(error).split())[:200]}"


# --- Workers ---


def _work(pipe: Connection, run: Path | None, scratch: Path, seed: int) -> None:
    """A process that tries one mutant after the other."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    scratch.mkdir(parents=True, exist_ok=True)
    os.chdir(scratch)  # where a name from a damaged file leads
    known = targets(run)
    pipe.send([*known])
    while (job := pipe.recv()) is not None:
        pipe.send(attempt(known, *job, seed, scratch))


class Worker:
    """A process with a watchdog; one that hangs or dies is replaced."""

    def __init__(self, run: Path | None, scratch: Path, seed: int) -> None:
        self.given = (run, scratch, seed)
        self.job: tuple[str, int] | None = None
        self.start()

    def start(self) -> None:
        own, other = multiprocessing.Pipe()
        self.pipe = own
        self.process = multiprocessing.get_context("spawn").Process(
            target=_work, args=(other, *self.given), daemon=True
        )
        self.process.start()
        other.close()
        self.names: list[str] = own.recv()

    def give(self, job: tuple[str, int]) -> None:
        self.job, self.since = job, time.monotonic()
        self.pipe.send(job)

    def answer(self) -> Outcome | None:
        """The outcome of the job, None while it goes on."""
        assert self.job is not None
        try:
            if self.pipe.poll():
                return self._done(self.pipe.recv())
            if time.monotonic() - self.since <= SECONDS:
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
    """Of all jobs, as they come."""
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
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mutants", type=int, default=2000, help="of all targets together")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", metavar="NAME", help="targets whose name this regular expression finds")
    options.add_argument("--number", type=int, help="this mutant of the targets alone, in this process")
    options.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options.add_argument("--json", type=Path, help="where the result is kept, every few seconds")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
        sys.exit(_run(given, scratch))


def _run(given: argparse.Namespace, scratch: Path) -> int:
    run = None
    if not given.only or not any(re.search(given.only, name) for name in targets(None)):
        from tests.fuzzing.runs import make_run

        print("training a run to damage", flush=True)
        run = make_run(scratch / "made")
    if given.number is not None:
        return _again(targets(run), given, scratch)
    workers = [Worker(run, scratch / f"worker-{k}", given.seed) for k in range(given.workers)]
    names = [name for name in workers[0].names if re.search(given.only or "", name)]
    if not names:
        raise SystemExit(f"--only {given.only} finds no name: choose from {', '.join(workers[0].names)}")
    jobs = ((names[k % len(names)], k // len(names)) for k in range(given.mutants))
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    faults: list[Outcome] = []
    began = spoke = time.monotonic()
    for done, outcome in enumerate(outcomes(workers, jobs), start=1):
        counts[outcome.target][outcome.kind] += 1
        if outcome.kind in FAULTS:
            faults.append(outcome)
            print(f"{outcome.kind}: {outcome.target} {outcome.number}: {outcome.detail}", flush=True)
        if time.monotonic() - spoke > 10 or done == given.mutants:
            spoke = time.monotonic()
            print(f"{done:,} of {given.mutants:,} mutants, {len(faults)} faults, {spoke - began:.0f} s", flush=True)
            _keep(given, counts, faults, spoke - began)
    for worker in workers:
        worker.stop()
    print(_table(counts))
    return 1 if faults else 0


def _again(known: dict[str, Any], given: argparse.Namespace, scratch: Path) -> int:
    """One mutant in this process, its file kept."""
    for name in (name for name in known if re.search(given.only or "", name)):
        print(*attempt(known, name, given.number, given.seed, scratch), sep="\n  ")
        kept = Path(tempfile.mkdtemp(prefix="fuzz-")) / "case"
        print(f"  kept in {shutil.copytree(scratch / 'case', kept)}")
    return 0


def _keep(given: argparse.Namespace, counts: dict[str, Counter[str]], faults: list[Outcome], seconds: float) -> None:
    if given.json is None:
        return
    total = sum(counts.values(), Counter())
    result = {
        **{"date": date.today().isoformat(), "seed": given.seed, "mutants": total.total(), "seconds": round(seconds)},
        "outcomes": {kind: total[kind] for kind in ("ok", "refused", *FAULTS)},
        "targets": {name: dict(count) for name, count in counts.items()},
        "faults": [fault._asdict() for fault in faults[:SHOWN]],
    }
    temporary = given.json.with_name(given.json.name + ".part")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(given.json)


def _table(counts: dict[str, Counter[str]]) -> str:
    kinds = ("ok", "refused", *FAULTS)
    rows = [*counts.items(), ("all", sum(counts.values(), Counter()))]
    lines = [f"{name:<32}" + "".join(f"{count[kind]:>11,}" for kind in kinds) for name, count in rows]
    return "\n".join([f"{'target':<32}" + "".join(f"{kind:>11}" for kind in kinds), *lines])


if __name__ == "__main__":
    main()
