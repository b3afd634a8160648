"""The rules for the source code: which package may import which, names, types, docstrings, tests."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

import chordmixer
from chordmixer.cli import PAPER as PAPER_COMMANDS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "chordmixer"
MODULES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in MODULES}

LEAVES = {"packed", "files", "config", "terminal", "version"}
LEARNING = LEAVES | {"ops", "data", "models", "tasks"}
PREDICTING = LEARNING | {"training", "views", "dataset"}
CORE = PREDICTING | {"recipes", "predictor", "fitting", "estimators", "tuning"}
PAPER_TASKS = {"paper.adding", "paper.fragments", "paper.lra"}
PAPER = PAPER_TASKS | {
    "paper",
    *(f"paper.{name}" for name in ("subprocesses", "recipes", "benching", "reproduction", "cli")),
}
EVERYTHING = CORE | PAPER | {"cli"}
REPRODUCING = EVERYTHING - {"cli", "paper.cli"}
ALLOWED: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    "ops": set(),
    "data": LEAVES,
    "models": LEAVES | {"ops"},
    "tasks": LEAVES | {"data"},
    "training": LEARNING,
    "recipes": LEARNING | {"training"},
    "views": LEARNING | {"training"},
    "dataset": LEAVES | {"data", "tasks"},
    "predictor": PREDICTING,
    "fitting": PREDICTING | {"recipes", "predictor"},
    "estimators": {"dataset", "fitting", "predictor"},
    "tuning": PREDICTING | {"recipes", "fitting"},
    "cli": CORE,
    "__init__": CORE | {"cli"},
    "__main__": CORE | {"cli"},
    "paper": LEARNING | {"training"},
    "paper.subprocesses": set(),
    **{task: LEAVES | {"data", "tasks", "paper.subprocesses"} for task in PAPER_TASKS},
    "paper.recipes": LEARNING | PAPER_TASKS | {"training", "recipes"},
    "paper.benching": REPRODUCING,
    "paper.reproduction": REPRODUCING,
    "paper.cli": EVERYTHING,
}
"""What each package may import besides itself: the core never imports the paper."""
REGISTRIES = ("cli/__init__.py", "recipes/__init__.py", "tasks/__init__.py")
"""The only modules of the core that may name modules of the paper: in strings, which are imported when asked for."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def label(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def package(path: Path) -> str:
    return package_of(path.relative_to(SOURCE).with_suffix("").parts)


def package_of(parts: Sequence[str]) -> str:
    """A package, or a module at the top; in `paper`, a package or module within it."""
    name = ".".join(parts[:2])
    return name if name in PAPER else parts[0]


