from __future__ import annotations

import math

import pytest

from chordmixer.data.numbers import real_number, whole_number, written


@pytest.mark.parametrize("text", ["2_0", " 20", "2.0", "", "0x20", "\N{ARABIC-INDIC DIGIT TWO}", "9" * 19, "²"])
def test_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize("text", ["1_0", "nan", "inf", "1e999", "", "1,5", "\N{ARABIC-INDIC DIGIT TWO}", "\xa01"])
def test_no_number(text: str) -> None:
    assert math.isnan(real_number(text))


def test_numbers() -> None:
    assert [whole_number(text) for text in ("20", "-3", "+07")] == [20, -3, 7]
    assert [real_number(text) for text in ("20", "-.5", "1.", " 1e-3", "+2E5")] == [20, -0.5, 1, 0.001, 2e5]
    assert [written(number) for number in (1e9 + 7, 0.1, -3, 1e22)] == ["1000000007", "0.1", "-3", "1e+22"]
