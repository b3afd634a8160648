"""Numbers as files write them, and as we write them: ASCII digits, no underscores, nothing that only Python reads."""

from __future__ import annotations

import math
import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def whole_number(text: str) -> int | None:
    """A whole number of up to 18 digits, or None.

    >>> whole_number("20"), whole_number("2_0"), whole_number(" 20"), whole_number("\N{ARABIC-INDIC DIGIT TWO}")
    (20, None, None, None)
    """
    return int(text) if _WHOLE.fullmatch(text) else None


def real_number(text: str) -> float:
    """A finite number, or NaN where the text is none; spaces around it do not matter.

    >>> real_number("-1.5e3"), real_number(" 2 "), real_number("1_0"), real_number("inf"), real_number("1e999")
    (-1500.0, 2.0, nan, nan, nan)
    """
    number = float(text) if _REAL.fullmatch(text := text.strip(" ")) else math.nan
    return number if math.isfinite(number) else math.nan


def written(number: float) -> str:
    """With as many digits as it takes to read the same number again.

    >>> written(0.25), written(1_000_000_007.0), written(1e-7)
    ('0.25', '1000000007', '1e-07')
    """
    return repr(float(number)).removesuffix(".0")
