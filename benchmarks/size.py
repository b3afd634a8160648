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
    duplicates = repeated(files)
    print(f"\nclass names used twice: {len(duplicates)}")
    for name, paths in duplicates.items():
        print(f"  {name}: {', '.join(paths)}")
    print("\nchordmixer modules loaded by")
    for command, modules in loaded().items():
        paper = sum(name.startswith("chordmixer.paper") for name in modules)
        print(f"  {command:20}{len(modules):6,}, of the paper {paper:,}")


def sizes(files: list[Path]) -> dict[str, tuple[int, int]]:
    """Files and lines of each package, of its sub-packages, and of all."""
    totals: dict[str, tuple[int, int]] = {}
    for path in files:
        parts, lines = path.relative_to(SOURCE).parts, len(path.read_text().splitlines())
        packages = ["/".join(parts[: i + 1]) for i in range(len(parts) - 1)]
        for name in ("all", *(packages or ["top level"])):
            count, before = totals.get(name, (0, 0))
            totals[name] = count + 1, before + lines
    return {name: totals[name] for name in sorted(totals, key=lambda name: (name == "all", name))}


def repeated(files: list[Path]) -> dict[str, list[str]]:
    """Public class names that several modules define, with these modules."""
    definitions: dict[str, list[str]] = {}
    for path in files:
        for name in _classes(path):
            definitions.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    return {name: paths for name, paths in sorted(definitions.items()) if len(paths) > 1}


def _classes(path: Path) -> Iterator[str]:
    """The public classes of a module, without nested ones."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def loaded() -> dict[str, list[str]]:
    """The modules behind each command, on files of `chordmixer sample`."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        modules(root, "sample", "dna", "--out", ".")
        return {
            "import chordmixer": modules(root),
            "train --help": modules(root, "train", "--help"),
            "train FILES": modules(root, *TRAIN),
            "predict RUN FILES": modules(root, *PREDICT),
        }


def modules(folder: Path, *arguments: str) -> list[str]:
    """What a process has loaded at its end: a command, or `import chordmixer` alone."""
    code = COUNT + (COMMAND if arguments else "import chordmixer")
    module_list = folder / "modules.txt"
    process = [sys.executable, "-c", code, *arguments, str(module_list)]
    completed = subprocess.run(process, cwd=folder, capture_output=True, text=True)
    if completed.returncode:
        raise SystemExit(f"chordmixer {' '.join(arguments)} failed: {completed.stdout}{completed.stderr}")
    return module_list.read_text().split()


if __name__ == "__main__":
    main()
