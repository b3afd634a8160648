"""One encoder, measured: verified, then timed, with its peak memory; and the longest sequence that it can take.

A case runs in a process of its own, which writes a line of JSON before each stage and with its numbers, so that one
that dies has told how far it came.
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

ROUNDS, LEAST, SECONDS = 7, 0.5, 4.0
"""Rounds of which the median is taken: more where they take less than `LEAST` seconds together, fewer where they take
more than `SECONDS`."""
CHECKED, TOLERANCE = 2_000, 1e-4
"""Tokens of the sequences that are verified, at most, and how far alone and in a batch may be apart."""
FIRST, LAST = 1 << 10, 1 << 24  # lengths from which on, and up to which, the longest possible is searched for
SEES = {"pointwise": 1}  # tokens that change an output; others that do not see all have a `receptive_field`
NO_MEMORY = ("allocate memory", "out of memory", "ALLOC_FAILED")  # how libraries report that memory ran out
PROCESS = "chordmixer.paper.benching.measuring:measure"

Event = dict[str, Any]
"""What a process tells of itself: a stage that begins, numbers, or an error."""


def times(case: Case, setting: Setting) -> Iterator[Event]:
    """Verified, then timed: batches in inference and training, then the longest sequence alone in both."""
    yield {"stage": "building"}
    meter = Meter(torch.device(case.config.device))
    subject = BenchModel(case, setting.longest)
    network = subject.model.config.network
    yield {
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "receptive_field": SEES.get(case.encoder) or getattr(network, "receptive_field", None),
    }
    yield {"stage": "verification"}
    yield {"difference": subject.verify(setting)}
    alone = [] if setting.has_longest else [("longest_inference", "infer"), ("longest_training", "learn")]
    for name, verb in (("inference", "infer"), ("training", "learn"), *alone):
        batches = ((setting.longest,),) if name.startswith("longest") else setting.batches
        where = f" of {setting.longest:,} tokens" if name.startswith("longest") else ""
        yield {"stage": name.removeprefix("longest_") + where}
        del subject  # its memory is not the next stage's
        subject = BenchModel(case, setting.longest)
        with counted_padding() as share:
            yield {name: phase(subject, getattr(subject, verb), batches, meter)}
            if name == "inference":
                yield {"padded": share()}


def reach(case: Case) -> Iterator[Event]:
    """Twice the length again and again, each time with a network that is built for it, until something gives."""
    meter = Meter(torch.device(case.config.device))
    length = FIRST
    while length <= LAST:
        yield {"stage": f"{case.phase} of {length:,} tokens"}
        subject = BenchModel(case, length)
        work = subject.learn if case.phase == "training" else subject.infer
        x = subject.batch([length])
        meter.start()
        taken = seconds(partial(work, x), subject.device)
        yield {"length": length, "seconds": taken, "peak": meter.peak()}
        del subject, work, x
        length *= 2


class BenchModel:
    """A whole model around the encoder, as for the Adding problem: two channels a token in, one number out."""

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
        """Forward, backward, AdamW."""
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            answers = self.model(x)
        answers.float().square().mean().backward()
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def verify(self, setting: Setting) -> float:
        """How far a sequence's tokens alone and in a batch are apart in float32, as a share of the largest number."""
        lengths = [*(min(n, CHECKED) for n in setting.batches[0][:4]), min(37, setting.longest)]
        x = self.batch(lengths)
        self.model.eval()
        with torch.inference_mode():
            together = self.model.encode(x).to_list()
            alone = [self.model.encode(Packed.from_list([one])).values for one in x.to_list()]
        return compared(together, alone)


def compared(together: Sequence[Tensor], alone: Sequence[Tensor]) -> float:
    if not all(bool(y.isfinite().all()) for y in (*together, *alone)):
        raise VerificationError("some outputs are not finite: its times mean nothing; mend the encoder")
    scale = max(1.0, *(float(y.abs().max()) for y in alone))
    apart = max(float((a - b).abs().max()) for a, b in zip(together, alone, strict=True)) / scale
    if apart > TOLERANCE:
        raise VerificationError(
            f"outputs alone and in a batch differ by {apart:.1e}, above {TOLERANCE:g}: its times mean nothing; "
            "mend the encoder"
        )
    return apart


class VerificationError(ValueError):
    """An encoder that does not keep its promise."""


