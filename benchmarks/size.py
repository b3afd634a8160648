"""How large the package is, and how much of it a command loads.

python benchmarks/size.py    # a minute: two small runs

Source files and lines of each package, class names that stand for two things, and the chordmixer modules behind
`import chordmixer`, `chordmixer train` and `chordmixer predict` on a small file, each in a process of its own.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import chordmixer

SOURCE = Path(chordmixer.__file__).parent
COUNT = """
import atexit, pathlib, sys
names = lambda: sorted(name for name in sys.modules if name.split(".")[0] == "chordmixer")
atexit.register(lambda: pathlib.Path(sys.argv.pop()).write_text("\\n".join(names())))
"""
"""Begins a process, whose last argument is a file for the modules that it has loaded when it ends."""
COMMAND = "from chordmixer.cli import main; sys.argv, at = sys.argv[:-1], sys.argv[-1:]; "
COMMAND += "sys.argv[0] = 'chordmixer'\ntry: main()\nfinally: sys.argv += at"
TRAIN = (
    "train",
    "gattaca.fa",
    "cattaga.fa",
    "--set",
    "training.steps=2",
    "--set",
    "training.trial=0",
    "--out",
    "RUN",
)
PREDICT = ("predict", "RUN", "gattaca.fa", "-o", "answers.tsv")


def main() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    print(f"{'package':24}{'files':>8}{'lines':>8}")
    for name, (count, lines) in sizes(files).items():
        print(f"{name:24}{count:8,}{lines:8,}")
    twice = repeated(files)
    print(f"\nclass names used twice: {len(twice)}")
    for name, homes in twice.items():
        print(f"  {name}: {', '.join(homes)}")
    print("\nchordmixer modules loaded by")
    for what, modules in loaded().items():
        paper = sum(name.startswith("chordmixer.paper") for name in modules)
        print(f"  {what:20}{len(modules):6,}, of the paper {paper:,}")


def sizes(files: list[Path]) -> dict[str, tuple[int, int]]:
    """Files and lines of each package, of its sub-packages, and of all."""
    found: dict[str, tuple[int, int]] = {}
    for path in files:
        parts, lines = path.relative_to(SOURCE).parts, len(path.read_text().splitlines())
        within = ["/".join(parts[: i + 1]) for i in range(len(parts) - 1)]
        for name in ("all", *(within or ["top level"])):
            count, before = found.get(name, (0, 0))
            found[name] = count + 1, before + lines
    return {name: found[name] for name in sorted(found, key=lambda name: (name == "all", name))}


def repeated(files: list[Path]) -> dict[str, list[str]]:
    """Public class names that several modules define, with these modules."""
    homes: dict[str, list[str]] = {}
    for path in files:
        for name in _classes(path):
            homes.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    return {name: own for name, own in sorted(homes.items()) if len(own) > 1}


def _classes(path: Path) -> Iterator[str]:
    """Of a module, without private ones and those within others."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def loaded() -> dict[str, list[str]]:
    """The modules behind each command, on files of `chordmixer sample`."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        modules(place, "sample", "dna", "--out", ".")
        return {
            "import chordmixer": modules(place),
            "train --help": modules(place, "train", "--help"),
            "train FILES": modules(place, *TRAIN),
            "predict RUN FILES": modules(place, *PREDICT),
        }


def modules(folder: Path, *words: str) -> list[str]:
    """What a process has loaded at its end: a command, or `import chordmixer` alone."""
    code = COUNT + (COMMAND if words else "import chordmixer")
    listed = folder / "modules.txt"
    process = [sys.executable, "-c", code, *words, str(listed)]
    done = subprocess.run(process, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"chordmixer {' '.join(words)} failed: {done.stdout}{done.stderr}")
    return listed.read_text().split()


if __name__ == "__main__":
    main()
