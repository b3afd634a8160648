"""Pairs from citations: as many false as true ones, of the same papers, and parts that share no citing paper."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.paper.lra.citations import dealt, read_citations

SHARED = Path(__file__).parents[4] / "shared" / "data"


def write(folder: Path, papers: dict[str, Any], citations: dict[str, Any]) -> tuple[Path, Path]:
    """The two files of a set."""
    pq.write_table(pa.table(papers), folder / "papers.parquet")
    pq.write_table(pa.table(citations), folder / "citations.parquet")
    return folder / "papers.parquet", folder / "citations.parquet"


def some(folder: Path, papers: int = 60, links: int = 2) -> tuple[Path, Path]:
    """Each paper cites others some places before it; every text is its paper's name, twice."""
    names = [f"p{i}" for i in range(papers)]
    pairs = [(names[i], names[i - step * 3 - 1]) for i in range(3 * links, papers) for step in range(links)]
    citing, cited = zip(*pairs, strict=True)
    return write(
        folder, {"id": names, "text": [name * 2 for name in names]}, {"citing": list(citing), "cited": list(cited)}
    )


def pairs_of(files: tuple[Path, Path], split: str, seed: int = 0) -> list[tuple[bytes, bytes, int]]:
    return list(read_citations(*files, split, 100, seed))


def test_true_and_false_pairs_are_of_the_same_papers(tmp_path: Path) -> None:
    files = some(tmp_path)
    known = {frozenset(pair) for pair in zip(*pq.read_table(files[1]).to_pydict().values(), strict=True)}
    parts = {split: pairs_of(files, split) for split in ("training", "validation", "test")}
    true = [pair for pairs in parts.values() for pair in pairs if pair[2]]
    assert len(true) == len(set(true)) == len(known) == 108
    for pairs in parts.values():
        assert [label for *_, label in pairs] == [1, 0] * (len(pairs) // 2), "any first so many are balanced"
        for side in (0, 1):
            times = [Counter(pair[side] for pair in pairs if pair[2] == label) for label in (0, 1)]
            assert times[0] == times[1], "who it is says nothing"
        for first, second, label in pairs:
            names = [text.decode()[: len(text) // 2] for text in (first, second)]
            assert (frozenset(names) in known) == bool(label) and names[0] != names[1]
    assert [len(pairs) for pairs in parts.values()] == pytest.approx([172, 22, 22], abs=4)


def test_no_citing_paper_crosses(tmp_path: Path) -> None:
    citing = [
        {first for first, *_ in pairs_of(some(tmp_path), split)} for split in ("training", "validation", "test")
    ]
    assert sum(map(len, citing)) == len(set().union(*citing)) == 54


def test_a_seed_is_a_data_set(tmp_path: Path) -> None:
    files = some(tmp_path)
    assert pairs_of(files, "training") == pairs_of(files, "training")
    assert set(pairs_of(files, "training")) != set(pairs_of(files, "training", seed=1))


def test_what_is_no_pair(tmp_path: Path) -> None:
    """Unknown papers, a paper itself, the same twice, and the way back."""
    papers, citations = some(tmp_path)
    table = pq.read_table(citations).to_pydict()
    more = {"citing": ["p1", "nobody", "p9", "p20", "p19"], "cited": ["nobody", "p1", "p9", "p19", "p20"]}
    pq.write_table(pa.table({name: table[name] + more[name] for name in table}), citations)
    again = [pair for split in ("training", "validation", "test") for pair in pairs_of((papers, citations), split)]
    assert len(again) == 2 * 108, "p20 cites p19 already"


def test_texts_are_cut_in_bytes(tmp_path: Path) -> None:
    papers, citations = some(tmp_path)
    names = pq.read_table(papers)["id"].to_pylist()
    pq.write_table(pa.table({"id": names, "text": ["aéé" * 9] * len(names)}), papers)
    first, *_ = next(read_citations(papers, citations, "test", 4, seed=0))
    assert first == "aéé".encode()[:4]


@given(st.sets(st.tuples(st.integers(0, 30), st.integers(31, 60)), min_size=1, max_size=40))
def test_dealt_again(numbers: set[tuple[int, int]]) -> None:
    pairs = [(str(a), str(b)) for a, b in sorted(numbers)]
    links = {frozenset(pair) for pair in pairs}
    try:
        seconds = dealt(pairs, links, key=3)
    except ValueError:
        return
    false = [(first, second) for (first, _), second in zip(pairs, seconds, strict=True)]
    assert sorted(seconds) == sorted(second for _, second in pairs)
    assert len(set(false)) == len(false) and not links & {frozenset(pair) for pair in false}


def test_a_paper_that_is_on_both_sides() -> None:
    """Never a pair with itself."""
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]
    links = {frozenset(pair) for pair in pairs}
    for key in range(20):
        assert all(first != second for (first, _), second in zip(pairs, dealt(pairs, links, key), strict=True))


def test_no_false_pair_twice() -> None:
    """Each a is linked with x and u, so that y and v are left for it, once each."""
    pairs = [(f"{side}{i}", to) for side, all_of in (("a", "xu"), ("b", "yv")) for i in range(8) for to in all_of]
    false = zip((first for first, _ in pairs), dealt(pairs, {frozenset(pair) for pair in pairs}, key=0), strict=True)
    assert len(set(false)) == len(pairs)


def test_no_false_pair_is_left() -> None:
    pairs = [("a", "x"), ("a", "y"), ("b", "x")]
    with pytest.raises(
        ValueError, match=r"^3 citations of a part leave no false pairs of the same papers: .*; give more"
    ):
        dealt(pairs, {frozenset(pair) for pair in pairs}, key=0)


@pytest.mark.parametrize(
    ("papers", "citations", "match"),
    [
        ({"id": ["a", "a"], "text": ["x", "y"]}, {}, r"papers\.parquet: paper 'a' comes twice: every paper"),
        ({"id": ["a", "b"], "text": ["x", ""]}, {}, r"papers\.parquet: paper 'b' has no text: every paper"),
        ({"id": ["a", "b"], "text": ["x", None]}, {}, r"read \(its column 'text' has rows without a value\): use"),
        (
            {"name": ["a"], "text": ["x"]},
            {},
            r"papers\.parquet cannot be read \(it has no column 'id'\): use another",
        ),
        ({}, {"citing": ["a"]}, r"citations\.parquet cannot be read \(it has no column 'cited'\): use another copy"),
        ({}, {"citing": ["v"], "cited": ["w"]}, r"links no two papers of .*: give the two files of one set"),
    ],
)
def test_errors(tmp_path: Path, papers: dict[str, Any], citations: dict[str, Any], match: str) -> None:
    own = papers or {"id": ["a", "b"], "text": ["x", "y"]}
    files = write(tmp_path, own, citations or {"citing": ["a"], "cited": ["b"]})
    with pytest.raises(ValueError, match=match) as error:
        pairs_of(files, "test")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("keep", [0, 10, -20])
def test_a_file_that_is_cut(tmp_path: Path, keep: int) -> None:
    papers, citations = some(tmp_path)
    citations.write_bytes(citations.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"citations\.parquet cannot be read \(.*\): use another copy") as error:
        pairs_of((papers, citations), "test")
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the arXiv papers are not here")
def test_the_arxiv_papers() -> None:
    pairs = list(
        read_citations(SHARED / "arxiv_papers.parquet", SHARED / "arxiv_citations.parquet", "test", 9, seed=0)
    )
    assert len(pairs) == pytest.approx(2 * 1_098, abs=20)
    assert all(len(first) == len(second) == 9 for first, second, _ in pairs)
