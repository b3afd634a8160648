"""Padding as real tokens, truncation and segments: each against a naive version, around three encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from chordmixer import ChordMixerConfig, Model, ModelConfig, Packed
from chordmixer.models.strategies import SEGMENT, STRATEGIES, TRUNCATED

Make = Callable[..., Any]
LENGTHS = [7, 30, 1, 12]
NETWORK = ChordMixerConfig(max_length=32, track_size=2, hidden=8)
CONFIG = ModelConfig(inputs=5, outputs=3, piece_length=10, network=NETWORK)
NOT_PACKED = [name for name in STRATEGIES if name != "packed"]
READOUTS = ["average", "class_token", "flat"]


def ids(lengths: list[int]) -> Packed:
    return Packed.from_lengths(torch.randint(5, (sum(lengths),)), lengths)


def config(strategy: Any, head: Any, encoder: str = "chordmixer") -> ModelConfig:
    return replace(CONFIG, strategy=strategy, head=head).with_encoder(encoder)


def pad_to(length: int, tokens: torch.Tensor) -> torch.Tensor:
    return torch.cat([tokens, tokens.new_zeros(length - len(tokens), tokens.shape[1])])


def naive(model: Model, x: Packed) -> torch.Tensor:
    """The definition, a sequence at a time."""

    def answer(tokens: torch.Tensor) -> torch.Tensor:
        y = model.encoder(model.head.prepare(Packed.from_list([tokens])))
        return model.head(y)[0]

    answers = []
    for tokens in model.embedding(x).to_list():
        if model.config.strategy == "batch_max":
            answers.append(answer(pad_to(max(x.lengths), tokens)))
        elif model.config.strategy == "overall_max":
            answers.append(answer(pad_to(32, tokens)))
        elif model.config.strategy == "truncate":
            answers.append(answer(pad_to(10, tokens[:10])))
        else:
            starts = range(0, len(tokens), 10)
            answers.append(torch.stack([answer(pad_to(10, tokens[start : start + 10])) for start in starts]).mean(0))
    return torch.stack(answers)


@pytest.mark.parametrize("encoder", ["chordmixer", "cosformer", "poolformer"])
@pytest.mark.parametrize("head", READOUTS)
@pytest.mark.parametrize("strategy", NOT_PACKED)
def test_as_its_definition_and_learns(strategy: str, head: str, encoder: str, scrambled: Make) -> None:
    model, x = scrambled(Model(config(strategy, head, encoder))).double(), ids(LENGTHS)
    answers, expected = model(x), naive(model, x)
    assert answers.shape == (4, 3)
    torch.testing.assert_close(answers.double(), expected, rtol=1e-6, atol=1e-6)
    answers.square().sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(bool(g.isfinite().all()) for g in gradients) and any(bool(g.ne(0).any()) for g in gradients)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_which_answers_change_with_the_neighbours(strategy: str, scrambled: Make) -> None:
    model, x = scrambled(Model(config(strategy, "average"))), ids(LENGTHS)
    with torch.no_grad():
        unbatched = torch.cat([model(x.select([i])) for i in range(len(x))])
        unchanged = torch.isclose(model(x), unbatched, rtol=1e-5, atol=1e-5).all(1).tolist()
    assert unchanged == ([False, True, False, False] if strategy == "batch_max" else [True] * 4)


@pytest.mark.parametrize("strategy", ["batch_max", "overall_max"])
def test_padding_is_read(strategy: str, scrambled: Make) -> None:
    """A study of padding needs models that see it."""
    model, packed, x = scrambled(Model(config(strategy, "average"))), Model(config("packed", "average")), ids([7, 11])
    packed.load_state_dict(model.state_dict())
    assert not torch.allclose(model(x)[0], packed.eval()(x)[0], atol=1e-4)


def test_truncation_ignores_tokens_behind_the_cut(scrambled: Make) -> None:
    model, x = scrambled(Model(config("truncate", "flat"))), ids([30])
    for position, is_read in ((9, True), (10, False)):
        changed = x.values.clone()
        changed[position] = (changed[position] + 1) % 5
        assert torch.equal(model(x), model(x.with_values(changed))) is not is_read


def test_sizes_follow_the_pieces() -> None:
    """An encoder is built for what it reads; the paper's lengths are the defaults, or the longest sequence."""
    assert Model(config("truncate", "class_token")).encoder.config.max_length == 11
    assert Model(config("segment", "flat")).head.longest == 10
    assert Model(config("overall_max", "flat")).head.longest == 32
    for name, paper in (("truncate", TRUNCATED), ("segment", SEGMENT)):
        assert STRATEGIES[name](100_000).longest == paper and STRATEGIES[name](64).longest == 64
    assert (TRUNCATED, SEGMENT) == (16_000, 2_000)


@pytest.mark.parametrize("strategy", ["packed", "batch_max", "overall_max"])
def test_too_long_a_sequence_is_named(strategy: str) -> None:
    with pytest.raises(ValueError, match="has 33 tokens, above this network's max_length=32: build it with"):
        Model(config(strategy, "average"))(ids([7, 33]))


def test_pairs_may_be_padded() -> None:
    assert Model(config("overall_max", "pair"))(ids(LENGTHS)).shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "segment", "piece_length": 0}, "^piece_length=0 is too small: give 1 or more$"),
        (
            {"strategy": "truncate", "head": "tokens"},
            "^head='tokens' does not go with strategy='truncate': it reads tokens at their places, where others "
            "would stand; set strategy=packed, or another head$",
        ),
        (
            {"strategy": "batch_max", "head": "variant"},
            "^head='variant' does not go with strategy='batch_max': it reads tokens at their places",
        ),
        (
            {"strategy": "segment", "head": "pair"},
            "^head='pair' does not go with strategy='segment': it reads two sequences, of which there would be more",
        ),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


@pytest.mark.parametrize("strategy", NOT_PACKED)
def test_only_packed_sequences_have_vectors(strategy: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^strategy='{strategy}' gives the encoder other tokens .*; train with stra"
    ):
        Model(config(strategy, "average")).encode(ids(LENGTHS))


def test_a_saved_model_keeps_its_strategy(tmp_path: Any) -> None:
    model, x = Model(config("segment", "flat")).eval(), ids(LENGTHS)
    model.save_pretrained(tmp_path)
    loaded = Model.from_pretrained(tmp_path)
    assert loaded.config == model.config
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
