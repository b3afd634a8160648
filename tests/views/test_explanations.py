"""Explanations on a page: colours, escaping, and the checks of explanations.json."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer.config import from_dict, to_dict
from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Entry
from chordmixer.data.tokenizers import Bytes, Numbers
from chordmixer.training.explanation import Explanation
from chordmixer.views import explanations
from chordmixer.views.explanations import (
    MAX_REPORT_LETTERS,
    Explained,
    Picture,
    document,
    drawn,
    explanations_section,
    sentences,
    strongest_regions,
)
from chordmixer.views.report import page
from chordmixer.views.runs import Run


def explanation(values: list[float], sequence: Any = b"ACGTACGT", **changes: Any) -> Explanation:
    tokenizer = Numbers() if isinstance(sequence, np.ndarray) else Bytes() if isinstance(sequence, str) else Dna()
    fields = {"answer": "worm", "explained": "worm", "probability": 0.9, "score": 2.197} | changes
    return Explanation(Entry("r<1>", sequence, "x"), tokenizer, np.array(values, np.float32), **fields)


class Reader(HTMLParser):
    """The text of a page's <pre>, and each coloured piece of it with its style."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.inside, self.style, self.text, self.pieces, self.tags = False, "", "", [], set[str]()  # type: ignore[var-annotated]
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.inside |= tag == "pre"
        self.style = dict(attrs).get("style") or "" if tag == "span" else self.style

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "pre"
        self.style = "" if tag == "span" else self.style

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.text += data
            if self.style:
                self.pieces.append((data, self.style))


def test_letters_have_the_colour_of_their_values() -> None:
    markup = drawn(Picture.of(explanation([0, 0, 4, 4, 0, -2, 0, 0])))
    reader = Reader(markup)
    assert reader.text == "ACGTACGT"
    assert reader.pieces == [("GT", "background:rgba(184,74,0,0.60)"), ("C", "background:rgba(0,87,168,0.30)")]
    assert 'title="3 to 4: +4"' in markup and 'class="f1"' in markup and 'class="f0"' in markup


def test_the_strongest_places_are_listed() -> None:
    markup = drawn(Picture.of(explanation([0, 0, 4, 4, 0, -2, 0, 0])))
    cells = re.findall(r"<t[hd][^>]*>(?:<code>)?([^<]+)", markup)
    assert cells == ["position", "letters", "drop in log-odds", "3 to 4", "GT", "+4", "6", "C", "-2"]
    values = np.zeros(100)
    values[10:17], values[13], values[40], values[60] = 3, 0, 1, 0.5
    assert [region[:2] for region in strongest_regions(values)] == [(10, 17), (40, 41)]
    assert len(strongest_regions(np.tile([1.0, 0, 0, 0], 9))) == explanations.MAX_REGIONS
    assert strongest_regions(np.zeros(4)) == []


def test_a_series_is_drawn_before_bands() -> None:
    series = np.sin(np.arange(50, dtype=np.float32))
    markup = drawn(Picture.of(explanation([1.0] * 20 + [0.0] * 10 + [-1.0] * 20, series)))
    bands = re.findall(r'<rect x="[\d.]+" width="([\d.]+)" fill-opacity="([\d.]+)"[^>]*class="(f\d)"', markup)
    assert [(shade, kind) for _, shade, kind in bands] == [("0.60", "f1"), ("0.60", "f0")]
    line = re.search(r'<path d="(M[^"]+)" class="line c5">', markup)
    assert line and line[1].count("L") == 49 and "<pre" not in markup


def test_long_records_have_bounded_pictures() -> None:
    values = np.zeros(20_000)
    values[14_000] = 5.0
    markup = drawn(Picture.of(explanation(values.tolist(), b"A" * 20_000)))
    assert len(markup) < 10_000 and Reader(markup).pieces == [("A", "background:rgba(184,74,0,0.60)")]
    assert "Letters 13,001 to 15,000 of 20,000, around the strongest position:" in markup
    noise = np.random.default_rng(0).normal(size=20_000)
    assert len(drawn(Picture.of(explanation(noise.tolist(), noise)))) < 60_000


