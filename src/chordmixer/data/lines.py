"""Lines of a file at the speed of its bytes: a line ends with a line feed, a carriage return, or both."""

from __future__ import annotations

from collections.abc import Iterator

from chordmixer.data.sources import BLOCK, Source


def line_blocks(source: Source) -> Iterator[bytes]:
    """The text in large blocks: `\\n` before every line, the first too, and after none; other line ends become it.

    A block ends with a line, unless the line is longer than a block: only then does the next not begin with `\\n`.
    """
    rest, held = b"\n", b""
    while block := source.stream.read1(BLOCK):
        if held or b"\r" in block:
            block = held + block
            held = b"\r" if block.endswith(b"\r") else b""  # a \n may follow it
            block = block.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        text = rest + block
        end = text.rfind(b"\n", 1)
        if end > 0:
            yield text[:end]
            rest = text[end:]
        elif len(text) < BLOCK:
            rest = text
        else:
            yield text
            rest = b""
    if held or rest not in (b"\n", b""):
        yield rest


def plain_lines(source: Source) -> Iterator[bytes]:
    """Lines without their ends."""
    pieces: list[bytes] | None = None  # of the line whose end is not yet seen
    for block in line_blocks(source):
        more, *lines = block.split(b"\n")
        if pieces is not None:
            pieces.append(more)
        if lines:
            if pieces is not None:
                yield b"".join(pieces)
            pieces = [lines.pop()]
            yield from lines
    if pieces is not None:
        yield b"".join(pieces)