@contextmanager
def counted_padding() -> Iterator[Callable[[], float]]:
    """Within it, a function that gives the share of places of padded rows without a token.

    All encoders that pad use one function.
    """
    pad, places, tokens = layers.padded, 0, 0

    def counted(x: Packed, groups: Sequence[Sequence[int]], lengths: Sequence[int]) -> tuple[Tensor, Layout]:
        nonlocal places, tokens
        rows, layout = pad(x, groups, lengths)
        places, tokens = places + len(rows), tokens + x.tokens
        return rows, layout

    layers.padded = counted
    try:
        yield lambda: 1 - tokens / places if places else 0.0
    finally:
        layers.padded = pad


def phase(
    subject: BenchModel, work: Callable[[Packed], None], batches: Sequence[Sequence[int]], meter: Meter
) -> dict[str, Any]:
    """Milliseconds a sequence, useful tokens a second, peak bytes; of the rounds over all batches the median."""
    inputs = [subject.batch(lengths) for lengths in batches]

    def once() -> None:
        for x in inputs:
            work(x)

    once()  # compiles, chooses algorithms, asks for memory
    meter.start()
    began = time.monotonic()
    taken: list[float] = []
    while not taken or time.monotonic() - began < (SECONDS if len(taken) < ROUNDS else LEAST):
        taken.append(seconds(once, subject.device))
    median, quarter = statistics.median(taken), len(taken) // 4
    taken.sort()
    return {
        "milliseconds": 1e3 * median / sum(map(len, batches)),
        "tokens_per_second": sum(map(sum, batches)) / median,
        "peak": meter.peak(),
        "rounds": len(taken),
        "spread": (taken[-1 - quarter] - taken[quarter]) / median,
    }


# --- Meters of time and of peak memory ---


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """By the device's own events on a GPU, else by the clock on the wall."""
    if device.type == "cuda":
        event: Callable[..., Any] = torch.cuda.Event  # which has no types
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
    """Peak memory: of a GPU as torch's allocator counts it, of a CPU what is resident beyond Python and torch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        load_libraries(device)
        self.before = status("VmRSS")

    def start(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.before is not None:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now

    def peak(self) -> int | None:
        """Since the start; None where the system does not tell."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        highest = status("VmHWM")
        return None if highest is None or self.before is None else max(0, highest - self.before)


def load_libraries(device: torch.device) -> None:
    """A step of the smallest network: what torch loads on first use is no encoder's memory."""
    tiny = torch.nn.Sequential(torch.nn.Conv1d(8, 8, 3), torch.nn.GELU(), torch.nn.Linear(8, 8)).to(device)
    adam = torch.optim.AdamW(tiny.parameters(), fused=True)
    tiny(torch.rand(1, 8, 10, device=device)).sum().backward()
    adam.step()


def status(name: str) -> int | None:
    """Bytes of a line of /proc/self/status, which Linux has."""
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), flags=re.M)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


# --- The process that measures ---


def in_subprocess(case: Case, process: Popen[bytes] | None = None) -> Event:
    """The events of a case as one, from a process of its own; what kills that process is reported like any error."""
    return subprocesses.call(PROCESS, to_dict(case), case.config.time_limit, process)


def measure() -> None:
    """Read a case from standard input and write its events, each before the work that it announces."""
    events = subprocesses.replies()

    def write(event: Event) -> None:
        events.write(json.dumps(event).encode() + b"\n")
        events.flush()

    if not (line := sys.stdin.readline()):  # a spare process that was not needed
        return
    case = from_dict(Case, json.loads(line), "case")
    try:
        prepare(case)
        for event in times(case, case.setting) if case.setting else reach(case):
            write(event)
        write({"done": True})
    except Exception as error:
        write(reason(error))


def prepare(case: Case) -> None:
    """Apply the limits of a case to this process, which ends with it."""
    ENCODERS.setdefault(case.encoder, case.home)
    torch.set_num_threads(case.threads)
    limit = int(case.config.memory_limit * 1e9)
    if case.config.backend == "torch":
        modules: dict[str, Any] = sys.modules
        modules["triton"] = None  # not importable, so that torch is used
    if case.config.device == "cuda":
        if limit:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    elif (used := status("VmData")) is not None:
        import resource  # not on Windows

        most = used + (limit or free_bytes(torch.device("cpu")))
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # or the system would end some other process


def reason(error: BaseException) -> Event:
    """The kind of error that ended a case, and the first line of its message.

    >>> reason(RuntimeError("CUDA out of memory. Tried to allocate 80 GiB"))["failed"]
    'out of memory'
    """
    message = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY):
        return {"failed": "out of memory", "message": message}
    if isinstance(error, VerificationError):
        return {"failed": "wrong", "message": message}
    if isinstance(error, ValueError):
        return {"failed": "refused", "message": message}
    return {"failed": "error", "message": f"{type(error).__name__}: {message}"}
