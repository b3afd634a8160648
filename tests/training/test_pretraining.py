"""Pre-training: outputs for masked tokens, resuming, Markov chains as baselines, embeddings."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.training.trained_runs import contents

from chordmixer import files
from chordmixer.config import override
from chordmixer.data import Loader, TokenSampler
from chordmixer.models import Model
from chordmixer.recipes.masking import masking
from chordmixer.tasks.masking import Masking, MaskingConfig
from chordmixer.tasks.masks import SUMS
from chordmixer.tasks.targets import Regression, target_outputs
from chordmixer.training import Experiment, evaluation
from chordmixer.training.evaluation import evaluate, predict_records
from chordmixer.training.loop import train
from chordmixer.training.prediction import embed, predict
from chordmixer.training.results import compare

pytestmark = pytest.mark.usefixtures("quick_scores")

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "model": {"network": {"track_size": 2, "hidden": 4, "dropout": 0.1}},
    "training": {"epochs": 2, "batch_sequences": 8, "checkpoint_every": 3, "evaluate_epochs": 1, "device": "cpu"},
}


@pytest.fixture(scope="module")
def genome(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ten records of one repeated word, with noise."""
    path, rng = tmp_path_factory.mktemp("periodic") / "genome.fa", random.Random(0)
    with path.open("w") as file:
        for i in range(10):
            text = [c if rng.random() < 0.95 else rng.choice("ACGT") for c in "ACCTGGA" * 60]
            file.write(f">r{i}\n{''.join(text)}\n")
    return str(path)


@pytest.fixture(scope="module")
def small(genome: str) -> Experiment:
    """An experiment of 22 steps over 88 segments in each epoch."""
    return override(masking(MaskingConfig((genome,), span=3.0, shortest=8, longest=64, segments=88)), SMALL)


