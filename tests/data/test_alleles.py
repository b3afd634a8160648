from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import alleles
from chordmixer.data import alleles as module
from chordmixer.data.alleles import MARK, AlleleRecords, Alleles, Window, loci, merge_groups, near_copies
from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account
from chordmixer.data.loading import GeneratedRecords, PairedRecords
from chordmixer.data.reference import Reference
from chordmixer.data.variants import Variant
from chordmixer.models import heads

LETTERS = "ACGTTGCANNacgtACGTACGTAC"


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    (tmp_path / "genome.fa").write_text(f">chr1\n{LETTERS[:12]}\n{LETTERS[12:]}\n")
    return Reference(tmp_path / "genome.fa")


def make_variant(position: int, ref: str, alt: str, contig: str = "chr1") -> Variant:
    return Variant(contig, position, ref, alt, "calls.vcf, line 4")


def text(ids: np.ndarray) -> str:
    """The letters, the marked one in brackets."""
    letters = [Dna().decode(np.array([i % MARK])) for i in ids.tolist()]
    return "".join(f"[{c}]" if i >= MARK else c for c, i in zip(letters, ids.tolist(), strict=True))


def pair(reference: Reference, variant: Variant, size: int, **settings: Any) -> tuple[str, str]:
    builder = Alleles(reference, size, **settings)
    [window] = builder.windows([variant], Account())
    assert window is not None
    first, second = builder.tokens(window)
    assert (len(first), len(second)) == window.lengths and window.id == variant.id.upper().replace("CHR", "chr")
    return text(first), text(second)


@pytest.mark.parametrize(
    ("variant", "size", "windows"),
    [
        (make_variant(5, "T", "G"), 4, ("GT[T]G", "GT[G]G")),
        (make_variant(5, "T", "G"), 5, ("GT[T]GC", "GT[G]GC")),
        (make_variant(5, "T", "TAA"), 4, ("GT[T]G", "GT[T]AAG")),
        (make_variant(4, "TTG", "T"), 4, ("CG[T]TG", "CG[T]")),
        (make_variant(5, "T", "G"), 1, ("[T]", "[G]")),
        (make_variant(1, "A", "G"), 6, ("[A]CG", "[G]CG")),
        (make_variant(24, "C", "G"), 6, ("GTA[C]", "GTA[G]")),
        (make_variant(9, "N", "A"), 2, ("A[N]", "A[A]")),
        (make_variant(11, "A", "t"), 4, ("NN[A]C", "NN[T]C")),
        (make_variant(12, "c", "T"), 2, ("A[C]", "A[T]")),
        (make_variant(5, "T", "G"), 999, ("ACGT[T]GCANNACGTACGTACGTAC", "ACGT[G]GCANNACGTACGTACGTAC")),
    ],
    ids=["even", "odd", "insertion", "deletion", "one", "start", "end", "n", "lower", "lower-ref", "whole"],
)
def test_windows(reference: Reference, variant: Variant, size: int, windows: tuple[str, str]) -> None:
    assert pair(reference, variant, size) == windows


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (make_variant(5, "T", "."), "no alternative allele"),
        (make_variant(5, "T", "*"), "an allele that a deletion upstream removes (*)"),
        (make_variant(5, "T", "<DEL>"), "a symbolic allele, such as <DEL>"),
        (make_variant(5, "T", "T[chr2:9["), "a breakend"),
        (make_variant(5, "T", ".G"), "a breakend"),
        (make_variant(5, "T", "-"), "an allele that is not letters of DNA"),
        (make_variant(5, "T", "t"), "an alternative that is the reference"),
        (make_variant(5, "T", "TACGT"), "an allele of more than 4 bases"),
        (make_variant(5, "C", "G"), "a reference allele that the FASTA does not have"),
        (make_variant(0, "A", "G"), "a position outside of its contig"),
        (make_variant(24, "CA", "G"), "a position outside of its contig"),
    ],
)
def test_variants_that_are_rejected_and_counted(reference: Reference, variant: Variant, reason: str) -> None:
    account = Account()
    windows = Alleles(reference, 4, longest=4, on_mismatch="reject").windows(
        [variant, make_variant(5, "T", "G")], account
    )
    assert [window is None for window in windows] == [True, False]
    assert account.rejected == {reason: 1} and account.examples == {reason: [variant.id]}
    assert (account.read, account.used) == (2, 1)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        (
            make_variant(5, "C", "G"),
            r"^calls\.vcf, line 4: chr1:5:C>G does not fit the reference, .*genome\.fa has T there: ",
        ),
        (
            make_variant(25, "C", "G"),
            r"does not fit the reference, chr1 has 24 bases: .*, or leave .* --on-mismatch reject$",
        ),
        (make_variant(5, "T", "G", contig="1"), r"line 4: contig '1' is not in .*: it has 'chr1'; rename"),
    ],
)
def test_variants_that_do_not_fit_the_reference(reference: Reference, variant: Variant, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(Alleles(reference, 4).windows([variant], Account()))


def test_what_is_worth_a_note(reference: Reference) -> None:
    account = Account()
    list(
        Alleles(reference, 8).windows(
            [make_variant(12, "c", "T"), make_variant(1, "A", "C"), make_variant(5, "T", "G")], account
        )
    )
    assert account.notes == {
        "windows are shorter, since their contig ends": 1,
        "variants have lower-case letters, read as upper case": 1,
    }


def test_a_reference_with_a_bad_letter(tmp_path: Path) -> None:
    (tmp_path / "genome.fa").write_text(">chr1\nAC!T\n")
    builder = Alleles(Reference(tmp_path / "genome.fa"), 4)
    with pytest.raises(ValueError, match=r"genome\.fa, chr1: .*'!'"):
        builder.tokens(Window("chr1", 0, 4, 0, "A", "C"))


def test_records_are_pairs_with_a_context(reference: Reference) -> None:
    builder = Alleles(reference, 4)
    windows = [w for w in builder.windows([make_variant(5, "T", "TAA"), make_variant(5, "T", "G")], Account()) if w]
    records = AlleleRecords(builder, windows, np.array([0, 2]), np.array([1, 0]))
    assert isinstance(records, GeneratedRecords) and isinstance(records, PairedRecords)
    assert (records.lengths, records.longer, len(records)) == ([10, 8], [6, 4], 2)
    packed, targets = records.batch([1, 0], torch.device("cpu"))
    assert packed.lengths == (4, 4, 4, 6) and targets.tolist() == [0, 1]
    assert packed.values.max() == 3 * MARK + 3 and packed.values.dtype == torch.int32
    assert records[1].values.equal(packed.values[:8]) and records.name(1) == "chr1:5:T>G"


def test_the_head_knows_the_mark() -> None:
    assert alleles.MARK == heads.MARK > Dna().size


def make_window(contig: str, start: int, stop: int) -> Window:
    return Window(contig, start, stop, 0, "A", "C")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=12))
