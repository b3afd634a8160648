from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chordmixer import ChordMixerConfig, Model, ModelConfig, Packed, files
from chordmixer.config import from_dict, override, to_dict
from chordmixer.models.encoders import ENCODERS
from chordmixer.models.encoders.cnn import CnnConfig
from chordmixer.models.heads import HEADS, MARK
from chordmixer.models.stem import StemConfig
from chordmixer.models.words import WordsConfig

Make = Callable[..., Any]
NETWORK = ChordMixerConfig(max_length=64, track_size=2, hidden=8)
CONFIG = ModelConfig(inputs=5, outputs=3, network=NETWORK)
LENGTHS = [7, 64, 1, 2]
# A class token is one more token than the longest sequence: every encoder must have room for it.
each_encoder_and_head = pytest.mark.parametrize(
    ("encoder", "head"),
    [("chordmixer", head) for head in HEADS]
    + [(encoder, head) for encoder in ENCODERS if encoder != "chordmixer" for head in ("average", "class_token")],
)


def ids(lengths: list[int], head: str = "average") -> Packed:
    """Random token ids; for the variant head, the first token of each sequence is marked."""
    x = Packed.from_lengths(torch.randint(5, (sum(lengths),)), lengths)
    x.values[x.offsets[:-1]] += MARK if head == "variant" else 0
    return x


def outputs(model: Model, x: Packed) -> torch.Tensor:
    answers = model(x)
    return answers.values if isinstance(answers, Packed) else answers


