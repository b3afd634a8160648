"""Two documents, one question: the release's files, our citations, and what a batch of pairs is."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from chordmixer.data import Loader, TokenSampler
from chordmixer.data.records import MadeRecords, PairedRecords
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.paper.lra.retrieval import CITATIONS, FILES, PAPERS, Retrieval, RetrievalConfig, read_tsv

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
    assert isinstance(records, MadeRecords) and isinstance(records, PairedRecords)
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
        ({"max_length": 0}, "max_length=0 leaves nothing of a document: give 1 or more"),
        ({"test": -1}, "test=-1 is not a number of pairs: give 1 or more, or 0 for all"),
    ],
)
def test_config_errors(settings: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RetrievalConfig(**settings)