@pytest.fixture(scope="module")
def pretrained(small: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which tests only read."""
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        train(small, folder)
    return folder


def test_a_target_of_tokens_has_outputs_for_them(small: Experiment) -> None:
    task = small.build_task()
    records = task.records("training")
    batch = Loader(records, TokenSampler(records.lengths, 10**4, 8)).batch([3, 1, 4])
    model = Model(small.model).eval()
    rows = target_outputs(task.target, model, batch.inputs, batch.targets)
    assert rows.shape == (3, 3 * (len(task.target.letters) + 1))  # type: ignore[attr-defined]
    task.target.losses(rows, batch.targets).sum().backward()
    parameters = dict(model.named_parameters())
    for name in (
        "embedding.table.weight",
        "encoder.",
        "final_norm.weight",
        "decoder.",
        "decoder_norm.weight",
        "head.",
    ):
        assert any(p.grad is not None and p.grad.any() for n, p in parameters.items() if n.startswith(name)), name


def test_other_targets_take_the_outputs_of_the_model(tiny: Experiment) -> None:
    records = tiny.build_task().records("test")
    batch = Loader(records, TokenSampler(records.lengths, 10**4, 8)).batch([0, 1])
    model = Model(tiny.model).eval()
    assert torch.equal(target_outputs(Regression(0.04), model, batch.inputs, batch.targets), model(batch.inputs))


def test_rows_do_not_depend_on_the_batch(small: Experiment) -> None:
    task, model = small.build_task(), Model(small.model)
    single, batched = (
        torch.from_numpy(predict_records(model, task.records("test"), config, CPU, task.target).outputs)
        for config in (override(small.training, {"batch_sequences": size}) for size in (1, 7))
    )
    torch.testing.assert_close(single, batched, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"head": "average", "decoder": "none"},
            "model.head='average' answers once a sequence, and masking asks abo",
        ),
        ({"inputs": 5}, "model.inputs=5 does not fit the task masking, which needs 6: set model.inputs=6"),
    ],
    ids=["head", "inputs"],
)
def test_a_model_that_does_not_fit(small: Experiment, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(small, {"model": settings}).build_task()


# --- Training ---


def test_going_on_gives_the_same_bytes(
    small: Experiment, pretrained: Path, tmp_path: Path, crash: Callable[[Experiment, Path, int], None]
) -> None:
    """The second epoch draws new segments and masks, and a resumed run draws the same ones."""
    for steps in (2, 11, 13):
        crash(small, tmp_path / "crashed", steps)
    train(small, tmp_path / "crashed", resume=True)
    expected, actual = contents(pretrained), contents(tmp_path / "crashed")
    assert actual.pop("metrics.jsonl").decode() == expected.pop("metrics.jsonl").decode()
    assert [name for name in expected if actual.get(name) != expected[name]] == []
    assert set(actual) == set(expected)


def test_it_learns_more_than_letters(genome: str, tmp_path: Path) -> None:
    """It learns a repeated word in seconds, beyond letter frequencies and the neighbours on one side."""
    faster = {"epochs": 8, "learning_rate": 0.02, "evaluate_epochs": 4, "checkpoint_every": 0}
    model = {"network": {"track_size": 4, "hidden": 16}}
    data = MaskingConfig((genome,), shortest=16, longest=96, segments=96)
    experiment = override(masking(data), {"model": model, "training": SMALL["training"] | faster})
    result = train(experiment, tmp_path / "run")
    chains = {chain.encoder: chain.scores["accuracy"].value for chain in compare(tmp_path / "run")}
    assert result.scores["accuracy"].value > chains["Markov order 0"] + 0.2
    assert chains["Markov order 0"] < chains["Markov order 1"] < chains["Markov order 2, both sides"]
    assert result.guessing["accuracy"] == pytest.approx(chains["Markov order 0"], abs=0.05)


# --- What a run leaves ---


def test_the_run_folder(pretrained: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "data.json", "predictions.parquet"):
        files.verify(pretrained, [name])
    assert not (pretrained / "labels.json").exists()
    written = files.read_json(pretrained / "evaluation-test.json")
    assert {"accuracy", "perplexity", "accuracy_A", "perplexity_T"} <= set(written["scores"])
    assert written["by_length"][0]["scores"]["perplexity"]["value"] > 1
    assert evaluate(pretrained).scores["accuracy"].value == written["scores"]["accuracy"]["value"]
    assert len(pq.read_table(pretrained / "predictions.parquet")) == written["records"]


def test_markov_chains_are_the_baselines(pretrained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(pretrained, tmp_path / "run"))
    baselines = compare(run)
    rows = files.read_json(run / "baselines.json")["baselines"]
    assert [row["name"] for row in rows] == [baseline.encoder for baseline in baselines] and len(baselines) == 11
    assert rows[2]["sentence"].startswith("each masked letter by up to 2 known letters before it")


def test_markov_chains_predict_the_same_tokens(pretrained: Path, small: Experiment) -> None:
    task = small.build_task()
    assert isinstance(task, Masking)
    chain = task.baselines()[0]
    predictions = predict_records(chain, task.records("test"), small.training, CPU, task.target)  # type: ignore[arg-type]
    table = pq.read_table(pretrained / "predictions.parquet")
    for column in range(0, predictions.outputs.shape[1], SUMS):
        assert np.array_equal(table[f"output_{column}"].to_numpy(), predictions.outputs[:, column])


def test_embeddings_and_no_answers(pretrained: Path, genome: str, tmp_path: Path) -> None:
    embed(pretrained, [genome], tmp_path / "e.parquet", over_length="windows")
    vectors = pq.read_table(tmp_path / "e.parquet")["embedding"]
    assert len(vectors) == 10 and len(vectors[0]) == Model.from_pretrained(pretrained).encoder.width
    with pytest.raises(
        ValueError, match="was pre-trained: it finds masked tokens and has no answers about records; em"
    ):
        predict(pretrained, [genome], tmp_path / "a.tsv", over_length="windows")


def test_files_of_different_runs(pretrained: Path, genome: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pretrained, tmp_path / "run"))
    (folder / "tokenizer.json").write_text('{"format": 1, "tokenizer": "bytes"}')
    files.write_manifest(folder, ["tokenizer.json"])
    with pytest.raises(
        ValueError, match=r"the model, tokenizer\.json do not fit each other: use the files of one run"
    ):
        embed(folder, [genome], tmp_path / "e.parquet")
