"""ListOps: predict the result of nested operations on digits, which is a digit (Nangia and Bowman, 2018).

The grammar and its parameters are those of the Long Range Arena's generator: an argument is an operation with
probability 1/4 and a digit otherwise, operations have 2 to 10 arguments and are nested up to 9 levels (only digits at
depth 10), and trees are drawn again until they have more than 500 and fewer than 2000 tokens. Here a tree is a
function of (seed, split, index, attempt). Duplicates are too unlikely to be checked for.

No operation depends on the order of its arguments, so permuting arguments gives additional training sequences.
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

from chordmixer.config import LONGEST, MANY, check_numbers
from chordmixer.data import draws
from chordmixer.paper.lra import RELEASE, ArenaTask, BytesRecords, Part, build_once, file_state, in_chunks
from chordmixer.tasks.targets import Classification

TOKENS = (*"0123456789", "[MAX", "[MIN", "[MED", "[SM", "]")
"""Tokens by id. An opening bracket and its operator are one token; the release's parentheses are redundant."""
MAX, MIN, MED, SM, CLOSE = range(10, 15)
FILES = {"training": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
FORMAT = 1  # version of the generated data; to be raised if they are generated in another way
CHUNK, ATTEMPTS = 1024, 3  # sequences generated at a time, and trees that are tried per sequence and round
TREES = 3_000  # most trees tried for a sequence; with the published parameters one in three fits


@dataclass(frozen=True)
class ListOpsConfig:
    """Settings of ListOps; the defaults are the published ones."""

    folder: str | None = field(default=None, compare=False)
    """Folder of the release's basic_train.tsv, basic_val.tsv and basic_test.tsv; None: generate by the rule."""
    min_length: int = 500
    """Lower limit of the length in tokens; sequences are longer."""
    max_length: int = 2000
    """Upper limit of the length in tokens; sequences are shorter, and those of the release are truncated to it."""
    max_depth: int = 10
    """Depth at which all arguments are digits; the outermost operation has depth 1."""
    max_arguments: int = 10
    """Largest number of arguments of an operation; the smallest is 2."""
    training: int = 96_000
    """Number of training sequences."""
    validation: int = 2_000
    """Number of validation sequences."""
    test: int = 2_000
    """Number of test sequences."""
    orders: int = 1
    """Number of copies of each training sequence. From the second copy on the arguments of operations are permuted,
    which does not change the result."""
    seed: int = 0
    """Seed of the data."""
    cache: str | None = field(default=None, compare=False)
    """Folder that stores the data; None: the user's cache folder."""

    def __post_init__(self) -> None:
        counted = dict.fromkeys(("training", "validation", "test", "orders"), (1, MANY))
        check_numbers(self, **counted, max_length=(0, LONGEST), max_depth=(-MANY, 100))
        if not 2 <= self.max_arguments <= 100:
            raise ValueError(f"max_arguments={self.max_arguments} is not from 2 to 100: give such a number")
        if self.min_length < 3 or self.max_length < self.min_length + 2:
            raise ValueError(
                f"lengths above {self.min_length} and below {self.max_length} leave no tree: give min_length of 3 or "
                "more, and max_length at least 2 above it"
            )
        if self.max_depth < 2 or self._largest <= self.min_length:
            raise ValueError(
                f"max_depth={self.max_depth} leaves room for {self._largest} tokens, and more than {self.min_length} "
                "are asked for: give more depth, more arguments or a smaller min_length"
            )

    @property
    def _largest(self) -> int:
        """Number of tokens of the largest tree, in which all arguments above the last depth are operations."""
        operations = sum(self.max_arguments**depth for depth in range(self.max_depth - 1))
        return int(2 * operations + self.max_arguments ** (self.max_depth - 1))


class ListOps(ArenaTask):
    """The task: fifteen tokens in, one of ten digits out. All classes have the same weight, as in the Arena."""

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
        order_key = (orders,) if orders > 1 else ()
        if config.folder is None:
            rule = (config.min_length, config.max_length, config.max_depth, config.max_arguments, config.seed)
            parts = partial(in_chunks, partial(generate, config, split), count * orders, CHUNK)
            folder = build_once(config.cache, "listops", (FORMAT, *rule, split, count, *order_key), parts)
        else:
            path = Path(config.folder).expanduser() / FILES[split]
            if not path.is_file():
                raise ValueError(
                    f"{path} does not exist: ListOps is read from {', '.join(FILES.values())}; unpack {RELEASE} and "
                    "name its folder listops-1000, or name no folder to make the data by the rule"
                )
            facts = (FORMAT, *file_state(path), config.max_length, count, *order_key)
            folder = build_once(config.cache, "listops-release", facts, partial(_read, path, config, count, orders))
        return BytesRecords(folder, split, real=False)


# --- The rule ---


class _Level(NamedTuple):
    """The nodes at one depth of many trees, ordered by tree; the arguments of an operation are adjacent."""

    tree: ndarray
    word: ndarray  # 64 random bits per node, from which its properties follow
    arguments: ndarray  # number of arguments of each node; 0 for a digit


def generate(config: ListOpsConfig, split: str, indices: ndarray) -> Part:
    """Generate the sequences of these indices, concatenated, with their lengths and results.

    Indices from the number of sequences on repeat the same sequences with permuted arguments.
    """
    count = getattr(config, split)
    sequence_keys = _bits(np.int64(draws.key(config.seed, "listops", split)), indices % count)
    keys, found = np.zeros(len(indices), dtype=np.int64), np.zeros(len(indices), dtype=bool)
    attempt = 0
    while len(missing := np.flatnonzero(~found)):
        attempts = np.tile(np.arange(attempt, attempt + ATTEMPTS), len(missing))
        candidates = _bits(np.repeat(sequence_keys[missing], ATTEMPTS), attempts)
        lengths = _lengths(candidates, config).reshape(-1, ATTEMPTS)
        fits = (lengths > config.min_length) & (lengths < config.max_length)
        first, found[missing] = fits.argmax(axis=1), fits.any(axis=1)
        keys[missing] = candidates.reshape(-1, ATTEMPTS)[np.arange(len(missing)), first]
        attempt += ATTEMPTS
        if attempt >= TREES and not found.all():
            raise ValueError(
                f"of {TREES:,} trees none has more than {config.min_length} and fewer than {config.max_length} tokens"
                ": move these, max_depth or max_arguments"
            )
    return _permuted(_to_tokens(list(_levels(keys, config))), indices, count, config.seed)


def _permuted(part: Part, indices: ndarray, count: int, seed: int) -> Part:
    """Permute the arguments of sequences whose index is `count` or more, by a key that depends on the index."""
    tokens, lengths, results = part
    if (repeated := indices >= count).any():
        where, keys = np.repeat(repeated, lengths), _bits(np.int64(draws.key(seed, "orders")), indices[repeated])
        tokens = tokens.copy()
        tokens[where] = reordered(tokens[where], lengths[repeated], keys)
    return tokens, lengths, results


def _levels(keys: ndarray, config: ListOpsConfig, lengths: ndarray | None = None) -> Iterator[_Level]:
    """Grow trees depth by depth. `lengths` accumulates their tokens, if given, and trees that are too long stop."""
    tree, depth = np.arange(len(keys)), 1
    while len(tree):
        starts = np.searchsorted(tree, np.arange(len(keys)))
        word = _bits(keys[tree], (depth << 32) + np.arange(len(tree)) - starts[tree]).view(np.uint64)
        arguments = 2 + ((word >> 30 & 0xFFFFFFFF) * np.uint64(config.max_arguments - 1) >> 32).astype(np.int64)
        if depth > 1:  # the outermost node is an operation, since a single digit would be too short
            arguments *= (word >> 62 == 0) & (depth < config.max_depth)
        yield _Level(tree, word, arguments)
        if lengths is not None:
            lengths += np.bincount(tree, weights=1 + (arguments > 0), minlength=len(keys)).astype(np.int64)
            arguments = arguments * (lengths[tree] < config.max_length)
        tree = np.repeat(tree, arguments)
        depth += 1


def _lengths(keys: ndarray, config: ListOpsConfig) -> ndarray:
    """Lengths of the trees in tokens; for trees that are too long, some number above the limit."""
    lengths = np.zeros(len(keys), dtype=np.int64)
    for _ in _levels(keys, config, lengths):
        pass
    return lengths


def _to_tokens(levels: list[_Level]) -> Part:
    """Convert trees to tokens: compute results and sizes from the leaves up, then positions from the roots down."""
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
    position = np.cumsum(sizes[-1]) - sizes[-1]
    for level, head, size, below in zip(levels, heads[::-1], sizes[::-1], [*sizes[-2::-1], None], strict=True):
        operation = level.arguments > 0
        tokens[position] = head
        tokens[(position + size - 1)[operation]] = CLOSE
        if below is not None:
            arguments = level.arguments[operation]
            before = np.cumsum(below) - below
            firsts = before[np.cumsum(arguments) - arguments]
            position = before + np.repeat(position[operation] + 1 - firsts, arguments)
    return tokens, sizes[-1], results[-1]


def _results(operators: ndarray, counts: ndarray, values: ndarray) -> ndarray:
    """Results of operations, whose arguments are adjacent in `values`.

    The median is defined as in the release: for an even number of digits, the mean of the middle two, rounded down.
    """
    starts = np.cumsum(counts) - counts
    ordered = np.sort(np.repeat(np.arange(len(counts)) * 10, counts) + values) % 10
    median = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) // 2
    total = np.add.reduceat(values, starts) % 10
    return np.choose(operators - MAX, [ordered[starts + counts - 1], ordered[starts], median, total])