def imported_packages(tree: ast.Module) -> set[str]:
    """The packages that a module imports, also within functions."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports must name the whole path"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {package_of(name.split(".")[1:]) for name in names if name.startswith("chordmixer.")}


def named_packages(tree: ast.Module) -> set[str]:
    """The packages of modules that are named in strings, such as a registry's."""
    strings = (
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    names = (re.match(r"chordmixer(?:\.\w+)+(?=:\w+$|$)", string) for string in strings)
    return {package_of(name[0].split(".")[1:]) for name in names if name}


def public(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Classes, functions and methods whose whole path is public; a class's constructor is."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
        for node in body:
            if isinstance(node, Definition) and (not node.name.startswith("_") or node.name == "__init__"):
                yield prefix + node.name, node
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{prefix}{node.name}.")

    return walk(tree.body, "")


def test_import_law() -> None:
    assert {package(path) for path in MODULES} <= ALLOWED.keys(), "a new package: add it to ALLOWED"
    broken = []
    for path in MODULES:
        named = named_packages(TREES[path]) - (PAPER if label(path) in REGISTRIES else set())
        used = (imported_packages(TREES[path]) | named) & EVERYTHING
        broken += [
            f"{label(path)} imports {name}" for name in sorted(used - ALLOWED[package(path)] - {package(path)})
        ]
    assert not broken


def test_only_registries_know_the_paper() -> None:
    for name in REGISTRIES:
        assert PAPER & named_packages(TREES[SOURCE / name]), f"{name} needs no exception"


def test_the_core_starts_without_the_paper() -> None:
    """Help of the core's commands, and the list of all of them, import nothing of it; its own help does."""
    code = """
import contextlib, io, json, sys
import chordmixer
from chordmixer.cli import main
seen = {}
for words in ("", "--help", "train --help", "predict --help", "bench --help"):
    sys.argv, output = ["chordmixer", *words.split()], io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(output):
        main()
    assert "Usage:" in output.getvalue(), words
    seen[words] = sum(name.startswith("chordmixer.paper") for name in sys.modules)
print(json.dumps(seen))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *core, paper = json.loads(completed.stdout).values()
    assert core == [0] * 4 and paper > 0


def test_commands_of_the_paper_are_listed_with_their_own_words() -> None:
    for name, (path, line) in PAPER_COMMANDS.items():
        module, function = path.split(":")
        documented = getattr(import_module(module), function).__doc__
        assert (function, documented.splitlines()[0]) == (name, line)


def test_names_say_what_a_module_is_for() -> None:
    forbidden = {"utils", "util", "common", "helpers", "helper", "base", "misc"}
    words = {path: re.split(r"[/_]", label(path).removesuffix(".py")) for path in MODULES}
    assert not [label(path) for path in MODULES if forbidden & {*words[path]}]


def test_a_class_name_stands_for_one_thing() -> None:
    definitions: dict[str, list[str]] = {}
    for path in MODULES:
        for node in TREES[path].body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                definitions.setdefault(node.name, []).append(label(path))
    assert not {name: paths for name, paths in definitions.items() if len(paths) > 1}


def untyped(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The arguments without a type, and `return`; a kernel's have none."""
    if any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list):
        return []
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    names = [a.arg for a in arguments if a is not None and a.annotation is None and a.arg not in ("self", "cls")]
    return names if node.returns is not None else [*names, "return"]


def test_public_functions_are_typed() -> None:
    untyped_functions = [
        f"{label(path)}: {name}({', '.join(missing)})"
        for path in MODULES
        for name, node in public(TREES[path])
        if not isinstance(node, ast.ClassDef) and (missing := untyped(node))
    ]
    assert not untyped_functions


def exported() -> set[str]:
    """The names in the `__all__` of any package."""
    assignments = (node for tree in TREES.values() for node in tree.body if isinstance(node, ast.Assign))
    values = (node.value for node in assignments if ast.unparse(node.targets[0]) == "__all__")
    return {name for names in values for name in ast.literal_eval(names)}


def test_classes_and_exported_functions_say_what_they_are() -> None:
    names = exported()
    undocumented = [
        f"{label(path)}: {name}"
        for path in MODULES
        for name, node in public(TREES[path])
        if (isinstance(node, ast.ClassDef) or name in names) and not ast.get_docstring(node)
    ]
    assert not undocumented


def test_modules_say_what_they_are() -> None:
    assert [label(path) for path in MODULES if not ast.get_docstring(TREES[path])] == ["version.py"]


def unexplained(settings: ast.ClassDef) -> list[str]:
    """The fields without a docstring under them."""
    return [
        ast.unparse(field.target)
        for field, following in zip(settings.body, [*settings.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign)
        and not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
    ]


def test_every_setting_is_explained() -> None:
    missing = [
        f"{label(path)}: {name}.{field}"
        for path in MODULES
        for name, node in public(TREES[path])
        if isinstance(node, ast.ClassDef) and name.endswith("Config")
        for field in unexplained(node)
    ]
    assert not missing


def test_every_module_has_its_tests() -> None:
    tested = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    needed = {label(path): f"test_{path.name}" for path in MODULES if path.stem != "__init__"}
    assert not [f"{path} has no {test}" for path, test in needed.items() if test not in tested]


def test_public_names() -> None:
    assert len(chordmixer.__all__) <= 15 and len(set(chordmixer.__all__)) == len(chordmixer.__all__)
    assert all(getattr(chordmixer, name) is not None for name in chordmixer.__all__)
    assert set(chordmixer.__all__) == set(dir(chordmixer))
    with pytest.raises(AttributeError, match="module 'chordmixer' has no attribute 'nothing'"):
        _ = chordmixer.nothing


def test_no_module_needs_posix_to_be_imported() -> None:
    """The core imports on Windows, where these modules do not exist."""
    missing = {"fcntl", "grp", "pwd", "resource", "termios"}
    for path in MODULES:
        top = [node for node in TREES[path].body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in top for alias in node.names} | {getattr(node, "module", None) for node in top}
        assert not missing & names, label(path)


def test_the_command_line_starts_without_torch() -> None:
    code = (
        "import sys, chordmixer.cli; print([m for m in ('torch', 'numpy', 'pyarrow', 'sklearn') if m in sys.modules])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"
