"""Damaged copies of a file, for tests that no reader trips over one."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

COUNT = int(os.environ.get("MUTANTS", "150"))
"""How many each test makes: `MUTANTS=2000 python -m pytest tests/data -k mutants` for a thorough run."""
T = TypeVar("T")
Change = Callable[[bytes, random.Random], bytes]


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Copies with one to three of the `CHANGES` each; the same for the same seed."""
    return (mutant(data, random.Random(f"{seed} {number}")) for number in range(count))


def mutant(data: bytes, draw: random.Random, changes: Sequence[Change] | None = None) -> bytes:
    """A copy with one to three of the changes; where they come to nothing, with one more."""
    damaged = data
    for _ in range(draw.choice((1, 1, 2, 3))):
        damaged = draw.choice(changes or CHANGES)(damaged, draw)
    return damaged if damaged != data else flip(data, draw)


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


NUMBERS = (b"-1", b"0", b"True", b"1e999", b"nan", b"2147483648", b"9223372036854775808", b"9" * 30, b"9" * 5000)


def exaggerate(data: bytes, draw: random.Random) -> bytes:
    """Another number for one, that no file can mean."""
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return flip(data, draw)
    number = draw.choice(found)
    return data[: number.start()] + draw.choice(NUMBERS) + data[number.end() :]


def end_lines(data: bytes, draw: random.Random) -> bytes:
    """Other line ends, for all or for one."""
    return data.replace(b"\n", draw.choice((b"\r", b"\r\n", b"\n\n", b"\x0b")), draw.choice((-1, 1)))


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -0.5, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf")),
    *("", "x", "x" * 3000, "\x1b[31m", "a\0b", "1e999", [], {}, [[]], [None], [[1], 2], {"a": 1}),
)


def change_json(data: bytes, draw: random.Random) -> bytes:
    """Another value in a place of a JSON object, or of a line of several; a key less, or under another name."""
    lines = data.splitlines()
    at = draw.randrange(len(lines) or 1)
    for whole, start, end in ((False, at, at + 1), (True, 0, len(lines))):
        try:
            tree = json.loads(b"\n".join(lines[start:end]))
            places = list(_places(tree))
        except ValueError:
            continue
        if whole or places:
            break
    else:
        return flip(data, draw)
    if not places:
        return flip(data, draw)
    inside, key = draw.choice(places)
    act = draw.randrange(8)
    if act == 0:
        del inside[key]
    elif act == 1 and isinstance(inside, dict):
        inside[draw.choice(("", "x", "__class__", key * 2))] = inside.pop(key)
    else:
        inside[key] = draw.choice(VALUES)
    return b"\n".join([*lines[:start], json.dumps(tree).encode(), *lines[end:], b""])


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each container of a JSON value with each of its keys."""
    keys: Any = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys):
        yield tree, key
        yield from _places(tree[key])


CHANGES: tuple[Change, ...] = (
    flip,
    cut,
    zero,
    insert,
    delete,
    double,
    swap,
    rubbish,
    renumber,
    exaggerate,
    end_lines,
)
