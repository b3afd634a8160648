from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from chordmixer.data import inspection
from chordmixer.data.alphabets import Dna, Kmers, Protein
from chordmixer.data.entries import Account, Entry
from chordmixer.data.inspection import (
    BINS,
    Inspection,
    channels_of,
    inspect,
    length_histogram,
    padding,
    summarise_targets,
    tells_label,
)
from chordmixer.data.store import write_store
from chordmixer.data.tokenizers import Bytes, Numbers, Tokenizer


def test_a_summary() -> None:
    numbers = np.random.default_rng(0).normal(5, 2, 1_000).round(2)
    numbers[:7] = np.nan
    numbers[7:107] = 0
    present = numbers[7:]
    summary = summarise_targets(numbers)
    assert summary is not None and (summary.records, summary.missing) == (993, 7)
    assert summary.quartiles == pytest.approx(np.percentile(present, [0, 25, 50, 75, 100]))
    assert (summary.mean, summary.deviation) == pytest.approx((present.mean(), present.std()))
    assert (summary.commonest, summary.commonest_share) == (0, pytest.approx(100 / 993))
    values, counts = np.unique(present, return_counts=True)
    assert summary.repeated == pytest.approx(sum(np.isin(present, values[counts > 1])) / 993)
    assert len(summary.histogram) == BINS and sum(summary.histogram) == 993
    assert summary.histogram == tuple(np.histogram(present, BINS)[0].tolist())


@pytest.mark.parametrize(
    ("numbers", "histogram"),
    [
        ([3.0, 3.0], (2,)),
        ([0.0, 1.0, 1.0, 5.0], (3, 0, 1)),
        ([1.0, np.nextafter(1.0, 2)], (1, 1)),
        ([-1.7e308, 1.7e308, 1.7e308], (1, 2)),
        ([0.0], (1,)),
    ],
    ids=["one-value", "few-values", "neighbours", "huge", "zero"],
)
def test_numbers_of_any_size(numbers: list[float], histogram: tuple[int, ...]) -> None:
    summary = summarise_targets(np.array(numbers))
    assert summary is not None
    assert sum(summary.histogram) == len(numbers) and len(summary.edges) == len(summary.histogram) + 1
    assert summary.histogram == histogram or numbers[0] == 1.0  # between neighbours there is no edge
    assert np.isfinite([*summary.quartiles, summary.mean, summary.deviation, *summary.edges]).all()


def test_no_number_has_no_summary() -> None:
    assert summarise_targets(np.array([np.nan])) is None


