"""Settings that follow from the data alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from chordmixer import Model, Packed
from chordmixer.data.loading import Loader
from chordmixer.data.sampling import TokenSampler
from chordmixer.paper.recipes import paper_files
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment


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
