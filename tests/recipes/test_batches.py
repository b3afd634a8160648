"""Batches and epochs chosen by the lengths of records."""

from __future__ import annotations

import pytest

from chordmixer.data.loading import TokenSampler
from chordmixer.recipes.batches import EVALUATIONS, PASSES, STEPS, TOKENS, training
from chordmixer.training.experiment import TrainingConfig

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
    assert config.precision == {"cpu": "auto", "cuda": "bf16"}[device]
    steps = steps_of(config, lengths)
    tokens = config.epochs * sum(lengths)
    assert steps >= 0.8 * STEPS or config.epochs == PASSES[1] or tokens > 0.8 * TOKENS or config.epochs == 3
    assert config.epochs <= 3 or tokens <= TOKENS
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
