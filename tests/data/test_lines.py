from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch

from chordmixer.data import lines
from chordmixer.data.lines import line_blocks, plain_lines
from chordmixer.data.sources import source_of

texts = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"A", b"CGT", b"long" * 5]), min_size=1).map(b"".join)


def slowly(text: bytes) -> list[bytes]:
    found = re.split(rb"\r\n|\r|\n", text)
    return found if found[-1] else found[:-1]


@given(texts, st.integers(1, 12))
def test_lines_of_every_kind_in_blocks_of_every_size(text: bytes, size: int) -> None:
    with MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", size)
        assert list(plain_lines(source_of(text, "x"))) == slowly(text)
        assert b"".join(line_blocks(source_of(text, "x"))) == b"".join(b"\n" + line for line in slowly(text))


@given(texts, st.integers(1, 12))
def test_a_block_ends_with_a_line_unless_the_line_is_longer(text: bytes, size: int) -> None:
    with MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", size)
        before = b""
        for block in line_blocks(source_of(text, "x")):
            assert block.startswith(b"\n") or len(before) >= size
            before = block if block.startswith(b"\n") else before + block
