"""Settings for a user's files, chosen by the kind of tokens, the number of records and the device."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from chordmixer import Model, Packed
from chordmixer.recipes import files
from chordmixer.recipes.files import EVALUATIONS, MIN_EVALUATIONS, ONE_PASS, STEPS, TOKENS, TRIAL, training
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment
from chordmixer.training.forecast import peak_bytes


def series(folder: Path, label: str) -> FilesConfig:
    rows = [f'{{"series": {np.arange(i % 7 + 3).tolist()}, {label.format(i, i % 2)}}}' for i in range(40)]
    (folder / "s.jsonl").write_text("\n".join(rows))
    return FilesConfig((str(folder / "s.jsonl"),))


def test_letters_have_a_stem_three_pools_and_words_on_trial(motifs: list[str]) -> None:
    experiment = files(FilesConfig(tuple(motifs)))
    model = experiment.model
    assert (model.stem.layers, model.head, model.final_norm) == (3, "mean_maximum_attention", "layer")
    assert (model.words.lengths, experiment.training.trial) == ((4, 6, 8), TRIAL)
    assert (model.network.prenorm, model.network.init, model.drop_tokens) == ("layer", "identity", 0.1)
    assert experiment.data.augment is False and not model.within_record
    assert Model(model)(Packed.from_list([experiment.build_task().records("training")[0].values])).shape == (1, 2)


@pytest.mark.parametrize(("lengths", "positions"), [((41, 41), 41), ((41, 42), 0)], ids=["aligned", "not"])
def test_aligned_records_have_positions_on_trial(tmp_path: Path, lengths: tuple[int, int], positions: int) -> None:
    letters = np.random.default_rng(0).choice([*"ACGT"], (60, 42))
    rows = [f"{''.join(row[: lengths[i % 2]])},{i % 2}" for i, row in enumerate(letters)]
    (tmp_path / "t.csv").write_text("\n".join(["sequence,label", *rows]))
    assert files(FilesConfig((str(tmp_path / "t.csv"),))).model.positions == positions


def test_a_network_that_would_fill_the_memory_is_reversible(
    motifs: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    default = files(FilesConfig(tuple(motifs)), device="cpu")
    needed = peak_bytes(default, default.build_task().records("training").lengths, torch.device("cpu"))
    assert not default.model.network.reversible
    monkeypatch.setattr(sys.modules[files.__module__], "free_bytes", lambda device: needed)
    with caplog.at_level("INFO"):
        experiment = files(FilesConfig(tuple(motifs)), device="cpu")
    assert experiment.model.network == replace(default.model.network, reversible=True)
    assert "the network is reversible: on records of up to" in caplog.text


def test_series_are_cropped_where_they_are_told_apart(tmp_path: Path) -> None:
    experiment = files(series(tmp_path, '"label": "{1}"'))
    assert experiment.data.augment and experiment.model.within_record and not experiment.model.words.lengths
    assert experiment.training.trial == 0 and experiment.model.stem.taps == 9
    (tmp_path / "numbers").mkdir()
    assert files(series(tmp_path / "numbers", '"target": {0}.5')).data.augment is False


def test_what_the_user_says_of_crops_counts(tmp_path: Path) -> None:
    config = series(tmp_path, '"label": "{1}"')
    assert files(FilesConfig(config.files, augment=False)).data.augment is False


def test_a_run_can_be_made_again_from_its_config(motifs: list[str], tmp_path: Path) -> None:
    experiment = files(FilesConfig(tuple(motifs)))
    experiment.save(tmp_path)
    assert Experiment.load(tmp_path) == experiment == files(experiment.data)


def test_minutes_become_steps(motifs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the time gives about twice the steps; they are saved in the config, and no clock ends the run."""
    from chordmixer.training import speed

    monkeypatch.setattr(speed, "measure", lambda *args: speed.Speed(1e-6, 0.0))
    short, long = (files(FilesConfig(tuple(motifs)), minutes, "cpu").training for minutes in (0.05, 0.1))
    assert 1.9 < long.steps / short.steps < 2.1 and short.minutes == 0
    tiny = files(FilesConfig(tuple(motifs)), 1e-9, "cpu").training
    assert (tiny.steps, tiny.evaluate_every) == (20, 10) and long.evaluate_every == long.steps // EVALUATIONS + 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("lengths", [[50] * 20, [75] * 140, [300] * 24_000, [75_000] * 700], ids=len)
def test_lengths_of_runs(lengths: list[int], device: str) -> None:
    config = training(lengths, max(lengths), device)
    tokens = config.batch_sequences * lengths[0]
    assert config.steps <= STEPS[device] or config.steps * config.batch_sequences <= 2 * len(lengths)
    assert config.steps * tokens <= 2 * TOKENS[device] or config.steps * config.batch_sequences <= 2 * len(lengths)
    assert min(EVALUATIONS, config.steps) // 2 <= config.steps // config.evaluate_every <= EVALUATIONS


def test_long_records_do_not_take_hours_on_a_cpu() -> None:
    """A run may be less than one pass, and evaluations take no more than half of the time of the steps."""
    lengths = [75_000] * 700
    config = training(lengths, 460_000, "cpu", validation=100 * 75_000)
    tokens = config.steps * config.batch_sequences * lengths[0]
    assert tokens <= ONE_PASS["cpu"] < sum(lengths) and config.steps // config.evaluate_every <= MIN_EVALUATIONS
    few = training([36_000] * 3360, 264_000, "cpu", validation=480 * 36_000)
    assert few.steps < 10 and few.evaluate_every > few.steps  # one evaluation, at the end
    assert training(lengths, 460_000, "cuda", validation=100 * 75_000) == training(lengths, 460_000, "cuda")
