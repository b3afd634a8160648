from __future__ import annotations

import pickle
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chordmixer.data.loading import GeneratedRecords
from chordmixer.paper.lra.listops import (
    CLOSE,
    MAX,
    MED,
    MIN,
    SM,
    TOKENS,
    ListOps,
    ListOpsConfig,
    generate,
    read_tsv,
    reordered,
)

SMALL = {"training": 60, "validation": 20, "test": 20}
TSV = (
    "Source\tTarget\n"
    "( ( ( ( [MAX 2 ) 9 ) ( ( ( [MED 4 ) 7 ) ] ) ) ] )\t9\n"
    "( ( ( [SM 8 ) 7 ) ] )\t5\n"
    "( ( ( [MIN 8 ) 7 ) ] )\t7\n"
)


def evaluated(words: list[str]) -> tuple[int, int]:
    """The result and the depth of an expression, by reading it from left to right; consumes the words."""
    head = words.pop(0)
    if head.isdigit():
        return int(head), 1
    arguments, depths = [], []
    while words[0] != "]":
        value, depth = evaluated(words)
        arguments.append(value)
        depths.append(depth)
    words.pop(0)
    assert 2 <= len(arguments) <= 10
    rules: dict[str, Any] = {
        "[MAX": max,
        "[MIN": min,
        "[MED": lambda a: int(statistics.median(a)),
        "[SM": lambda a: sum(a) % 10,
    }
    return rules[head](arguments), 1 + max(depths)


@pytest.fixture(scope="module")
def sample() -> tuple[list[list[str]], np.ndarray]:
    tokens, lengths, results = generate(ListOpsConfig(), "training", np.arange(500))
    ends = np.cumsum(lengths)
    return [[TOKENS[i] for i in tokens[end - n : end]] for n, end in zip(lengths, ends, strict=True)], results


def test_results_are_those_of_a_parser(sample: tuple[list[list[str]], np.ndarray]) -> None:
    depths = []
    for words, result in zip(*sample, strict=True):
        left = list(words)
        value, depth = evaluated(left)
        assert value == result and not left
        depths.append(depth)
    assert max(depths) == 10


@pytest.mark.parametrize(
    ("text", "value"), [("[MED 1 4 ]", 2), ("[MED 9 [SM 9 9 ] 0 ]", 8), ("[MIN 3 [MAX 1 2 ] ]", 2)]
)
def test_the_parser_itself(text: str, value: int) -> None:
    assert evaluated(text.split())[0] == value


def test_lengths_and_classes_are_sensible(sample: tuple[list[list[str]], np.ndarray]) -> None:
    lengths = [len(words) for words in sample[0]]
    assert min(lengths) > 500 and max(lengths) < 2000
    assert 900 < np.mean(lengths) < 1200 and np.std(lengths) > 250
    shares = np.bincount(sample[1], minlength=10) / len(lengths)
    assert shares.min() > 0.03 and shares[[0, 9]].min() > 0.12 and shares.max() < 0.27
    everything = [word for words in sample[0] for word in words]
    heads = [everything.count(head) for head in TOKENS[10:14]]
    assert max(heads) < 1.03 * min(heads) and sum(heads) == everything.count("]")
    digits = [everything.count(digit) for digit in TOKENS[:10]]
    assert max(digits) < 1.05 * min(digits)


def test_a_sequence_is_a_function_of_seed_split_and_index() -> None:
    config = ListOpsConfig()
    tokens, lengths, results = generate(config, "test", np.arange(9))
    alone = generate(config, "test", np.array([4]))
    start = lengths[:4].sum()
    assert np.array_equal(alone[0], tokens[start : start + lengths[4]]) and alone[2][0] == results[4]
    for other in (
        generate(config, "training", np.array([4])),
        generate(ListOpsConfig(seed=1), "test", np.array([4])),
    ):
        assert not np.array_equal(alone[0], other[0])


