"""Recordings in WAV files: PCM or floating point, one channel or several."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from chordmixer.data.sources import Source

RIFF = b"RIFF"
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
"""Codes of formats; a file with `EXTENSIBLE` has the code of its format further behind."""
STREAMED = (0, 0xFFFFFFFF)
"""Sizes of samples that programs write into a pipe, where they cannot know the size."""


class WaveFormat(NamedTuple):
    """The `fmt ` chunk of a WAV file."""

    code: int
    channels: int
    rate: int
    """Samples per second."""
    bits: int
    """Bits per sample of one channel."""


def read_wave(source: Source) -> tuple[np.ndarray, int]:
    """The samples of a WAV file between -1 and 1, of shape (N,) or (N, channels), and the samples per second."""
    data = source.stream.read(source.limit + 1)
    if len(data) < 12 or data[8:12] != b"WAVE":
        raise ValueError(f"{source.name} is not a WAV file, though it begins like one: convert it to WAV")
    wave, start = None, 12
    while start + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, start)
        start += 8
        if name == b"fmt ":
            wave = _format(data[start : start + size], source.name)
        if name == b"data":
            return _samples(data, start, size, wave, source.name), wave.rate  # type: ignore[union-attr]  # checked there
        start += size + size % 2
    raise ValueError(f"{source.name} has no samples: it is cut or damaged; use another copy")


def _format(chunk: bytes, name: str) -> WaveFormat:
    if len(chunk) < 16:
        raise ValueError(f"{name} has a damaged header: use another copy")
    code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if code == EXTENSIBLE and len(chunk) >= 26:
        (code,) = struct.unpack_from("<H", chunk, 24)
    wave = WaveFormat(code, channels, rate, bits)
    if (code, bits) not in ((PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)):
        raise ValueError(
            f"{name} has samples of format {code} with {bits} bits: PCM of 8 to 32 bits and floating point are read; "
            "convert it, as by ffmpeg -i IN.wav -c:a pcm_s16le OUT.wav"
        )
    if not channels or not rate:
        raise ValueError(f"{name} claims {channels} channels and {rate} samples per second: use another copy")
    return wave


def _samples(data: bytes, start: int, size: int, wave: WaveFormat | None, name: str) -> np.ndarray:
    if wave is None:
        raise ValueError(f"{name} has samples before their format: it is damaged; use another copy")
    frame = wave.channels * wave.bits // 8
    if size in STREAMED:
        size = (len(data) - start) // frame * frame
    if start + size > len(data) or size % frame:
        raise ValueError(
            f"{name} claims {size:,} bytes of samples and holds {len(data) - start:,}: it is cut or damaged; use "
            "another copy"
        )
    samples = _as_float(data[start : start + size], wave)
    return samples.reshape(-1, wave.channels) if wave.channels > 1 else samples


def _as_float(data: bytes, wave: WaveFormat) -> np.ndarray:
    if wave.code == FLOAT:
        return np.frombuffer(data, f"<f{wave.bits // 8}").astype(np.float32)
    if wave.bits == 8:  # the only size without a sign
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if wave.bits == 24:  # the upper bytes of 32 bits
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    return (np.frombuffer(data, f"<i{wave.bits // 8}") / 2.0 ** (wave.bits - 1)).astype(np.float32)
