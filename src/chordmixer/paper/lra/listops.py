"""ListOps: nested operations on digits, with one digit as their result (Nangia and Bowman, 2018).

The grammar and the numbers are those of the Long Range Arena's generator: an argument is again an operation with
probability 1/4 and a digit otherwise, operations have 2 to 10 arguments and nest 9 deep (digits at depth 10), and
trees are drawn again until they have more than 500 and fewer than 2000 tokens. Here a tree is a function of (seed,
split, index, attempt), and duplicates are not checked for: there are so many trees that none is drawn twice.

No operation depends on the order of its arguments, so other orders of a formula are further training sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray

from chordmixer.config import LONGEST, MAX_RECORDS, check_numbers
from chordmixer.data import draws
from chordmixer.paper.lra import RELEASE, ArenaTask, BytesRecords, Part, file_state, in_chunks, made_once
from chordmixer.tasks.targets import Classification

TOKENS = (*"0123456789", "[MAX", "[MIN", "[MED", "[SM", "]")
"""By their ids. A bracket opens with its operator, as one token; the release's parentheses say nothing more."""
MAX, MIN, MED, SM, CLOSE = range(10, 15)
FILES = {"training": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
FORMAT = 1  # of the made data: another rule of drawing is another number
CHUNK, ATTEMPTS = 1024, 3  # sequences made at a time, and trees that are tried for each before the next look
MOST = 3_000  # trees that are tried for a sequence; of the published numbers one in three will do


@dataclass(frozen=True)
class ListOpsConfig:
    """The published numbers."""

    folder: str | None = field(default=None, compare=False)
    """Of the release's basic_train.tsv, basic_val.tsv and basic_test.tsv; None: made by the rule."""
    min_length: int = 500
    """Sequences are longer."""
    max_length: int = 2000
    """Sequences are shorter; those of the release are cut to it."""
    max_depth: int = 10
    """The depth at which there are only digits; the outermost operation is at 1."""
    max_arguments: int = 10
    """An operation has from 2 to so many."""
    training: int = 96_000
    """Training sequences."""
    validation: int = 2_000
    """Validation sequences."""
    test: int = 2_000
    """Test sequences."""
    orders: int = 1
    """How often each training sequence is there: from the second time on with the arguments of every operation in
    another order, which changes no result."""
    seed: int = 0
    """Another seed, another data set."""
    cache: str | None = field(default=None, compare=False)
    """The folder that what was made is kept in; None: the user's cache folder."""

    def __post_init__(self) -> None:
        counted = dict.fromkeys(("training", "validation", "test", "orders"), (1, MAX_RECORDS))
        check_numbers(self, **counted, max_length=(0, LONGEST), max_depth=(-MAX_RECORDS, 100))
        if not 2 <= self.max_arguments <= 100:
            raise ValueError(f"max_arguments={self.max_arguments} is not from 2 to 100: give such a number")
        if self.min_length < 3 or self.max_length < self.min_length + 2:
            raise ValueError(
                f"lengths above {self.min_length} and below {self.max_length} leave no tree: give min_length of 3 or "
                "more, and max_length at least 2 above it"
            )
        if self.max_depth < 2 or self._fullest <= self.min_length:
            raise ValueError(
                f"max_depth={self.max_depth} leaves room for {self._fullest} tokens, and more than {self.min_length} "
                "are asked for: give more depth, more arguments or a smaller min_length"
            )

    @property
    def _fullest(self) -> int:
        """Tokens of the tree in which every argument above the last depth is an operation."""
        operations = sum(self.max_arguments**depth for depth in range(self.max_depth - 1))
        return int(2 * operations + self.max_arguments ** (self.max_depth - 1))


class ListOps(ArenaTask):
    """The task: fifteen tokens in, one of ten digits out. Classes weigh the same, as in the Arena."""

    Config = ListOpsConfig
    embedding = "tokens"
    inputs = len(TOKENS)
    target = Classification.of_counts(TOKENS[:10], [1] * 10)

    def __init__(self, config: ListOpsConfig) -> None:
        self.config = config
        self.max_length = config.max_length

    def records(self, split: str) -> BytesRecords:
        config, count = self.config, getattr(self.config, split)
        orders = config.orders if split == "training" else 1
        times = (orders,) if orders > 1 else ()
        if config.folder is None:
            rule = (config.min_length, config.max_length, config.max_depth, config.max_arguments, config.seed)
            parts = partial(in_chunks, partial(made, config, split), count * orders, CHUNK)
            folder = made_once(config.cache, "listops", (FORMAT, *rule, split, count, *times), parts)
        else:
            path = Path(config.folder).expanduser() / FILES[split]
            if not path.is_file():
                raise ValueError(
                    f"{path} does not exist: ListOps is read from {', '.join(FILES.values())}; unpack {RELEASE} and "
                    "name its folder listops-1000, or name no folder to make the data by the rule"
                )
            facts = (FORMAT, *file_state(path), config.max_length, count, *times)
            folder = made_once(config.cache, "listops-release", facts, partial(_read, path, config, count, orders))
        return BytesRecords(folder, split, real=False)


# --- The rule ---


class _Level(NamedTuple):
    """The nodes of one depth of many trees: tree by tree, the arguments of an operation side by side."""

    tree: ndarray
    word: ndarray  # 64 random bits each, which decide all about a node
    arguments: ndarray  # how many each has; 0: it is a digit


def made(config: ListOpsConfig, split: str, indices: ndarray) -> Part:
    """The sequences of these indices, end to end, with their lengths and their results.

    Indices that are too large stand for the same sequences again, with arguments in another order.
    """
    count = getattr(config, split)
    own = _bits(np.int64(draws.key(config.seed, "listops", split)), indices % count)
    keys, found = np.zeros(len(indices), dtype=np.int64), np.zeros(len(indices), dtype=bool)
    attempt = 0
    while len(missing := np.flatnonzero(~found)):
        tried = np.tile(np.arange(attempt, attempt + ATTEMPTS), len(missing))
        candidates = _bits(np.repeat(own[missing], ATTEMPTS), tried)
        lengths = _lengths(candidates, config).reshape(-1, ATTEMPTS)
        fits = (lengths > config.min_length) & (lengths < config.max_length)
        first, found[missing] = fits.argmax(axis=1), fits.any(axis=1)
        keys[missing] = candidates.reshape(-1, ATTEMPTS)[np.arange(len(missing)), first]
        attempt += ATTEMPTS
        if attempt >= MOST and not found.all():
            raise ValueError(
                f"of {MOST:,} trees none has more than {config.min_length} and fewer than {config.max_length} tokens"
                ": move these, max_depth or max_arguments"
            )
    return _in_order(_spelled(list(_levels(keys, config))), indices, count, config.seed)


def _in_order(part: Part, indices: ndarray, count: int, seed: int) -> Part:
    """Sequences as they are where their index is below `count`, else with arguments in an order that it decides."""
    tokens, lengths, results = part
    if (later := indices >= count).any():
        where, keys = np.repeat(later, lengths), _bits(np.int64(draws.key(seed, "orders")), indices[later])
        tokens = tokens.copy()
        tokens[where] = reordered(tokens[where], lengths[later], keys)
    return tokens, lengths, results


def _levels(keys: ndarray, config: ListOpsConfig, lengths: ndarray | None = None) -> Iterator[_Level]:
    """Grow trees, a depth at a time; where their `lengths` in tokens are added up, too long ones grow no further."""
    tree, depth = np.arange(len(keys)), 1
    while len(tree):
        starts = np.searchsorted(tree, np.arange(len(keys)))
        word = _bits(keys[tree], (depth << 32) + np.arange(len(tree)) - starts[tree]).view(np.uint64)
        arguments = 2 + ((word >> 30 & 0xFFFFFFFF) * np.uint64(config.max_arguments - 1) >> 32).astype(np.int64)
        if depth > 1:  # a digit alone is too short: the outermost node is an operation
            arguments *= (word >> 62 == 0) & (depth < config.max_depth)
        yield _Level(tree, word, arguments)
        if lengths is not None:
            lengths += np.bincount(tree, weights=1 + (arguments > 0), minlength=len(keys)).astype(np.int64)
            arguments = arguments * (lengths[tree] < config.max_length)
        tree = np.repeat(tree, arguments)
        depth += 1


def _lengths(keys: ndarray, config: ListOpsConfig) -> ndarray:
    """Of the trees of these keys, in tokens; of too long ones, a number that is too large too."""
    lengths = np.zeros(len(keys), dtype=np.int64)
    for _ in _levels(keys, config, lengths):
        pass
    return lengths


def _spelled(levels: list[_Level]) -> Part:
    """Trees as tokens: results and sizes from the leaves up, then places from the roots down."""
    results, sizes, heads = list[ndarray](), list[ndarray](), list[ndarray]()
    for level in reversed(levels):
        operation = level.arguments > 0
        result = ((level.word & 0xFFFFFFF) * np.uint64(10) >> 28).astype(np.int64)
        head, size = result.copy(), np.ones(len(result), dtype=np.int64)
        if operation.any():
            head[operation] = MAX + (level.word[operation] >> 28 & 3).astype(np.int64)
            result[operation] = _results(head[operation], level.arguments[operation], results[-1])
            starts = np.cumsum(level.arguments[operation]) - level.arguments[operation]
            size[operation] = 2 + np.add.reduceat(sizes[-1], starts)
        results.append(result)
        sizes.append(size)
        heads.append(head)
    tokens = np.empty(sizes[-1].sum(), dtype=np.uint8)
    place = np.cumsum(sizes[-1]) - sizes[-1]
    for level, head, size, below in zip(levels, heads[::-1], sizes[::-1], [*sizes[-2::-1], None], strict=True):
        operation = level.arguments > 0
        tokens[place] = head
        tokens[(place + size - 1)[operation]] = CLOSE
        if below is not None:
            arguments = level.arguments[operation]
            before = np.cumsum(below) - below
            firsts = before[np.cumsum(arguments) - arguments]
            place = before + np.repeat(place[operation] + 1 - firsts, arguments)
    return tokens, sizes[-1], results[-1]


def _results(operators: ndarray, counts: ndarray, values: ndarray) -> ndarray:
    """Of operations whose arguments lie side by side in `values`.

    The median is the release's: of an even number of digits the mean of the middle two, rounded down.
    """
    starts = np.cumsum(counts) - counts
    ordered = np.sort(np.repeat(np.arange(len(counts)) * 10, counts) + values) % 10
    median = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) // 2
    total = np.add.reduceat(values, starts) % 10
    return np.choose(operators - MAX, [ordered[starts + counts - 1], ordered[starts], median, total])


