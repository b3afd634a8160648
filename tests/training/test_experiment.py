"""Experiments: saving and loading, and errors of one line about damaged folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chordmixer import files
from chordmixer.config import override
from chordmixer.models import ModelConfig
from chordmixer.paper.lra.retrieval import RetrievalConfig
from chordmixer.paper.recipes import retrieval
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, TrainingConfig
from chordmixer.training.experiment import check_context_parallel, check_lengths
from chordmixer.training.loop import train
from chordmixer.version import __version__


def test_to_a_folder_and_back(tiny: Experiment, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "data": {"seed": 3},
        "model": {"final_norm": "layer"},
        "training": {"learning_rate": 1.5e-4},
    }
    for experiment in (tiny, override(tiny, changes)):
        experiment.save(tmp_path)
        assert Experiment.load(tmp_path) == experiment
    written = files.read_json(tmp_path / "config.json")
    assert (written["format"], written["version"]) == (2, __version__)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"epohcs": 3}}, r"config\.json: training\.epohcs is not a setting: did you mean epochs\?$"),
        ({"training": {"epochs": "3"}}, r"config\.json: training\.epochs='3' is not of type int"),
        ({"training": {"epochs": 0}}, r"epochs=0 is too small: give 1 or more"),
        (
            {"training": {"precision": "fp8"}},
            r"training\.precision='fp8' is not a choice: give one of auto, fp32, bf16",
        ),
        ({"training": {"warmup": 1.0}}, r"warmup=1\.0 is not a share"),
        ({"training": {"ema": 1.0}}, r"ema=1\.0 is not a share"),
        ({"training": {"learning_rate": 0.0}}, r"learning_rate=0\.0 is not above zero"),
        ({"model": {"network": {"hiden": 3}}}, r"model\.network\.hiden is not a setting: did you mean hidden\?$"),
        ({"task": "sorting"}, r"task 'sorting' is not known: choose one of adding"),
        ({"format": 1}, r"config\.json has format 1: this version of chordmixer reads format 2"),
        ({"data": None}, r"config\.json.*data"),
        ({"data": [1]}, r"config\.json.*data"),
        ({"model": {}}, r"config\.json.*model.*inputs"),
        ({"trainnig": {}}, r"config\.json.*trainnig is not a setting"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_a_config(tiny: Experiment, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    tiny.save(tmp_path)
    files.write_json(tmp_path / "config.json", files.read_json(tmp_path / "config.json") | change)
    files.write_manifest(tmp_path, ["config.json"])
    with pytest.raises(ValueError, match=message) as error:
        Experiment.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["task", "data", "training"])
def test_a_model_is_not_a_run(tiny: Experiment, tmp_path: Path, key: str) -> None:
    tiny.save(tmp_path)
    config = files.read_json(tmp_path / "config.json")
    del config[key]
    files.write_json(tmp_path / "config.json", config)
    files.write_manifest(tmp_path, ["config.json"])
    with pytest.raises(ValueError, match=rf"has no '{key}': it is a model, not a training run; give a run folder$"):
        Experiment.load(tmp_path)


def test_no_folder_and_no_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none is not a folder: give the --out folder of a training run$"):
        Experiment.load(tmp_path / "none")
    with pytest.raises(ValueError, match=r"config\.json does not exist: give a folder that chordmixer wrote$"):
        Experiment.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read as JSON"):
        Experiment.load(tmp_path, unverified=True)


def test_a_config_never_says_where_to_write(motifs: list[str], tmp_path: Path) -> None:
    """The cache folder of its author is not stored; whoever loads the config chooses one."""
    data = FilesConfig(tuple(motifs), cache=str(tmp_path / "mine"), key="a" * 64)
    experiment = Experiment("files", data, ModelConfig(5, 2))
    experiment.save(tmp_path / "run")
    config = files.read_json(tmp_path / "run" / "config.json")
    assert "cache" not in config["data"] and Experiment.load(tmp_path / "run") == experiment
    config["data"]["cache"] = "/home/somebody"  # as earlier versions wrote it
    files.write_recorded(tmp_path / "run", {"config.json": files.json_bytes(config)})
    assert Experiment.load(tmp_path / "run").data.cache is None
    assert Experiment.load(tmp_path / "run", cache=tmp_path / "own").data.cache == str(tmp_path / "own")


@pytest.mark.parametrize(
    ("config", "lengths", "tokens"),
    [
        (TrainingConfig(batch_sequences=8), [10, 20, 30], 2 * 8 * 20),
        (TrainingConfig(batch_sequences=1), [1, 1, 100], 100),
        (TrainingConfig(batch_tokens=77), [10, 20], 77),
        (TrainingConfig(batch_sequences=1), [7], 14),
    ],
    ids=["twice an average batch", "the longest", "given", "one record"],
)
def test_the_token_budget(config: TrainingConfig, lengths: list[int], tokens: int) -> None:
    assert config.tokens_for(lengths) == tokens


# --- Records of one sequence, and of two ---


def test_a_head_for_another_number_of_sequences(tiny: Experiment) -> None:
    pairs = retrieval(RetrievalConfig())
    pairs.build_task()
    one = r"^model.head='average' answers for one sequence at a time, and retrieval asks about two .*model.head=pair$"
    with pytest.raises(ValueError, match=one):
        override(pairs, {"model": {"head": "average"}}).build_task()
    two = r"^model.head='pair' answers for two sequences at a time, and adding asks about one .*model.head=average$"
    with pytest.raises(ValueError, match=two):
        override(tiny, {"model": {"head": "pair"}}).build_task()


@pytest.mark.parametrize(
    ("longer", "limits", "message"),
    [
        (None, (9, 9), None),
        (None, (8, 9), "record r1 has 9 tokens, above model.network.max_length=8: .*max_length=9 or more$"),
        (None, (9, 8), "record r1 has 9 tokens, above training.batch_tokens=8: .*batch_tokens=9 or more$"),
        ([5, 6, 7], (7, 9), None),
        ([5, 6, 7], (6, 9), "record r2 has 7 tokens in one of its two sequences, above model.network.max_length=6"),
        ([5, 6, 7], (7, 8), "record r1 has 9 tokens, above training.batch_tokens=8"),
    ],
)
def test_records_that_are_too_long(longer: list[int] | None, limits: tuple[int, int], message: str | None) -> None:
    pairs = {} if longer is None else {"longer": longer}
    records: Any = SimpleNamespace(lengths=[6, 9, 8], name="r{}".format, **pairs)
    config = TrainingConfig(batch_tokens=limits[1])
    if message is None:
        check_lengths(records, limits[0], config)
    else:
        with pytest.raises(ValueError, match=message):
            check_lengths(records, limits[0], config)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"head": "last"}, "head='last' reads tokens by their place"),
        ({"head": "tokens"}, r"does not split records whose tokens are predicted, as in adding: set training\.c"),
        ({"strategy": "segment"}, "strategy='segment' makes other sequences"),
        (None, "encoder='pointwise' cannot be split over ranks"),
    ],
    ids=str,
)
def test_what_ranks_cannot_split(
    tiny: Experiment, model: dict[str, str] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    split = override(tiny, {"training": {"context_parallel": 2}})
    check_context_parallel(split)
    changed = tiny.model.with_encoder("pointwise") if model is None else override(tiny.model, model)
    with pytest.raises(ValueError, match=message):
        check_context_parallel(replace(split, model=changed))


@pytest.mark.parametrize("training", [{"trial": 0.0}, {"trial": 0.5}, {"replicates": 2}], ids=str)
def test_too_few_ranks_are_refused_before_a_folder_is_made(
    motifs: list[str], training: dict[str, Any], tmp_path: Path
) -> None:
    experiment = override(recipe(FilesConfig(tuple(motifs))), {"training": {"context_parallel": 2, **training}})
    message = r"context_parallel=2 is neither 1 nor the number of ranks, which is 1: start 2 ranks, as torchrun"
    with pytest.raises(ValueError, match=message):
        train(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
