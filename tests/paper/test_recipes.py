from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from chordmixer import Model, Packed, files
from chordmixer.data.loading import Loader, TokenSampler
from chordmixer.models import ENCODERS
from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.lra.image import ImageConfig
from chordmixer.paper.lra.listops import ListOpsConfig
from chordmixer.paper.lra.pathfinder import PathfinderConfig
from chordmixer.paper.lra.retrieval import CITATIONS, PAPERS, RetrievalConfig
from chordmixer.paper.lra.text import TextConfig
from chordmixer.paper.recipes import adding, demo, image, listops, paper_files, pathfinder, retrieval, text
from chordmixer.recipes import RECIPES, load
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment


@pytest.mark.parametrize(("base_length", "tracks"), [(200, 14), (1_000, 16), (16_000, 19), (128_000, 22)])
def test_is_the_papers_model(base_length: int, tracks: int) -> None:
    experiment = adding(AddingConfig(base_length))
    network = experiment.model.network
    assert (network.track_size, network.hidden, network.tracks) == (16, 128, tracks)
    assert (network.order, network.prenorm, network.norm, network.init) == ("paper", None, None, "xavier")
    assert (experiment.model.head, experiment.model.encoder) == ("average", "chordmixer")
    assert network.max_length == experiment.build_task().max_length


def test_model_fits_the_task() -> None:
    experiment = adding(AddingConfig(training=10))
    task = experiment.build_task()
    assert load(RECIPES[experiment.task]) is adding
    assert (experiment.model.inputs, experiment.model.embedding) == (task.inputs, task.embedding)
    assert experiment.model.outputs == task.target.outputs
    assert Model(experiment.model).encoder.width == 14 * 16


def test_settings_follow_the_length() -> None:
    settings = {base: adding(AddingConfig(base)).training for base in (20, 200, 999, 1_000, 16_000, 128_000)}
    assert [training.epochs for training in settings.values()] == [13, 13, 13, 13, 6, 6]
    assert [training.batch_sequences for training in settings.values()] == [64, 64, 64, 64, 16, 16]


def test_the_other_model_of_the_demo_differs_in_the_encoder_alone() -> None:
    ours, theirs = demo(), demo("pointwise")
    assert ours.model.encoder == "chordmixer" and {"chordmixer", "pointwise"} <= set(ENCODERS)
    assert theirs == replace(ours, model=replace(ours.model, encoder="pointwise"))


def test_the_model_of_the_demo_takes_the_data() -> None:
    experiment = demo()
    records = experiment.build_task().records("validation")
    assert min(records.lengths) >= 32 and max(records.lengths) <= 256 == experiment.model.network.max_length
    batch = Packed.from_list([records[i].values for i in range(3)])
    assert Model(experiment.model)(batch).shape == (3, 1)


Command = Callable[..., tuple[int, str, str]]

SMALL = {"training": 8, "validation": 8, "test": 8}
TINY = ["model.network.track_size=2", "model.network.hidden=4", "training.epochs=2", "training.device=cpu"]


def test_the_papers_sizes_and_what_trains() -> None:
    experiments = {
        "ListOps": listops(ListOpsConfig()),
        "Pathfinder": pathfinder(PathfinderConfig()),
        "Path-X": pathfinder(PathfinderConfig(size=128)),
        "Image": image(ImageConfig()),
        "Text": text(TextConfig()),
    }
    numbers = {
        name: (
            e.model.network.hidden,
            e.model.network.track_size,
            e.training.learning_rate,
            e.training.batch_sequences,
        )
        for name, e in experiments.items()
    }
    assert numbers == {
        "ListOps": (88, 8, 0.007, 150),
        "Pathfinder": (320, 24, 0.005, 150),
        "Path-X": (128, 10, 0.001, 120),
        "Image": (420, 28, 0.002, 100),
        "Text": (96, 16, 0.007, 90),
    }
    lengths = {name: e.model.network.max_length for name, e in experiments.items()}
    assert lengths == {"ListOps": 2000, "Pathfinder": 1024, "Path-X": 16_384, "Image": 1024, "Text": 4000}


@pytest.mark.parametrize("size", [32, 128])
def test_pathfinder_has_the_norms_without_which_it_stays_at_chance(size: int) -> None:
    network = pathfinder(PathfinderConfig(size=size)).model.network
    assert (network.prenorm, network.norm) == ("batch", "batch")


@pytest.mark.parametrize(("gpu", "precision"), [(True, "bf16"), (False, "fp32")])
def test_precision_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch, gpu: bool, precision: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    experiments = [listops(ListOpsConfig()), pathfinder(PathfinderConfig()), image(ImageConfig()), text(TextConfig())]
    experiments.append(retrieval(RetrievalConfig()))
    assert [e.training.precision for e in experiments] == [precision] * 5


def imdb(folder: Path) -> Path:
    """Five reviews a folder, in the official layout."""
    for part in ("train/neg", "train/pos", "test/neg", "test/pos"):
        (folder / part).mkdir(parents=True)
        for number in range(5):
            (folder / part / f"{number}_1.txt").write_text(f"{part} " * (1 + 9 * number))
    return folder


