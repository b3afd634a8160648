"""`reproduce`, from a name to a page, for every kind of entry, and what it refuses."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.forked import Forked

from chordmixer.config import override, to_dict
from chordmixer.models.encoders import ENCODERS
from chordmixer.paper import benching, recipes, reproduction, subprocesses
from chordmixer.paper.benching import measuring
from chordmixer.paper.benching.cases import Case
from chordmixer.paper.reproduction import ENTRIES, costs, running
from chordmixer.training import Experiment
from chordmixer.training.progress import Interrupted

Command = Callable[..., tuple[int, str, str]]

TINY = ["model.network.track_size=2", "model.network.hidden=4", "training.device=cpu", "training.epochs=1"]
ADDING = [
    *("data.base_length=20", "data.max_length=60", "data.training=64", "data.validation=16", "data.test=32"),
    *TINY,
]
FEW = ["data.training=8", "data.validation=8", "data.test=8"]


def sets(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def page(folder: Path) -> str:
    (path,) = folder.glob("*.md")
    return path.read_text()


def test_from_a_name_to_a_page(chordmixer: Command, tmp_path: Path) -> None:
    arguments = [
        "reproduce",
        "adding-200",
        "--out",
        tmp_path / "run",
        "--results",
        tmp_path / "results",
        "--scale",
        "0.5",
    ]
    arguments += ["--models", "chordmixer, pointwise", "--seeds", "2", *sets([*ADDING, "training.epochs=2"])]
    code, output, errors = chordmixer(*arguments)
    assert (code, errors) == (0, "")
    assert "This is a run of 0.5 of the epochs (1 epoch in place of 2): not the paper's number." in output
    text = " ".join(output.split())
    assert "pointwise-flat-seed1, 4 of 4" in output and "(lowest to highest of 2 runs, 95 % interval of a" in text
    assert output.count("baselines on the same records, on the CPU") == 1 and "baseline: " in text
    for folder in ("run", "results"):
        (md,), (document,) = ([*(tmp_path / folder).glob(f"*-adding-200-cpu.{end}")] for end in ("md", "json"))
        assert f"page: {md}" in output and md.with_suffix(".png").stat().st_size > 10_000
        first = md.read_text().splitlines()
        assert first[2].startswith("**This is a run of 0.5 of the epochs")
        assert first[4].startswith("**Settings were changed with --set: data.base_length=20, ")
        results = json.loads(document.read_text())
        assert [(run["encoder"], run["seed"]) for run in results["runs"]] == [
            *(("chordmixer", 0), ("chordmixer", 1), ("pointwise-flat", 0), ("pointwise-flat", 1))
        ]
        assert results["command"].startswith("chordmixer reproduce adding-200 --out ")
    before = page(tmp_path / "results")

    code, _, errors = chordmixer(*arguments)
    assert code == 2 and "is there already: give a new --out, or add --resume to go on with it" in errors
    code, output, errors = chordmixer(*arguments, "--resume")
    assert (code, errors) == (0, "") and output.count("finished before") == 4 and "baselines on" not in output
    assert page(tmp_path / "results") == before.replace("\n```\n", " --resume\n```\n")


def test_baselines_may_be_left_out(chordmixer: Command, tmp_path: Path) -> None:
    arguments = ["reproduce", "adding-200", "--out", tmp_path / "run", "--no-baselines", *sets(ADDING)]
    code, output, errors = chordmixer(*arguments)
    assert (code, errors) == (0, "") and "baselines on" not in output and "baseline:" not in page(tmp_path / "run")


def test_minutes_are_measured_first_and_trained_later(
    chordmixer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(costs, "TIMED_SECONDS", 0.0)
    arguments = ["reproduce", "adding-200", "--minutes", "0.0001", "--out", tmp_path / "run", *sets(ADDING)]
    code, plan, errors = chordmixer(*arguments, "--plan")
    assert (code, errors) == (0, "") and [path.name for path in (tmp_path / "run").iterdir()] == ["pace.json"]
    assert re.fullmatch(r"chordmixer: \S+ ms a step alone, \d+ in 0.0001 min\n", plan)
    measured = (tmp_path / "run" / "pace.json").read_bytes()
    code, output, errors = chordmixer(*arguments)
    assert (code, errors) == (0, "") and plan in output and "steps, 0 done" in output
    assert (tmp_path / "run" / "pace.json").read_bytes() == measured
    assert page(tmp_path / "run").splitlines()[2].startswith("**Each model trained for the steps that it makes in")


def test_a_rate_is_chosen_for_each(chordmixer: Command, tmp_path: Path) -> None:
    arguments = ["reproduce", "adding-200", "--out", tmp_path / "run", "--no-baselines", *sets(ADDING)]
    code, _, errors = chordmixer(*arguments, "--models", "chordmixer,pointwise-average", "--rates", "1e-3,1e-9")
    folders = sorted(path.name for path in (tmp_path / "run").glob("*-seed0"))
    assert (code, errors) == (0, "") and folders == [
        "chordmixer-rate1e-09-seed0",
        "chordmixer-seed0",
        "pointwise-average-rate1e-09-seed0",
        "pointwise-average-seed0",
    ]
    lines = page(tmp_path / "run").splitlines()
    assert "**Each model was trained with rates of 0.001 and 1e-09, a run each, and the lowest" in "\n".join(lines)
    assert len([line for line in lines if line.startswith("| chordmixer | ") and " | 0.001 | 1 | " in line]) == 1
    assert "| lowest validation loss at a rate of | 1e-09 | 0.001 |" in lines


def test_a_signal_goes_through(chordmixer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted(15)

    monkeypatch.setattr(running, "train", stopped)
    code, output, _ = chordmixer("reproduce", "adding-200", "--out", tmp_path / "run", *sets(ADDING))
    assert code == 143 and "the same command with --resume goes on with all of it" in output
    monkeypatch.undo()
    code, output, _ = chordmixer("reproduce", "adding-200", "--out", tmp_path / "run", "--resume", *sets(ADDING))
    assert code == 0 and "| 1 | over " not in page(tmp_path / "run")


def test_from_short_sequences_to_long_ones(chordmixer: Command, tmp_path: Path) -> None:
    """Each run starts where the one before ended, in a network that has grown, and the page tells of all of them."""
    cache = f"data.cache={tmp_path / 'cache'}"
    before: list[object] = []
    for longest in (30, 60):
        settings = [*FEW, f"data.min_length={longest // 3}", f"data.max_length={longest}", cache, *TINY]
        code, _, errors = chordmixer("train", "listops", *before, "--out", tmp_path / f"to{longest}", *sets(settings))
        assert (code, errors) == (0, "")
        before = ["--from", tmp_path / f"to{longest}"]
    settings = [*FEW, "data.min_length=40", "data.max_length=120", cache, "training.device=cpu", "training.epochs=1"]
    arguments = ["reproduce", "listops", *before, "--out", tmp_path / "run", "--no-baselines", *sets(settings)]
    code, output, errors = chordmixer(*arguments)
    sentence = (
        "The first weights are those of a run of 1 epoch of listops with min_length=20, max_length=60, which itself "
        "began with those of a run of 1 epoch of listops with min_length=10, max_length=30."
    )
    assert (code, errors) == (0, "") and sentence in output and sentence in page(tmp_path / "run")
    network = json.loads((tmp_path / "run/chordmixer-seed0/config.json").read_text())["model"]["network"]
    assert (network["max_length"], network["track_size"], network["hidden"]) == (120, 2, 4)

    code, _, errors = chordmixer(*arguments, "--models", "chordmixer,lstm", "--resume")
    assert (code, errors.count("\n")) == (2, 1) and "leave --from out, or name that model alone" in errors
    code, _, errors = chordmixer("reproduce", "listops", "--from", tmp_path, "--out", tmp_path / "other")
    assert (code, errors.count("\n")) == (2, 1) and "has no model.safetensors to start from" in errors


# --- Every kind of data ---


def test_generated_data(chordmixer: Command, tmp_path: Path) -> None:
    cache = f"data.cache={tmp_path / 'cache'}"
    short = ["data.min_length=20", "data.max_length=60", "data.max_depth=4"]
    for name, settings in {"listops": short, "pathfinder": ["data.contour=6"]}.items():
        code, _, errors = chordmixer(
            "reproduce", name, "--out", tmp_path / name, *sets([*FEW, *settings, cache, *TINY])
        )
        assert (code, errors) == (0, "")
        assert "The data come from our own generator" in page(tmp_path / name)


@pytest.fixture
def originals(tmp_path: Path, motifs: list[str]) -> dict[str, list[str]]:
    """A few records for each entry, in its true format."""
    rng, folder = random.Random(0), tmp_path / "originals"
    for genus in ("carassius", "labeo", "cyprinidae", "cobitidae"):
        sequences = ["".join(rng.choices("ACGT", k=rng.randint(80, 150))) for _ in range(30)]
        folder.mkdir(exist_ok=True)
        lines = [f">{genus}{i}.1 {genus.capitalize()} x\n{letters}\n" for i, letters in enumerate(sequences)]
        (folder / f"{genus}.fa").write_text("".join(lines))
    for label in ("cs.AI", "cs.NE"):
        (folder / "documents" / label).mkdir(parents=True)
        for number in range(20):
            (folder / "documents" / label / f"{number}.txt").write_text(f"A paper {number} of {label.lower()}. " * 3)
    for part in ("train", "test"):
        for label in ("pos", "neg"):
            (folder / "aclImdb" / part / label).mkdir(parents=True)
            for number in range(8):
                (folder / "aclImdb" / part / label / f"{number}_1.txt").write_text(f"{label} film {number}, {part}")
    (folder / "cifar").mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / "cifar" / f"{name}.bin").write_bytes(b"".join(bytes([i]) + rng.randbytes(3072) for i in range(10)))
    (folder / "aan").mkdir()
    for part in ("train", "eval", "test"):
        rows = [f"{i % 2}.0\tP{part}{i}\tQ{part}{i}\ta paper {i}\tanother {i}\n" for i in range(6)]
        (folder / "aan" / f"new_aan_pairs.{part}.tsv").write_text("".join(rows))
    names = {
        "carassius-labeo": ["carassius.fa", "labeo.fa"],
        "mitogenomes": ["cyprinidae.fa", "cobitidae.fa"],
        "documents": ["documents"],
        "text": ["aclImdb"],
        "image": ["cifar"],
        "retrieval": ["aan"],
    }
    return {"introns": motifs, **{name: [str(folder / path) for path in paths] for name, paths in names.items()}}


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("carassius-labeo", [], "Of the paper: section 4.3, figure 5."),
        ("introns", [], "| baseline: 8-mers | "),
        ("mitogenomes", FEW, "| baseline: "),
        (
            "documents",
            [],
            "**The classes are cs.AI, cs.NE, not cs.AI, cs.NE, math.AC, math.GR: not the paper's data.**",
        ),
        ("text", ["data.validation=4"], "| baseline: 5-grams | "),
        ("image", ["data.validation=10"], "| baseline: majority class | "),
        ("retrieval", [], "| baseline: 5-grams in common | "),
    ],
)
def test_downloaded_data(
    chordmixer: Command,
    originals: dict[str, list[str]],
    tmp_path: Path,
    name: str,
    settings: list[str],
    expected: str,
) -> None:
    data = [word for path in originals[name] for word in ("--data", path)]
    changes = sets([*settings, f"data.cache={tmp_path / 'cache'}", *TINY])
    code, _, errors = chordmixer("reproduce", name, *data, "--out", tmp_path / "run", *changes)
    assert (code, errors) == (0, "")
    assert expected in page(tmp_path / "run") and "The best baseline, " in page(tmp_path / "run")
    number = {"text": "| 88.82 | ", "image": "| 89.98 | ", "retrieval": "| 90.17 | ", "introns": "Not in the paper."}
    assert number.get(name, "in ") in page(tmp_path / "run")


def test_a_figure(chordmixer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, errors = chordmixer("reproduce", "reach")
    assert (code, errors) == (0, "") and "page: runs/reach/" in output
    assert "| standard deviation | 3.04e-05 | 3e-5 |" in page(tmp_path / "runs" / "reach")


# --- What there is, and what it takes ---


def test_the_list(chordmixer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: ENTRIES[name] for name in ("adding-200", "image", "reach")}
    monkeypatch.setattr(reproduction, "ENTRIES", few)
    code, output, errors = chordmixer("reproduce", "--no-time")
    assert (code, errors) == (0, "") and "adding-200  Adding problem, base length 200" in output
    assert "measur" not in output and "Next:  chordmixer reproduce NAME --plan" in output


def test_a_plan(chordmixer: Command, originals: dict[str, list[str]], tmp_path: Path) -> None:
    code, output, errors = chordmixer("reproduce", "adding-200", "--plan", *sets(ADDING))
    assert (code, errors) == (0, "") and output.startswith("a run of adding-200 with chordmixer takes about 1 s, ")
    assert "1 epoch of 64 records" in output
    models = ["--models", "chordmixer,lstm-average", "--seeds", "2", "--rates", "1e-3,1e-4"]
    code, output, errors = chordmixer("reproduce", "adding-200", "--plan", *models, *sets(ADDING))
    assert (code, errors) == (0, "") and "\na run of adding-200 with lstm-average takes about " in output
    assert "\n8 runs one after the other take about " in output and "Validation and test are counted" in output
    code, _, errors = chordmixer("reproduce", "adding-200", "--plan", "--models", "cord", *sets(ADDING))
    assert (code, errors.count("\n")) == (2, 1) and "--models cord is not known: choose from chordmixer, " in errors
    options = ["--data", originals["text"][0], *sets([f"data.cache={tmp_path / 'c'}", "data.validation=4", *TINY])]
    assert "1 epoch of 12 records" in chordmixer("reproduce", "text", "--plan", *options)[1]
    short = [*FEW, "data.min_length=20", "data.max_length=60", "data.orders=3", *TINY]
    assert "1 epoch of 24 records" in chordmixer("reproduce", "listops", "--plan", *sets(short))[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["adding-2000"], "'adding-2000' is not in the list of what can be reproduced: did you mean adding-200?"),
        (["image"], "image was given no data and needs CIFAR-10: its binary version, folders of pictures"),
        (["carassius-labeo"], "get them by chordmixer fetch Carassius Labeo --lengths 79:100101"),
        (
            ["introns", "--data", "."],
            "introns was given 1 of 2 paths and needs FASTA files of introns, one a species",
        ),
        (["image", "--data", "gone"], "--data gone does not exist: image needs CIFAR-10"),
        (["image", "--data", "{tmp}"], "{tmp}"),
        (["text", "--data", "{tmp}"], "{tmp}"),
        (["retrieval", "--data", "{tmp}"], "{tmp}"),
        (["listops", "--data", "{tmp}"], "{tmp}"),
        (["documents", "--data", "{tmp}"], "{tmp}"),
        (["reach", "--data", "."], "reach makes its own data and was given .: leave --data out"),
        (
            ["reach", "--seeds", "2"],
            "reach is drawn, not trained: leave out --set, --scale, --minutes, --rates, --seeds, --models, --at-once",
        ),
        (["reach", "--plan"], "reach is drawn, not trained, and takes seconds: leave --plan out"),
        (["adding-200", "--scale", "0"], "--scale 0 is not a share of a run"),
        (["adding-200", "--rates", "fast"], "--rates fast are not numbers with commas between them: write 3e-4,1e-3"),
        (["adding-200", "--models", "cord"], "--models cord is not known: choose from chordmixer, "),
        (["adding-200", "--set", "data.colour=red"], "data.colour is not a setting"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_are_one_line(chordmixer: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    formatted = [argument.format(tmp=tmp_path / "empty") for argument in arguments]
    code, output, errors = chordmixer("reproduce", *formatted, "--out", tmp_path / "run")
    assert (code, errors.count("\n")) == (2, 1) and message.format(tmp=tmp_path / "empty") in errors
    assert not (tmp_path / "run").exists() and "epoch" not in output


def test_a_half_downloaded_set(chordmixer: Command, originals: dict[str, list[str]], tmp_path: Path) -> None:
    (folder,) = originals["image"]
    (Path(folder) / "data_batch_4.bin").unlink()
    code, _, errors = chordmixer("reproduce", "image", "--data", folder, "--out", tmp_path / "run")
    assert (code, errors.count("\n")) == (2, 1) and "data_batch_4.bin" in errors and not (tmp_path / "run").exists()


def test_what_is_made_for_a_list_is_not_kept(own_cache: Path) -> None:
    before = {*own_cache.parent.glob("*/*")}
    costs.all_costs({"listops": ENTRIES["listops"]}, timed=False)
    assert {*own_cache.parent.glob("*/*")} == before


QUICK = """
import io, sys
from chordmixer.paper.benching import measuring
measuring.ROUNDS, measuring.MIN_SECONDS = 2, 0.0
sys.stdin = io.StringIO(sys.argv[1])
measuring.measure()
"""


def in_a_fork(case: Case, _: object) -> dict[str, Any]:
    """`measuring.in_subprocess` in a forked process, which need not import torch; its own tests start a real one."""
    child = Forked([sys.executable, "-c", QUICK, json.dumps(to_dict(case))])
    output, errors = child.communicate(timeout=120)
    assert (child.returncode, errors) == (0, "")
    return {key: value for key, value in subprocesses.union(output.encode()).items() if key != "done"}


def test_from_names_to_a_page(chordmixer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One encoder gets through, one runs out of memory in training: both are results."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "benching")
    monkeypatch.setitem(ENCODERS, "greedy", "troubled_encoders:Greedy")
    monkeypatch.setattr(measuring, "in_subprocess", in_a_fork)
    out = tmp_path / "r.json"
    arguments = ["bench", "--models", "chordmixer, greedy", "--lengths", "30", "--batch", 2, "--device", "cpu"]
    code, output, errors = chordmixer(*arguments, "--out", out)
    assert (code, errors) == (0, "")
    assert "2 of 2: greedy at length 30; about " in output and f"page: {tmp_path / 'r.md'}" in output
    assert "Did not get through: greedy (out of memory in training: " in output
    document = json.loads(out.read_text())
    assert document["command"].startswith("chordmixer bench --models 'chordmixer, greedy' --lengths 30")
    completed, greedy = document["results"]
    assert (completed["failed"], greedy["failed"]) == ("", "out of memory") and completed["difference"] < 1e-4
    assert completed["training"]["milliseconds"] > 0 and completed["inference"]["tokens_per_second"] > 0
    assert greedy["inference"]["milliseconds"] > 0 and greedy["training"] is None
    assert "can't allocate memory" in greedy["message"]
    assert (tmp_path / "r.png").stat().st_size > 10_000
    code, output, errors = chordmixer(*arguments, "--out", out, "--resume")
    assert (code, errors) == (0, "") and " of 2" not in output and "greedy" in output


def test_what_is_asked_for(chordmixer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def stopped(models: list[str], settings: list[benching.Setting], *_: object, **options: object) -> None:
        calls.append((len(models), [setting.name for setting in settings], options["longest"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(benching, "bench", stopped)
    out = ["--out", tmp_path / "r.json"]
    for arguments in ([], ["--base-length", "1k"], ["--longest"], ["--longest", "--lengths", "50"]):
        code, output, _ = chordmixer("bench", *arguments, *out)
        assert code == 130 and "the same command with --resume goes on" in output
    assert [names for _, names, _ in calls] == [
        ["base length 200", "base length 128,000"],
        ["base length 1,000"],
        [],
        ["length 50"],
    ]
    assert [longest for *_, longest in calls] == [False, False, True, True] and calls[0][0] > 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "cord"], "encoder 'cord' is not known: choose one of chordmixer"),
        (
            ["--lengths", "1k", "--base-length", "200"],
            "--base-length draws lengths and --lengths fixes them: give one",
        ),
        (["--lengths", "1k,many"], "--lengths 'many' is not a number: write it as 200 or 128k"),
        (["--base-length", "inf"], "--base-length 'inf' is not a number: write it as 200 or 128k"),
        (["--batch", "0"], "batch=0 is too small: give 1 or more"),
        (["--device", "tpu"], "--device tpu is not a choice: give one of auto, cpu, cuda"),
        (["--out", "r.txt"], "--out r.txt is not a .json file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_of_bench_are_one_line(
    chordmixer: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, errors = chordmixer("bench", "--out", tmp_path / "r.json", *arguments)
    assert (code, errors.count("\n")) == (2, 1) and message in errors
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def tiny_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    original = recipes.demo
    data = {"training": 32, "validation": 16, "test": 16, "max_length": 64}
    settings = {"data": data, "training": {"epochs": 1}, "model": {"network": {"hidden": 4, "track_size": 2}}}
    monkeypatch.setattr(recipes, "demo", lambda encoder: override(original(encoder), settings))


@pytest.mark.usefixtures("tiny_demo")
def test_demo_compares_two_models_and_can_be_repeated(chordmixer: Command, tmp_path: Path) -> None:
    for _ in range(2):
        code, output, errors = chordmixer("demo", "--out", tmp_path / "demo")
        assert (code, errors) == (0, "")
        header = next(line for line in output.splitlines() if "percentile" in line)
        assert "chordmixer" in header and "pointwise" in header
        assert f"chordmixer evaluate {tmp_path / 'demo' / 'chordmixer'}" in output
    assert (tmp_path / "demo" / "lengths-test.png").stat().st_size > 0
    encoders = [Experiment.load(tmp_path / "demo" / name).model.encoder for name in ("chordmixer", "pointwise")]
    assert encoders == ["chordmixer", "pointwise"]


@pytest.mark.usefixtures("tiny_demo")
def test_demo_deletes_nothing_that_is_not_its_own(chordmixer: Command, tmp_path: Path) -> None:
    """Not even in a folder that is called like one of its runs, as in a checkout of this package."""
    for folder in (tmp_path / "work", tmp_path / "src" / "chordmixer"):
        folder.mkdir(parents=True)
        (folder / "thesis.tex").write_text("three years")
        code, _, errors = chordmixer("demo", "--out", tmp_path / folder.relative_to(tmp_path).parts[0])
        assert (folder / "thesis.tex").exists()
        assert code == 2 and "give a new folder" in errors
