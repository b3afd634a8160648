"""Runs of several models and seeds: finished ones are not trained again, times add up, signals go through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chordmixer import files
from chordmixer.paper.reproduction import running
from chordmixer.paper.reproduction.experiments import each
from chordmixer.paper.reproduction.running import RunsJournal, finished, look, run_all, scored_baselines
from chordmixer.training import Evaluation, Experiment, Interrupted


def test_what_is_finished_is_not_trained_again(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    first = run_all(each(tiny, ["chordmixer"], 1), RunsJournal.open(tmp_path / "r", "adding-200", False), False)
    assert log.messages == ["chordmixer-seed0, 1 of 1", "baselines on the same records, on the CPU"]

    trained: list[str] = []

    def count(experiment: Experiment, out: Path, resume: bool) -> Evaluation:
        trained.append(out.name)
        return train(experiment, out, resume=resume)

    train = running.train
    monkeypatch.setattr(running, "train", count)
    journal = RunsJournal.open(tmp_path / "r", "adding-200", True)
    both = run_all(each(tiny, ["chordmixer", "pointwise"], 1), journal, True)
    assert trained == ["pointwise-seed0"]
    assert log.messages[2:] == ["chordmixer-seed0, 1 of 2: finished before", "pointwise-seed0, 2 of 2"]
    assert (both[0].evaluation, both[0].seconds) == (first[0].evaluation, first[0].seconds)
    assert both[1].seconds > 0 and not both[1].killed
    assert [run.steps for run in both] == [2, 2], "64 records, a batch an epoch"
    for run, folder in zip(both, ("chordmixer-seed0", "pointwise-seed0"), strict=True):
        assert [b.name for b in run.baselines] == ["mean", "length alone"] and run.baselines == first[0].baselines
        files.verify(tmp_path / "r" / folder, ["baselines.json"])


def test_baselines_are_scored_once(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever run has them; what was changed is refused; what a kill left unlisted is made anew."""
    run_all({"a": tiny, "b": tiny}, RunsJournal.open(tmp_path / "r", "x", False), False, baselines=False)
    runs = [tmp_path / "r" / name for name in "ab"]
    assert not any((run / "baselines.json").exists() for run in runs)
    assert [b.name for b in scored_baselines(runs[1:])] == ["mean", "length alone"]
    monkeypatch.setattr(running, "compare", pytest.fail)
    assert scored_baselines(runs) == scored_baselines(runs[:1])
    files.write_json(runs[0] / "baselines.json", {"format": 1, "baselines": []})
    with pytest.raises(ValueError, match=r"baselines.json was changed or damaged"):
        scored_baselines(runs)
    listed = files.read_json(runs[0] / "manifest.json")
    files.write_json(runs[0] / "manifest.json", {k: v for k, v in listed.items() if k != "baselines.json"})
    assert scored_baselines(runs) == scored_baselines(runs[:1]) != []


def test_other_ranks_score_no_baselines(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_all({"a": tiny}, RunsJournal.open(tmp_path / "r", "x", False), False)
    monkeypatch.setenv("RANK", "1")
    again = run_all({"a": tiny}, RunsJournal.open(tmp_path / "r", "x", True), True)
    assert first[0].baselines and not again[0].baselines


def test_other_settings_are_refused(tiny: Experiment, tmp_path: Path) -> None:
    run_all({"run": tiny}, RunsJournal.open(tmp_path / "r", "a", False), False)
    other = replace(tiny, training=replace(tiny.training, learning_rate=0.5))
    assert finished(tmp_path / "r" / "run", tiny) is not None and finished(tmp_path / "r" / "run", other) is None
    with pytest.raises(ValueError, match="was started with other settings"):
        run_all({"run": other}, RunsJournal.open(tmp_path / "r", "a", True), True)


def test_scores_that_were_changed_are_refused(tiny: Experiment, tmp_path: Path) -> None:
    run_all({"run": tiny}, RunsJournal.open(tmp_path / "r", "a", False), False)
    scores = tmp_path / "r" / "run" / "evaluation-test.json"
    files.write_json(scores, {**files.read_json(scores), "loss": 0.0})
    with pytest.raises(ValueError, match=r"evaluation-test.json was changed or damaged"):
        finished(tmp_path / "r" / "run", tiny)


def test_a_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ValueError, match="is there already: give a new --out, or add --resume to go on with it"):
        RunsJournal.open(tmp_path, "a", resume=False)
    with pytest.raises(ValueError, match="is there already"):
        RunsJournal.open(tmp_path / "x", "a", resume=False)


def test_a_folder_of_another_entry(tmp_path: Path) -> None:
    with RunsJournal.open(tmp_path, "listops", False).timing("run"):
        pass
    with pytest.raises(ValueError, match=r"holds 'listops', not 'image': give another --out"):
        RunsJournal.open(tmp_path, "image", resume=True)


def test_seconds_of_several_starts_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 100.0, 105.0])
    monkeypatch.setattr(running.time, "monotonic", lambda: next(clock))
    with pytest.raises(Interrupted), RunsJournal.open(tmp_path, "a", False).timing("run"):
        raise Interrupted(2)
    with RunsJournal.open(tmp_path, "a", True).timing("run"):
        pass
    assert RunsJournal.open(tmp_path, "a", True).seconds("run") == (15.0, False)


def test_two_that_train_into_one_folder_keep_each_others_times(tmp_path: Path) -> None:
    one, other = (RunsJournal.open(tmp_path, "a", resume=True) for _ in range(2))
    with one.timing("x"), other.timing("y"):
        pass
    both = RunsJournal.open(tmp_path, "a", resume=True)
    assert {*both.runs} == {"x", "y"} and not both.seconds("x")[1] and not both.seconds("y")[1]


def test_a_start_that_was_killed_is_known(tmp_path: Path) -> None:
    runs: dict[str, Any] = {"run": {"seconds": 3.0, "starts": 2, "ends": 1}}
    files.write_json(tmp_path / running.STATE, {"format": 1, "name": "a", "runs": runs})
    journal = RunsJournal.open(tmp_path, "a", True)
    assert journal.seconds("run") == (3.0, True) and journal.seconds("never heard of") == (0.0, True)


def test_data_are_looked_at_before(tiny: Experiment) -> None:
    seen = look(tiny)
    assert seen.records == {"training": 64, "validation": 16, "test": 32} and seen.classes == []
    assert 32 <= seen.shortest <= seen.longest <= 60
    small = replace(tiny, model=replace(tiny.model, network=replace(tiny.model.network, max_length=33)))
    with pytest.raises(ValueError, match=r"above model.network.max_length=33"):
        look(small)


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with RunsJournal.open(tmp_path, "a", False).timing("run"):
        pass
    assert not [*tmp_path.iterdir()]
