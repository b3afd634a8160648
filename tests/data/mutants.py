"""Damaged copies of a file, for tests that no reader trips over one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import TypeVar

COUNT = int(os.environ.get("MUTANTS", "150"))
"""How many each test makes: `MUTANTS=2000 python -m pytest tests/data -k mutants` for a thorough run."""
T = TypeVar("T")


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Copies with one to three of the `CHANGES` each; the same for the same seed."""
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        mutant = data
        for _ in range(draw.choice((1, 1, 2, 3))):
            mutant = draw.choice(CHANGES)(mutant, draw)
        yield mutant


def survivors(data: bytes, read: Callable[[bytes], T], seed: int, count: int = COUNT) -> list[tuple[bytes, T]]:
    """The mutants that can be read, with what was; every other must be refused in one line."""
    readable = []
    for mutant in mutants(data, count, seed):
        try:
            readable.append((mutant, read(mutant)))
        except ValueError as error:
            assert not isinstance(error, UnicodeError), f"{error!r} is not our error"
            assert len(str(error).splitlines()) == 1, f"{error!r} has several lines"
    return readable


def _range(data: bytes, draw: random.Random) -> tuple[int, int]:
    """Most often short, now and then up to all of it; often at the very start or end, where formats are told."""
    size = int(draw.choice((1, 4, 40, len(data))) * draw.random()) + 1
    anywhere = draw.randrange(len(data) + 1)
    start = draw.choice((0, max(0, len(data) - size), *[anywhere] * 8))
    return start, min(len(data), start + size)


def flip(data: bytes, draw: random.Random) -> bytes:
    start, end = _range(data, draw)
    return data[:start] + bytes(byte ^ 1 << draw.randrange(8) for byte in data[start:end]) + data[end:]


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def zero(data: bytes, draw: random.Random) -> bytes:
    start, end = _range(data, draw)
    return data[:start] + bytes(end - start) + data[end:]


def insert(data: bytes, draw: random.Random) -> bytes:
    start, end = _range(data, draw)
    return data[:start] + draw.randbytes(end - start) + data[start:]


def delete(data: bytes, draw: random.Random) -> bytes:
    start, end = _range(data, draw)
    return data[:start] + data[end:]


def double(data: bytes, draw: random.Random) -> bytes:
    start, end = _range(data, draw)
    return data[:end] + data[start:end] + data[end:]


def swap(data: bytes, draw: random.Random) -> bytes:
    a, b, c, d = sorted(draw.randrange(len(data) + 1) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def rubbish(data: bytes, draw: random.Random) -> bytes:
    """Also of bytes that mean something to a text format."""
    start, end = _range(data, draw)
    letters = draw.choice((bytes(range(256)), b'\n\r\t >@+;/,"{}[]:.0123456789-ACGTN\xef\xbb\xbf\0'))
    return data[:start] + bytes(draw.choices(letters, k=end - start)) + data[end:]


def renumber(data: bytes, draw: random.Random) -> bytes:
    """Another digit for one: lengths and positions that can be parsed, and are wrong."""
    digits = [at for at, byte in enumerate(data) if byte in b"0123456789"]
    if not digits:
        return flip(data, draw)
    at = draw.choice(digits)
    return data[:at] + str(draw.randrange(10)).encode() + data[at + 1 :]


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    cut,
    zero,
    insert,
    delete,
    double,
    swap,
    rubbish,
    renumber,
)