@each_encoder_and_head
def test_shapes(encoder: str, head: Any) -> None:
    answers = Model(replace(CONFIG, head=head).with_encoder(encoder))(ids(LENGTHS, head))
    if head == "tokens":
        assert isinstance(answers, Packed) and answers.lengths == tuple(LENGTHS)
        assert answers.values.shape == (74, 3)
    else:
        assert answers.shape == (4 // HEADS[head].sequences, 3)


def test_a_network_of_another_encoder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'lstm' does not take a ChordMixerConfig: give network=LstmConfig\(max_"):
        replace(CONFIG, encoder="lstm")


@pytest.mark.parametrize("changes", [{"drop_tokens": 1.0}, {"drop_tokens": 0.1, "embedding": "real"}])
def test_tokens_that_cannot_be_hidden(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"drop_tokens=.* is not possible: give a share below 1, and 0 for real"):
        replace(CONFIG, **changes)


def test_another_encoder_starts_from_its_own_sizes_and_the_same_length() -> None:
    changed = override(CONFIG, {"encoder": "cnn", "network": {"layers": 3}})
    assert changed.network == CnnConfig(max_length=64, layers=3)
    assert override(CONFIG, {"encoder": "pointwise"}).network == NETWORK
    assert from_dict(ModelConfig, to_dict(changed), "model") == changed


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("final_norm", [None, "layer"])
@pytest.mark.parametrize("reversible", [False, True])
def test_alone_and_in_a_batch(head: Any, final_norm: Any, reversible: bool, scrambled: Make) -> None:
    config = replace(CONFIG, head=head, final_norm=final_norm, network=replace(NETWORK, reversible=reversible))
    model, x, size = scrambled(Model(config)), ids(LENGTHS, head), HEADS[head].sequences
    with torch.no_grad():
        records = [x.select(range(i, i + size)) for i in range(0, len(x), size)]
        unbatched = torch.cat([outputs(model, record) for record in records])
        torch.testing.assert_close(outputs(model, x), unbatched, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("embedding", ["tokens", "real"])
def test_a_start_is_told_by_its_mark_alone(embedding: Any, scrambled: Make) -> None:
    """A rotated sequence has the same answer, unless first tokens are marked."""
    values = torch.randint(5, (37,)) if embedding == "tokens" else torch.randn(37, 5)
    original, rotated = (Packed.from_list([v]) for v in (values, values.roll(11, 0)))
    for marked in (False, True):
        model = scrambled(Model(replace(CONFIG, embedding=embedding, mark_start=marked)))
        with torch.no_grad():
            distance = float((model(original) - model(rotated)).abs().max())
        assert distance > 1e-2 if marked else distance < 1e-5


@each_encoder_and_head
def test_marked_alone_and_in_a_batch(encoder: str, head: Any, scrambled: Make) -> None:
    model = scrambled(Model(replace(CONFIG, head=head, mark_start=True).with_encoder(encoder)))
    x, size = ids(LENGTHS, head), HEADS[head].sequences
    with torch.no_grad():
        records = [x.select(range(i, i + size)) for i in range(0, len(x), size)]
        unbatched = torch.cat([outputs(model, record) for record in records])
        torch.testing.assert_close(outputs(model, x), unbatched, rtol=1e-5, atol=1e-5)


def test_of_segments_only_the_first_is_marked() -> None:
    config = replace(CONFIG, mark_start=True, head="flat", strategy="segment", piece_length=4)
    model = Model(config)
    model.start.vector.data.fill_(100.0)
    inputs: list[Packed] = []
    model.encoder.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(ids([11]))
    assert (inputs[0].values > 50).any(dim=1).nonzero().flatten().tolist() == [0]


def test_the_longest_sequence_has_room_for_a_class_token() -> None:
    model = Model(replace(CONFIG, head="class_token"))
    assert model(ids([64])).shape == (1, 3)
    with pytest.raises(ValueError, match="max_length=65"):
        model(ids([65]))


def test_final_norm_is_the_last_thing_before_the_head() -> None:
    x, model = ids(LENGTHS), Model(replace(CONFIG, final_norm="layer"))
    model.load_state_dict(Model(CONFIG).state_dict(), strict=False)
    raw = model.encoder(model.embedding(x)).values
    torch.testing.assert_close(model.encode(x).values, torch.nn.functional.layer_norm(raw, (model.encoder.width,)))


def test_real_inputs() -> None:
    model = Model(replace(CONFIG, inputs=2, embedding="real"))
    values = torch.randn(9, 2)
    assert model(Packed.from_lengths(values, [4, 5])).shape == (2, 3)
    values[6] = float("nan")
    with pytest.raises(ValueError, match="sequence 1 holds a NaN or infinite number"):
        model(Packed.from_lengths(values, [4, 5]))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.tensor([0, -1]), "token id -1 in sequence 1 is outside this model's vocabulary of 5"),
        (torch.tensor([5, 0]), "token id 5 in sequence 1 is outside this model's vocabulary of 5"),
        (
            torch.zeros(65, dtype=torch.int64),
            "sequence 1 of the batch has 65 tokens, above this network's max_length=64",
        ),
    ],
    ids=["negative", "too-large", "too-long"],
)
def test_errors_name_the_sequence(bad: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Model(CONFIG)(Packed.from_list([torch.tensor([1, 2, 3]), bad]))


class TestPretrained:
    @pytest.fixture
    def saved(self, tmp_path: Path, scrambled: Make) -> tuple[Model, Path]:
        network = replace(NETWORK, order="released", prenorm="batch", norm="group")
        model = scrambled(
            Model(replace(CONFIG, head="class_token", mark_start=True, final_norm="layer", network=network))
        )
        model.save_pretrained(tmp_path / "saved")
        return model, tmp_path / "saved"

    def test_round_trip(self, saved: tuple[Model, Path]) -> None:
        model, folder = saved
        assert {"config.json", "model.safetensors", "manifest.json"} <= {p.name for p in folder.iterdir()}
        files.verify(folder, ["config.json", "model.safetensors"])
        loaded = Model.from_pretrained(folder)
        assert loaded.config == model.config and not loaded.training
        x = ids(LENGTHS)
        with torch.no_grad():
            assert torch.equal(loaded(x), model(x))
        assert all(torch.equal(loaded.state_dict()[k], v) for k, v in model.state_dict().items())

    @pytest.mark.parametrize("at", [0, 20, -1], ids=["size", "header", "weight"])
    def test_a_flipped_bit_is_refused(self, saved: tuple[Model, Path], at: int) -> None:
        path = saved[1] / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"model\.safetensors was changed or damaged") as error:
            Model.from_pretrained(saved[1])
        assert "\n" not in str(error.value)

    def test_a_changed_config_is_refused(self, saved: tuple[Model, Path]) -> None:
        """Otherwise the weights would silently be used in another function."""
        path = saved[1] / "config.json"
        path.write_text(path.read_text().replace('"order": "released"', '"order": "paper"'))
        with pytest.raises(ValueError, match=r"config\.json was changed or damaged"):
            Model.from_pretrained(saved[1])

    def test_a_pickle_is_refused_and_does_not_run(self, saved: tuple[Model, Path], tmp_path: Path) -> None:
        folder, touched = saved[1], tmp_path / "touched"

        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return os.mkdir, (str(touched),)

        (folder / "model.safetensors").write_bytes(pickle.dumps(Evil()))
        files.write_manifest(folder, ["model.safetensors"])
        with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
            Model.from_pretrained(folder)
        assert not touched.exists()
        pickle.loads((folder / "model.safetensors").read_bytes())
        assert touched.exists(), "the pickle must run code when it is loaded"

    def edit(self, folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        files.write_json(folder / "config.json", config)
        files.write_manifest(folder, ["config.json"])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: c.update(format=1), r"config\.json has format 1: this version of chordmixer reads format 2"),
            (lambda c: c.pop("format"), r"config\.json has format None"),
            (lambda c: c.pop("model"), r"config\.json has"),
            (lambda c: c.update(model=[]), r"config\.json: model.*not a table"),
            (lambda c: c["model"].pop("inputs"), r"config\.json: model.*inputs"),
            (
                lambda c: c["model"].update(inputz=3),
                r"config\.json: model\.inputz is not a setting: did you mean inputs",
            ),
            (lambda c: c["model"].update(head="tail"), r"config\.json: model\.head='tail' is not a choice"),
            (lambda c: c["model"]["network"].update(hidden="8"), r"model\.network\.hidden='8' is not of type int"),
            (lambda c: c["model"]["network"].update(hidden=9), r"model\.safetensors"),
            (lambda c: c["model"].update(head="average"), r"model\.safetensors"),
        ],
        ids=[
            "other-format",
            "no-format",
            "no-model",
            "model-list",
            "missing",
            "unknown",
            "choice",
            "type",
            "other-shape",
            "other-names",
        ],
    )
    def test_another_config_is_refused(
        self, saved: tuple[Model, Path], change: Callable[[dict[str, Any]], Any], message: str
    ) -> None:
        self.edit(saved[1], change)
        with pytest.raises(ValueError, match=message) as error:
            Model.from_pretrained(saved[1])
        assert "\n" not in str(error.value)

    def test_a_missing_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="nothing is neither a folder nor a repository that can be reached"):
            Model.from_pretrained(tmp_path / "nothing", local_files_only=True)

    def test_an_empty_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"config\.json does not exist"):
            Model.from_pretrained(tmp_path)


