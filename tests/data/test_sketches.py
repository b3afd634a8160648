from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import sketches
from chordmixer.data.features import complement
from chordmixer.data.sketches import HASH_LIMIT, SketchConfig, clusters, digest, sketch_all


def sketch(
    tokens: np.ndarray, k: int = 16, size: int = 256, canonical: bool = True, every: int = 1 << 20
) -> np.ndarray:
    """The hashes of one record."""
    return sketch_all([tokens], SketchConfig(k, size, canonical=canonical), every).hashes


def dna(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, length).astype(np.uint8)


def test_all_kmers_of_a_short_record() -> None:
    tokens = dna(60)
    distinct = {min(tuple(tokens[i : i + 16]), tuple(complement(tokens[i : i + 16]))) for i in range(45)}
    assert len(sketch(tokens)) == len(distinct)


def test_the_smallest_of_a_long_one() -> None:
    full = sketch(dna(2000), size=5000)
    assert len(full) == 1985 and (np.diff(full.astype(np.int64)) > 0).all() and full[-1] < HASH_LIMIT
    assert sketch(dna(2000), size=100).tolist() == full[:100].tolist()


def test_all_below_the_common_limit_besides() -> None:
    full = sketch(dna(20_000), size=30_000)
    result = sketch_all([dna(20_000)], SketchConfig(size=100), every=10)
    assert result[0].tolist() == full[full < HASH_LIMIT // 10].tolist()
    assert result.limits.tolist() == [HASH_LIMIT // 10]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.sampled_from([1, 3, 1000]))
def test_limits_say_what_is_complete(lengths: list[int], every: int) -> None:
    config = SketchConfig(k=5, size=10)
    records = [dna(n, seed) for seed, n in enumerate(lengths)]
    result = sketch_all(records, config, every)
    assert len(result) == len(records)
    for record, tokens in enumerate(records):
        full = sketch(tokens, k=5, size=10_000)
        assert result[record].tolist() == full[full < result.limits[record]].tolist()
        assert len(result[record]) >= min(10, len(full))


@given(st.lists(st.integers(0, 4), max_size=50))
def test_strands_are_one(tokens: list[int]) -> None:
    record = np.array(tokens, dtype=np.uint8)
    assert sketch(record, k=6).tolist() == sketch(complement(record), k=6).tolist()


def test_text_has_a_direction() -> None:
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog", np.uint8)
    assert not set(sketch(text, k=6, canonical=False)) & set(sketch(text[::-1], k=6, canonical=False))


def test_where_a_circle_is_cut_does_not_matter() -> None:
    record = dna(5000)
    first, rotated = (set(sketch(r, size=10_000)) for r in (record, np.roll(record, 1234)))
    assert len(first & rotated) > 0.99 * len(first)


def test_unknown_letters_break_kmers() -> None:
    record = dna(100)
    record[50] = 4
    assert set(sketch(record)) == set(sketch(record[:50])) | set(sketch(record[51:]))
    assert len(sketch(np.full(100, 4, np.uint8))) == 0


def test_records_shorter_than_a_kmer_are_one() -> None:
    record = dna(9)
    assert sketch(record).tolist() == sketch(complement(record)).tolist() and len(sketch(record)) == 1
    assert sketch(record).tolist() != sketch(dna(9, seed=1)).tolist()
    assert len(sketch(record[:0])) == 0


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are longer than a chunk are read in pieces."""
    records = [dna(n, seed) for seed, n in enumerate([40, 3000, 5, 0, 700, 15, 16, 17])]
    config = SketchConfig(size=50)
    expected = sketch_all(records, config, every=20)
    for chunk in (16, 100, 1000):
        monkeypatch.setattr(sketches, "CHUNK", chunk)
        result = sketch_all(records, config, every=20)
        assert result.hashes.tolist() == expected.hashes.tolist()
        assert result.offsets.tolist() == expected.offsets.tolist()
        assert result.limits.tolist() == expected.limits.tolist()


def test_the_same_on_every_machine() -> None:
    assert sketch(np.arange(24, dtype=np.uint8) % 4, k=4, size=3).tolist() == [
        127351391890278,
        166362155735425,
        225511311147612,
    ]
    assert digest(np.arange(5, dtype=np.uint8)) == 17483692334919901202


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many records keep fewer hashes each, but never too few to compare."""
    monkeypatch.setattr(sketches, "HASHES", 1000)
    assert sketch_all([dna(400, seed) for seed in range(20)], SketchConfig()).sizes == pytest.approx(100, abs=20)
    assert sketch_all([dna(400, seed) for seed in range(200)], SketchConfig()).sizes.min() == 32


def test_no_records() -> None:
    assert len(sketch_all([], SketchConfig())) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k=0 is not a k-mer's length: give 1 to 31"),
        ({"k": 32}, "k=32 is not a k-mer's length: give 1 to 31"),
        ({"k": 256, "canonical": False}, "k=256 is not a k-mer's length: give 1 to 255"),
        ({"size": 0}, "size=0 keeps no hash: give 1 or more"),
        ({"threshold": 0.0}, "threshold=0.0 is not a share: give more than 0, and at most 1"),
        ({"threshold": 1.5}, "threshold=1.5 is not a share"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SketchConfig(**settings)  # type: ignore[arg-type]


def test_kinds() -> None:
    assert SketchConfig.of("dna").canonical and not SketchConfig.of("text").canonical
    with pytest.raises(ValueError, match="'real' cannot be compared by k-mers, only dna, protein, text: give groups"):
        SketchConfig.of("real")


DNA = SketchConfig()


def changed(record: np.ndarray, identity: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    copy, mutated = record.copy(), rng.random(len(record)) > identity
    copy[mutated] = (copy[mutated] + rng.integers(1, 4, int(mutated.sum()))) % 4
    return copy


def groups(records: list[np.ndarray], config: SketchConfig = DNA) -> np.ndarray:
    return clusters(sketch_all(records, config), config.threshold)


@pytest.mark.parametrize(
    ("length", "identity", "minimum", "maximum"),
    [
        (60, 0.99, 0.95, 1.0),
        (60, 0.95, 0.55, 0.9),
        (1000, 0.99, 1.0, 1.0),
        (1000, 0.95, 0.97, 1.0),
        (1000, 0.90, 0.0, 0.3),
        (1000, 0.80, 0.0, 0.02),
    ],
)
def test_planted_copies(length: int, identity: float, minimum: float, maximum: float) -> None:
    """Every second copy is on the other strand; the shares are those of the module's docstring."""
    records = [dna(length, seed) for seed in range(300)]
    copies = [changed(record, identity, seed) for seed, record in enumerate(records[:150])]
    copies = [complement(copy) if i % 2 else copy for i, copy in enumerate(copies)]
    labels = groups(records + copies)
    assert minimum <= (labels[:150] == labels[300:]).mean() <= maximum
    assert len(np.unique(labels[:300])) == 300


@pytest.mark.parametrize("size", [40, 100, 1000])
def test_fragments_of_a_genome(size: int) -> None:
    genome = dna(300_000)
    starts = np.random.default_rng(1).integers(0, len(genome) - size, 50)
    fragments = [genome[s : s + size] for s in starts]
    strangers = [dna(size, seed) for seed in range(100, 150)]
    labels = groups([*fragments, genome, *strangers])
    assert (labels[:50] == labels[50]).all() and not (labels[51:] == labels[50]).any()


@pytest.mark.parametrize(("size", "minimum"), [(40, 0.0), (400, 0.9), (2000, 1.0)])
def test_fragments_where_hashes_are_sampled(size: int, minimum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one hash in 30 of the genome is kept here, so short fragments have too few hashes to be matched."""
    monkeypatch.setattr("chordmixer.data.sketches.HASHES", 10_000)
    genome = dna(300_000)
    starts = np.random.default_rng(1).integers(0, len(genome) - size, 50)
    labels = groups([genome, *(genome[s : s + size] for s in starts)])
    assert (labels[1:] == labels[0]).mean() >= minimum
    assert size > 40 or (labels[1:] == labels[0]).mean() < 0.5


@pytest.mark.parametrize("length", [9, 16, 17])
def test_copies_of_few_kmers(length: int) -> None:
    """This includes records shorter than a k-mer, which are compared as a whole."""
    assert groups([dna(length), dna(length, 1), complement(dna(length))]).tolist() == [0, 1, 0]


def test_one_kmer_is_chance() -> None:
    """One shared k-mer of four is a quarter of the record, and still no evidence; two are."""
    genome, stranger = dna(3000), dna(19, 1)
    one_shared = np.concatenate([genome[100:116], (genome[116:117] + 1) % 4, stranger[:2]])
    two_shared = np.concatenate([genome[100:117], (genome[117:118] + 1) % 4, stranger[:1]])
    assert len(set(groups([genome, one_shared]).tolist())) == 2
    assert len(set(groups([genome, two_shared]).tolist())) == 1


def test_halves_that_overlap() -> None:
    genome = dna(1500)
    assert len(set(groups([genome[:1000], genome[500:], dna(1000, 1)]).tolist())) == 2


def test_many_copies_of_one() -> None:
    """There are more copies than a record is ever compared with."""
    record = dna(300)
    labels = groups([*(changed(record, 0.99, seed) for seed in range(500)), dna(300, 1)])
    assert (labels[:500] == labels[0]).all() and labels[500] != labels[0]


def test_families_that_share_a_repeat() -> None:
    """A repeat in every record is no near-copy, and does not hide the families."""
    repeat = dna(60)
    founders = [np.concatenate([dna(400, seed), repeat, dna(400, 1000 + seed)]) for seed in range(60)]
    labels = groups([changed(founder, 0.98, 7 * i) for founder in founders for i in range(4)]).reshape(60, 4)
    assert (labels == labels[:, :1]).all() and len(np.unique(labels)) == 60


def test_text() -> None:
    first = b"It was a bright cold day in April, and all of the clocks were striking as they had never struck before."
    other = b"Nothing much had happened since the spring, but then nobody in the town had been looking out for it."
    edited = first.replace(b"cold", b"warm")
    texts = [np.frombuffer(t, np.uint8) for t in (first, other, edited)]
    assert groups(texts, SketchConfig.of("text")).tolist() == [0, 1, 0]


def test_chains_are_one_cluster() -> None:
    genome = dna(3000)
    pieces = [genome[s : s + 600] for s in range(0, 2400, 300)]
    assert set(groups(pieces).tolist()) == {0}


def test_empty_records_and_none() -> None:
    assert groups([]).tolist() == []
    assert groups([dna(0), dna(0), np.full(50, 4, np.uint8)]).tolist() == [0, 1, 2]


def test_the_order_of_records_does_not_matter() -> None:
    records = [changed(dna(200, seed), 0.97, copy) for seed in range(20) for copy in range(12)]
    order = np.random.default_rng(0).permutation(len(records))
    labels, shuffled = groups(records), groups([records[i] for i in order])
    same_cluster = labels[order][:, None] == labels[order]
    assert (same_cluster == (shuffled[:, None] == shuffled)).all()


def test_few_hashes_are_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all fragments with one to three hashes in the sample would be matched."""
    monkeypatch.setattr("chordmixer.data.sketches.HASHES", 10_000)
    genome = dna(300_000)
    records = [genome, *(genome[s : s + 60] for s in range(0, 30_000, 600))]
    matched = (groups(records)[1:] == groups(records)[0]).mean()
    monkeypatch.setattr(sketches, "MIN_HASHES", 1)
    assert (groups(records)[1:] == groups(records)[0]).mean() > 0.5 > 0.3 > matched