def _bits(keys: Any, counters: ndarray) -> ndarray:
    own = torch.from_numpy(keys) if isinstance(keys, ndarray) else int(keys)
    return draws.bits(own, torch.from_numpy(counters)).numpy()


# --- Other orders of the same formula ---


def reordered(tokens: ndarray, lengths: ndarray, keys: ndarray) -> ndarray:
    """Formulas that lie end to end, each with the arguments of all its operations in an order that its key decides.

    One that was cut, so that brackets are left open, stays as it is.

    >>> formula = [MAX, 1, MIN, 2, 3, CLOSE, 4, CLOSE]
    >>> other = reordered(np.array(formula), np.array([8]), np.array([1]))
    >>> " ".join(TOKENS[i] for i in other)
    '[MAX 1 4 [MIN 3 2 ] ]'
    """
    opens, closes = (tokens >= MAX) & (tokens < CLOSE), tokens == CLOSE
    rises = opens.astype(np.int64) - closes
    owner, starts = np.repeat(np.arange(len(lengths)), lengths), np.cumsum(lengths) - lengths
    whole = np.add.reduceat(rises, starts) == 0
    if not whole.all():
        result = tokens.copy()
        result[whole[owner]] = reordered(tokens[whole[owner]], lengths[whole], keys[whole])
        return result
    depth = np.cumsum(rises) + ~opens  # the same for brackets that belong together, and 1 for the outermost
    index = torch.from_numpy(np.arange(len(tokens)) - starts[owner])
    chance = draws.bits(torch.from_numpy(keys[owner]), index).numpy()
    size, result = np.ones(len(tokens), dtype=np.int64), np.full_like(tokens, CLOSE)
    parents = places = starts - 1  # before and after; the first ones have no token
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        operations, nodes = here[opens[here]], here[~closes[here]]
        size[operations] = here[closes[here]] - operations + 1
        parent = np.searchsorted(parents, nodes) - 1
        order = np.lexsort((chance[nodes], parent))
        before = np.cumsum(size[nodes[order]]) - size[nodes[order]]
        firsts = before[np.searchsorted(parent, parent)]
        own = np.empty(len(nodes), dtype=np.int64)
        own[order] = places[parent] + 1 + before - firsts  # in its new order too, a family has the same parent
        result[own] = tokens[nodes]
        parents, places = operations, own[opens[nodes]]
    return result