def test_a_sequence_that_must_never_change() -> None:
    tokens, lengths, results = generate(ListOpsConfig(), "test", np.arange(3))
    assert (lengths.tolist(), results.tolist(), int(tokens.astype(int).sum())) == (
        [1308, 1290, 677],
        [0, 9, 8],
        22469,
    )


def test_records(tmp_path: Path) -> None:
    task = ListOps(ListOpsConfig(**SMALL, cache=str(tmp_path)))
    records = task.records("training")
    assert len(records) == 60 and isinstance(records, GeneratedRecords) and records.name(3) == "training-3"
    assert (task.embedding, task.inputs, task.max_length, task.target.outputs) == ("tokens", 15, 2000, 10)
    assert task.target.headline == "accuracy" and set(task.target.weights.tolist()) == {1.0}
    inputs, targets = records.batch([5, 2], torch.device("cpu"))
    assert torch.equal(inputs.to_list()[1], records[2].values) and targets.tolist()[1] == records[2].target
    assert inputs.values.dtype == torch.uint8 and inputs.lengths == (records.lengths[5], records.lengths[2])
    made_folder = records.folder.stat().st_mtime_ns
    again = ListOps(ListOpsConfig(**SMALL, cache=str(tmp_path))).records("training")
    assert again.folder.stat().st_mtime_ns == made_folder
    assert torch.equal(pickle.loads(pickle.dumps(again))[7].values, records[7].values)
    assert [path.name for path in tmp_path.iterdir()] == [records.folder.name]


