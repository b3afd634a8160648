"""The commands and the Python of the pages for users run, on small files of the names that the pages use."""

from __future__ import annotations

import gzip
import random
import re
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from chordmixer.cli import app

DOCS = Path(__file__).parent.parent / "docs"


def fenced(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.S)


COMMANDS = [line for block in fenced("own-files.md", "sh") for line in block.splitlines() if line]


NAMES = [(f"{name}.fa.gz", seed) for seed, name in enumerate(("worm", "fly", "more", "new_worm", "new_fly"), 1)]


def letters(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("ACGT", k=draw.randint(30, 90))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file that the page names."""
    folder = tmp_path_factory.mktemp("own-files")
    for name, seed in NAMES:
        records = "".join(f">{name}-{i}\n{text}\n" for i, text in enumerate(letters(40, seed)))
        (folder / name).write_bytes(gzip.compress(records.encode()))
    (folder / "new.fa").write_text("".join(f">new-{i}\n{text}\n" for i, text in enumerate(letters(6, 9))))
    kinds = [("Chordata", "Nematoda")[i % 2] for i in range(60)]
    genes = [
        f">g{i} phylum={kind} gene={i // 3}\n{text}\n"
        for i, (kind, text) in enumerate(zip(kinds, letters(60, 10), strict=True))
    ]
    (folder / "genes.fa").write_text("".join(genes))
    table = "".join(f"g{i},{kind}\n" for i, kind in enumerate(kinds))
    (folder / "genes.csv").write_text("id,label\n" + table)
    rows = "".join(f'"a review that says number {i}",{("good", "bad")[i % 2]}\n' for i in range(40))
    (folder / "reviews.csv").write_text("text,label\n" + rows)
    return folder


@pytest.fixture
def here(folder: Path, quick_runs: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass over the records, and nothing in the user's own cache."""
    quick_runs(monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    recipe = import_module("chordmixer.recipes.files")  # its function has the same name
    monkeypatch.setattr(recipe, "STEPS", {"cpu": 1, "cuda": 1})


@pytest.mark.usefixtures("here")
def test_the_commands_of_the_page_for_own_files_run(folder: Path) -> None:
    """All of them, in the page's order: later ones use what earlier ones leave."""
    for line in COMMANDS:
        command, _, given = line.partition("<")
        words = shlex.split(command)[1:]
        if given:
            source = given.split(">")[0].strip()
            answer = CliRunner().invoke(app, words, input=(folder / source).read_bytes())
        else:
            answer = CliRunner().invoke(app, words)
        assert answer.exit_code == 0, f"{line}: {answer.output}{answer.exception!r}"
    for made in (
        "SCORES/evaluation.json",
        "answers.tsv",
        "answers.parquet",
        "embeddings.parquet",
        "RUN/report.html",
        "RUN-apart/report.html",
    ):
        assert (folder / made).stat().st_size > 0


@pytest.mark.usefixtures("here")
def test_the_python_of_the_page_for_engineers_runs() -> None:
    exec(compile("\n".join(fenced("backbone.md", "python")), "backbone.md", "exec"), {})


PAGES = sorted(path.name for path in DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", (DOCS / page).read_text()):
        assert link.startswith("https://") or (DOCS / link).exists(), link


LINES = [line for page in PAGES for block in fenced(page, "sh") for line in block.splitlines() if line]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("chordmixer ")])
def test_commands_and_options_exist(line: str) -> None:
    words = shlex.split(line.split("|")[0].split("<")[0], comments=True)[1:]
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]  # it is a group
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in words[1:] if re.match(r"-[-a-z]", word)} <= known