# --- The release ---


def _read(path: Path, config: ListOpsConfig, count: int, orders: int) -> Iterator[Part]:
    """All rows, as often as they are to be there."""
    part = read_tsv(path, config, count)
    return (_in_order(part, np.arange(n * count, (n + 1) * count), count, config.seed) for n in range(orders))


def read_tsv(path: Path, config: ListOpsConfig, count: int) -> Part:
    """The first `count` rows of a file of the release, as `made` gives them."""
    table = bytes(b"0123456789ABCDE".find(letter) % 256 for letter in range(256))
    sequences: list[bytes] = []
    results: list[int] = []
    with path.open("rb") as file:
        if file.readline().split() != [b"Source", b"Target"]:
            raise ValueError(f"{path} does not start with the columns Source and Target: use the file of {RELEASE}")
        for number, line in enumerate(file, start=2):
            if len(results) == count:
                break
            source, _, target = line.strip().partition(b"\t")
            if len(target) != 1 or not target.isdigit():
                raise ValueError(f"{path}, line {number}: the target is not a digit; the file is cut or damaged")
            for token, letter in zip(TOKENS[10:], "ABCDE", strict=True):
                source = source.replace(token.encode(), letter.encode())
            bare = source.translate(None, b"()").split()
            ids = b"".join(bare).translate(table)
            if len(ids) != len(bare) or b"\xff" in ids or not bare:
                raise ValueError(f"{path}, line {number}: a token is none of {' '.join(TOKENS)}; use another copy")
            if sum(ids.count(head) for head in (MAX, MIN, MED, SM)) != ids.count(CLOSE):
                raise ValueError(f"{path}, line {number}: brackets do not close; the file is cut or damaged")
            sequences.append(ids[: config.max_length])
            results.append(int(target))
    if len(results) < count:
        raise ValueError(
            f"{path} has {len(results):,} of {count:,} rows: it is cut, or the size is to be set; use another copy"
        )
    tokens = np.frombuffer(b"".join(sequences), dtype=np.uint8)
    return tokens, np.array([len(ids) for ids in sequences]), np.array(results)
