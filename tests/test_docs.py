"""The commands and the Python of the pages for users run, on small files of the names that the pages use.

All relative links of README.md and of the pages lead to a file, and to a heading where they name one.
"""

from __future__ import annotations

import doctest
import gzip
import importlib.util
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from typer.testing import CliRunner

import chordmixer.recipes
from chordmixer import Dataset
from chordmixer.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def fenced(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.S)


COMMANDS = [line for block in fenced("own-files.md", "sh") for line in block.splitlines() if line]


NAMES = [(f"{name}.fa.gz", seed) for seed, name in enumerate(("worm", "fly", "more", "new_worm", "new_fly"), 1)]


def letters(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("ACGT", k=rng.randint(30, 90))) for _ in range(count)]


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
    (folder / "settings.toml").write_text(fenced("own-files.md", "toml")[0])
    return folder


@pytest.fixture
def quick(folder: Path, quick_runs: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass over the records, and nothing in the user's own cache."""
    quick_runs(monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    recipe = import_module("chordmixer.recipes.files")  # its function has the same name
    monkeypatch.setattr(recipe, "STEPS", {"cpu": 1, "cuda": 1})


@pytest.mark.usefixtures("quick")
def test_the_commands_of_the_page_for_own_files_run(folder: Path) -> None:
    """All of them, in the page's order: later ones use what earlier ones leave."""
    for line in COMMANDS:
        command, _, redirection = line.partition("<")
        arguments = shlex.split(command)[1:]
        if redirection:
            source = redirection.split(">")[0].strip()
            result = CliRunner().invoke(app, arguments, input=(folder / source).read_bytes())
        else:
            result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{line}: {result.output}{result.exception!r}"
    for path in (
        "SCORES/evaluation.json",
        "answers.tsv",
        "answers.parquet",
        "embeddings.parquet",
        "RUN/report.html",
        "RUN-apart/report.html",
    ):
        assert (folder / path).stat().st_size > 0


def parse_launch(line: str) -> tuple[int, list[str]]:
    """Ranks and arguments of a command of the page for clusters, as the launchers' own parsers read it."""
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    launcher, *arguments = shlex.split(line)
    if launcher == "chordmixer":
        return 1, arguments
    if launcher == "torchrun":
        parsed = get_args_parser().parse_args(arguments)
        count = int(parsed.nproc_per_node)
    else:
        assert (launcher, arguments.pop(0)) == ("accelerate", "launch")
        parsed = launch_command_parser().parse_args(arguments)
        count = parsed.num_processes
    assert parsed.module and parsed.training_script == "chordmixer"
    return count, parsed.training_script_args


@pytest.mark.usefixtures("quick")
def test_the_commands_of_the_page_for_clusters_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the page's order, each on the number of ranks that it names: forks of this process, with its quick runs.
    Only one run has baselines, and commands that are on the page for own files too are left out. The test runs in a
    fresh process: one that has computed gradients, on threads of their own, cannot be forked."""
    from tests.forked import Copied, start_ranks

    if "FRESH_PROCESS" not in os.environ:
        test = f"{__file__}::test_the_commands_of_the_page_for_clusters_run"
        command, env = [sys.executable, "-m", "pytest", "-n0", test], os.environ | {"FRESH_PROCESS": "1"}
        completed = subprocess.run(command, env=env, cwd=Path(__file__).parents[1], capture_output=True, text=True)
        assert completed.returncode == 0, completed.stdout
        return
    monkeypatch.setattr("chordmixer.cli.options.check_resume", lambda out: None)  # as with --max-restarts
    blocks = [block for page in ("cluster.md", "scaling.md") for block in fenced(page, "sh")]
    lines = dict.fromkeys(line for block in blocks for line in block.splitlines())
    for line in [line for line in lines if line not in COMMANDS]:
        count, arguments = parse_launch(line)
        if arguments[0] == "train" and "RUN-2" not in arguments:
            arguments += ["--no-baselines", "--epochs", "1"]
        if "adding" in arguments:
            arguments += [word for part in ("training", "validation", "test") for word in ("--set", f"data.{part}=9")]
        ranks = start_ranks(count, [sys.executable, "-m", "chordmixer", *arguments], Copied)
        outputs = [rank.communicate(timeout=300) for rank in ranks]
        assert not any(rank.returncode for rank in ranks), f"{line}: {outputs}"
    for name in ("RUN-2", "RUN-adding", "RUN-accelerate", "RUN-split", "RUN-again"):
        assert (folder / name / "report.html").exists()
    assert len((folder / "answers.tsv").read_text().splitlines()) == 7


def test_the_script_for_a_cluster_is_bash_with_a_launcher() -> None:
    (script,) = fenced("cluster.md", "bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (line,) = [line.removeprefix("srun ") for line in script.splitlines() if line.startswith("srun torchrun")]
    count, arguments = parse_launch(line.replace('"$SLURM_NNODES"', "4"))
    assert (count, arguments[0], "--resume" in arguments) == (8, "train", True)


@pytest.mark.usefixtures("quick")
def test_the_commands_and_the_python_of_the_page_on_tuning_run(folder: Path) -> None:
    """Three trials of one step each, whatever time they are given."""
    for line in (line for block in fenced("tuning.md", "sh") for line in block.splitlines()):
        if line.startswith("chordmixer "):
            arguments = shlex.split(line, comments=True)[1:]
            options = ["--trials", "3"] if arguments[0] == "tune" else ["--no-baselines"]
            result = CliRunner().invoke(app, [*arguments, *options])
            assert result.exit_code == 0, f"{line}: {result.output}{result.exception!r}"
    assert (folder / "STUDY" / "study.html").exists() and (folder / "RUN-tuned" / "report.html").exists()
    (python,) = fenced("tuning.md", "python")
    namespace: dict[str, Any] = {"data": Dataset.from_files("worm.fa.gz", "fly.fa.gz")}
    exec(compile(python.replace("minutes=60", "minutes=60, trials=3"), "tuning.md", "exec"), namespace)
    assert namespace["found"].best.loss <= namespace["found"].default.loss


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's own compiler
def test_the_python_of_the_page_for_engineers_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled without inductor, which takes half a minute, and without ONNX where it is not installed."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    blocks = [block for block in fenced("backbone.md", "python") if not (missing and "import onnxruntime" in block)]
    exec(compile("\n".join(blocks), "backbone.md", "exec"), {})
    torch._dynamo.reset()


class Reviews:
    """The interface of a Hugging Face dataset that is used."""

    column_names = ("text", "label")

    def __getitem__(self, name: str) -> list[str]:
        return {"text": ["a good film", "a bad film"], "label": ["good", "bad"]}[name]


@pytest.mark.usefixtures("quick")
def test_the_python_of_the_page_for_python_users_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each training is one pass over a few records, whatever time it is given."""
    for name in ("worm.fa.gz", "fly.fa.gz", "genes.fa", "genes.csv"):
        shutil.copy(folder / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    recipe = sys.modules["chordmixer.recipes.files"]
    monkeypatch.setattr(recipe, "TRIAL", 0.0)
    monkeypatch.setattr(recipe, "_within_minutes", lambda experiment, task, minutes: experiment)
    sequences, labels = letters(40, 11), ["worm", "fly"] * 20
    namespace: dict[str, Any] = {
        "data": (),
        "sequences": sequences,
        "labels": labels,
        "genes": [f"gene {i // 2}" for i in range(40)],
        "arrays": [np.sin(np.arange(20 + i)) for i in range(40)],
        "numbers": np.linspace(0.5, 3, 40),
        "frame": pd.DataFrame({"dna": sequences, "species": labels, "gene": range(40)}),
        "reviews": Reviews(),
        "new": letters(12, 12),
        "new_labels": ["fly", "worm"] * 6,
    }
    for block in fenced("python.md", "python"):
        for lines in re.split(r"\n(?=data = )", block):  # every data set that the page makes can be read
            exec(compile(lines, "python.md", "exec"), namespace)
            assert len(namespace["data"]) > 1 or "data = " not in lines
    assert namespace["predictor"].classes == ["fly", "worm"]
    assert len(namespace["scores"]) == 2 and Path("series-model/README.md").exists()


PAGES = sorted(path.name for path in DOCS.glob("*.md"))
LINKED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(DOCS / page for page in PAGES)]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    titles = (re.sub(r"[^\w\- ]", "", title).strip().lower() for title in re.findall(r"^#+ (.+)$", text, flags=re.M))
    return {title.replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not link.startswith("https://"):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not heading or heading in headings(target), link


def test_links_that_leave_the_pages_are_part_of_the_site() -> None:
    spec = importlib.util.spec_from_file_location("site_links", DOCS / "site_links.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert doctest.testmod(module) == (0, 2)


def test_every_page_is_in_the_index_and_in_the_site() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text()))
    assert linked == set(PAGES) - {"index.md"}
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert sorted(listed) == PAGES


def test_the_reference_has_every_public_name() -> None:
    documented = re.findall(r"^::: chordmixer\.(\w+)$", (DOCS / "api.md").read_text(), flags=re.M)
    assert sorted(documented) == sorted(set(chordmixer.__all__) - {"__version__"})


LINES = [line for page in PAGES for block in fenced(page, "sh") for line in block.splitlines() if line]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("chordmixer ")])
def test_commands_and_options_exist(line: str) -> None:
    arguments = shlex.split(line.split("|")[0].split("<")[0], comments=True)[1:]
    _, command, _ = typer.main.get_command(app).resolve_command(None, arguments)  # type: ignore[attr-defined]  # a group
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in arguments[1:] if re.match(r"-[-a-z]", word)} <= options