# --- The autoencoder ---


@pytest.mark.parametrize("encoder", ["chordmixer", "transformer"])
def test_a_decoder_reads_the_encoders_tokens(encoder: str) -> None:
    """The decoder is a second network, and does not change the output of the encoder."""
    plain = replace(CONFIG, head="tokens", final_norm="layer").with_encoder(encoder)
    torch.manual_seed(0)
    without = Model(plain).eval()
    torch.manual_seed(0)
    model = Model(replace(plain, decoder="network")).eval()
    x = ids(LENGTHS)
    torch.testing.assert_close(model.encode(x).values, without.encode(x).values)
    added = {name.split(".")[0] for name in set(model.state_dict()) - set(without.state_dict())}
    assert added == {"decoder", "decoder_norm"}
    batched, unbatched = model(x), [model(x.select([i])).values for i in range(4)]
    assert batched.lengths == tuple(LENGTHS) and batched.values.shape == (74, 3)
    torch.testing.assert_close(batched.values, torch.cat(unbatched), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(batched.values, model.head(model.encode(x)).values)


def test_a_decoder_needs_a_head_of_tokens() -> None:
    with pytest.raises(ValueError, match=r"decoder='network' is for answers to every token, and head='average'"):
        replace(CONFIG, decoder="network")


def test_a_name_that_no_disk_can_hold() -> None:
    with pytest.raises(ValueError, match=r"x{100} is neither a folder nor a repository that can be reached") as error:
        Model.from_pretrained("x" * 3000, local_files_only=True)
    assert len(str(error.value)) < 300


def test_a_config_that_asks_for_more_than_its_weights_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Model(CONFIG).save_pretrained(tmp_path)
    config = files.read_json(tmp_path / "config.json")
    config["model"]["network"] |= {"hidden": 1 << 20, "track_size": 1 << 16}
    files.write_json(tmp_path / "config.json", config)
    files.write_manifest(tmp_path, ["config.json"])
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda m: pytest.fail() if m.weight.is_cpu else None)
    with pytest.raises(ValueError, match=r"model\.safetensors does not fit its config\.json, first at"):
        Model.from_pretrained(tmp_path)


def test_bf16_on_a_cpu() -> None:
    """All parts of a network for files: float32 answers, near those in float32 and those of a sequence alone."""
    torch.manual_seed(0)
    network = ChordMixerConfig(max_length=64, track_size=8, hidden=32, prenorm="layer")
    stem, words = StemConfig(layers=2, taps=7), WordsConfig(lengths=(2, 3), bits=8)
    parts: dict[str, Any] = {"head": "mean_maximum_attention", "final_norm": "layer", "stem": stem, "words": words}
    model, x = Model(ModelConfig(5, 3, network=network, **parts)).eval(), ids([40, 64, 1, 2, 33])
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(x)
            unbatched = torch.cat([model(x.select([b])) for b in range(len(x))])
    assert rounded.dtype == torch.float32
    scale = exact.abs().max()
    assert 1e-6 < (rounded - exact).abs().max() / scale < 0.03
    assert (rounded - unbatched).abs().max() / scale < 0.03


@pytest.mark.parametrize("words", [WordsConfig(), WordsConfig(lengths=(2,), bits=4)], ids=["no words", "words"])
def test_a_head_reads_the_length(words: WordsConfig) -> None:
    """A linear map that reads the last feature alone gives its logarithm."""
    model = Model(replace(CONFIG, outputs=1, head="mean_maximum", length=True, words=words)).eval()
    head: Any = model.head
    torch.nn.init.zeros_(head.linear.weight)
    head.linear.weight.data[0, -1] = 1
    head.standard.eps = 0.0
    torch.testing.assert_close(model(ids([4, 1, 9]))[:, 0], torch.tensor([4.0, 1.0, 9.0]).log())
