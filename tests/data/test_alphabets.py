from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data.alphabets import Dna, Kmers, Protein

IUPAC = {"A": "A", "C": "C", "G": "G", "T": "T", "N": "ACGT", "R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT"}
IUPAC |= {"M": "AC", "B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG"}
"""The bases that each letter stands for."""


def encode_or_bad(tokenizer: Dna | Protein, sequence: str | bytes) -> list[int] | str:
    try:
        return tokenizer.encode(sequence).tolist()
    except ValueError:
        return "bad"


def test_every_byte_of_dna() -> None:
    for byte in range(256):
        letter = chr(byte).upper() if byte < 128 else ""
        expected = "bad" if letter not in (*IUPAC, "U") else [min("ACGTN".find(letter.replace("U", "T")) % 5, 4)]
        assert encode_or_bad(Dna(), bytes([byte])) == encode_or_bad(Dna(), chr(byte)) == expected, chr(byte)


def test_every_byte_of_proteins() -> None:
    alphabet = "ACDEFGHIKLMNPQRSTVWYXBZJUO*"
    for byte in range(256):
        index = alphabet.find(chr(byte).upper()) if byte < 128 else -1
        assert encode_or_bad(Protein(others="own"), bytes([byte])) == ("bad" if index < 0 else [index]), chr(byte)
        assert encode_or_bad(Protein(), bytes([byte])) == ("bad" if index < 0 else [min(index, 20)]), chr(byte)


def test_ambiguous_letters_with_tokens_of_their_own() -> None:
    dna = Dna(others="own")
    assert dna.encode("ACGTNRYSWKMBDHVryu").tolist() == [*range(15), 5, 6, 3]
    assert (dna.size, Dna().size, dna.certain, Dna().certain) == (15, 5, 4, 4)
    assert (Protein(others="own").size, Protein().size, Protein().certain) == (27, 21, 20)


def test_lower_case_masked() -> None:
    assert Dna(case="mask").encode(b"AaCcRrUu").tolist() == [0, 4, 1, 4, 4, 4, 3, 4]
    assert Dna(case="mask", others="own").encode(b"Rr").tolist() == [5, 4]
    assert Protein(case="mask").encode(b"MmXx*").tolist() == [10, 20, 20, 20, 20]


@given(st.text(alphabet="ACGTNRYSWKMBDHV", max_size=50))
def test_decoding_gives_the_letters_back(letters: str) -> None:
    dna = Dna(others="own")
    assert dna.decode(dna.encode(letters)) == letters
    assert Dna().encode(letters).dtype == np.uint8


def test_complement_by_its_meaning() -> None:
    """The complement of a letter stands for exactly the complements of the letter's bases."""
    dna = Dna(others="own")
    for letter, bases in IUPAC.items():
        opposite = dna.decode(dna.reverse_complement(dna.encode(letter)))
        assert {*IUPAC[opposite]} == {dict(zip("ACGT", "TGCA", strict=True))[base] for base in bases}


@given(st.text(alphabet="ACGTNRYSWKMBDHV", max_size=30), st.sampled_from(["own", "unknown"]))
def test_reverse_complement_twice_is_nothing(letters: str, others: str) -> None:
    dna = Dna(others=others)  # type: ignore[arg-type]
    ids = dna.encode(letters)
    assert dna.reverse_complement(dna.reverse_complement(ids)).tolist() == ids.tolist()
    assert dna.reverse_complement(ids).dtype == ids.dtype


