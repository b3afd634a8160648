"""HTML by small functions. Text is escaped when it enters a page; only what is `Html` already passes as markup."""

from __future__ import annotations

import hashlib
import html
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

STYLE = Path(__file__).with_name("page.css")
SCRIPT = """\
const all = () => [...document.querySelectorAll("details:not([open])")].filter(d => !d.closest("figure"));
let opened = [];
addEventListener("beforeprint", () => { opened = all(); opened.forEach(d => d.open = true); });
addEventListener("afterprint", () => opened.forEach(d => d.open = false));
"""
"""The page reads without it; with it, what is folded on the screen is printed too, but for the charts' numbers."""
UNBROKEN = 20
"""Letters of a word that is never broken in a table."""
LONGEST = 160
"""Letters of a user's text that are shown; a FASTA header may have thousands."""

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of what follows."""


class Html(str):
    """Markup. Any other string beside it is text, and escaped."""


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element; attributes of None are left out, and `class_` and `stroke_width` are written as HTML has them.

    >>> tag("p", "a < b, ", tag("b", "c"), class_="note")
    '<p class="note">a &lt; b, <b>c</b></p>'
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    given = "".join(f' {key}="{text(value)}"' for key, value in named.items())
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def text(value: object) -> Html:
    """Anything as text; characters that cannot be shown, or would disturb their neighbours, become a question mark.

    >>> text("a & b" + chr(0x202e) + chr(0))
    'a &amp; b\ufffd\ufffd'
    """
    if isinstance(value, Html):
        return value
    known = str(value).encode("utf-8", "replace").decode()
    return Html(html.escape(_UNSEEN.sub("\ufffd", known)))


def join(parts: Iterable[object]) -> Html:
    return Html("".join(map(text, parts)))


def short(value: object, most: int = LONGEST) -> str:
    """
    >>> short("Cyprinidae", 6)
    'Cypri…'
    """
    words = str(value)
    return words if len(words) <= most else words[: most - 1] + "…"


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    words: Collection[int] = (0,),
    name: str = "table",
    stacked: bool = False,
) -> Html:
    """A table that scrolls in its own frame where it is wider than the page.

    The first column names the row. Columns whose number is in `words` stand left, numbers right. On a phone a
    `stacked` one has its rows below each other, each cell behind the name of its column.
    """
    sides = ["words" if column in words else None for column in range(len(head))]
    top = [tag("th", cell, scope="col", class_=side) for cell, side in zip(head, sides, strict=True)]
    body = []
    for first, *rest in rows:
        titles = head[1:] if stacked else [None] * len(rest)
        cells = [
            tag("td", cell, class_=_side(cell, side), data_title=title)
            for cell, side, title in zip(rest, sides[1:], titles, strict=True)
        ]
        body.append(tag("tr", tag("th", first, scope="row", class_=_side(first, sides[0])), *cells))
    grid = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *body))
    return tag(
        "div", grid, class_="scroll stacked" if stacked else "scroll", role="region", tabindex="0", aria_label=name
    )


def _side(cell: object, side: str | None) -> str | None:
    """Only words too long for a narrow column may be broken in the middle."""
    plain = [] if isinstance(cell, Html) else str(cell).split()
    return f"{side} long" if side and any(len(word) > UNBROKEN for word in plain) else side


def details(summary: str, *inside: object) -> Html:
    """Folded until it is asked for."""
    return tag("details", tag("summary", summary), *inside)


def items(lines: Iterable[object], class_: str | None = None) -> Html:
    return tag("ul", *(tag("li", line) for line in lines), class_=class_)


def figure(title: str, drawn: Html, caption: object = "", legend: Html | str = "", numbers: Html | str = "") -> Html:
    """A chart with its name, what the colours mean, a sentence, and its numbers folded below."""
    below = details(f"Numbers: {title}", numbers) if numbers else ""
    return tag("figure", tag("h3", title), drawn, legend, tag("figcaption", caption) if caption else "", below)


def figures(*drawn: Html) -> Html:
    """Side by side where there is room."""
    return tag("div", *drawn, class_="figures")


def section(name: str, title: str, *parts: object) -> Html:
    return tag("section", tag("h2", title), *parts, id=name)


def document(title: str, *body: object) -> Html:
    """A whole page. It may load nothing from anywhere, and run no script but its own."""
    digest = b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{text(title)}</title>
<style>
{STYLE.read_text()}</style>
</head>
"""
    return Html(f"{head}<body>\n{join(body)}\n<script>{SCRIPT}</script>\n</body>\n</html>\n")
