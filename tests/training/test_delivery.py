"""What a run answers with: its network, its baseline or both, in Python, from files, and after a fresh start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from chordmixer import files
from chordmixer.config import override
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.training import Experiment, delivery, evaluate, evaluation, train
from chordmixer.training.evaluation import Predictions
from chordmixer.training.inference import Trained
from chordmixer.training.outcome import compare
from chordmixer.training.prediction import predict

pytestmark = pytest.mark.usefixtures("quick_scores")
SMALL = {
    "model": {"network": {"track_size": 4, "hidden": 8}, "words": {"lengths": []}, "stem": {"layers": 1}},
    "training": {"steps": 12, "trial": 0.0, "device": "cpu"},
}


@pytest.fixture(scope="module")
def delivered(motifs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on both strands with its baseline: only to be read."""
    folder = tmp_path_factory.mktemp("delivery") / "run"
    experiment = override(recipe(FilesConfig(tuple(motifs), both_strands=True), lambda line: None), SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        train(experiment, folder)
        compare(folder, lambda line: None, deliver=True)
    return folder


def asked(run: Path, motifs: list[str], out: Path, using: str | None) -> list[dict[str, float]]:
    predict(run, motifs, out, using=using, say=lambda line: None)  # type: ignore[arg-type]
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_files_have_the_answers_of_the_test_part(delivered: Path, motifs: list[str], tmp_path: Path) -> None:
    rows = {row["id"]: row for row in asked(delivered, motifs, tmp_path / "a.jsonl", None)}
    test, answers = Predictions.read(delivered / "predictions.parquet"), Trained(delivered).answers
    for name, shares in zip(test.names, answers.probabilities(test.outputs), strict=True):
        assert [rows[name]["with"], rows[name]["without"]] == pytest.approx(shares.tolist(), abs=1e-5)


def test_each_can_be_asked_alone(delivered: Path, motifs: list[str], tmp_path: Path) -> None:
    answers = {
        using: [row["with"] for row in asked(delivered, motifs[:1], tmp_path / f"{using}.jsonl", using)]
        for using in ("network", "baseline", "both")
    }
    assert len({tuple(own) for own in answers.values()}) == 3
    chosen = delivery.described(delivered)
    assert chosen is not None and {*chosen.losses} == {*answers}
    assert [r["with"] for r in asked(delivered, motifs[:1], tmp_path / "x.jsonl", None)] == answers[chosen.using]
    with pytest.raises(ValueError, match="--using best is not a choice: give one of network, baseline, both"):
        asked(delivered, motifs, tmp_path / "y.jsonl", "best")


def test_a_baseline_alone_needs_no_network_and_has_no_longest_record(
    delivered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trained, "model", property(lambda self: pytest.fail("the network was loaded")))
    (tmp_path / "long.fa").write_text(">a\n" + "ACGT" * 500 + "\n>b\nA\n")  # one shorter than any k-mer
    rows = asked(delivered, [str(tmp_path / "long.fa")], tmp_path / "a.jsonl", "baseline")
    assert [row["length"] for row in rows] == [2000, 1]


def test_both_strands_have_one_answer(delivered: Path) -> None:
    task = Experiment.load(delivered).build_task()
    assert isinstance(task, Files) and task.complement is not None
    known = delivery.load(delivered, task.target, task.complement, "baseline")
    assert known is not None
    tokens = task.tokens("test")
    turned = [task.complement[own[::-1]].astype(own.dtype) for own in tokens]
    np.testing.assert_allclose(known.outputs(None, tokens), known.outputs(None, turned), atol=1e-6)


def test_scores_are_those_of_the_answers(delivered: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    before = (run / "evaluation-test.json").read_bytes()
    evaluate(run, "test")
    assert (run / "evaluation-test.json").read_bytes() == before
    rows = files.read_json(run / "baselines.json")
    assert rows["baselines"][-1]["name"] == "network alone"
    assert rows["ladder"][-1]["name"] in ("delivered", "network alone")


def test_a_run_that_is_finished_again_starts_from_its_network(delivered: Path, tmp_path: Path) -> None:
    """And ends with the same bytes."""
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    train(Experiment.load(run), run, resume=True)
    assert not (run / "combination.json").exists() and delivery.described(run) is None
    files.verify(run, files.recorded(run))
    compare(run, lambda line: None, deliver=True)
    for name in ("combination.json", "baseline.safetensors", "predictions.parquet", "labels.json", "baselines.json"):
        assert (run / name).read_bytes() == (delivered / name).read_bytes(), name


@pytest.mark.parametrize("name", ["combination.json", "baseline.safetensors"])
def test_a_flipped_byte_is_found(delivered: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    damaged = bytearray((run / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (run / name).write_bytes(damaged)
    with pytest.raises(ValueError, match="was changed or damaged"):
        Trained(run)
    (run / name).unlink()
    with pytest.raises(ValueError, match="is missing or not in"):
        Trained(run)


def test_hostile_weights(delivered: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    good = files.read_json(run / "combination.json")
    for change in ({"using": "all"}, {"weights": {"both": [1, 2, 3]}}, {"losses": []}, {"format": 9}, {"extra": 1}):
        files.write_recorded(run, {"combination.json": files.json_bytes(good | change)})
        with pytest.raises(ValueError, match=r"combination\.json is not whole .*: use another copy"):
            Trained(run)


def test_a_run_without_a_baseline(delivered: Path, motifs: list[str], tmp_path: Path) -> None:
    run = Path(shutil.copytree(delivered, tmp_path / "run"))
    train(Experiment.load(run), run, resume=True)
    assert Trained(run).delivery is None and Trained(run, using="network").delivery is None
    with pytest.raises(ValueError, match="keeps no baseline for --using both: leave it out, or train again"):
        Trained(run, using="both")
