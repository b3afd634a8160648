"""Long documents in the layouts that exist, cut as the paper cuts them, from files to answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chordmixer.config import override
from chordmixer.data.entries import Account
from chordmixer.data.splits import SplitConfig
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.paper.recipes import documents
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.training import Experiment, evaluation
from chordmixer.training.file_evaluation import evaluate_files
from chordmixer.training.inference import Engine
from chordmixer.training.loop import train
from chordmixer.training.prediction import embed, predict
from chordmixer.training.results import compare

SHARED = Path(__file__).parents[3] / "shared" / "data" / "arxiv_papers.parquet"
CLASSES = {"cs.AI": "agents plan and search", "cs.NE": "neurons évoluent", "math.GR": "groups act on trees ∎"}


def texts(label: str, count: int = 20) -> list[str]:
    rng, words = random.Random(label), CLASSES[label].split()
    return [" ".join(rng.choices(words, k=rng.randint(4, 30))) + "\r\n" for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents in the layout of He et al.; tests only read them."""
    top = tmp_path_factory.mktemp("papers") / "arxiv"
    for label in CLASSES:
        (top / label).mkdir(parents=True)
        for number, text in enumerate(texts(label)):
            (top / label / f"{1300 + number}.{number:04d}v1.txt").write_bytes(text.encode())
    return str(top)


def shrunk(experiment: Experiment) -> Experiment:
    network = {"track_size": 2, "hidden": 4}
    return override(experiment, {"model": {"network": network}, "training": {"epochs": 1, "device": "cpu"}})


def test_the_papers_choices_and_ours(folder: str) -> None:
    experiment = documents(FilesConfig((folder,)))
    network, data = experiment.model.network, experiment.data
    assert (network.hidden, network.track_size, network.prenorm, network.init) == (128, 16, "layer", "identity")
    assert (experiment.model.drop_tokens, network.dropout) == (0.3, 0.1)
    assert (experiment.training.batch_sequences, experiment.training.epochs) == (16, 16)
    assert (data.cut, data.split.fractions, data.tokenizer.name) == (131_072, (0.7, 0.2, 0.1), "characters")
    assert (experiment.task, experiment.training.learning_rate, experiment.training.weight_decay) == (
        "files",
        1e-3,
        0.1,
    )
    task = experiment.build_task()
    assert isinstance(task, Files) and task.target.labels == ["cs.AI", "cs.NE", "math.GR"]
    targets = task.question.targets
    assert {part: [(targets[ids] == k).sum() for k in range(3)] for part, ids in task.split.parts.items()} == {
        "training": [14, 14, 14],
        "validation": [4, 4, 4],
        "test": [2, 2, 2],
    }
    letters = {c for label in CLASSES for text in texts(label) for c in text}
    assert experiment.model.inputs == len(letters) + 1 and {"∎", "é", "\r"} <= letters


def test_what_was_chosen_stays(folder: str) -> None:
    config = FilesConfig(
        (folder,), tokenizer=TokenizerConfig("bytes"), split=SplitConfig(fractions=(0.5, 0.25, 0.25), seed=4), cut=50
    )
    experiment = documents(config)
    data = experiment.data
    assert (data.tokenizer, data.split, data.cut) == (config.tokenizer, config.split, 50)
    assert experiment.model.network.max_length == 64
    assert documents(data) == experiment


def test_a_table_is_the_same_as_a_folder(folder: str, tmp_path: Path) -> None:
    rows = [(f"{label}/{i}", text, label) for label in CLASSES for i, text in enumerate(texts(label))]
    ids, bodies, labels = zip(*rows, strict=True)
    pq.write_table(pa.table({"id": ids, "text": bodies, "label": labels}), tmp_path / "papers.parquet")
    from_table = documents(FilesConfig((str(tmp_path / "papers.parquet"),), cut=100))
    from_folder = documents(FilesConfig((folder,), cut=100))
    assert from_table.model == from_folder.model
    first, second = from_table.build_task(), from_folder.build_task()
    assert first.records("training").lengths == second.records("training").lengths