@pytest.mark.parametrize("scaled", [True, False])
def test_ranges_are_in_the_units_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaled: bool) -> None:
    monkeypatch.setattr(inspection, "PIECE", 7)
    series = [np.random.default_rng(i).normal([100.0, -3.0], [20.0, 0.5], (n, 2)) for i, n in enumerate((5, 40))]
    tokenizer = Numbers.of(series) if scaled else Numbers(2)
    store = write_store([Entry("a", s, "x") for s in series], tokenizer, tmp_path / "store", Account())
    result, rows = channels_of(store), np.concatenate(series)
    assert result is not None and (result.missing, result.numbers) == (0, 90)
    for actual, expected in (
        (result.least, rows.min(axis=0)),
        (result.mean, rows.mean(axis=0)),
        (result.deviation, rows.std(axis=0)),
        (result.most, rows.max(axis=0)),
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_missing_numbers_are_counted_and_letters_have_no_channels(tmp_path: Path) -> None:
    series = np.array([1.0, np.nan, 3.0, np.inf])
    store = write_store([Entry("a", series, "x")], Numbers.of([series], "unknown"), tmp_path / "numbers", Account())
    result = channels_of(store)
    assert result is not None and (result.missing, result.numbers, result.least, result.most) == (2, 4, [1.0], [3.0])
    assert channels_of(write_store([Entry("a", b"ACGT", "x")], Dna(), tmp_path / "dna", Account())) is None


SHARED = Path(__file__).parents[3] / "shared" / "data"
Inspect = Callable[..., Inspection]


@pytest.fixture
def inspect_sequences(tmp_path: Path) -> Inspect:
    def inspected(*sequences: bytes | np.ndarray, labels: str = "", tokenizer: Tokenizer | None = None) -> Inspection:
        entries = [
            Entry(f"gene{i}", s, "x", label=labels[i] if labels[i : i + 1].strip() else None)
            for i, s in enumerate(sequences)
        ]
        return inspect(write_store(entries, tokenizer or Dna(), tmp_path / "store", Account()))

    return inspected


def test_counts(inspect_sequences: Inspect) -> None:
    result = inspect_sequences(b"ACGTN", b"ggcc", b"A" * 10, labels="ab ")
    assert (result.records, result.tokens, result.unlabelled) == (3, 19, 1)
    assert result.classes == {"a": 1, "b": 1}
    assert result.longest == [("gene2", 10), ("gene0", 5), ("gene1", 4)]
    assert (result.percentiles[0], result.percentiles[50], result.percentiles[100]) == (4, 5, 10)
    assert result.letters == {"A": 11, "g": 2, "c": 2, "C": 1, "G": 1, "T": 1, "N": 1}
    assert result.ambiguous == 1 / 19 and result.gc == 6 / 18
    assert result.padding_to_longest == pytest.approx(1 - 19 / 30) == result.padding_in_batch
    assert result.length_tells is None and result.gc_tells is None


def test_nothing_but_n(inspect_sequences: Inspect) -> None:
    result = inspect_sequences(b"NNN", b"NN")
    assert result.ambiguous == 1.0 and result.gc is None


@pytest.mark.parametrize(
    "tokenizer, sequence, ambiguous",
    [(Protein(), b"MKX*", 0.5), (Bytes(), b"any", None), (Numbers(), np.ones(3), None), (Kmers(k=2), b"ACGN", 1 / 3)],
    ids=lambda value: getattr(value, "name", None),
)
def test_other_tokenizers(
    inspect_sequences: Inspect, tokenizer: Tokenizer, sequence: bytes, ambiguous: float | None
) -> None:
    result = inspect_sequences(sequence, tokenizer=tokenizer)
    assert result.ambiguous == ambiguous and result.gc is None
    assert result.duplicates.reverse_complement == (0 if isinstance(tokenizer, Kmers) else None)


# --- Duplicates ---


def test_duplicates_of_either_strand(inspect_sequences: Inspect) -> None:
    copies = inspect_sequences(b"AACC", b"AACC", b"GGTT", b"aacc", b"AATT", b"AC", labels="aabaab").duplicates
    assert (copies.exact, copies.reverse_complement, copies.across_labels) == (2, 1, 1)
    assert copies.examples == [["gene0", "gene1", "gene2", "gene3"]]


def test_a_palindrome_is_no_duplicate(inspect_sequences: Inspect) -> None:
    copies = inspect_sequences(b"AATT", b"ACGT", labels="ab").duplicates
    assert (copies.exact, copies.reverse_complement, copies.across_labels, copies.examples) == (0, 0, 0, [])


def test_duplicates_across_labels_come_first(inspect_sequences: Inspect) -> None:
    copies = inspect_sequences(b"AAA", b"AAA", b"CAC", b"CAC", b"GA", b"GA", labels="aaabb ").duplicates
    assert (copies.exact, copies.across_labels) == (3, 1)
    assert copies.examples[0] == ["gene2", "gene3"] and len(copies.examples) == 3


def test_texts_have_one_strand(inspect_sequences: Inspect) -> None:
    copies = inspect_sequences(b"AAC", b"GTT", b"AAC", tokenizer=Bytes()).duplicates
    assert (copies.exact, copies.reverse_complement, copies.across_labels) == (1, None, 0)


@given(st.lists(st.text(alphabet="ACGN", min_size=1, max_size=3), min_size=1, max_size=12))
def test_duplicates_by_the_definition(tmp_path_factory: pytest.TempPathFactory, sequences: list[str]) -> None:
    folder = tmp_path_factory.mktemp("stores") / "store"
    entries = [Entry(str(i), s, "x") for i, s in enumerate(sequences)]
    copies = inspect(write_store(entries, Dna(), folder, Account())).duplicates
    complements = {s: s[::-1].translate(str.maketrans("ACGT", "TGCA")) for s in sequences}
    strandless = {min(s, complements[s]) for s in sequences}
    assert copies.exact == len(sequences) - len({*sequences})
    assert copies.reverse_complement == len({*sequences}) - len(strandless)


# --- What gives the label away ---


def test_length_that_tells_the_label(inspect_sequences: Inspect) -> None:
    rng = np.random.default_rng(0)
    sequences = [b"ACGT" * int(n) for n in [*rng.integers(1, 50, 60), *rng.integers(40, 90, 60)]]
    result = inspect_sequences(*sequences, labels="a" * 60 + "b" * 60)
    assert result.length_tells is not None and result.length_tells > 0.9
    assert result.gc_tells == pytest.approx(0.5)


def test_composition_that_tells_the_label(inspect_sequences: Inspect) -> None:
    rng = np.random.default_rng(0)
    rich, poor = [0.2, 0.3, 0.3, 0.2], [0.35, 0.15, 0.15, 0.35]
    letters = np.frombuffer(b"ACGT", np.uint8)
    sequences = [rng.choice(letters, 100, p=p).tobytes() for _ in range(100) for p in (rich, poor)]
    result = inspect_sequences(*sequences, labels="ab" * 100)
    assert result.gc_tells is not None and result.gc_tells > 0.95
    assert result.length_tells == pytest.approx(0.5)


def test_about_the_rank_statistic_where_that_is_right() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, 5000)
    values = rng.normal(size=5000) + codes
    assert tells_label(values, codes) == pytest.approx(roc_auc_score(codes, values), abs=0.015)


