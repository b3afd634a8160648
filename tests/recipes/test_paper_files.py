"""Settings that follow from the data alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from chordmixer import Model, Packed
from chordmixer.data.loading import Loader
from chordmixer.data.sampling import TokenSampler
from chordmixer.recipes import paper_files
from chordmixer.recipes.paper_files import EVALUATIONS, PASSES, STEPS, TOKENS, training
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment
from chordmixer.training.experiment import TrainingConfig


def silent(line: str) -> None: ...


def test_letters_have_norms_and_an_identity_start(motifs: list[str]) -> None:
    experiment = paper_files(FilesConfig(tuple(motifs)), silent)
    network = experiment.model.network
    assert (network.order, network.prenorm, network.norm, network.init) == ("paper", "layer", None, "identity")
    assert (experiment.model.final_norm, experiment.model.embedding) == ("layer", "tokens")
    assert (experiment.model.head, experiment.model.drop_tokens) == ("standard", 0.1)
    assert experiment.training.average == 0.05
    assert (experiment.model.inputs, experiment.model.outputs) == (5, 2)
    assert (experiment.training.rate, experiment.training.weight_decay) == (1e-3, 0.1)
    assert experiment.data.key is not None and experiment.data.reading.labels == "files"


def test_real_numbers_have_the_papers_settings(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    rows = [f'{{"series": {np.arange(i + 3).tolist()}, "target": {i}.5}}' for i in range(30)]
    (tmp_path / "s.jsonl").write_text("\n".join(rows))
    experiment = paper_files(FilesConfig((str(tmp_path / "s.jsonl"),)), silent)
    network = experiment.model.network
    assert (network.prenorm, network.init, experiment.model.final_norm) == (None, "xavier", None)
    assert (experiment.model.head, experiment.model.drop_tokens) == ("average", 0.0)
    assert (experiment.model.embedding, experiment.model.inputs, experiment.model.outputs) == ("real", 1, 1)


def test_the_model_takes_the_data_and_room_to_spare_costs_nothing(motifs: list[str]) -> None:
    experiment = paper_files(FilesConfig(tuple(motifs)), silent)
    task = experiment.build_task()
    network = experiment.model.network
    assert task.max_length <= network.max_length == 128
    assert network.width == type(network)(max_length=task.max_length, track_size=network.track_size).width
    records = task.records("training")
    batch = next(Loader(records, TokenSampler(records.lengths, 10_000, 16), drawing=True).epoch())
    assert Model(experiment.model)(batch.inputs).shape == (16, 2)
    assert isinstance(batch.inputs, Packed) and batch.inputs.values.dtype == torch.uint8


def test_small_sets_get_a_small_network(motifs: list[str], tmp_path: Path) -> None:
    assert paper_files(FilesConfig(tuple(motifs)), silent).model.network.track_size == 8
    rows = [f"{'ACGT'[i % 4]}{i:b}".replace("0", "A").replace("1", "C") + f",{i % 2}" for i in range(1600)]
    (tmp_path / "many.csv").write_text("\n".join(["sequence,label", *rows]))
    network = paper_files(FilesConfig((str(tmp_path / "many.csv"),)), silent).model.network
    assert (network.track_size, network.hidden) == (16, 128)


def test_a_run_can_be_made_again_from_its_config(motifs: list[str], tmp_path: Path) -> None:
    experiment = paper_files(FilesConfig(tuple(motifs)), silent)
    experiment.save(tmp_path)
    assert Experiment.load(tmp_path) == experiment
    assert paper_files(experiment.data, silent) == experiment


LENGTHS = {
    "20 short": [50] * 20,
    "140 short": [75] * 140,
    "introns": [300] * 48_000,
    "fragments": [900] * 12_000,
    "plasmids": [75_000] * 700,
    "reviews": [1_300] * 20_000,
    "genomes": [4_000_000] * 30,
    "a gigabase": [2_500] * 400_000,
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_set_gets_enough_steps_and_ends(lengths: list[int], device: str) -> None:
    config = training(lengths, max(lengths), device)
    assert config.precision == {"cpu": "fp32", "cuda": "bf16"}[device]
    steps = steps_of(config, lengths)
    passed = config.epochs * sum(lengths)
    assert steps >= 0.8 * STEPS or config.epochs == PASSES[1] or passed > 0.8 * TOKENS or config.epochs == 3
    assert config.epochs <= 3 or passed <= TOKENS
    assert config.batch_tokens >= max(lengths)
    assert -(-config.epochs // config.evaluate_epochs) <= EVALUATIONS
    assert 5 <= config.patience <= max(5, EVALUATIONS // 3)


def steps_of(config: TrainingConfig, lengths: list[int]) -> int:
    batches = len(TokenSampler(lengths, config.batch_tokens, config.batch_sequences))
    return config.epochs * -(-batches // config.accumulate)


def test_long_records_add_up_gradients() -> None:
    config = training([75_000] * 7_000, longest=460_000, device="cuda")
    assert config.batch_tokens == 460_000 and config.accumulate * 6 == pytest.approx(128, abs=6)
    assert training([100] * 7_000, longest=100, device="cuda").accumulate == 1
    few, many = (training([5_000] * 7_000, longest=5_000, device=device) for device in ("cpu", "cuda"))
    assert (few.accumulate, few.batch_tokens) == (10, 1 << 16) and (many.accumulate, many.batch_tokens) == (
        2,
        1 << 18,
    )
