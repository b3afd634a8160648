"""The rules of the house, read off the source: who may import whom, names, types, docstrings, tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import chordmixer

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "chordmixer"
MODULES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in MODULES}

LEAVES = {"packed", "moving", "files", "temporary", "config", "terminal", "version"}
LEARNING = LEAVES | {"ops", "data", "models", "tasks"}
EVERYTHING = LEARNING | {"training", "recipes", "views", "paper", "cli"}
LAW: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    "packed": {"moving"},
    "files": {"temporary"},
    "ops": set(),
    "data": LEAVES,
    "models": LEAVES | {"ops"},
    "tasks": LEAVES | {"data", "paper"},
    "training": LEARNING,
    "recipes": LEARNING | {"training", "paper"},
    "views": EVERYTHING - {"recipes", "paper", "cli"},
    "paper": EVERYTHING,
    "cli": EVERYTHING,
    "__init__": EVERYTHING,
    "__main__": EVERYTHING,
}
"""What each room may import besides itself."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def label(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.Module) -> Iterator[str]:
    """The rooms that a module imports, also within functions, and by names in strings such as a registry's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(r"^chordmixer(?:\.\w+)+(?=:\w+$|$)", node.value)
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("chordmixer."))


def public(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Classes, functions and methods whose whole path is public; a class's constructor is."""

    def within(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
        for node in body:
            if isinstance(node, Definition) and (not node.name.startswith("_") or node.name == "__init__"):
                yield prefix + node.name, node
                if isinstance(node, ast.ClassDef):
                    yield from within(node.body, f"{prefix}{node.name}.")

    return within(tree.body, "")


def test_import_law() -> None:
    assert {room(path) for path in MODULES} <= LAW.keys(), "a new room: give it a place in the law"
    broken = [
        f"{label(path)} imports {other}"
        for path in MODULES
        for other in sorted(set(imported_rooms(TREES[path])) & EVERYTHING - LAW[room(path)] - {room(path)})
    ]
    assert not broken


def test_names_say_what_a_module_is_for() -> None:
    forbidden = {"utils", "util", "common", "helpers", "helper", "base", "misc"}
    words = {path: re.split(r"[/_]", label(path).removesuffix(".py")) for path in MODULES}
    assert not [label(path) for path in MODULES if forbidden & {*words[path]}]


def untyped(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The arguments without a type, and `return`; a kernel's have none."""
    if any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list):
        return []
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    bare = [a.arg for a in given if a is not None and a.annotation is None and a.arg not in ("self", "cls")]
    return bare if node.returns is not None else [*bare, "return"]


def test_public_functions_are_typed() -> None:
    bare = [
        f"{label(path)}: {name}({', '.join(missing)})"
        for path in MODULES
        for name, node in public(TREES[path])
        if not isinstance(node, ast.ClassDef) and (missing := untyped(node))
    ]
    assert not bare


def exported() -> set[str]:
    """The names in the `__all__` of any package."""
    assigned = (node for tree in TREES.values() for node in tree.body if isinstance(node, ast.Assign))
    lists = (node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__")
    return {name for names in lists for name in ast.literal_eval(names)}


def test_classes_and_exported_functions_say_what_they_are() -> None:
    names = exported()
    silent = [
        f"{label(path)}: {name}"
        for path in MODULES
        for name, node in public(TREES[path])
        if (isinstance(node, ast.ClassDef) or name in names) and not ast.get_docstring(node)
    ]
    assert not silent


def test_modules_say_what_they_are() -> None:
    assert [label(path) for path in MODULES if not ast.get_docstring(TREES[path])] == ["version.py"]


def unexplained(settings: ast.ClassDef) -> list[str]:
    """The fields without a docstring under them."""
    return [
        ast.unparse(field.target)
        for field, below in zip(settings.body, [*settings.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign)
        and not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant))
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


def test_the_command_line_starts_without_torch() -> None:
    code = (
        "import sys, chordmixer.cli; print([m for m in ('torch', 'numpy', 'pyarrow', 'sklearn') if m in sys.modules])"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