def test_no_reverse_complement() -> None:
    with pytest.raises(
        ValueError, match="protein tokens have no reverse complement, only dna and k-mers of stride 1"
    ):
        Protein().reverse_complement(np.zeros(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="kmers tokens have no reverse complement"):
        Kmers(k=3, stride=3).reverse_complement(np.zeros(3, dtype=np.uint8))


@pytest.mark.parametrize(
    "sequence, message",
    [
        (
            b"ACG7T",
            "character '7' at position 4 is not a nucleotide: fix the record, or .* as N with --on-bad unknown",
        ),
        ("ACGéT", r"character '\\xe9' at position 4 is not a nucleotide"),
        ("ACG\N{SNOWMAN}T", r"character '\\u2603' at position 4 is not a nucleotide"),
        (b"AC--GT", "character '-' at position 3 is not a nucleotide: take the gaps out of the alignment, or"),
        (b"AC.GT", "character '.' at position 3 .* take the gaps out of the alignment"),
        (b"ACGT*", r"character '\*' at position 5 is not a nucleotide: fix"),
        (b"ACGT\x00", r"character '\\x00' at position 5"),
        (b"E", "character 'E' at position 1"),
    ],
)
def test_bad_characters(sequence: bytes | str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Dna().encode(sequence)
    assert "\n" not in str(error.value)
    assert Dna(on_bad="unknown").encode(sequence).max() == 4


def test_bad_amino_acids() -> None:
    with pytest.raises(ValueError, match=r"character '1' at position 2 is not an amino acid: .*as X with --on-bad"):
        Protein().encode("M1")
    assert Protein(on_bad="unknown").encode("M1-").tolist() == [10, 20, 20]


def test_census_and_notes() -> None:
    dna = Dna(on_bad="unknown", others="own", case="mask")
    census = dna.census([b"ACGTacgt", "nNRu7", b"", "\N{SNOWMAN}-"])
    assert census == Counter("ACGTacgtnNRu7?-")
    assert dna.notes(census) == {
        "lower-case letters taken as N": 6,
        "letters among RYSWKMBDHV with a token each": 1,
        "letters U taken as T": 1,
        "letters N": 2,
        "bad characters taken as N": 3,
    }
    assert Dna().notes(Dna().census([b"ACGT"])) == {}
    assert Protein().notes(Counter("MU*x")) == {
        "letters among BZJUO* taken as X": 2,
        "lower-case letters taken as upper case": 1,
        "letters X": 1,
    }


# --- K-mers ---


@pytest.mark.parametrize(
    "k, stride, dtype", [(1, 1, np.uint8), (3, 3, np.uint8), (4, 1, np.uint16), (8, 1, np.int32)]
)
@given(letters=st.text(alphabet="ACGTNR", min_size=1, max_size=40))
def test_kmers_are_the_words(k: int, stride: int, dtype: type, letters: str) -> None:
    words = ["".join(word) for word in product("ACGT", repeat=k)] if k < 8 else None
    tokenizer = Kmers(k=k, stride=stride)
    starts = range(0, len(letters), k) if stride == k else range(max(len(letters) - k + 1, 1))
    pieces = [letters[i : i + k] for i in starts]
    ids = tokenizer.encode(letters)
    assert ids.dtype == tokenizer.dtype == dtype and tokenizer.size == 4**k + 1
    assert tokenizer.decode(ids).split() == [p if len(p) == k and {*p} <= {*"ACGT"} else "N" * k for p in pieces]
    if words:
        assert ids.tolist() == [words.index(p) if p in words else 4**k for p in pieces]


@given(letters=st.text(alphabet="ACGTN", min_size=1, max_size=30), k=st.integers(1, 6))
def test_kmers_of_the_other_strand(letters: str, k: int) -> None:
    tokenizer, dna = Kmers(k=k), Dna()
    complement = dna.decode(dna.reverse_complement(dna.encode(letters)))
    assert tokenizer.reverse_complement(tokenizer.encode(letters)).tolist() == tokenizer.encode(complement).tolist()


def test_kmers_have_the_policies_of_dna() -> None:
    with pytest.raises(ValueError, match="character '7' at position 3 is not a nucleotide"):
        Kmers(k=2).encode("AC7")
    assert Kmers(k=2, on_bad="unknown", case="mask").encode("AC7Gt").tolist() == [1, 16, 16, 16]
    assert Kmers(k=2).notes(Kmers(k=2).census([b"aC"])) == {"lower-case letters taken as upper case": 1}
    assert len(Kmers(k=2).encode(b"")) == 0


@pytest.mark.parametrize("k", [0, 13])
def test_size_of_words(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k={k}: words have 1 to 12 letters \(4\^k \+ 1 tokens\); choose another"):
        Kmers(k=k)


def test_stride_of_words() -> None:
    with pytest.raises(ValueError, match=r"stride=2: words overlap \(1\) or follow each other \(k=3\); choose one"):
        Kmers(k=3, stride=2)
