"""`plan`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chordmixer.training import forecast

Command = Callable[..., tuple[int, str, str]]


def test_a_plan(chordmixer: Command, motifs: list[str]) -> None:
    code, said, errors = chordmixer("plan", *motifs, "--group", "header:gene", "--set", "training.epochs=7")
    assert (code, errors) == (0, "")
    for line in (
        "each file is a class: with, without",
        "  200 records read: 200 used, 0 rejected",
        "2 classes: with, without",
        "  split (grouped): ",
        "  chordmixer for up to 128 tokens: 7 blocks, layer norm",
        "  8 tracks x 8 = 64 channels, 64 hidden, ",
        "  7 epochs of ",
        "  together, about",
        " free: fits",
        "  about 1 s an epoch, ",
        "Next:  chordmixer train with the same files and options, and --out RUN",
    ):
        assert line in said, line
    assert "To need less memory" not in said


def test_without_the_measurement(chordmixer: Command, motifs: list[str]) -> None:
    code, said, _ = chordmixer("plan", *motifs, "--no-time")
    assert code == 0 and "an epoch" not in said


def test_where_memory_is_short(chordmixer: Command, motifs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "free_bytes", lambda device: 1_500_000)
    code, said, errors = chordmixer("plan", *motifs, "--no-time")
    assert (code, errors) == (0, "")
    assert "MB of 2 MB free: does not fit" in said and "records would not fit: with" in said
    assert "To need less memory, add one of these, here and to train\n  --set training.batch_tokens=" in said
    assert "--set model.network.reversible=true" in said and "--set model.network.track_size=4" in said
    assert ", still too much" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.fa"], "none.fa cannot be read (No such file or directory)"),
        (["{0}"], "no record has a label or a number to learn"),
        (["{0}", "{1}", "--set", "model.network.max_length=40"], "above model.network.max_length=40"),
        (["{0}", "{1}", "--set", "training.batch_tokens=40"], "above training.batch_tokens=40"),
        (["{0}", "{1}", "--set", "model.encoder=pointwise"], "encoder 'pointwise' has no count of its memory"),
        (["{0}", "{1}", "--ask", "sums"], "data.asked='sums' is not a choice"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_refusals_are_one_line(chordmixer: Command, motifs: list[str], arguments: list[str], message: str) -> None:
    code, _, errors = chordmixer("plan", *(a.format(*motifs) for a in arguments))
    assert (code, errors.count("\n")) == (2, 1) and message in errors