def test_a_torn_cache_is_refused(tmp_path: Path) -> None:
    task = ListOps(ListOpsConfig(**SMALL, cache=str(tmp_path)))
    values = task.records("test").folder / "values.bin"
    values.write_bytes(values.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is torn; delete its folder"):
        task.records("test")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"training": 0}, "training=0 is too small: give 1 or more"),
        ({"max_arguments": 1}, "max_arguments=1 is not from 2 to 100"),
        ({"min_length": 10, "max_length": 11}, "leave no tree"),
        ({"max_depth": 3}, "max_depth=3 leaves room for 122 tokens"),
    ],
)
def test_config_errors(given: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ListOpsConfig(**given)


def test_lengths_that_are_never_drawn() -> None:
    with pytest.raises(ValueError, match="none has more than 500 and fewer than 2000 tokens"):
        generate(ListOpsConfig(max_arguments=2), "test", np.arange(1))


# --- The release ---


def test_the_release(tmp_path: Path) -> None:
    (tmp_path / "basic_train.tsv").write_text(TSV.replace("\n", "\r\n"))
    config = ListOpsConfig(folder=str(tmp_path), cache=str(tmp_path / "cache"), training=3, max_length=1000)
    records = ListOps(config).records("training")
    assert [TOKENS[i] for i in records[0].values] == ["[MAX", "2", "9", "[MED", "4", "7", "]", "]"]
    assert records.targets.tolist() == [9, 5, 7] and records.lengths == [8, 4, 4]
    with pytest.raises(ValueError, match=r"basic_val\.tsv does not exist: .* unpack lra_release\.gz"):
        ListOps(config).records("validation")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (TSV.replace("Target", "Answer"), "does not start with the columns Source and Target"),
        (TSV[:-2], "line 4: the target is not a digit"),
        (TSV.replace("[SM", "[AVG"), "line 3: a token is none of 0 1"),
        (TSV.replace("8 ) 7", "87"), "line 3: a token is none of"),
        (TSV.replace(" 7 ) ] )\t5", " 7 ) )\t5"), "line 3: brackets do not close"),
        (TSV + "\n", "line 5: the target is not a digit"),
        ("".join(TSV.splitlines(keepends=True)[:3]), "has 2 of 4 rows: it is cut"),
    ],
)
def test_release_errors(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "basic_test.tsv"
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        read_tsv(path, ListOpsConfig(), 4)


# --- Other orders ---


@pytest.mark.parametrize("release", [False, True])
def test_training_sequences_come_again_in_other_orders(tmp_path: Path, release: bool) -> None:
    (tmp_path / "basic_train.tsv").write_text(TSV)
    (tmp_path / "basic_val.tsv").write_text(TSV)
    own = {"folder": str(tmp_path)} if release else {"min_length": 60, "max_length": 90}
    sizes = {"training": 3, "validation": 3, "test": 3, "cache": str(tmp_path / "cache")}
    once, often = (ListOps(ListOpsConfig(**own, **sizes, orders=n)) for n in (1, 5))  # type: ignore[arg-type]
    few, many = once.records("training"), often.records("training")
    assert (len(few), len(many), len(often.records("validation"))) == (3, 15, 3)
    assert many.targets.tolist() == few.targets.tolist() * 5 and many.lengths == few.lengths * 5
    sequences = [many[i].values.tolist() for i in range(15)]
    assert sequences[:3] == [few[i].values.tolist() for i in range(3)]
    for number, tokens in enumerate(sequences):
        assert evaluated([TOKENS[i] for i in tokens])[0] == few.targets[number % 3]
    assert len({tuple(tokens) for tokens in sequences}) > (6 if release else 14)


def test_no_order() -> None:
    with pytest.raises(ValueError, match="orders=0 is too small: give 1 or more"):
        ListOpsConfig(orders=0)


def tree(tokens: list[int]) -> Any:
    """A digit, or an operator with its arguments as a multiset: equal for formulas that differ in order alone."""
    head = tokens.pop(0)
    if head < MAX:
        return head
    arguments = []
    while tokens[0] != CLOSE:
        arguments.append(tree(tokens))
    tokens.pop(0)
    return head, frozenset(Counter(arguments).items())


def parts(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [own.tolist() for own in np.split(tokens, np.cumsum(lengths)[:-1])]


def test_trees_stay_and_orders_change() -> None:
    tokens, lengths, _ = generate(ListOpsConfig(), "training", np.arange(40))
    other = reordered(tokens, lengths, np.arange(40))
    for before, after in zip(parts(tokens, lengths), parts(other, lengths), strict=True):
        assert before != after and tree(before) == tree(after) and not after


def test_a_sequence_alone_and_among_others() -> None:
    tokens, lengths, _ = generate(ListOpsConfig(min_length=5, max_length=60), "training", np.arange(30))
    together = parts(reordered(tokens, lengths, np.arange(30)), lengths)
    for number, own in enumerate(parts(tokens, lengths)):
        alone = reordered(np.array(own), np.array([len(own)]), np.array([number]))
        assert alone.tolist() == together[number]


def test_every_order_comes_as_often() -> None:
    formula = np.array([SM, 1, 2, 3, CLOSE])
    seen = Counter(tuple(reordered(formula, np.array([5]), np.array([key]))) for key in range(3000))
    assert len(seen) == 6 and max(seen.values()) < 1.25 * min(seen.values())


@pytest.mark.parametrize(
    "tokens", [[7], [MAX, 1, CLOSE], [MIN, CLOSE], [MED, MAX, MIN, 4, CLOSE, CLOSE, CLOSE], [MAX, 3, CLOSE]], ids=str
)
def test_nothing_to_reorder(tokens: list[int]) -> None:
    assert reordered(np.array(tokens), np.array([len(tokens)]), np.array([3])).tolist() == tokens


def test_what_was_cut_stays_and_the_others_change() -> None:
    cut, whole = [MAX, 1, MIN, 2, 3, CLOSE], [MAX, *range(10), CLOSE]
    other = reordered(np.array(cut + whole + cut), np.array([6, 12, 6]), np.array([1, 2, 3]))
    assert other[:6].tolist() == other[-6:].tolist() == cut
    assert other[6:-6].tolist() != whole and sorted(other[6:-6]) == sorted(whole)
