"""Functions that build HTML. Text is escaped when it enters a page; only `Html` is kept as markup."""

from __future__ import annotations

import hashlib
import html
import re
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

STYLE = Path(__file__).with_name("page.css")
SCRIPT = """\
const all = () => [...document.querySelectorAll("details:not([open])")].filter(d => !d.closest("figure"));
let opened = [];
addEventListener("beforeprint", () => { opened = all(); opened.forEach(d => d.open = true); });
addEventListener("afterprint", () => opened.forEach(d => d.open = false));
"""
"""Opens collapsed sections for printing, except the numbers of charts. The page works without it."""
MAX_TEXT = 160  # maximum number of letters shown of a user's text: a FASTA header may have thousands

_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and characters that change the direction of text."""


class Html(str):
    """Markup. Any other string is text, which is escaped."""


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Build an element. Attributes that are None are omitted; `class_` becomes class, `stroke_width` stroke-width.

    >>> tag("p", "a < b, ", tag("b", "c"), class_="note")
    '<p class="note">a &lt; b, <b>c</b></p>'
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    attribute_text = "".join(f' {key}="{text(value)}"' for key, value in named.items())
    return Html(f"<{name}{attribute_text}>{join(children)}</{name}>")


def text(value: object) -> Html:
    """Convert any value to escaped text; control characters become a replacement character.

    >>> text("a & b" + chr(0x202e) + chr(0))
    'a &amp; b\ufffd\ufffd'
    """
    if isinstance(value, Html):
        return value
    decoded = str(value).encode("utf-8", "replace").decode()
    return Html(html.escape(_INVISIBLE.sub("\ufffd", decoded)))


def join(parts: Iterable[object]) -> Html:
    return Html("".join(map(text, parts)))


def short(value: object, most: int = MAX_TEXT) -> str:
    """Cut text to a number of letters.

    >>> short("Cyprinidae", 6)
    'Cypri…'
    """
    words = str(value)
    return words if len(words) <= most else words[: most - 1] + "…"


def details(summary: str, *inside: object) -> Html:
    """A collapsed section."""
    return tag("details", tag("summary", summary), *inside)


def items(lines: Iterable[object]) -> Html:
    return tag("ul", *(tag("li", line) for line in lines))


def figure(title: str, drawn: Html, caption: object = "", legend: Html | str = "", numbers: Html | str = "") -> Html:
    """A chart with title, legend, caption, and a collapsed table of its numbers."""
    below = details(f"Numbers: {title}", numbers) if numbers else ""
    return tag("figure", tag("h3", title), drawn, legend, tag("figcaption", caption) if caption else "", below)


def figures(*drawn: Html) -> Html:
    """Figures side by side, if the page is wide enough."""
    return tag("div", *drawn, class_="figures")


class Section(Html):
    """A part of a page, with its anchor and its heading."""

    name: str
    heading: str


def section(name: str, heading: str, *parts: object) -> Section:
    element = Section(tag("section", tag("h2", heading), *parts, id=name))
    element.name, element.heading = name, heading
    return element


def contents(sections: Iterable[Section], label: str) -> Html:
    """A list of links to sections."""
    return tag(
        "nav", items(tag("a", section.heading, href=f"#{section.name}") for section in sections), aria_label=label
    )


def document(title: str, *body: object) -> Html:
    """A complete page, which loads no resources and runs no script but `SCRIPT`."""
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
