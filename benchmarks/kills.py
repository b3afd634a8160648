"""kill -9 at random moments and inside writes, then --resume: are the final weights the same bytes?

python benchmarks/kills.py --random 20 --aimed 5
python benchmarks/kills.py --random 20 --aimed 5 --pretrain genomes.fa
python benchmarks/kills.py --random 10 --ranks 2
python benchmarks/kills.py --random 10 --ranks 2 --nodes 2

With --ranks, one of so many ranks of torchrun is killed, which restarts all of them from the last checkpoint. With
--nodes, each of so many torchrun agents on this machine has that number of ranks.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

TINY = (
    "model.network.track_size=2",
    "model.network.hidden=4",
    "model.network.dropout=0.1",
    "training.batch_sequences=8",
    "training.accumulate=2",
    "training.evaluate_every=7",
    "training.checkpoint_every=3",
    "training.device=cpu",
    "training.precision=fp32",
)
SETTINGS = (
    "data.base_length=32",
    "data.max_length=64",
    "data.training=96",
    "data.validation=24",
    "data.test=24",
    "training.epochs=20",
    *TINY,
)
"""A run of 120 steps and some 40 checkpoints, over within seconds."""
MASKED = (
    "data.shortest=8",
    "data.longest=32",
    "data.segments=96",
    "training.epochs=15",
    "training.ema=0.1",
    *TINY,
)
"""The same for a pre-training on masked segments, with averaged weights."""

COUNTED = """
import os, signal, sys
from pathlib import Path

last, calls = int(sys.argv.pop(1)), 0

def counted(function):
    def call(*arguments):
        global calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return call

os.fsync, Path.replace = counted(os.fsync), counted(Path.replace)
from chordmixer.cli import main
try:
    main()
finally:
    print("writes", calls)
