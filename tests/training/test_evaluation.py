"""Evaluation: bins by length, intervals, the constant answer, and the files that hold them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from chordmixer import files
from chordmixer.config import override
from chordmixer.models import Model
from chordmixer.paper.adding import AddingRecords
from chordmixer.tasks.targets import Regression
from chordmixer.training import Experiment, evaluation
from chordmixer.training.evaluation import (
    Evaluation,
    Predictions,
    evaluate,
    predict_records,
    save_evaluation,
    summarise,
)
from chordmixer.training.loop import train

TARGET = Regression(tolerance=0.04)
CPU = torch.device("cpu")


def guesses(lengths: np.ndarray, seed: int = 0) -> Predictions:
    """Answers that are right within the tolerance about four times in ten."""
    rng = np.random.default_rng(seed)
    targets = rng.uniform(0, 1, len(lengths)).astype(np.float32)
    outputs = targets + rng.uniform(-0.1, 0.1, len(lengths)).astype(np.float32)
    return Predictions([f"r{i}" for i in range(len(lengths))], lengths, targets, outputs[:, None])


def scored(tiny: Experiment, lengths: np.ndarray) -> Evaluation:
    return summarise(guesses(lengths), TARGET, tiny, "test")


@pytest.mark.parametrize(
    "lengths",
    [np.arange(1, 1001)[::-1], np.repeat([5, 7, 900], 40), np.array([3]), np.full(50, 8)],
    ids=["all different", "three lengths", "one record", "one length"],
)
def test_bins_are_a_partition_in_order_of_length(tiny: Experiment, lengths: np.ndarray) -> None:
    bins = scored(tiny, lengths).by_length
    assert sum(row.records for row in bins) == len(lengths)
    assert [row.percentile for row in bins] == sorted({row.percentile for row in bins})
    assert all(row.shortest <= row.longest for row in bins)
    assert all(before.longest < after.shortest for before, after in pairwise(bins))
    for row in bins:
        assert row.records == ((lengths >= row.shortest) & (lengths <= row.longest)).sum()


def test_bins_are_the_papers_percentiles(tiny: Experiment) -> None:
    bins = scored(tiny, np.arange(1, 1001)).by_length
    assert [row.percentile for row in bins] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100]
    assert [row.records for row in bins] == pytest.approx([100] * 9 + [50, 40, 10], abs=1)


def test_scores_of_a_bin_are_those_of_its_records(tiny: Experiment) -> None:
    predictions = guesses(np.arange(1, 101))
    row = summarise(predictions, TARGET, tiny, "test").by_length[3]
    idx = slice(row.shortest - 1, row.longest)
    assert (
        row.scores["accuracy"].value == TARGET.metrics(predictions.outputs[idx], predictions.targets[idx])["accuracy"]
    )


def test_intervals_hold_the_value_and_shrink(tiny: Experiment) -> None:
    scores = {n: scored(tiny, np.full(n, 9)).scores["accuracy"] for n in (50, 5000)}
    for score in scores.values():
        assert score.low < score.value < score.high
        assert 0.25 < score.value < 0.55
    assert (scores[50].high - scores[50].low) / (scores[5000].high - scores[5000].low) == pytest.approx(10, rel=0.3)
    few = scores[50]  # the normal approximation of a share's interval
    assert few.high - few.low == pytest.approx(2 * 1.96 * (few.value * (1 - few.value) / 50) ** 0.5, rel=0.2)


def test_the_constant_answer_stands_beside_the_scores(tiny: Experiment) -> None:
    predictions = guesses(np.arange(1, 101))
    guessing = summarise(predictions, TARGET, tiny, "test").guessing
    assert guessing["mse"] == pytest.approx(predictions.targets.var(), rel=1e-4)
    near = np.abs(predictions.targets - predictions.targets.mean()) < 0.04
    assert guessing["accuracy"] == pytest.approx(near.mean())


def test_the_loss_is_the_mean_over_records(tiny: Experiment) -> None:
    predictions = guesses(np.arange(1, 101))
    expected = np.square(predictions.outputs[:, 0] - predictions.targets).mean()
    assert summarise(predictions, TARGET, tiny, "test").loss == pytest.approx(expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_evaluate_says_what_training_said(tiny: Experiment, tmp_path: Path, precision: str) -> None:
    result = train(override(tiny, {"training": {"epochs": 1, "precision": precision}}), tmp_path / "run")
    written = (tmp_path / "run" / "evaluation-test.json").read_bytes()
    assert evaluate(tmp_path / "run") == result
    assert (tmp_path / "run" / "evaluation-test.json").read_bytes() == written
    assert json.loads(written) == asdict(result)


@pytest.mark.parametrize("split", ["training", "validation"])
def test_another_split_has_files_of_its_own(full_run: Path, tmp_path: Path, split: str) -> None:
    run = Path(shutil.copytree(full_run, tmp_path / "run"))
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert evaluate(run, split).split == split
    written = {f"evaluation-{split}.json", f"predictions-{split}.parquet"}
    after = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert set(after) - set(before) == written
    assert {name for name in before if after[name] != before[name]} == {"manifest.json"}
    assert written < set(files.read_json(run / "manifest.json"))
    files.verify(run, files.read_json(run / "manifest.json"))


def test_a_changed_model_is_refused(full_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(full_run, tmp_path / "run"))
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors was changed or damaged"):
        evaluate(run)


def test_predictions_are_a_row_a_record(tiny: Experiment, full_run: Path) -> None:
    path, records = full_run / "predictions.parquet", AddingRecords(tiny.data, "test")
    rows = pyarrow.parquet.read_table(path, page_checksum_verification=True)
    assert rows.column_names == ["id", "length", "target", "output_0"]
    assert rows["id"].to_pylist() == [records.name(i) for i in range(len(records))]
    assert rows["length"].to_pylist() == records.lengths
    assert rows["target"].to_pylist() == [float(records[i].target) for i in range(len(records))]
    predictions = predict_records(Model.from_pretrained(full_run), records, tiny.training, CPU)
    assert rows["output_0"].to_pylist() == predictions.outputs[:, 0].tolist()


def test_pages_of_predictions_are_checksummed(tmp_path: Path) -> None:
    data = guesses(np.arange(1, 2001)).parquet()
    spoilt = bytearray(data)
    spoilt[len(data) // 2] ^= 1
    (tmp_path / "spoilt.parquet").write_bytes(spoilt)
    with pytest.raises(OSError, match="CRC checksum"):
        pyarrow.parquet.read_table(tmp_path / "spoilt.parquet", page_checksum_verification=True)


def test_batching_does_not_change_an_answer(tiny: Experiment, full_run: Path) -> None:
    model, records = Model.from_pretrained(full_run), AddingRecords(tiny.data, "test")
    answers = [
        predict_records(model, records, override(tiny.training, {"batch_sequences": size}), CPU).outputs
        for size in (1, 8)
    ]
    np.testing.assert_allclose(*answers, atol=1e-5)


def test_batches_are_larger_on_a_gpu(tiny: Experiment) -> None:
    """Up to four times the tokens of a training batch, but of 524,288 at most, unless a training batch has more."""
    records, cuda = AddingRecords(tiny.data, "test"), torch.device("cuda")
    for tokens, device, expected in (
        (1_000, CPU, 1_000),
        (1_000, cuda, 4_000),
        (200_000, cuda, 524_288),
        (600_000, cuda, 600_000),
    ):
        training = override(tiny.training, {"batch_tokens": tokens})
        sampler = evaluation._evaluation_batches(records, training, device, 0, 1)
        assert sampler.tokens == expected
        assert sampler.sequences == (4 if device == CPU else 16) * training.batch_sequences


def test_scores_and_rows_are_in_the_manifest(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "RESAMPLES", 5)
    predictions = guesses(np.arange(1, 11))
    save_evaluation(tmp_path, summarise(predictions, TARGET, tiny, "test"), predictions)
    assert set(files.read_json(tmp_path / "manifest.json")) == {"evaluation-test.json", "predictions.parquet"}
    files.verify(tmp_path, ["evaluation-test.json", "predictions.parquet"])


def test_records_of_one_length_are_the_whole() -> None:
    [(percentile, inside)] = evaluation.length_bins(np.full(9, 1_024))
    assert percentile == 100 and inside.all()
    bins = evaluation.length_bins(np.array([5] * 51 + [9] * 49))
    assert [(p, int(mask.sum())) for p, mask in bins] == [(50, 51), (100, 49)]