def _bits(keys: Any, counters: ndarray) -> ndarray:
    key = torch.from_numpy(keys) if isinstance(keys, ndarray) else int(keys)
    return draws.bits(key, torch.from_numpy(counters)).numpy()


# --- Permuted arguments ---


def reordered(tokens: ndarray, lengths: ndarray, keys: ndarray) -> ndarray:
    """Permute the arguments of all operations in concatenated formulas, each by its key.

    A truncated formula, in which brackets do not close, is not changed.

    >>> formula = [MAX, 1, MIN, 2, 3, CLOSE, 4, CLOSE]
    >>> other = reordered(np.array(formula), np.array([8]), np.array([1]))
    >>> " ".join(TOKENS[i] for i in other)
    '[MAX 1 4 [MIN 3 2 ] ]'
    """
    opens, closes = (tokens >= MAX) & (tokens < CLOSE), tokens == CLOSE
    rises = opens.astype(np.int64) - closes
    formula_of, starts = np.repeat(np.arange(len(lengths)), lengths), np.cumsum(lengths) - lengths
    closed = np.add.reduceat(rises, starts) == 0
    if not closed.all():
        result = tokens.copy()
        result[closed[formula_of]] = reordered(tokens[closed[formula_of]], lengths[closed], keys[closed])
        return result
    depth = np.cumsum(rises) + ~opens  # equal for matching brackets, 1 for the outermost ones
    index = torch.from_numpy(np.arange(len(tokens)) - starts[formula_of])
    random = draws.bits(torch.from_numpy(keys[formula_of]), index).numpy()
    size, result = np.ones(len(tokens), dtype=np.int64), np.full_like(tokens, CLOSE)
    parents = moved_parents = starts - 1  # token positions before and after permuting; none exists above level 1
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        operations, nodes = here[opens[here]], here[~closes[here]]
        size[operations] = here[closes[here]] - operations + 1
        parent = np.searchsorted(parents, nodes) - 1
        order = np.lexsort((random[nodes], parent))
        before = np.cumsum(size[nodes[order]]) - size[nodes[order]]
        firsts = before[np.searchsorted(parent, parent)]
        moved = np.empty(len(nodes), dtype=np.int64)
        moved[order] = moved_parents[parent] + 1 + before - firsts  # the parent does not change
        result[moved] = tokens[nodes]
        parents, moved_parents = operations, moved[opens[nodes]]
    return result


# --- The release ---


def _read(path: Path, config: ListOpsConfig, count: int, orders: int) -> Iterator[Part]:
    """Read all rows; repeat them with permuted arguments if `orders` is above 1."""
    part = read_tsv(path, config, count)
    return (_permuted(part, np.arange(n * count, (n + 1) * count), count, config.seed) for n in range(orders))


def read_tsv(path: Path, config: ListOpsConfig, count: int) -> Part:
    """Read the first `count` rows of a file of the release, in the format of `generate`."""
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