def test_from_the_official_files_to_scores(chordmixer: Command, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data_settings = [f"data.source={imdb(data)}", "data.validation=4", f"data.cache={tmp_path / 'cache'}"]
    settings = [word for setting in [*data_settings, *TINY] for word in ("--set", setting)]
    code, output, errors = chordmixer("train", "text", "--out", run, *settings)
    assert (code, errors) == (0, "") and "accuracy" in output and (run / "model.safetensors").is_file()
    code, scores, errors = chordmixer("evaluate", run)
    assert (code, errors) == (0, "") and "accuracy" in scores
    code, _, errors = chordmixer("train", "--resume", run)
    assert (code, errors) == (0, "")


@pytest.mark.parametrize(("task", "archive"), [("image", "cifar-10-binary.tar.gz"), ("text", "aclImdb_v1.tar.gz")])
def test_without_data_one_line_says_where_to_get_them(
    chordmixer: Command, tmp_path: Path, task: str, archive: str
) -> None:
    run = tmp_path / "run"
    code, _, errors = chordmixer("train", task, "--out", run)
    assert code == 2 and archive in errors and errors.count("\n") == 1 and not run.exists()


def test_the_papers_numbers_of_retrieval() -> None:
    experiment = retrieval(RetrievalConfig())
    network, training = experiment.model.network, experiment.training
    numbers = (network.hidden, network.track_size, training.learning_rate, training.batch_sequences)
    assert numbers == (128, 12, 0.007, 90) and (network.max_length, experiment.model.head) == (4000, "pair")


def write_citations(folder: Path) -> None:
    names = [f"p{i}" for i in range(60)]
    pq.write_table(pa.table({"id": names, "text": [f"{name} " * 3 for name in names]}), folder / PAPERS)
    pairs = {"citing": names[9:] * 2, "cited": names[6:-3] + names[1:-8]}
    pq.write_table(pa.table(pairs), folder / CITATIONS)


def test_retrieval_from_the_command_line_to_scores(tmp_path: Path, chordmixer: Command) -> None:
    write_citations(tmp_path)
    settings = {
        "data.source": tmp_path,
        "data.cache": tmp_path / "cache",
        "model.network.track_size": 2,
        "model.network.hidden": 4,
        "training.epochs": 1,
        "training.batch_sequences": 8,
        "training.device": "cpu",
    }
    run = tmp_path / "run"
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    code, _, err = chordmixer("train", "retrieval", *options, "--out", run)
    assert code == 0, err
    before = files.read_json(run / "evaluation-test.json")
    assert before["records"] == pytest.approx(20, abs=2) and before["headline"] == "accuracy"
    lengths = pq.read_table(run / "predictions.parquet")["length"].to_pylist()
    assert min(lengths) >= 2 * 9, "lengths must be of both documents together"
    code, _, err = chordmixer("evaluate", run)
    assert code == 0, err
    assert files.read_json(run / "evaluation-test.json")["scores"] == before["scores"]


def test_retrieval_without_data(tmp_path: Path, chordmixer: Command) -> None:
    code, _, err = chordmixer("train", "retrieval", "--out", tmp_path / "run")
    assert code == 2 and err.count("\n") == 1 and not (tmp_path / "run").exists()
    assert err.startswith("chordmixer: retrieval has no data.source: it is read from new_aan_pairs.train.tsv")


def test_letters_have_norms_and_an_identity_start(motifs: list[str]) -> None:
    experiment = paper_files(FilesConfig(tuple(motifs)))
    network = experiment.model.network
    assert (network.order, network.prenorm, network.norm, network.init) == ("paper", "layer", None, "identity")
    assert (experiment.model.final_norm, experiment.model.embedding) == ("layer", "tokens")
    assert (experiment.model.head, experiment.model.drop_tokens) == ("standard", 0.1)
    assert experiment.training.ema == 0.05
    assert (experiment.model.inputs, experiment.model.outputs) == (5, 2)
    assert (experiment.training.learning_rate, experiment.training.weight_decay) == (1e-3, 0.1)
    assert experiment.data.key is not None and experiment.data.reading.labels == "files"


def test_real_numbers_have_the_papers_settings(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    rows = [f'{{"series": {np.arange(i + 3).tolist()}, "target": {i}.5}}' for i in range(30)]
    (tmp_path / "s.jsonl").write_text("\n".join(rows))
    experiment = paper_files(FilesConfig((str(tmp_path / "s.jsonl"),)))
    network = experiment.model.network
    assert (network.prenorm, network.init, experiment.model.final_norm) == (None, "xavier", None)
    assert (experiment.model.head, experiment.model.drop_tokens) == ("average", 0.0)
    assert (experiment.model.embedding, experiment.model.inputs, experiment.model.outputs) == ("real", 1, 1)


def test_the_model_takes_the_data_and_a_longer_maximum_adds_no_width(motifs: list[str]) -> None:
    experiment = paper_files(FilesConfig(tuple(motifs)))
    task = experiment.build_task()
    network = experiment.model.network
    assert task.max_length <= network.max_length == 128
    assert network.width == type(network)(max_length=task.max_length, track_size=network.track_size).width
    records = task.records("training")
    batch = next(Loader(records, TokenSampler(records.lengths, 10_000, 16), drawing=True).epoch())
    assert Model(experiment.model)(batch.inputs).shape == (16, 2)
    assert isinstance(batch.inputs, Packed) and batch.inputs.values.dtype == torch.uint8


def test_small_sets_get_a_small_network(motifs: list[str], tmp_path: Path) -> None:
    assert paper_files(FilesConfig(tuple(motifs))).model.network.track_size == 8
    rows = [f"{'ACGT'[i % 4]}{i:b}".replace("0", "A").replace("1", "C") + f",{i % 2}" for i in range(1600)]
    (tmp_path / "many.csv").write_text("\n".join(["sequence,label", *rows]))
    network = paper_files(FilesConfig((str(tmp_path / "many.csv"),))).model.network
    assert (network.track_size, network.hidden) == (16, 128)


def test_a_run_can_be_made_again_from_its_config(motifs: list[str], tmp_path: Path) -> None:
    experiment = paper_files(FilesConfig(tuple(motifs)))
    experiment.save(tmp_path)
    assert Experiment.load(tmp_path) == experiment
    assert paper_files(experiment.data) == experiment