def test_a_class_in_the_middle_is_seen() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 2000)
    tells = tells_label(values, (abs(values) < 0.5).astype(int))
    assert tells is not None and tells > 0.97


@pytest.mark.parametrize("classes", [2, 3, 30])
def test_no_signal_is_one_half(classes: int) -> None:
    """On average, even for classes of few records; the better of both directions would give 0.6 or more."""
    rng = np.random.default_rng(0)
    tells = [tells_label(rng.normal(size=300), rng.integers(0, classes, 300)) for _ in range(20)]
    assert np.mean([t for t in tells if t is not None]) == pytest.approx(0.5, abs=0.03)


def test_equal_values_say_nothing() -> None:
    assert tells_label(np.ones(100), np.arange(100) % 2) == 0.5


def test_classes_that_say_nothing_are_left_out() -> None:
    values = np.arange(1000)
    codes = values // 500
    mixed = np.concatenate([codes, np.full(50, -1), [2, 2, 3]])
    assert tells_label(np.concatenate([values, np.zeros(53)]), mixed) == tells_label(values, codes)
    with_gaps = np.where(np.arange(1003) < 1000, np.resize(values.astype(float), 1003), np.nan)
    assert tells_label(with_gaps, np.resize(codes, 1003)) == tells_label(values, codes)


@pytest.mark.parametrize("codes", [[0] * 20, [0] * 20 + [1] * 4, [-1] * 20], ids=["one", "small", "none"])
def test_fewer_than_two_classes(codes: list[int]) -> None:
    assert tells_label(np.arange(len(codes)), np.array(codes)) is None


def test_labels_for_other_records(tmp_path: Path) -> None:
    store = write_store([Entry("a", b"ACGT", "x")], Dna(), tmp_path / "store", Account())
    assert inspect(store, ["worm"]).classes == {"worm": 1}
    with pytest.raises(ValueError, match="2 labels for 1 records: give one each, None for none"):
        inspect(store, ["a", "b"])


# --- Lengths ---


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=30))
def test_the_histogram_holds_every_record(lengths: list[int]) -> None:
    edges, counts = length_histogram(np.array(lengths))
    assert sum(counts) == len(lengths) and len(edges) == len(counts) + 1 <= 17
    assert edges[0] == min(lengths) and edges[-1] == max(lengths) + 1
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        assert count == sum(low <= n < high for n in lengths)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=100), st.integers(1, 40))
def test_padding_is_a_share(lengths: list[int], batch: int) -> None:
    values = np.array(lengths)
    one_batch = padding(values, len(values))
    assert one_batch == pytest.approx(1 - values.mean() / values.max())
    assert 0 <= padding(values, batch) <= one_batch + 1e-12
    assert padding(values, 1) == 0


def test_real_introns(tmp_path: Path) -> None:
    paths = [SHARED / "introns" / f"{name}.fa.gz" for name in ("caenorhabditis", "drosophila")]
    if not all(path.exists() for path in paths):
        pytest.skip("needs the introns, which are not part of the repository")
    from chordmixer.data.reading import Reading, read

    account = Account()
    entries = read(paths, Reading(labels="files"), account)
    result = inspect(write_store(entries, Dna(), tmp_path / "store", account))
    assert (result.records, *sorted(result.classes.values())) == (67_968, 31_066, 36_902)
    assert (result.percentiles[0], result.duplicates.exact) == (40, 0)
    assert result.length_tells is not None and 0.8 < result.length_tells < 0.88
