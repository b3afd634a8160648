"""The matrices behind blocks, whatever way the network takes them, and their picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from chordmixer import Model, ModelConfig, Packed, files
from chordmixer.models import ChordMixerConfig
from chordmixer.paper.adding import Adding, AddingConfig
from chordmixer.paper.reproduction.attention import examples, matrices, prominence, ranks
from chordmixer.training import Experiment


def build(**settings: object) -> Model:
    torch.manual_seed(0)
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=8, reversible=bool(settings.pop("reversible", 0)))
    return Model(ModelConfig(inputs=2, outputs=1, embedding="real", network=network, **settings))  # type: ignore[arg-type]


@pytest.fixture
def x() -> Packed:
    return Packed.from_list([torch.randn(20, 2, generator=torch.Generator().manual_seed(0))])


class TestMatrices:
    @pytest.mark.parametrize("training", [True, False])
    def test_are_those_of_the_blocks(self, x: Packed, training: bool) -> None:
        model = build().train(training)
        found = dict(matrices(model, x))
        assert list(found) == ["input", "after block 1", "after block 5, the last"]
        torch.testing.assert_close(torch.from_numpy(found["input"]), x.values)
        values = model.embedding(x).values
        after = [values := block(values, x.offsets) for block in model.encoder.blocks[:5]]
        torch.testing.assert_close(torch.from_numpy(found["after block 1"]), after[0])
        torch.testing.assert_close(torch.from_numpy(found["after block 5, the last"]), after[-1])
        torch.testing.assert_close(model.encode(x).values, after[-1])
        assert model.training == training

    @pytest.mark.parametrize(
        ("settings", "blocks"),
        [({"encoder": "pointwise"}, 6), ({"head": "class_token"}, 5), ({"reversible": True}, 5)],
    )
    def test_of_other_networks(self, x: Packed, settings: dict[str, object], blocks: int) -> None:
        found = matrices(build(**settings), x)
        assert found[-1][0] == f"after block {blocks}, the last"
        assert all(matrix.shape[0] == 20 for _, matrix in found)

    def test_of_one_block(self) -> None:
        found = matrices(build(), Packed.from_list([torch.ones(1, 2)]))
        assert [name for name, _ in found] == ["input", "after block 1, the last"]

    def test_nobody_watches_afterwards(self, x: Packed) -> None:
        model = build()
        matrices(model, x)
        with pytest.raises(ValueError, match="above this network's max_length"):
            matrices(model, Packed.from_list([torch.ones(100, 2)]))
        assert not any(block._forward_hooks for block in model.encoder.blocks)
        assert model.training


class TestProminence:
    def test_finds_what_differs_in_the_top_track_alone(self) -> None:
        matrix = np.random.default_rng(0).normal(5, 0.01, (30, 6))
        matrix[7, 1] = 9
        matrix[21, 0] = 6
        matrix[2, 4] = 100
        assert ranks(matrix, 2, [7, 21]) == [1, 2]
        assert prominence(matrix, 2)[7] == pytest.approx(4, abs=0.1)


class TestOfARun:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        data = AddingConfig(base_length=20, min_length=4, max_length=64, training=4, validation=4, test=50)
        model = build()
        model.save_pretrained(tmp_path)
        Experiment("adding", data, model.config).save(tmp_path)
        files.write_manifest(tmp_path, ["config.json"])
        return tmp_path

    def test_the_nearest_length_with_its_marks(self, run: Path) -> None:
        records = Adding(Experiment.load(run).data).records("test")
        shown = examples(run, Experiment.load(run), [4, 30])
        for example, length in zip(shown, (4, 30), strict=True):
            inputs = example.layers[0][1]
            assert abs(len(inputs) - length) == min(abs(n - length) for n in records.lengths)
            assert inputs[:, 1].nonzero()[0].tolist() == list(example.marked) and len(example.marked) == 2
            true = 0.5 + inputs[list(example.marked), 0].sum() / 4
            assert f"{len(inputs)} positions, answer" in example.title and f"true {true:.3f}" in example.title