def test_windows_of_two_loci_share_no_base(spans: list[tuple[str, int, int]]) -> None:
    windows = [make_window(contig, start, start + length) for contig, start, length in spans]
    numbers = loci(windows)
    bases = [{(w.contig, base) for base in range(w.start, w.stop)} for w in windows]
    joined = merge_groups(*([0 if b & a else None for b in bases] for a in bases))
    assert np.array_equal(numbers[:, None] == numbers, joined[:, None] == joined)


def test_copies_are_one_locus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    first, second = ("".join(rng.choices("ACGT", k=300)) for _ in range(2))
    reverse_complement = first[::-1].translate(str.maketrans("ACGT", "TGCA"))
    contigs = {"one": first, "other": second, "turned": reverse_complement, "shifted": first[20:] + second[:5]}
    (tmp_path / "genome.fa").write_text("".join(f">{name}\n{letters}\n" for name, letters in contigs.items()))
    reference = Reference(tmp_path / "genome.fa")
    windows = [make_window(name, start, start + 200) for name in contigs for start in (0, 80)]
    numbers = near_copies(windows, loci(windows), reference)
    assert len({*numbers[[0, 1, 4, 5, 6, 7]]}) == 1 and numbers[2] == numbers[3] != numbers[0]
    monkeypatch.setattr(module, "MAX_COMPARED_BASES", 100)
    assert len({*near_copies(windows, loci(windows), reference)}) == 4, (
        "too many bases to compare: the groups stay as they were"
    )


def test_groupings_are_joined() -> None:
    assert merge_groups([0, 1, 2, 3], ["x", "y", "y", None], [None, None, 5, 5]).tolist() == [0, 1, 1, 1]
