"""Functions that write HTML: escaping, tables, a page that loads nothing."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from chordmixer.views import page
from chordmixer.views.page import Html, document, figure, join, short, tag, text


class Reader(HTMLParser):
    """Tags and text as a browser sees them."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.content = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(name)

    def handle_data(self, data: str) -> None:
        self.content += data


@given(st.text(max_size=40))
def test_any_text_stays_text(content: str) -> None:
    reader = Reader(tag("p", content, title=content))
    assert reader.tags == ["p"]
    assert reader.content.replace("\r", "\n") == page._INVISIBLE.sub("\ufffd", content).replace("\r", "\n")


def test_lone_surrogates_and_controls_can_be_written() -> None:
    assert text("a\ud800b\x1b\u202e").encode() == "a?b\ufffd\ufffd".encode()


def test_markup_passes_and_text_beside_it_does_not() -> None:
    assert join([tag("b", "<i>"), "<i>"]) == "<b>&lt;i&gt;</b>&lt;i&gt;"
    assert text(Html("<hr>")) == "<hr>"


def test_attributes_are_escaped_and_none_is_left_out() -> None:
    assert tag("a", "x", href='"><script>', class_=None) == '<a href="&quot;&gt;&lt;script&gt;">x</a>'


def test_a_figure_folds_its_numbers() -> None:
    markup = figure("Lengths", tag("svg"), "Said.", numbers=tag("p", "1"))
    assert "<details><summary>Numbers: Lengths</summary>" in markup
    assert "<details" not in figure("Lengths", tag("svg"))


def test_long_text_is_cut() -> None:
    assert short("x" * 500) == "x" * (page.MAX_TEXT - 1) + "…"
    assert short("short") == "short"


def test_a_page_is_whole_and_allows_only_its_own_script() -> None:
    markup = document("a <title>", tag("p", "body"))
    assert markup.startswith("<!DOCTYPE html>") and markup.endswith("</html>\n")
    assert "<title>a &lt;title&gt;</title>" in markup
    assert "default-src 'none'" in markup and "http://" not in markup and "https://" not in markup
    script = markup.split("<script>")[1].split("</script>")[0]
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in markup
    assert "prefers-color-scheme: dark" in markup and "@media print" in markup and "viewport" in markup
