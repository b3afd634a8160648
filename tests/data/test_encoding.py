from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import encoding
from chordmixer.data.encoding import as_letters, as_text, as_utf8, byte_names, character, count_bytes


@given(st.binary(max_size=200))
def test_bytes_are_counted(data: bytes) -> None:
    assert count_bytes(data).tolist() == np.bincount(np.frombuffer(data, np.uint8), minlength=256).tolist()


def test_bytes_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 256, 10_001, dtype=np.uint8)
    monkeypatch.setattr(encoding, "PIECE", 64)
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
    with pytest.raises(ValueError, match=r"character '\\ud800' at position 3 is half a character: .*mend the record"):
        as_utf8("ab\ud800", "bytes")


def test_not_utf8() -> None:
    with pytest.raises(
        ValueError, match=r"character '\\xfc' at position 3 is not UTF-8: text must be; save the file"
    ):
        as_text(b"gr\xfcn", "characters")


@pytest.mark.parametrize("how", [as_letters, as_text, as_utf8])
def test_numbers_are_no_letters(how: object) -> None:
    with pytest.raises(ValueError, match="numbers are not letters or text: the dna tokenizer reads those; use `numb"):
        how(np.zeros(3), "dna")  # type: ignore[operator]


def test_positions_count_from_one() -> None:
    assert character("é", 0) == character(b"\xe9", 0) == "character '\\xe9' at position 1"
    assert character("A" * 1234 + "7", 1234) == "character '7' at position 1,235"
