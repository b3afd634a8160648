from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chordmixer.config import from_dict, to_dict
from chordmixer.data.reading import Reading
from chordmixer.data.splits import PARTS, SplitConfig
from chordmixer.data.store import Store
from chordmixer.data.store_cache import gather
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.tasks import task_class
from chordmixer.tasks.masking import (
    Masking,
    MaskingConfig,
    SegmentRecords,
    TokenRanges,
    WholeRecords,
    log_uniform,
    mean_length,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Five random records, in which tokens identify their position."""
    folder, rng = tmp_path_factory.mktemp("segments"), np.random.default_rng(0)
    lengths = [50, 300, 2, 120, 31]
    records = [f">r{i}\n{''.join(rng.choice(list('ACGT'), n))}\n" for i, n in enumerate(lengths)]
    (folder / "five.fa").write_text("".join(records))
    return gather([str(folder / "five.fa")], Reading(), TokenizerConfig("dna"), folder)[0]


@pytest.fixture
def ranges(store: Store) -> TokenRanges:
    """All records except the last but one."""
    numbers = np.array([0, 1, 2, 4])
    return TokenRanges(numbers, store.offsets[numbers], store.lengths[numbers])


def test_whole_records(store: Store, ranges: TokenRanges) -> None:
    records = WholeRecords(store, ranges, 0, "training")
    assert records.lengths == [50, 300, 2, 31] and len(records) == 4 and records.name(3) == "r4"
    for i, number in enumerate(ranges.records):
        assert np.array_equal(records.drawn(i, 5).values.numpy(), store.tokens(int(number)))


def test_a_part_of_a_record_is_named_by_its_place(store: Store) -> None:
    part = TokenRanges(np.array([1]), store.offsets[[1]] + 100, np.array([50]))
    assert WholeRecords(store, part, 0, "test").name(0) == "r1:101-150"


def test_segments_lie_within_one_stretch(store: Store, ranges: TokenRanges) -> None:
    records = SegmentRecords(store, ranges, 0, "test", 300, 5, 250)
    assert min(records.lengths) >= 5 and max(records.lengths) <= 250
    for i in range(300):
        name, _, span = records.name(i).partition(":")
        first, last = map(int, span.split("-"))
        number = int(name[1:])
        assert number in (0, 1, 4) and last - first + 1 == records.lengths[i]
        assert np.array_equal(records[i].values.numpy(), store.tokens(number)[first - 1 : last])


def test_every_place_has_the_same_chance(store: Store, ranges: TokenRanges) -> None:
    """Segments of 30 letters fit at 271 positions of one record, 21 of another and 2 of a third."""
    records = SegmentRecords(store, ranges, 0, "validation", 30_000, 30, 30)
    name_counts = Counter(records.name(i) for i in range(30_000))
    assert len(name_counts) == 294
    counts = np.array(list(name_counts.values()))
    assert abs(counts - 30_000 / 294).max() < 5 * np.sqrt(30_000 / 294)


@pytest.mark.parametrize(("balance", "shares"), [(0.0, (1, 1)), (0.5, (271**0.5, 23**0.5)), (1.0, (271, 23))])
def test_kinds_count_by_a_power_of_their_places(
    store: Store, ranges: TokenRanges, balance: float, shares: tuple[float, float]
) -> None:
    """One kind has the records with 271 positions and with none, the other those with 21 and 2."""
    kinds = np.array([1, 0, 0, 1])
    records = SegmentRecords(store, ranges, 0, "validation", 30_000, 30, 30, kinds, balance)
    name_counts = Counter(records.name(i).split(":")[0] for i in range(30_000))
    expected = 30_000 * np.array([shares[0], shares[1] * 21 / 23, shares[1] * 2 / 23]) / sum(shares)
    counts = np.array([name_counts["r1"], name_counts["r0"], name_counts["r4"]])
    assert counts.sum() == 30_000
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_a_long_segment_is_of_a_kind_that_has_room(store: Store, ranges: TokenRanges) -> None:
    kinds = np.array([0, 1, 2, 0])
    records = SegmentRecords(store, ranges, 0, "test", 500, 2, 300, kinds, 0.0)
    for i, n in enumerate(records.lengths):
        name, _, span = records.name(i).partition(":")
        first, last = map(int, span.split("-")) if span else (1, n)
        assert np.array_equal(records[i].values.numpy(), store.tokens(int(name[1:]))[first - 1 : last])
        assert name == "r1" or n <= 50


@pytest.mark.parametrize("segments", [False, True])
def test_index_and_epoch_alone_make_a_record(store: Store, ranges: TokenRanges, segments: bool) -> None:
    def build(seed: int = 3, part: str = "training") -> WholeRecords:
        return (
            SegmentRecords(store, ranges, seed, part, 40, 5, 200)
            if segments
            else WholeRecords(store, ranges, seed, part)
        )

    first, second = build(), build()
    unpickled = pickle.loads(pickle.dumps(second))
    drawn = {(i, epoch): first.drawn(i, epoch) for epoch in (0, 1, 7) for i in range(4)}
    for (i, epoch), record in reversed(drawn.items()):
        for candidate in (second.drawn(i, epoch), unpickled.drawn(i, epoch)):
            assert torch.equal(candidate.values, record.values) and torch.equal(candidate.target, record.target)
    keys = {int(record.target) for record in drawn.values()}
    assert len(keys) == 12, "every record has a different mask in every epoch"
    assert torch.equal(first[2].target, drawn[2, 0].target)
    for candidate in (build(seed=4), build(part="test")):
        assert int(candidate[0].target) not in keys


def test_names_stay_when_others_are_drawn(store: Store, ranges: TokenRanges) -> None:
    records = SegmentRecords(store, ranges, 0, "test", 20, 5, 200)
    name = records.name(4)
    records.drawn(4, 9)
    assert records.name(4) == name
    assert SegmentRecords(store, ranges, 0, "training", 20, 5, 200).name(4) == "training-4"


def test_lengths_are_log_uniform() -> None:
    lengths = log_uniform(7, 20_000, 64, 4096).numpy()
    assert lengths.min() == 64 and lengths.max() > 4000 and lengths.max() <= 4096
    counts = np.histogram(np.log2(lengths), bins=np.arange(6, 13))[0]
    assert abs(counts - 20_000 / 6).max() < 300
    assert lengths.mean() == pytest.approx(mean_length(64, 4096), rel=0.02)
    assert set(log_uniform(7, 50, 9, 9).tolist()) == {9}


SHARED = Path(__file__).parents[3] / "shared" / "data"


def letters(count: int, seed: int, alphabet: str = "ACGT") -> str:
    return "".join(random.Random(seed).choices(alphabet, k=count))


def fasta(path: Path, lengths: list[int]) -> str:
    path.write_text("".join(f">r{i} gene:g{i // 2}\n{letters(n, i)}\n" for i, n in enumerate(lengths)))
    return str(path)


@pytest.fixture
def genomes(tmp_path: Path) -> str:
    return fasta(tmp_path / "genomes.fa", [300, 500, 900, 200, 400, 1000, 350, 250, 600, 450])


def test_short_records_are_whole_and_long_ones_cut(genomes: str) -> None:
    uncut = Masking(MaskingConfig((genomes,)))
    assert not uncut.segmented and uncut.max_length == 1000 and uncut.inputs == 6 and uncut.target.outputs == 5
    assert sorted(n for part in PARTS for n in uncut.records(part).lengths)[-1] == 1000
    cut = Masking(MaskingConfig((genomes,), shortest=16, longest=100))
    assert cut.segmented and cut.max_length <= 100
    tokens = cut.ranges["training"].lengths.sum()
    assert sum(cut.records("training").lengths) == pytest.approx(tokens, rel=0.25)
    assert not Masking(MaskingConfig((genomes,), longest=100, pieces="whole")).segmented
    assert Masking(MaskingConfig((genomes,), longest=450)).segmented  # 3,000 tokens of 4,950
    assert not Masking(MaskingConfig((genomes,), longest=600)).segmented  # 1,900
    note = "records below 210 tokens, of which no segment is drawn"
    assert Masking(MaskingConfig((genomes,), shortest=210, longest=400)).account.notes == {note: 1}
    assert not Masking(MaskingConfig((genomes,), shortest=210)).account.notes
    assert Masking(MaskingConfig((genomes,), pieces="segments", segments=77)).records("training").lengths[76] > 0


def test_parts_share_no_record(genomes: str) -> None:
    task = Masking(MaskingConfig((genomes,), shortest=16, longest=100))
    records = {part: set(task.ranges[part].records.tolist()) for part in PARTS}
    assert set.union(*records.values()) == set(range(10)) and sum(map(len, records.values())) == 10
    grouped = Masking(MaskingConfig((genomes,), Reading(group="header:gene")))
    assert grouped.method == "grouped"
    for part in PARTS:
        assert all(i ^ 1 in grouped.ranges[part].records for i in grouped.ranges[part].records)


@pytest.mark.parametrize(("balance", "share"), [(1.0, 1 / 11), (0.5, 1 / (1 + 10**0.5)), (0.0, 1 / 2)])
def test_files_count_by_size_or_alike(tmp_path: Path, balance: float, share: float) -> None:
    for name, alphabet, records in (("large", "AC", 100), ("small", "GT", 10)):
        lines = (f">{name}{i}\n{letters(500, i, alphabet)}\n" for i in range(records))
        (tmp_path / f"{name}.fa").write_text("".join(lines))
    files = (str(tmp_path / "large.fa"), str(tmp_path / "small.fa"))
    task = Masking(MaskingConfig(files, shortest=10, longest=20, segments=2_000, balance=balance))

    def small_share(part: str) -> float:
        records = task.records(part)
        return sum(int(records[i].values[0]) >= 2 for i in range(len(records))) / len(records)

    assert small_share("training") == pytest.approx(share, abs=0.06)
    assert small_share("test") == pytest.approx(1 / 11, abs=0.06)
    assert task.documents()["data.json"]["split"]["sizes"]["training"] == 77


def test_a_single_genome_is_cut_in_three(tmp_path: Path) -> None:
    path = fasta(tmp_path / "one.fa", [5000])
    task = Masking(MaskingConfig((path,), shortest=16, longest=200))
    assert task.method == "stretches"
    assert [int(task.ranges[part].lengths[0]) for part in PARTS] == [3500, 500, 1000]
    assert [int(task.ranges[part].starts[0]) for part in PARTS] == [0, 3500, 4000]
    for i in range(len(task.records("test"))):
        assert int(task.records("test").name(i).split(":")[1].split("-")[0]) > 4000
    with pytest.raises(ValueError, match=r"the data have 1 groups for 3 splits"):
        Masking(replace(task.config, reading=Reading(group="header:gene"), key=None, split=SplitConfig("grouped")))


def test_records_of_one_token_are_left_out_and_counted(tmp_path: Path) -> None:
    path = fasta(tmp_path / "short.fa", [30, 1, 40, 50, 1, 60])
    task = Masking(MaskingConfig((path,)))
    assert (task.account.used, task.account.rejected, task.account.examples) == (
        4,
        {"of a single token": 2},
        {"of a single token": ["r1", "r4"]},
    )
    assert min(task.records("training").lengths) >= 2
    with pytest.raises(
        ValueError, match="no record has two tokens or more: one is masked and one needed to infer it"
    ):
        Masking(MaskingConfig((fasta(tmp_path / "none.fa", [1, 1, 1]),)))


def test_letters_and_their_frequencies(tmp_path: Path) -> None:
    (tmp_path / "n.fa").write_text("".join(f">r{i}\n{letters(99, i, 'AAACNNNN')}\n" for i in range(9)))
    target = Masking(MaskingConfig((str(tmp_path / "n.fa"),))).target
    assert target.letters == {"A": 0, "C": 1} and (target.outputs, target.certain) == (5, 4)
    assert target.frequencies[0] == pytest.approx(0.75, abs=0.06) and target.frequencies[4] == 0
    assert sum(target.frequencies) == pytest.approx(1)


def test_text_too(tmp_path: Path) -> None:
    rows = "".join(
        json.dumps({"text": f"To be, or not to be: {letters(40, i, 'etaoin shrdlu')}é"}) + "\n" for i in range(20)
    )
    (tmp_path / "texts.jsonl").write_text(rows)
    task = Masking(MaskingConfig((str(tmp_path / "texts.jsonl"),)))
    assert task.inputs == 257 and task.target.outputs == 256
    assert {"e", "space", ",", "T"} <= set(task.target.letters) and len(task.target.letters) <= 32
    assert {r"\xc3", r"\xa9"} <= set(task.target.letters)
    characters = Masking(MaskingConfig((str(tmp_path / "texts.jsonl"),), tokenizer=TokenizerConfig("characters")))
    assert "é" in characters.target.letters and "space" in characters.target.letters


def test_baselines_see_the_training_part_alone(genomes: str) -> None:
    task = Masking(MaskingConfig((genomes,)))
    counts = np.bincount(np.concatenate([*task.tokens("training")]), minlength=5)
    expected = (counts + 1) / (counts.sum() + 5)
    assert task.baselines()[0].left[0][0].exp().numpy() == pytest.approx(expected, rel=1e-5)
    assert sum(map(len, task.tokens("training"))) == task.ranges["training"].lengths.sum()


def test_the_config_is_json_and_knows_its_store(genomes: str) -> None:
    task = Masking(MaskingConfig((genomes,), span=4.0, shortest=16, longest=100))
    loaded = from_dict(MaskingConfig, json.loads(json.dumps(to_dict(task.config))), "data")
    assert task_class("masking") is Masking and loaded == task.config and loaded.key is not None
    relocated = Masking(replace(loaded, files=("gone.fa",)))
    assert relocated.records("test").name(3) == task.records("test").name(3) and relocated.target.span == 4
    documents = json.loads(json.dumps(task.documents()))
    assert documents["tokenizer.json"]["tokenizer"] == "dna" and documents["data.json"]["account"]["used"] == 10
    assert (
        documents["data.json"]["target_type"] == "masked tokens"
        and sum(documents["data.json"]["split"]["sizes"].values()) == 10
    )
    assert documents["data.json"]["segments"]["test"] == len(task.records("test"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": ()}, "no files were given: name at least one, or - for standard input"),
        ({"share": 0.0}, r"share=0\.0 is not a part of the tokens: give more than 0 and less than 1"),
        ({"share": 1.0}, r"share=1\.0 is not a part of the tokens"),
        (
            {"span": 1.2},
            r"span=1\.2 is shorter than runs that come about by chance, of 1\.43 tokens at share=0\.3: giv",
        ),
        ({"shortest": 1}, "shortest=1 and longest=16384 are not in this order, or below 2: correct them"),
        ({"shortest": 200, "longest": 100}, "shortest=200 and longest=100 are not in this order"),
        (
            {"balance": 2.0},
            "balance=2 is not between 0, where all files count alike, and 1, where they count by size",
        ),
        ({"balance": 0.5}, "balance=0.5 is of segments, and here whole records are read, each once: set data.pieces"),
        ({"segments": -1}, "segments=-1 is too small: give 0 or more"),
        ({"tokenizer": TokenizerConfig("kmers")}, "kmers overlap, so that a masked word can be read off its neighbo"),
        (
            {"shortest": 950, "pieces": "segments"},
            r"the longest record of the \w+ part has \d+ tokens, below shortest=950: give longer records, set",
        ),
    ],
    ids=str,
)
def test_refusals(genomes: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Masking(MaskingConfig(**{"files": (genomes,), **settings}))


def test_more_refusals(tmp_path: Path) -> None:
    np.save(tmp_path / "series.npy", np.random.default_rng(0).normal(size=(6, 20)))
    with pytest.raises(
        ValueError, match="numbers have no vocabulary to choose a masked token from: pre-training takes"
    ):
        Masking(MaskingConfig((str(tmp_path / "series.npy"),)))
    with pytest.raises(ValueError, match="1 records are too few and too short to cut in three: give more records"):
        Masking(MaskingConfig((fasta(tmp_path / "tiny.fa", [8]),)))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not beside this checkout")
def test_real_mitochondria() -> None:
    paths = tuple(str(path) for path in sorted((SHARED / "mitogenomes").glob("*.fa.gz")))
    task = Masking(MaskingConfig(paths))
    assert task.segmented and task.max_length <= 16_384 and task.account.used == 635
    assert sum(task.records("training").lengths) == pytest.approx(sum(map(len, task.tokens("training"))), rel=0.05)
