"""Small dated files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

import chordmixer
from chordmixer.paper.reproduction import page
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.page import Origin, PageContent, publish
from chordmixer.version import __version__

PLACE = Origin("2026-11-16", "abc1234", "NVIDIA H200", "2.11.0")


@pytest.fixture
def result() -> PageContent:
    return PageContent(
        name="listops",
        entry=ENTRIES["listops"],
        body=["| a |", "|---|", "| 1 |"],
        numbers={"runs": [{"loss": float("nan"), "steps": (1, 2)}]},
        warnings=["This is short."],
        differences=["It differs."],
        pictures={"": b"first", "2-other": b"second"},
    )


def test_a_page(result: PageContent, tmp_path: Path) -> None:
    path = publish(result, PLACE, "chordmixer reproduce listops", tmp_path / "results")
    stem = "2026-11-16-listops-h200"
    assert path == tmp_path / "results" / f"{stem}.md"
    assert path.read_text() == (
        "# Long Range Arena, ListOps, 2026-11-16\n\n"
        "**This is short.**\n\n"
        "Of the paper: appendix, table 5. Made on 2026-11-16 on NVIDIA H200 with torch 2.11.0, commit abc1234.\n\n"
        "```sh\nchordmixer reproduce listops\n```\n\n"
        "| a |\n|---|\n| 1 |\n\n"
        f"![Long Range Arena, ListOps]({stem}.png)\n\n"
        f"2-other: ![2-other]({stem}-2-other.png)\n\n"
        "## Where this differs from the paper\n\n"
        "- It differs.\n"
    )
    assert (path.parent / f"{stem}.png").read_bytes() == b"first"
    assert (path.parent / f"{stem}-2-other.png").read_bytes() == b"second"
    known = json.loads(path.with_suffix(".json").read_text(), parse_constant=pytest.fail)
    assert (known["device"], known["commit"], known["torch_version"]) == ("NVIDIA H200", "abc1234", "2.11.0")
    assert (known["paper"]["per_cent"]["chordmixer"], known["paper"]["metric"]) == (60.12, "accuracy")
    assert known["runs"] == [{"loss": None, "steps": [1, 2]}] and known["warnings"] == ["This is short."]


def test_what_the_paper_says_in_words(result: PageContent) -> None:
    words = page.markdown(PageContent("reach", ENTRIES["reach"], [], {}), PLACE, "x", {})
    assert "The paper: Around the uniform 2e-4" in words and "## Where" not in words
    assert "Not in the paper." in page.markdown(PageContent("introns", ENTRIES["introns"], [], {}), PLACE, "x", {})


def test_the_commit_of_this_checkout() -> None:
    top = Path(chordmixer.__file__).parents[2]
    if not (top / ".git").exists():
        pytest.skip("not a checkout")
    head = subprocess.run(["git", "-C", str(top), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert head.stdout.startswith(page.commit().removesuffix("-dirty"))


def test_elsewhere_the_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page, "_git", lambda folder, *words: str(tmp_path))
    assert page.commit() == f"none, version {__version__}"
    monkeypatch.setattr(page, "_git", lambda folder, *words: None)
    assert page.commit() == f"none, version {__version__}"


def test_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert page._git(tmp_path, "rev-parse", "--show-toplevel") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert page._git(tmp_path, "--version") is None


def test_where_it_runs() -> None:
    place = Origin.of(torch.device("cpu"))
    assert place.device.startswith("CPU (") and place.torch_version == torch.__version__
    assert page.slug(place.device) == "cpu"
