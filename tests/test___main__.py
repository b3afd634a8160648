from __future__ import annotations

import subprocess
import sys

from chordmixer.version import __version__


def test_the_version_by_python_m() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "chordmixer", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (completed.returncode, completed.stdout) == (0, f"chordmixer {__version__}\n")