"""
"""The command line, with a kill in place of its n-th flush or rename; 0 kills nothing and prints their number."""


class Outcome(NamedTuple):
    """What a killed run came to."""

    resumes: int
    equal: bool
    strays: int


def words(settings: Sequence[str], *command: str) -> list[str]:
    """A command with these settings."""
    return [*command, *(word for setting in settings for word in ("--set", setting))]


TRAIN = words(SETTINGS, "train", "adding")


def pretrain(file: Path | str) -> list[str]:
    """The command that learns from a file without labels."""
    return words(MASKED, "pretrain", str(file), "--no-baselines")


def start(run: Path, *settings: str, command: Sequence[str] = TRAIN, dies_at_write: int = 0) -> subprocess.Popen[str]:
    """The command that trains into `run`, or goes on with it."""
    resume = ["--resume"] if (run / "config.json").exists() else []
    arguments = [*words(settings, *command), *resume, "--out", str(run)]
    return subprocess.Popen(
        [sys.executable, "-c", COUNTED, str(dies_at_write), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def send(number: int, child: subprocess.Popen[str], seconds: float) -> tuple[int, str]:
    """Send a signal `seconds` after the child starts to train; return its exit code and its errors."""
    assert child.stdout
    next((line for line in child.stdout if "training sequences" in line), "")
    time.sleep(seconds)
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    return child.returncode, errors


def strays(run: Path) -> list[Path]:
    """Files that a killed process left half written."""
    return list(run.rglob(".writing-*"))


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


# --- Ranks ---


def start_ranks(run: Path, command: Sequence[str], ranks: int, nodes: int) -> list[subprocess.Popen[str]]:
    """An agent of torchrun for each node, with its ranks: --resume stands for the start and for restarts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "kills"]
    shape = ["--nnodes", str(nodes), "--nproc-per-node", str(ranks), "--max-restarts", "5"]
    arguments = [*rendezvous, *shape, "-m", "chordmixer", *command, "--resume", "--out", str(run)]
    agents = []
    for number in range(nodes):
        with (run.parent / f"{run.name}-{number}.log").open("w") as log:
            agents.append(
                subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run", *arguments],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
    return agents


def train_ranks(run: Path, ranks: int, nodes: int, killed: tuple[float, int] | None = None) -> tuple[Outcome, float]:
    """Train to the end: the outcome, and the seconds from the first checkpoint to the last.

    The rank with the second number of `killed` is killed so many seconds after the first checkpoint.
    """
    agents = start_ranks(run, TRAIN, ranks, nodes)
    saved = run / "checkpoints"
    _wait(lambda: any(saved.glob("step-*")), agents)
    started, processes = time.monotonic(), [psutil.Process(agent.pid) for agent in agents]
    children = {child for agent in processes for child in agent.children(recursive=True)}
    if killed:
        time.sleep(killed[0])
        workers = [child for agent in processes for child in agent.children()]
        workers[killed[1]].kill()
    _wait(lambda: any(saved.glob("*-finished")), agents)
    seconds = time.monotonic() - started
    codes = [agent.wait(timeout=600) for agent in agents]
    orphans = [process for process in children if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    output = "".join((run.parent / f"{run.name}-{number}.log").read_text() for number in range(nodes))
    restarts = output.count("going on from")
    print(f"  exit codes {codes}, {restarts} restarts, {len(orphans)} orphans", flush=True)
    return Outcome(restarts, not any(codes) and not orphans, len(strays(run))), seconds


def _wait(condition: Callable[[], bool], agents: Sequence[subprocess.Popen[str]]) -> None:
    while not condition() and all(agent.poll() is None for agent in agents):
        time.sleep(0.02)


def _ranks_equal(folder: Path, kills: int, ranks: int, nodes: int, rng: random.Random) -> bool:
    """Kill one rank of each of so many runs, and print a row."""
    _, seconds = train_ranks(folder / "whole", ranks, nodes)
    final = weights(folder / "whole")
    print(f"undisturbed: {seconds:.1f} s from the first checkpoint to the last on {nodes} x {ranks} processes")
    outcomes = []
    for number in range(kills):
        run, moment, rank = folder / f"killed-{number}", rng.uniform(0, seconds), rng.randrange(ranks * nodes)
        outcome, _ = train_ranks(run, ranks, nodes, (moment, rank))
        outcome = outcome._replace(equal=outcome.equal and weights(run) == final)
        result = "equal" if outcome.equal else "DIFFERENT"
        print(f"  rank {rank} killed {moment:.2f} s after the first checkpoint: {result}", flush=True)
        outcomes.append(outcome)
    restarts, leftovers = sum(o.resumes for o in outcomes), sum(o.strays for o in outcomes)
    print(f"{'kills':<8}{'number':>8}{'restarts':>9}{'strays':>8}  byte-equal, no orphans, exit code 0")
    print(f"{'ranks':<8}{kills:>8}{restarts:>9}{leftovers:>8}  {'yes' if all(o.equal for o in outcomes) else 'NO'}")
    return all(o.equal and not o.strays for o in outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=20, help="kills at random moments of a training")
    parser.add_argument("--aimed", type=int, default=5, help="kills in place of a flush or rename, spread over a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0, help="kill one of so many ranks, in place of the process")
    parser.add_argument("--nodes", type=int, default=1, help="agents of torchrun, with that number of ranks each")
    parser.add_argument("--pretrain", metavar="FASTA", help="pre-train on this file, in place of an Adding problem")
    args = parser.parse_args()
    command = pretrain(args.pretrain) if args.pretrain else TRAIN
    with tempfile.TemporaryDirectory() as folder:
        rng = random.Random(args.seed)
        if args.ranks:
            equal = _ranks_equal(Path(folder), args.random, args.ranks, args.nodes, rng)
        else:
            equal = _all_equal(Path(folder), command, args.random, args.aimed, rng)
    sys.exit(0 if equal else 1)


def _all_equal(folder: Path, command: Sequence[str], at_random: int, aimed: int, rng: random.Random) -> bool:
    """Run all kills, and print a row for each kind."""
    seconds, writes = _finish(folder / "whole", command)
    final = weights(folder / "whole")
    print(f"unkilled: {seconds:.1f} s after the first line, {writes} flushes and renames")
    moments = [rng.uniform(0, seconds) for _ in range(at_random)]
    writes_at = [1 + rng.randrange(i * writes // aimed, (i + 1) * writes // aimed) for i in range(1, aimed)]
    aimed_writes = [2, *writes_at][:aimed]  # the first rename of all, when the folder is new
    rows = {
        "random": [_killed_at(folder / f"random-{i}", command, moment, final) for i, moment in enumerate(moments)],
        "aimed": [
            _killed_inside(folder / f"aimed-{i}", command, write, final) for i, write in enumerate(aimed_writes)
        ],
    }
    print(f"{'kills':<8}{'number':>8}{'resumes':>9}{'strays':>8}  byte-equal")
    for kind, outcomes in rows.items():
        resumes, leftovers = sum(o.resumes for o in outcomes), sum(o.strays for o in outcomes)
        equal = "yes" if all(o.equal for o in outcomes) else "NO"
        print(f"{kind:<8}{len(outcomes):>8}{resumes:>9}{leftovers:>8}  {equal}")
    return all(o.equal and not o.strays for outcomes in rows.values() for o in outcomes)


def _killed_at(run: Path, command: Sequence[str], seconds: float, final: bytes) -> Outcome:
    """Kill a run so long after its first line; a run that ends earlier is resumed, and killed then."""
    starts, code = 0, 0
    while code != -signal.SIGKILL:
        starts += 1
        code, _ = send(signal.SIGKILL, start(run, command=command), seconds / starts)
    return _resumed(run, command, final, starts, f"after {seconds / starts:.2f} s")


def _killed_inside(run: Path, command: Sequence[str], write: int, final: bytes) -> Outcome:
    child = start(run, command=command, dies_at_write=write)
    child.communicate(timeout=600)
    assert child.returncode == -signal.SIGKILL, child.returncode
    return _resumed(run, command, final, 1, f"at flush or rename {write}")


def _resumed(run: Path, command: Sequence[str], final: bytes, resumes: int, description: str) -> Outcome:
    """Resume to the end, and compare the weights."""
    leftovers, result = len(strays(run)), "equal"
    try:
        _finish(run, command)
        result = "equal" if weights(run) == final else "DIFFERENT"
    except RuntimeError as error:
        result = f"NOT RESUMED: {error}"
    print(f"  killed {description}, {leftovers} half-written: {result}", flush=True)
    return Outcome(resumes, result == "equal", len(strays(run)))


def _finish(run: Path, command: Sequence[str]) -> tuple[float, int]:
    """Run to the end: seconds since the first line, and how many flushes and renames there were."""
    child = start(run, command=command)
    assert child.stdout
    child.stdout.readline()
    started = time.monotonic()
    output, errors = child.communicate(timeout=600)
    if child.returncode:
        raise RuntimeError(f"exit code {child.returncode}, {errors.strip()}")
    return time.monotonic() - started, int(output.split()[-1])


if __name__ == "__main__":
    main()