@pytest.mark.parametrize("values", [[0.0] * 3, [-2.0] * 3, [1e-30, 0, 0], [3e38, 0, 0]])
def test_values_of_any_size(values: list[float]) -> None:
    for sequence in ("abc", np.zeros(3)):
        markup = drawn(Picture.of(explanation(values, sequence)))
        assert not re.search(r"nan|inf", markup, flags=re.I)


def test_everything_is_escaped_and_nothing_is_loaded() -> None:
    evil = "<script>alert('1')</script>&amp; \r\n<b>\r"
    hostile = explanation(np.linspace(-1, 1, len(evil)).tolist(), evil, answer=evil, explained=evil)
    markup = document(evil, evil, [Picture.of(hostile, evil)] * 2, omitted=7)
    reader = Reader(markup)
    assert reader.text == 2 * evil.replace("\r\n", " \n").replace("\r", "\n")
    assert "b" not in reader.tags and markup.count("<script>") == 1  # the page's own
    assert "7 more records are not shown" in markup and '<a href="#record-2">r&lt;1&gt;</a>' in markup
    assert not re.search(r"https?://|src=|@import|url\(", markup)


def test_sentences() -> None:
    assert [*sentences(explanation([0, 2.5], b"AC", explained="fly"))] == [
        "Prediction: worm. Explained: fly. Probability 0.900, log-odds +2.20.",
        "Hiding the strongest part lowers the log-odds by 2.5.",
    ]
    number = {"answer": 7.5, "explained": None, "probability": None, "score": 7.5}
    assert [*sentences(explanation([1, -2], b"AC", **number))] == [
        "Prediction: 7.500.",
        "Hiding the strongest part raises the number by 2.",
    ]
    assert "depends on many parts at once" in [*sentences(explanation([0, -1], b"AC"))][1]


def test_a_file_of_pictures_reads_back() -> None:
    pictures = (
        Picture.of(explanation([0, 0, 1, 1, 0, 0, 0, 0]), "That is correct."),
        Picture.of(explanation([0.1, 0.2], np.array([1.0, 2.0]))),
    )
    explained = Explained(pictures, ("some",))
    saved = json.loads(json.dumps(to_dict(explained)))
    assert from_dict(Explained, saved, "x") == explained
    assert pictures[0].said[1] == "That is correct." and pictures[0].values.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    for change in (
        {"edges": [0, 2, 4, 10**15]},  # would fill the memory
        {"edges": [0, 4, 2, 8]},
        {"edges": [0, 8]},
        {"edges": [], "heights": []},
        {"letters": "ACG"},
        {"heights": [0.0, None, 0.0]},
        {"samples": [1.0]},
        {"odd": 1},
    ):
        with pytest.raises(ValueError, match=r"^x\.records"):
            from_dict(Explained, saved | {"records": [saved["records"][0] | change]}, "x")


def test_records_of_both_kinds(make_run: Callable[..., Path]) -> None:
    run = Run.load(make_run("two"))
    pictures = (
        Picture("<b>", ("Answer: <i>.",), "drop in log-odds", (0, 2, 900), (1.0, 0.0), letters="A" * 900),
        Picture("wave", ("Answer: 3.",), "drop in the number", (0, 3), (1.0,), samples=(1.0, 2.0, 3.0)),
    )
    with_pictures = replace(run, explained=Explained(pictures, ("7 of 9 test records are left out.",)))
    markup = explanations_section(run.folder, with_pictures.explained)
    assert "7 of 9 test records are left out." in markup and "<h3>&lt;b&gt;</h3>" in markup and "<i>" not in markup
    assert f"Letters 1 to {MAX_REPORT_LETTERS} of 900" in markup and "drop in the number" in markup
    assert "chordmixer explain" in markup and markup in page(with_pictures)
    assert 'id="explanations"' not in page(run)
