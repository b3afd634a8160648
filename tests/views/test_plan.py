"""The lines of a plan."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chordmixer.data.entries import Account
from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.tasks.masking import Masking, MaskingConfig, TokenRanges
from chordmixer.training import Experiment, TrainingConfig
from chordmixer.training.forecast import Forecast
from chordmixer.views import plan

FORECAST = Forecast(
    device="cpu",
    weights=12_345,
    trainable=12_345,
    epochs=10,
    batches=100,
    steps=500,
    budget=4_000,
    records=(7, 3),
    lengths=(900, 100),
    longest="chr7",
    memory={"hidden layers": 3_000_000_000, "weights": 1_000_000, "inputs": 2_000_000},
    free=8_000_000_000,
    room=123_456,
    too_long=(),
    seconds=100.0,
    validation=50.0,
    test=20.0,
    retained=2_000_000_000,
    resident=500_000_000,
    threads="threads: 1 of 2, measured 2.1 times as fast as 2",
)
NETWORK = ChordMixerConfig(max_length=1_000, prenorm="layer", reversible=True)
EXPERIMENT = Experiment("files", None, ModelConfig(6, 2, network=NETWORK), TrainingConfig(accumulate=2))


@pytest.fixture
def task() -> Any:
    return SimpleNamespace(
        account=Account(read=12, used=12),
        store=SimpleNamespace(lengths=np.array([900, 100] * 6), tokenizer=SimpleNamespace(name="dna")),
        question=SimpleNamespace(records=np.arange(12), kind="classes", names=list("abcdefg")),
        split=SimpleNamespace(
            method="random", parts={"training": range(8), "validation": range(2), "test": range(2)}
        ),
    )


def test_everything_is_said(task: Any) -> None:
    assert [*plan.lines(EXPERIMENT, task, FORECAST, {})] == [
        "Data",
        "  12 records read: 12 used, 0 rejected",
        "  6,000 tokens (dna), 100 to 900 a record; 7 classes: a, b, c, d, e and 2 more",
        "  split (random): 8 for training, 2 for validation, 2 for test",
        "Model",
        "  chordmixer for up to 1,000 tokens: 10 blocks, layer norm, reversible",
        "  11 tracks x 16 = 176 channels, 128 hidden, 12,345 weights",
        "Run",
        "  10 epochs of 100 batches, 2 to a step: 500 steps at most",
        "  a batch has up to 64 records and 4,000 tokens",
        "  the largest: 2 records, 1,000 tokens, of which chr7 has 900",
        "Memory of a training step over the largest batch, on cpu",
        "  hidden layers                   3.0 GB",
        "  the rest                          3 MB",
        "  together, about                 3.0 GB of 8.0 GB free: fits",
        "  freed, kept by the heap         2.0 GB",
        "  Python, torch and the data      500 MB",
        "  the whole process, about        5.5 GB at its peak, without baselines",
        "  a single record may have up to about 120,000 tokens",
        "Time, from a few steps just measured",
        "  threads: 1 of 2, measured 2.1 times as fast as 2",
        "  about 2 min an epoch with validation, 18 min for 10 epochs and the test",
        "  baselines are not counted; the run ends earlier if it stops getting better",
    ]


def test_a_frozen_encoder(task: Any) -> None:
    probing = replace(EXPERIMENT, training=TrainingConfig(start="PRE", freeze=True))
    lines = [*plan.lines(probing, task, replace(FORECAST, trainable=354), {})]
    assert lines[lines.index("Model") + 3 : lines.index("Run")] == [
        "  starting from the weights of PRE, with a new head",
        "  embedding and encoder are frozen: only the head learns",
        "  354 weights to learn",
    ]


@pytest.mark.parametrize("segmented", [True, False])
def test_masked_tokens(segmented: bool) -> None:
    task = Masking.__new__(Masking)
    task.store = SimpleNamespace(
        account=Account(read=5, used=5),
        lengths=np.array([900, 700, 100, 80, 60]),
        tokenizer=SimpleNamespace(name="dna"),
    )
    task.config, task.method, task.segmented = MaskingConfig(share=0.15), "random", segmented
    parts = {"training": [0, 1], "validation": [3], "test": [4]}
    task.ranges = {part: TokenRanges(np.array(ids), np.array(ids), np.array(ids)) for part, ids in parts.items()}
    task._records, task.max_length = {part: ids * 7 for part, ids in parts.items()}, 300
    model = ModelConfig(6, 5, head="tokens", decoder="network", network=NETWORK)
    lines = [*plan.lines(replace(EXPERIMENT, task="masking", model=model), task, FORECAST, {})]
    assert "  half of them are the decoder's, a network with the same settings" in lines
    data_lines = [line for line in lines[: lines.index("Model")] if "records" not in line]
    segment_lines = ["  in segments of 64 to 300 tokens:", "  14 for training, 7 for validation, 7 for test"]
    assert data_lines == [
        "Data",
        "  1,740 tokens (dna), 60 to 900 a record; 15 % masked",
        "  split (random): 2 for training, 1 for validation, 1 for test",
        *(segment_lines if segmented else []),
    ]
    assert max(map(len, lines)) <= 80


def test_a_long_run_of_a_lone_record(task: Any) -> None:
    task.question.kind, task.question.names = "number", []
    lines = [
        *plan.lines(
            EXPERIMENT, task, replace(FORECAST, lengths=(900,), seconds=1_200.0, validation=0.0, batches=1), {}
        )
    ]
    assert (
        "  the largest: chr7 alone, 900 tokens" in lines
        and "  10 epochs of 1 batch, 2 to a step: 500 steps at most" in lines
    )
    assert "  less, if it need not be as good: --set training.epochs=3, about 60 min" in lines
    assert lines[2].endswith("a record; a number to learn")


def test_cures_where_memory_is_short(task: Any) -> None:
    short = replace(FORECAST, free=1_000_000, too_long=tuple("abcdef"))
    lines = [
        *plan.lines(
            EXPERIMENT, task, short, {"training.batch_tokens=900": replace(short, memory={"inputs": 5}, retained=0)}
        )
    ]
    assert "  6 records would not fit: a, b, c, d, e and 1 more" in lines
    assert lines[-2:] == [
        "To need less memory, add one of these, here and to the run",
        "  --set training.batch_tokens=900             0 MB",
    ]
    assert "  together, about                 3.0 GB of 1 MB free: does not fit" in lines


def test_when_memory_is_short() -> None:
    assert not plan.near(FORECAST)
    assert plan.near(replace(FORECAST, free=6_000_000_000)), "memory that the heap keeps must count"
    assert plan.near(replace(FORECAST, free=3_500_000_000)) and plan.near(replace(FORECAST, too_long=("a",)))
