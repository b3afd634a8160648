"""Two documents, one question: the release's files, our citations, and what a batch of pairs is."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import Loader, TokenSampler
from chordmixer.data.loading import GeneratedRecords, PairedRecords
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.paper.lra.retrieval import (
    CITATIONS,
    FILES,
    PAPERS,
    Retrieval,
    RetrievalConfig,
    draw_negatives,
    read_citations,
    read_tsv,
)

CPU = torch.device("cpu")
TSV = (
    '1.0\tP1\tP2\tb\'One paper.\\nIt has "lines".\'\tb"The other\'s text"\n'
    "0.0\tP3\tP1\tb'\\xc3\\xa9'\tb'One paper.\\nIt has \"lines\".'\n"
    "0\tP4\tP5\tplain\ttext\n"
)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The three files, the same three pairs in each."""
    folder = tmp_path / "tsv_data"
    folder.mkdir()
    for name in FILES.values():
        (folder / name).write_text(TSV)
    return folder


@pytest.fixture
def citations(tmp_path: Path) -> Path:
    folder = tmp_path / "arxiv"
    folder.mkdir()
    names = [f"p{i}" for i in range(60)]
    texts = [f"{name} " * (i % 7 + 1) for i, name in enumerate(names)]
    pq.write_table(pa.table({"id": names, "text": texts, "label": ["x"] * 60}), folder / PAPERS)
    pairs = [(names[i], names[i - step]) for i in range(9, 60) for step in (3, 8)]
    citing, cited = zip(*pairs, strict=True)
    pq.write_table(pa.table({"citing": list(citing), "cited": list(cited)}), folder / CITATIONS)
    return folder


def task(source: Path, **settings: Any) -> Retrieval:
    return Retrieval(RetrievalConfig(source=str(source), cache=str(source.parent / "cache"), **settings))


def test_the_release(release: Path) -> None:
    records = task(release).records("validation")
    texts = ["b'One paper.\\nIt has \"lines\".'", 'b"The other\'s text"', "b'\\xc3\\xa9'", "plain", "text"]
    inputs, targets = records.batch([0, 1, 2], CPU)
    found = [bytes(values).decode() for values in inputs.to_list()]
    assert found == [texts[0], texts[1], texts[2], texts[0], texts[3], texts[4]], "as they stand"
    assert targets.tolist() == [1, 0, 0] and inputs.values.dtype == torch.uint8
    assert len(records.texts.lengths) == 5, "a document is kept once"


def test_cut_and_counted(release: Path) -> None:
    records = task(release, max_length=6, training=2).records("training")
    assert records.lengths == [12, 12] and records.longer == [6, 6]
    assert bytes(records[1].values).decode() == "b'\\xc3b'One "
    with pytest.raises(
        ValueError, match=r"tsv_data, test: 3 of 4 pairs are there; ask for fewer, or use another copy$"
    ):
        task(release, test=4).records("test")


def test_records(citations: Path) -> None:
    asked = task(citations)
    records = asked.records("training")
    assert isinstance(records, GeneratedRecords) and isinstance(records, PairedRecords)
    assert (asked.embedding, asked.inputs, asked.sequences, asked.max_length) == ("tokens", 256, 2, 4000)
    assert asked.target.outputs == 2 and asked.target.headline == "accuracy" and asked.documents() == {}
    assert records.targets.float().mean() == 0.5 and len(records.texts.lengths) <= 60
    inputs, targets = records.batch([7, 2], CPU)
    assert len(inputs) == 4 and targets.tolist() == [int(records.targets[7]), int(records.targets[2])]
    assert [sum(inputs.lengths[:2]), sum(inputs.lengths[2:])] == [records.lengths[7], records.lengths[2]]
    assert max(inputs.lengths[:2]) == records.longer[7] and records.name(7) == "training-7"
    assert torch.equal(torch.cat(inputs.to_list()[2:]), records[2].values) and records[2].target == targets[1]
    again = pickle.loads(pickle.dumps(records))
    assert len(again) == len(records) and torch.equal(again[5].values, records[5].values)


def test_read_once_for_each_state_of_the_files(citations: Path) -> None:
    folder = task(citations).records("test").folder
    stamp = folder.stat().st_mtime_ns
    assert task(citations).records("test").folder == folder and folder.stat().st_mtime_ns == stamp
    others = [task(citations, **{name: 5}).records("test").folder for name in ("seed", "max_length", "test")]
    (citations / PAPERS).touch()
    others.append(task(citations).records("test").folder)
    assert len({folder, *others}) == 5


