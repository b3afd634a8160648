"""Damaged copies of a file, for tests that every reader reads or refuses them."""

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
    """Copies with one to three of the `CHANGES` each; always the same for one seed."""
    return (mutant(data, random.Random(f"{seed} {number}")) for number in range(count))


def mutant(data: bytes, rng: random.Random, changes: Sequence[Change] | None = None) -> bytes:
    """A copy with one to three of the changes; if they change nothing, one more is made."""
    damaged = data
    for _ in range(rng.choice((1, 1, 2, 3))):
        damaged = rng.choice(changes or CHANGES)(damaged, rng)
    return damaged if damaged != data else flip(data, rng)


def survivors(data: bytes, read: Callable[[bytes], T], seed: int, count: int = COUNT) -> list[tuple[bytes, T]]:
    """The mutants that can be read, each with its result; every other must be refused in one line."""
    readable = []
    for mutant in mutants(data, count, seed):
        try:
            readable.append((mutant, read(mutant)))
        except ValueError as error:
            assert not isinstance(error, UnicodeError), f"{error!r} is not our error"
            assert len(str(error).splitlines()) == 1, f"{error!r} has several lines"
    return readable


def _range(data: bytes, rng: random.Random) -> tuple[int, int]:
    """A range that is mostly short, sometimes all of the file; often at the start or end, which show the format."""
    size = int(rng.choice((1, 4, 40, len(data))) * rng.random()) + 1
    anywhere = rng.randrange(len(data) + 1)
    start = rng.choice((0, max(0, len(data) - size), *[anywhere] * 8))
    return start, min(len(data), start + size)


def flip(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:start] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[start:end]) + data[end:]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def zero(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:start] + bytes(end - start) + data[end:]


def insert(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:start] + rng.randbytes(end - start) + data[start:]


def delete(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:start] + data[end:]


def double(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:end] + data[start:end] + data[end:]


def swap(data: bytes, rng: random.Random) -> bytes:
    a, b, c, d = sorted(rng.randrange(len(data) + 1) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def rubbish(data: bytes, rng: random.Random) -> bytes:
    """Insert random bytes, sometimes those that have a meaning in text formats."""
    start, end = _range(data, rng)
    letters = rng.choice((bytes(range(256)), b'\n\r\t >@+;/,"{}[]:.0123456789-ACGTN\xef\xbb\xbf\0'))
    return data[:start] + bytes(rng.choices(letters, k=end - start)) + data[end:]


def renumber(data: bytes, rng: random.Random) -> bytes:
    """Replace one digit: lengths and positions can still be parsed, but are wrong."""
    digits = [position for position, byte in enumerate(data) if byte in b"0123456789"]
    if not digits:
        return flip(data, rng)
    position = rng.choice(digits)
    return data[:position] + str(rng.randrange(10)).encode() + data[position + 1 :]


NUMBERS = (b"-1", b"0", b"True", b"1e999", b"nan", b"2147483648", b"9223372036854775808", b"9" * 30, b"9" * 5000)


def exaggerate(data: bytes, rng: random.Random) -> bytes:
    """Replace a number by one that is impossible in any file."""
    matches = list(re.finditer(rb"\d+", data))
    if not matches:
        return flip(data, rng)
    match = rng.choice(matches)
    return data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]


def end_lines(data: bytes, rng: random.Random) -> bytes:
    """Replace the ends of all lines, or of one."""
    return data.replace(b"\n", rng.choice((b"\r", b"\r\n", b"\n\n", b"\x0b")), rng.choice((-1, 1)))


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -0.5, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf")),
    *("", "x", "x" * 3000, "\x1b[31m", "a\0b", "1e999", [], {}, [[]], [None], [[1], 2], {"a": 1}),
)


def change_json(data: bytes, rng: random.Random) -> bytes:
    """Change a value of a JSON document or of one JSON line, or remove or rename a key."""
    lines = data.splitlines()
    index = rng.randrange(len(lines) or 1)
    for whole_file, start, end in ((False, index, index + 1), (True, 0, len(lines))):
        try:
            tree = json.loads(b"\n".join(lines[start:end]))
            places = list(_places(tree))
        except ValueError:
            continue
        if whole_file or places:
            break
    else:
        return flip(data, rng)
    if not places:
        return flip(data, rng)
    container, key = rng.choice(places)
    action = rng.randrange(8)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[rng.choice(("", "x", "__class__", key * 2))] = container.pop(key)
    else:
        container[key] = rng.choice(VALUES)
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