def test_stamps_that_name_the_class_are_told(folder: str, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    documents(FilesConfig((folder,)))
    assert not any("bracket" in line for line in log.messages)
    for label in CLASSES:
        (tmp_path / "papers" / label).mkdir(parents=True)
        for number, text in enumerate(texts(label)):
            stamp = f"arXiv:1301.0001v1 [{label}] 1 Jan" if number < 7 else f"Submitted to {label}: "
            (tmp_path / "papers" / label / f"{number}.txt").write_text(stamp + text)
    documents(FilesConfig((str(tmp_path / "papers"),)))
    assert "21 of 60 documents name a class in brackets, such as [cs.AI]" in log.messages[-1]
    assert log.records[-1].levelname == "WARNING"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            (),
            "documents: no files were given: give a folder that holds a folder of text files for each class, as git",
        ),
        (("arxiv-he",), "documents: arxiv-he is not there: give a folder .* or a table of id, text and label"),
    ],
    ids=str,
)
def test_missing_files_and_how_to_get_them(files: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        documents(FilesConfig(files))
    assert "\n" not in str(error.value)


# --- From files to answers, with a cut ---


@pytest.fixture(scope="module")
def run(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose records were cut at 64 characters: only to be read."""
    out = tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        train(shrunk(documents(FilesConfig((folder,), cut=64))), out)
    return out


@pytest.fixture
def new(tmp_path: Path) -> list[str]:
    """Two records, of which one is longer than the cut, and a copy of it that ends there."""
    long = "agents plan " * 20
    rows = [("long", long), ("short", "groups act"), ("ended", long[:64])]
    path = tmp_path / "new.csv"
    path.write_text("id,text,label\n" + "".join(f"{name},{text},cs.AI\n" for name, text in rows))
    return [str(path)]


def test_a_run_says_what_it_cut(run: Path) -> None:
    notes = json.loads((run / "data.json").read_text())["account"]["notes"]
    longer = sum(len(text) > 64 for label in CLASSES for text in texts(label))
    assert notes == {"records cut at 64 tokens": longer}
    scores = json.loads((run / "evaluation-test.json").read_text())
    assert scores["by_length"][-1]["longest"] == 64 and scores["headline"] == "accuracy"


def test_baselines_see_the_same_records(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)
    assert all(baseline.by_length[-1].longest == 64 for baseline in compare(run))


def test_predict_cuts_in_the_same_way(run: Path, new: list[str], tmp_path: Path) -> None:
    account = predict(run, new, tmp_path / "answers.jsonl")
    assert [*account.lines()] == ["3 records read: 3 used, 0 rejected", "1 records cut at 64 tokens"]
    long, short, ended = (json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines())
    assert (long["length"], short["length"], long["windows"]) == (64, 10, 1)
    assert {**long, "id": ""} == {**ended, "id": ""} != {**short, "id": ""}


def test_evaluate_and_embed_too(
    run: Path, new: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)
    account = Account()
    scores = evaluate_files(run, new, account=account).overall
    assert scores.by_length[-1].longest == 64 and account.notes["records cut at 64 tokens"] == 1
    assert embed(run, new, tmp_path / "e.parquet", per_token=True).notes["records cut at 64 tokens"] == 1
    rows = pq.read_table(tmp_path / "e.parquet").to_pylist()
    assert [len(row["embedding"]) for row in rows] == [64, 10, 64]


def test_a_cut_that_is_no_number(run: Path, tmp_path: Path) -> None:
    for path in run.iterdir():
        if path.is_file() and path.name != "manifest.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((run / "config.json").read_text())
    config["data"]["cut"] = "far"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"data\.cut='far' is not a number of tokens: use another copy"):
        Engine(tmp_path, "cpu", unverified=True)


def test_the_cut_is_a_setting(folder: str, tmp_path: Path, chordmixer: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = chordmixer("plan", folder, "--no-time", "--set", "data.cut=64")
    assert code == 0, err
    assert "records cut at 64 tokens" in out and "to 64 a record" in out


@pytest.mark.skipif(not SHARED.is_file(), reason="the real data are not beside this checkout")
def test_real_papers(tmp_path: Path) -> None:
    """One in forty of them: all take a quarter of a minute to read."""
    papers = pq.read_table(SHARED)
    pq.write_table(papers.take([*range(0, len(papers), 40)]), tmp_path / "papers.parquet")
    experiment = documents(FilesConfig((str(tmp_path / "papers.parquet"),)))
    assert experiment.model.network.max_length <= 131_072 and experiment.model.outputs == 3
    sizes = [len(experiment.build_task().records(part).lengths) for part in ("training", "validation", "test")]
    assert sizes == [84, 24, 12]
