"""Measurement of one encoder: verification, time, peak memory, and the longest sequence that it can process.

A case runs in its own process, which writes a line of JSON before each stage and with its results, so that the
progress of a process that crashes is known.
"""

from __future__ import annotations

import gc
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import torch
from torch import Tensor

from chordmixer.config import from_dict, to_dict
from chordmixer.models import Model, ModelConfig
from chordmixer.models.chordmixer import ChordMixerConfig
from chordmixer.models.encoders import ENCODERS, layers
from chordmixer.packed import Layout, Packed
from chordmixer.paper import subprocesses
from chordmixer.paper.benching.cases import Case, Setting
from chordmixer.training.devices import free_bytes

ROUNDS, MIN_SECONDS, SECONDS = 7, 0.5, 4.0
"""Number of timed rounds: more if all take less than `MIN_SECONDS`, fewer if all take more than `SECONDS`."""
VERIFIED_LENGTH, TOLERANCE = 2_000, 1e-4
"""Longest sequence in verification, and the largest relative difference between outputs alone and in a batch."""
MIN_LENGTH, MAX_LENGTH = 1 << 10, 1 << 24  # range of the search for the longest sequence
RECEPTIVE_FIELDS = {"pointwise": 1}  # for encoders without a `receptive_field` that do not see all tokens
OUT_OF_MEMORY = ("allocate memory", "out of memory", "ALLOC_FAILED")  # in error messages of libraries
PROCESS = "chordmixer.paper.benching.measuring:measure"

Event = dict[str, Any]
"""A message of the measuring process: the stage that starts, results, or an error."""


def time_case(case: Case, setting: Setting) -> Iterator[Event]:
    """Verify an encoder, then time batches in inference and training, then the longest sequence alone in both."""
    yield {"stage": "building"}
    meter = Meter(torch.device(case.config.device))
    bench_model = BenchModel(case, setting.longest)
    network = bench_model.model.config.network
    yield {
        "parameters": sum(p.numel() for p in bench_model.model.parameters()),
        "receptive_field": RECEPTIVE_FIELDS.get(case.encoder) or getattr(network, "receptive_field", None),
    }
    yield {"stage": "verification"}
    yield {"difference": bench_model.verify(setting)}
    longest = [] if setting.has_longest else [("longest_inference", "infer"), ("longest_training", "learn")]
    for name, verb in (("inference", "infer"), ("training", "learn"), *longest):
        batches = ((setting.longest,),) if name.startswith("longest") else setting.batches
        where = f" of {setting.longest:,} tokens" if name.startswith("longest") else ""
        yield {"stage": name.removeprefix("longest_") + where}
        del bench_model  # frees its memory before the next stage
        bench_model = BenchModel(case, setting.longest)
        with counted_padding() as share:
            yield {name: measure_phase(bench_model, getattr(bench_model, verb), batches, meter)}
            if name == "inference":
                yield {"padded": share()}


def find_longest(case: Case) -> Iterator[Event]:
    """Double the length until something fails, each time with a network that is built for that length."""
    meter = Meter(torch.device(case.config.device))
    length = MIN_LENGTH
    while length <= MAX_LENGTH:
        yield {"stage": f"{case.phase} of {length:,} tokens"}
        bench_model = BenchModel(case, length)
        work = bench_model.learn if case.phase == "training" else bench_model.infer
        x = bench_model.batch([length])
        meter.start()
        elapsed = seconds(partial(work, x), bench_model.device)
        yield {"length": length, "seconds": elapsed, "peak": meter.peak()}
        del bench_model, work, x
        length *= 2


class BenchModel:
    """A model with the encoder, as for the Adding problem: two channels per token in, one number out."""

    def __init__(self, case: Case, longest: int) -> None:
        gc.collect()
        if case.config.device == "cuda":
            torch.cuda.empty_cache()
        torch.manual_seed(0)
        self.device, self.half = torch.device(case.config.device), case.config.precision == "bf16"
        config = ModelConfig(inputs=2, outputs=1, embedding="real", network=ChordMixerConfig(max_length=longest))
        self.model = Model(config.with_encoder(case.encoder)).to(self.device)
        self.adam = torch.optim.AdamW(self.model.parameters(), fused=True)

    def batch(self, lengths: Sequence[int]) -> Packed:
        return Packed.from_lengths(torch.rand(sum(lengths), 2, device=self.device), lengths)

    def infer(self, x: Packed) -> None:
        self.model.eval()
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            self.model(x)

    def learn(self, x: Packed) -> None:
        """Run one training step: forward, backward, AdamW."""
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            outputs = self.model(x)
        outputs.float().square().mean().backward()
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def verify(self, setting: Setting) -> float:
        """Largest difference in float32 between outputs alone and in a batch, divided by the largest output."""
        lengths = [*(min(n, VERIFIED_LENGTH) for n in setting.batches[0][:4]), min(37, setting.longest)]
        x = self.batch(lengths)
        self.model.eval()
        with torch.inference_mode():
            together = self.model.encode(x).to_list()
            alone = [self.model.encode(Packed.from_list([sequence])).values for sequence in x.to_list()]
        return relative_difference(together, alone)


def relative_difference(together: Sequence[Tensor], alone: Sequence[Tensor]) -> float:
    if not all(bool(y.isfinite().all()) for y in (*together, *alone)):
        raise VerificationError("some outputs are not finite: its times mean nothing; mend the encoder")
    scale = max(1.0, *(float(y.abs().max()) for y in alone))
    difference = max(float((a - b).abs().max()) for a, b in zip(together, alone, strict=True)) / scale
    if difference > TOLERANCE:
        raise VerificationError(
            f"outputs alone and in a batch differ by {difference:.1e}, above {TOLERANCE:g}: its times mean nothing; "
            "mend the encoder"
        )
    return difference


