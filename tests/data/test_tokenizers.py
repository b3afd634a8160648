from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer import files
from chordmixer.data import alphabets
from chordmixer.data.alphabets import (
    Dna,
    Kmers,
    Protein,
    Tokenizer,
    as_letters,
    as_text,
    as_utf8,
    byte_names,
    character,
    count_bytes,
)
from chordmixer.data.tokenizers import (
    TOKENIZERS,
    Bytes,
    Characters,
    Numbers,
    guess,
    load_tokenizer,
    tokenizer_from_json,
)


@given(st.binary(max_size=200))
def test_bytes_are_counted(data: bytes) -> None:
    assert count_bytes(data).tolist() == np.bincount(np.frombuffer(data, np.uint8), minlength=256).tolist()


def test_bytes_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 256, 10_001, dtype=np.uint8)
    monkeypatch.setattr(alphabets, "PIECE", 64)
    assert count_bytes(data).tolist() == np.bincount(data, minlength=256).tolist()


def test_names_of_bytes() -> None:
    assert byte_names(count_bytes(b"aa'\\\n\xff")) == Counter(
        {"a": 2, "'": 1, "\\\\": 1, "\\n": 1, "\\xff": 1},
    )


def test_letters_keep_their_places() -> None:
    assert as_letters("AC\N{GREEK SMALL LETTER ALPHA}\ud800T", "dna") == b"AC??T"
    assert as_letters(b"AC\xff", "dna") == b"AC\xff"


def test_text_and_utf8() -> None:
    assert as_utf8("grün", "bytes") == as_utf8("grün".encode(), "bytes") == "grün".encode()
    assert as_text("grün".encode(), "characters") == as_text("grün", "characters") == "grün"


def test_half_a_character() -> None:
    with pytest.raises(ValueError, match=r"character '\\ud800' at position 3 is half a character: .*fix the record"):
        as_utf8("ab\ud800", "bytes")


def test_not_utf8() -> None:
    with pytest.raises(
        ValueError, match=r"character '\\xfc' at position 3 is not UTF-8: text must be; save the file"
    ):
        as_text(b"gr\xfcn", "characters")


@pytest.mark.parametrize("convert", [as_letters, as_text, as_utf8])
def test_numbers_are_no_letters(convert: object) -> None:
    with pytest.raises(ValueError, match="numbers are not letters or text: the dna tokenizer reads those; use `numb"):
        convert(np.zeros(3), "dna")  # type: ignore[operator]


def test_positions_count_from_one() -> None:
    assert character("é", 0) == character(b"\xe9", 0) == "character '\\xe9' at position 1"
    assert character("A" * 1234 + "7", 1234) == "character '7' at position 1,235"


SHARED = Path(__file__).parents[3] / "shared" / "data"
EXAMPLES: list[Tokenizer] = [
    Dna(others="own", case="mask", on_bad="unknown"),
    Protein(on_bad="unknown"),
    Bytes(),
    Characters(' "\\aé\N{SNOWMAN}\ud800\0'),
    Kmers(k=5, stride=5),
    Numbers(channels=3, on_bad="unknown"),
]


def test_a_tokenizer_a_name() -> None:
    assert {t.name for t in EXAMPLES} == {*TOKENIZERS}


@pytest.mark.parametrize("tokenizer", EXAMPLES, ids=lambda t: t.name)
def test_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    files.write_json(tmp_path / "tokenizer.json", tokenizer.to_json())
    assert load_tokenizer(tmp_path) == tokenizer
    assert json.loads((tmp_path / "tokenizer.json").read_text())["tokenizer"] == tokenizer.name
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer


