from __future__ import annotations

from pathlib import Path

from chordmixer.version import __version__


def test_the_changelog_has_this_version() -> None:
    changes = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    assert f"\n## {__version__}" in changes