class VerificationError(ValueError):
    """Outputs of an encoder are not finite, or depend on the batch."""


@contextmanager
def counted_padding() -> Iterator[Callable[[], float]]:
    """Count padding within the context; gives a function that returns the share of padding in padded rows.

    All encoders that pad call `layers.padded`, which is replaced for the time being.
    """
    pad, positions, tokens = layers.padded, 0, 0

    def counted(x: Packed, groups: Sequence[Sequence[int]], lengths: Sequence[int]) -> tuple[Tensor, Layout]:
        nonlocal positions, tokens
        rows, layout = pad(x, groups, lengths)
        positions, tokens = positions + len(rows), tokens + x.tokens
        return rows, layout

    layers.padded = counted
    try:
        yield lambda: 1 - tokens / positions if positions else 0.0
    finally:
        layers.padded = pad


def measure_phase(
    bench_model: BenchModel, work: Callable[[Packed], None], batches: Sequence[Sequence[int]], meter: Meter
) -> dict[str, Any]:
    """Time rounds over all batches: median milliseconds per sequence, tokens per second, peak memory in bytes."""
    inputs = [bench_model.batch(lengths) for lengths in batches]

    def run_round() -> None:
        for x in inputs:
            work(x)

    run_round()  # warm-up: compiles, chooses algorithms, allocates memory
    meter.start()
    began = time.monotonic()
    rounds: list[float] = []
    while not rounds or time.monotonic() - began < (SECONDS if len(rounds) < ROUNDS else MIN_SECONDS):
        rounds.append(seconds(run_round, bench_model.device))
    median, quarter = statistics.median(rounds), len(rounds) // 4
    rounds.sort()
    return {
        "milliseconds": 1e3 * median / sum(map(len, batches)),
        "tokens_per_second": sum(map(sum, batches)) / median,
        "peak": meter.peak(),
        "rounds": len(rounds),
        "spread": (rounds[-1 - quarter] - rounds[quarter]) / median,
    }


# --- Meters of time and of peak memory ---


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Seconds that `work` takes, by CUDA events on a GPU, else by wall clock."""
    if device.type == "cuda":
        event: Callable[..., Any] = torch.cuda.Event  # untyped
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Meter:
    """Peak memory: on a GPU that of torch's allocator, on a CPU resident memory minus that of Python and torch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        load_libraries(device)
        self.before = proc_status("VmRSS")

    def start(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.before is not None:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present resident memory

    def peak(self) -> int | None:
        """Peak memory in bytes since `start`; None if the system does not report it."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        peak = proc_status("VmHWM")
        return None if peak is None or self.before is None else max(0, peak - self.before)


def load_libraries(device: torch.device) -> None:
    """Run a training step of a tiny network, so that libraries that torch loads on first use are not counted."""
    tiny = torch.nn.Sequential(torch.nn.Conv1d(8, 8, 3), torch.nn.GELU(), torch.nn.Linear(8, 8)).to(device)
    adam = torch.optim.AdamW(tiny.parameters(), fused=True)
    tiny(torch.rand(1, 8, 10, device=device)).sum().backward()
    adam.step()


def proc_status(name: str) -> int | None:
    """Bytes in a line of /proc/self/status; None without such a file or line (not on Linux)."""
    try:
        match = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), flags=re.M)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


# --- The process that measures ---


def in_subprocess(case: Case, process: Popen[bytes] | None = None) -> Event:
    """Measure a case in another process and merge its events; a crash of that process is reported as an error."""
    return subprocesses.call(PROCESS, to_dict(case), case.config.time_limit, process)


def measure() -> None:
    """Entry point of the process: read a case from standard input and write its events as they occur."""
    events = subprocesses.replies()

    def write(event: Event) -> None:
        events.write(json.dumps(event).encode() + b"\n")
        events.flush()

    if not (line := sys.stdin.readline()):  # end of input: the spare process is not needed
        return
    case = from_dict(Case, json.loads(line), "case")
    try:
        apply_limits(case)
        for event in time_case(case, case.setting) if case.setting else find_longest(case):
            write(event)
        write({"done": True})
    except Exception as error:
        write(failure(error))


def apply_limits(case: Case) -> None:
    """Apply encoder, threads, backend and memory limit of a case to this process, which measures nothing else."""
    ENCODERS.setdefault(case.encoder, case.home)
    torch.set_num_threads(case.threads)
    limit = int(case.config.memory_limit * 1e9)
    if case.config.backend == "torch":
        modules: dict[str, Any] = sys.modules
        modules["triton"] = None  # makes the import fail, so that the torch backend is used
    if case.config.device == "cuda":
        if limit:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    elif (used := proc_status("VmData")) is not None:
        import resource  # not on Windows

        total = used + (limit or free_bytes(torch.device("cpu")))
        resource.setrlimit(resource.RLIMIT_DATA, (total, total))  # else the system might kill another process


def failure(error: BaseException) -> Event:
    """The kind of error that ended a case, and the first line of its message.

    >>> failure(RuntimeError("CUDA out of memory. Tried to allocate 80 GiB"))["failed"]
    'out of memory'
    """
    message = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in str(error) for text in OUT_OF_MEMORY):
        return {"failed": "out of memory", "message": message}
    if isinstance(error, VerificationError):
        return {"failed": "wrong", "message": message}
    if isinstance(error, ValueError):
        return {"failed": "refused", "message": message}
    return {"failed": "error", "message": f"{type(error).__name__}: {message}"}