@pytest.mark.parametrize(
    "change, message",
    [
        ({"format": 2}, "tokenizer.json has format 2: this version reads 1; use the one that wrote it"),
        ({"tokenizer": "rna"}, "tokenizer.json names tokenizer 'rna': choose from dna, protein, bytes, char"),
        ({"casing": "same"}, r"tokenizer.json.casing is not a setting: did you mean case\?"),
        ({"case": "upper"}, "tokenizer.json.case='upper' is not a choice: give one of same, mask"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_refused_settings(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer_from_json(Dna().to_json() | change)


def test_no_tokenizer_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer.json does not exist"):
        load_tokenizer(tmp_path)


# --- Text ---


@given(st.text(max_size=40).filter(lambda text: text.isprintable()))
def test_bytes_round_trip(text: str) -> None:
    ids = Bytes().encode(text)
    assert ids.dtype == np.uint8 and Bytes().decode(ids) == text
    assert Bytes().census([text, text.encode()]).total() == 2 * len(ids)


@given(st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_characters(known_text: str, new_text: str) -> None:
    tokenizer = Characters.of([known_text])
    assert tokenizer.decode(tokenizer.encode(known_text)) == known_text
    unknown = [c not in known_text for c in new_text]
    ids = tokenizer.encode(new_text)
    assert (ids == tokenizer.size - 1).tolist() == unknown == (ids >= tokenizer.certain).tolist()
    notes = tokenizer.notes(tokenizer.census([new_text]))
    assert notes.total() == sum(unknown)
    assert not notes or [*notes] == ["characters that the vocabulary lacks, taken as unknown"]


def test_characters_of_many_scripts() -> None:
    many = Characters("".join(map(chr, range(0x4E00, 0x4E00 + 300))))
    assert many.dtype == np.uint16 and many.encode("\u4e01\U0001f600").tolist() == [1, 300]


@pytest.mark.parametrize("vocabulary", ["", "aba"])
def test_vocabulary(vocabulary: str) -> None:
    with pytest.raises(ValueError, match="is empty or has a character twice: each stands for one id; build it with"):
        Characters(vocabulary)


# --- Numbers ---


def test_numbers() -> None:
    series = Numbers().encode(np.arange(4))
    assert series.dtype == np.float32 and series.tolist() == [[0], [1], [2], [3]]
    assert Numbers(channels=2).encode(np.ones((3, 2))).shape == (3, 2)
    assert Numbers(channels=2).decode(np.array([[0.5, 2], [1, 1]])) == "0.5,2 1,1"
    assert (Numbers(channels=2).size, Numbers(channels=2).dtype) == (2, np.float32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_numbers_that_are_not_finite(bad: float) -> None:
    series = np.array([1.0, 2.0, bad])
    with pytest.raises(
        ValueError, match=rf"{re.escape(str(bad))} at position 3 is missing or not finite .*taken as 0 with --on-bad"
    ):
        Numbers().encode(series)
    lenient = Numbers(on_bad="unknown")
    assert lenient.encode(series).ravel().tolist() == [1, 2, 0]
    assert lenient.notes(lenient.census([series, np.ones(2)])) == {
        "numbers that are missing or not finite, taken as 0": 1
    }


def test_numbers_of_another_shape() -> None:
    with pytest.raises(
        ValueError, match=r"shape \(4, 3\) does not have 2 channels: .*; give \(N, 2\), or set channel"
    ):
        Numbers(channels=2).encode(np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"a sequence of type bytes is not a series of real numbers"):
        Numbers().encode(b"ACGT")
    with pytest.raises(ValueError, match=r"a sequence of type object is not a series"):
        Numbers().encode(np.array([None]))


# --- Guessing ---


@pytest.mark.parametrize(
    "sample, name",
    [
        ([b"ACGT"], "dna"),
        ([b"ACGU", "acgu"], "dna"),
        ([b"A"], "dna"),
        ([b"N" * 50], "dna"),
        ([b"ACGTRYKM"], "dna"),
        ([b"ACGT--ACGT..N"], "dna"),
        ([b"ACGTACGTACGTACGTACG7"], "dna"),
        ([b"GATTACA", b"MKTAYIAKQRQISFVKSHFSRQ"], "protein"),
        ([b"CAT", b"TAG", b"MKLV"], "protein"),
        ([b"MKTAYIAKQR*", b"mkv"], "protein"),
        ([b"MKTAYIAK--QRQIS"], "protein"),
        ([b"XXXXXXXXXX"], "protein"),
        (["The cat sat on the mat."], "bytes"),
        (["THE CAT SAT ON THE MAT"], "bytes"),
        (["good", "bad", "great"], "bytes"),
        (["12.5 17 3e4"], "bytes"),
        (["\u6211\u4eec\u5728\u8fd9\u91cc"], "bytes"),
        ([np.zeros(3), np.ones(4)], "numbers"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_guesses(sample: list[bytes | str | np.ndarray], name: str) -> None:
    assert guess(sample) == name


def test_a_guess_judges_all_records_together() -> None:
    """Some of the proteins have no letters except A, C, G and T."""
    proteins = [b"GATC", b"ACGT" * 3, b"TTTT"] + [b"MSTNPKPQRKTKRNTNRRPQDVKFPGG"] * 3
    assert guess(iter(proteins)) == "protein"


@pytest.mark.parametrize("sample", [[], [b""], [b"---", ""]], ids=str)
def test_nothing_to_guess_from(sample: list[bytes | str]) -> None:
    with pytest.raises(
        ValueError, match="there are no characters to guess a tokenizer from: name one with --tokenizer"
    ):
        guess(sample)


@pytest.mark.parametrize(
    "name, guessed", [("introns/drosophila.fa.gz", "dna"), ("imdb.parquet", "bytes"), ("mpra/elements.fa", "dna")]
)
def test_guesses_of_real_files(name: str, guessed: str) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"needs {name}, which is not part of the repository")
    from itertools import islice

    from chordmixer.data.entries import Account
    from chordmixer.data.reading import Reading, read

    assert guess(entry.sequence for entry in islice(read([SHARED / name], Reading(), Account()), 100)) == guessed


def test_numbers_are_brought_near_one() -> None:
    series = [np.array([[1.0, 100.0], [3.0, 100.0]]), np.array([[5.0, 100.0]])]
    numbers = Numbers.of(series)
    assert numbers.mean == (3.0, 100.0) and numbers.scale == (pytest.approx(1.632993), 1.0)
    assert numbers.encode(series[1]).tolist() == [[pytest.approx(1.224745), 0.0]]
    assert numbers.decode(numbers.encode(series[0])) == "1,100 3,100"
    assert tokenizer_from_json(numbers.to_json()) == numbers
    assert Numbers.of([np.array([np.nan, np.inf])], "unknown") == Numbers(1, "unknown")


@pytest.mark.parametrize(("settings", "name"), [({"mean": (1.0, 2.0)}, "mean"), ({"scale": (0.0,)}, "scale")])
def test_numbers_refuse_a_wrong_scale(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}=.* is not a finite number for each of 1 channels: give one"):
        Numbers(**settings)
