"""Bases a second from FASTA into the memory-mapped store, plain and gzip, on one core: verified, then timed.

python benchmarks/reading.py                     # 400,000 sequences, a gigabase, a few minutes
python benchmarks/reading.py --bases 300000000   # shorter ones
python benchmarks/reading.py --out results.json  # also write it down
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np

from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account
from chordmixer.data.inspection import inspect
from chordmixer.data.reading import Reading, read
from chordmixer.data.store import Store, write_store

RECORDS = 400_000
LINE = 60
LETTERS = np.frombuffer(b"ACGTN", np.uint8)
AT_A_TIME = 1 << 24
"""Bases made at once."""


def make(folder: Path, records: int, bases: int) -> dict[str, int]:
    """Log-normal lengths, lines of 60 letters, one N in a thousand; plain and gzip with what the store must hold."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(rng.lognormal(0, 1.2, records), 0.01)
    lengths = np.maximum((lengths * bases / lengths.sum()).astype(int), 20)
    checksum = 0
    with (
        (folder / "plain.fa").open("wb") as plain,
        gzip.open(folder / "packed.fa.gz", "wb", compresslevel=6) as packed,
    ):
        for number, ids in enumerate(_sequences(rng, lengths)):
            checksum = zlib.crc32(ids, checksum)
            record = b">sequence%d made for reading\n%b" % (number, _wrapped(LETTERS[ids]))
            plain.write(record)
            packed.write(record)
    return {"records": records, "bases": int(lengths.sum()), "longest": int(lengths.max()), "checksum": checksum}


def _sequences(rng: np.random.Generator, lengths: np.ndarray) -> Iterator[np.ndarray]:
    position, pool = 0, np.empty(0, dtype=np.uint8)
    for length in lengths.tolist():
        if position + length > len(pool):
            pool = rng.integers(0, 4, max(length, AT_A_TIME), dtype=np.uint8)
            pool[rng.integers(0, len(pool), len(pool) // 1000)] = 4
            position = 0
        yield pool[position : position + length]
        position += length


def _wrapped(letters: np.ndarray) -> bytes:
    full = len(letters) // LINE * LINE
    lines = np.full((full // LINE, LINE + 1), ord("\n"), dtype=np.uint8)
    lines[:, :LINE] = letters[:full].reshape(-1, LINE)
    rest = letters[full:].tobytes()
    return lines.tobytes() + (rest + b"\n" if rest else b"")


def read_once(path: Path, folder: Path) -> None:
    """In a process of its own, on one core: from the file to the store; prints seconds and peak memory."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    before, account = _peak(), Account()
    start, cpu_start = time.perf_counter(), time.process_time()
    store = write_store(read([path], Reading(), account), Dna(), folder, account)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = _peak()
    start = time.perf_counter()
    Store.open(folder)
    open_seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "file": path.name,
                "megabytes": path.stat().st_size / 1e6,
                "seconds": seconds,
                "processor_seconds": cpu_seconds,
                "bases_per_second": len(store.values) / seconds,
                "peak_megabytes": peak / 1e6,
                "of_which_imports_megabytes": before / 1e6,
                "open_milliseconds": 1e3 * open_seconds,
                "records": len(store),
                "bases": len(store.values),
                "checksum": zlib.crc32(store.values),
            }
        )
    )


def _peak() -> int:
    """The peak memory of this process; on Linux `ru_maxrss` is inherited from the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(folder: Path, name: str, expected: dict[str, int]) -> dict[str, float]:
    """One file, read in a fresh process; what the store holds is compared with what was made."""
    command = [sys.executable, __file__, "--read", str(folder / name), "--store", str(folder / f"{name}.store")]
    row = json.loads(subprocess.check_output(command))
    for key in ("records", "bases", "checksum"):
        assert row[key] == expected[key], f"{name}: {key} {row[key]} in the store, {expected[key]} made"
    return row


def time_inspection(folder: Path) -> dict[str, float]:
    start = time.perf_counter()
    inspection = inspect(Store.open(folder))
    return {"records": inspection.records, "bases": inspection.tokens, "seconds": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--bases", type=int, default=1_000_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path, help="only read this file, in this process")
    parser.add_argument("--store", type=Path, help="into this folder")
    arguments = parser.parse_args()
    if arguments.read:
        read_once(arguments.read, arguments.store)
        return
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for part in (8, 1):  # an eighth first, to see that memory does not grow with the file
            folder = Path(temporary) / f"part-{part}"
            folder.mkdir()
            expected = make(folder, arguments.records // part, arguments.bases // part)
            rows += [measure(folder, name, expected) for name in ("plain.fa", "packed.fa.gz")]
        inspected = time_inspection(folder / "plain.fa.store")
    print(f"{'file':>14} {'records':>9} {'bases':>15} {'bases/s':>13} {'peak':>8} {'open':>8}")
    for row in rows:
        speed, peak, opened = row["bases_per_second"], row["peak_megabytes"], row["open_milliseconds"]
        counts = f"{row['records']:>9,} {row['bases']:>15,}"
        print(f"{row['file']:>14} {counts} {speed:>13,.0f} {peak:>5.0f} MB {opened:>5.1f} ms")
    print(f"inspect: {inspected['seconds']:.1f} s")
    if arguments.out:
        commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
        header = {
            "command": f"python benchmarks/reading.py --records {arguments.records} --bases {arguments.bases}",
            "commit": commit,
            "device": f"{platform.processor() or platform.machine()}, one core",
            "python": platform.python_version(),
        }
        result = {**header, "date": date.today().isoformat(), "files": rows, "inspect": inspected}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
