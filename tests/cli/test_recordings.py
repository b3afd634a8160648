"""Recordings from `train` to `predict`: a run keeps their sampling rate."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np

Command = Callable[..., tuple[int, str, str]]
SETTINGS = ("training.steps=2", "training.epochs=2", "model.network.track_size=4", "model.network.hidden=8")


def write(path: Path, frequency: float, rate: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = 8000 * np.sin(2 * np.pi * frequency * np.arange(rate // 50) / rate)
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.astype("<i2").tobytes())
    return path


def test_the_rate_is_that_of_the_training(chordmixer: Command, tmp_path: Path) -> None:
    for label, frequency in (("low", 300), ("high", 900)):
        for i in range(12):
            write(tmp_path / "voices" / label / f"{i}.wav", frequency + i, rate=8000)
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    run = tmp_path / "run"
    code, _, errors = chordmixer("train", tmp_path / "voices", "--no-baselines", "--out", run, *settings)
    assert code == 0, errors
    same, other = (write(tmp_path / f"{rate}.wav", 300, rate) for rate in (8000, 16000))
    code, output, _ = chordmixer("predict", run, same)
    assert code == 0 and output.count("\n") == 2
    code, output, errors = chordmixer("predict", run, same, other)
    assert code == 2 and "16000.wav has 16,000 samples per second, and " in errors
    code, output, errors = chordmixer("predict", run, other)
    assert code == 2 and errors.endswith(
        "16,000 samples per second, and this model was trained on recordings with 8,000: resample it, as by ffmpeg "
        "-i IN.wav -ar 8000 OUT.wav\n"
    )
    np.save(tmp_path / "series.npy", np.zeros(100, np.float32))
    assert chordmixer("predict", run, tmp_path / "series.npy")[0] == 0, "the rate of an array is not known"