def test_an_answer_does_not_depend_on_the_batch(citations: Path) -> None:
    records = task(citations).records("training")
    torch.manual_seed(0)
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=8)
    model = Model(ModelConfig(inputs=256, outputs=2, head="pair", network=network)).eval()
    with torch.no_grad():
        alone = torch.cat([model(records.batch([i], CPU)[0]) for i in range(len(records))])
        assert alone.std(dim=0).min() > 1e-3
        for sampler in (TokenSampler(records.lengths, 200, 7), TokenSampler(records.lengths, 10_000, 50, seed=1)):
            for batch in Loader(records, sampler).epoch():
                torch.testing.assert_close(model(batch.inputs), alone[batch.indices], rtol=1e-5, atol=1e-5)
                assert batch.targets.tolist() == records.targets[batch.indices].tolist()
                assert batch.lengths == [records.lengths[i] for i in batch.indices]
                assert sum(batch.lengths) <= sampler.tokens


# --- What is wrong ---


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (TSV.replace("1.0\t", "label\t"), "line 1: label 'label' is not 0 or 1; use another copy"),
        (TSV.replace("0.0\t", "2.0\t"), "line 2: label '2.0' is not 0 or 1"),
        (TSV.replace("plain\ttext", "plain"), "line 3: a label, two ids and two texts must stand there"),
        (TSV.replace("plain\ttext", "plain\t"), "line 3: a label, two ids and two texts"),
        (TSV.replace("plain", "pla\tin"), "line 3: a label, two ids and two texts"),
        (TSV[: TSV.index("plain") - 12], r"line 2: .* cut or damaged, unpack lra_release\.gz .* again$"),
        (TSV[: TSV.index("\"The other's") + 1], "line 1: .* cut or damaged"),
    ],
)
def test_release_errors(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "some.tsv").write_text(text)
    with pytest.raises(ValueError, match=match) as error:
        list(read_tsv(tmp_path / "some.tsv", 4000))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [TSV.rstrip("\n"), TSV + "\n\r\n", TSV.replace("\n", "\r\n")])
def test_ends_of_lines_and_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "some.tsv").write_bytes(text.encode())
    assert [pair[1:] for pair in read_tsv(tmp_path / "some.tsv", 4)] == [(b'b"Th', 1), (b"b'On", 0), (b"text", 0)]


def test_what_is_missing(release: Path, citations: Path, tmp_path: Path) -> None:
    how = r"it is read from new_aan_pairs\.train\.tsv, .* of lra_release\.gz .*; set data\.source=FOLDER$"
    with pytest.raises(ValueError, match=rf"^retrieval has no data\.source: {how}"):
        Retrieval(RetrievalConfig()).records("test")
    with pytest.raises(ValueError, match=rf"nowhere is not a folder: {how}"):
        task(tmp_path / "nowhere").records("test")
    with pytest.raises(ValueError, match=rf"holds no data for retrieval: {how}"):
        task(tmp_path).records("test")
    (release / FILES["test"]).unlink()
    with pytest.raises(ValueError, match=rf"new_aan_pairs\.test\.tsv is missing, .*: {how}"):
        task(release).records("training")
    (citations / PAPERS).unlink()
    with pytest.raises(ValueError, match=rf"arxiv_papers\.parquet is missing, .*: {how}"):
        task(citations).records("training")
    (release / FILES["training"]).write_text("\n")
    (release / FILES["test"]).write_text(TSV)
    with pytest.raises(ValueError, match="tsv_data, training: 0 of 1 pairs are there"):
        task(release).records("training")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"max_length": 0}, "max_length=0 is too small: give 1 or more"),
        ({"test": -1}, "test=-1 is too small: give 0 or more"),
    ],
)
def test_config_errors(settings: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RetrievalConfig(**settings)


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
        seconds = draw_negatives(pairs, links, key=3)
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
        assert all(
            first != second for (first, _), second in zip(pairs, draw_negatives(pairs, links, key), strict=True)
        )


def test_no_false_pair_twice() -> None:
    """Each a is linked with x and u, so that y and v are left for it, once each."""
    pairs = [(f"{side}{i}", to) for side, all_of in (("a", "xu"), ("b", "yv")) for i in range(8) for to in all_of]
    false = zip(
        (first for first, _ in pairs), draw_negatives(pairs, {frozenset(pair) for pair in pairs}, key=0), strict=True
    )
    assert len(set(false)) == len(pairs)


def test_no_false_pair_is_left() -> None:
    pairs = [("a", "x"), ("a", "y"), ("b", "x")]
    with pytest.raises(
        ValueError, match=r"^3 citations of a part leave no false pairs of the same papers: .*; give more"
    ):
        draw_negatives(pairs, {frozenset(pair) for pair in pairs}, key=0)


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
