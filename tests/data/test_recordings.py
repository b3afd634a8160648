from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading, read
from chordmixer.data.recordings import read_wave
from chordmixer.data.sources import source_of


def recording(samples: bytes, bits: int = 16, channels: int = 1, rate: int = 8000) -> bytes:
    """A recording as the standard library writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(bits // 8)
        writer.setframerate(rate)
        writer.writeframes(samples)
    return file.getvalue()


def chunks(*parts: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in parts)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def header(code: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16) -> tuple[bytes, bytes]:
    frame = channels * bits // 8
    return b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * frame, frame, bits)


HALVES = [0.0, 0.5, -0.5, -1.0]
TWO = np.array([0, 16384], "<i2").tobytes()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (recording(bytes([128, 192, 64, 0]), bits=8), HALVES),
        (recording(np.array([0, 1 << 14, -(1 << 14), -(1 << 15)], "<i2").tobytes()), HALVES),
        (recording(b"".join((n << 22).to_bytes(3, "little", signed=True) for n in (0, 1, -1, -2)), bits=24), HALVES),
        (recording(np.array([0, 1 << 30, -(1 << 30), -(1 << 31)], "<i4").tobytes(), bits=32), HALVES),
        (chunks(header(3, bits=32), (b"data", np.array(HALVES, "<f4").tobytes())), HALVES),
        (chunks(header(3, bits=64), (b"data", np.array(HALVES, "<f8").tobytes())), HALVES),
        (chunks((b"LIST", b"odd"), header(), (b"data", TWO), (b"LIST", b"behind")), HALVES[:2]),
        (
            chunks((b"fmt ", header(0xFFFE)[1] + struct.pack("<HHIH", 22, 16, 4, 1) + bytes(14)), (b"data", TWO)),
            HALVES[:2],
        ),
        (chunks(header(), (b"data", TWO)).replace(b"data\4\0\0\0", b"data\xff\xff\xff\xff"), HALVES[:2]),
        (recording(np.array([0, 16384, -16384, -32768], "<i2").tobytes(), channels=2), [HALVES[:2], HALVES[2:]]),
    ],
    ids=["8", "16", "24", "32", "float", "double", "other-chunks", "extensible", "streamed", "stereo"],
)
def test_samples_are_between_minus_one_and_one(data: bytes, expected: list[float]) -> None:
    samples, rate = read_wave(source_of(data, "a.wav"))
    assert (samples.dtype, samples.tolist(), rate) == (np.float32, expected, 8000)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"RIFF\0\0\0\0AVI LIST", r"^a\.wav is not a WAV file, though it begins like one: convert"),
        (recording(TWO)[:-1], r"^a\.wav claims 4 bytes of samples and holds 3: it is cut or damaged"),
        (recording(TWO)[:30], r"^a\.wav has a damaged header"),
        (recording(TWO)[:36], r"^a\.wav has no samples: it is cut or damaged"),
        (chunks((b"data", TWO), header()), r"^a\.wav has samples before their format: it is damaged"),
        (chunks(header(7, bits=8), (b"data", TWO)), r"^a\.wav has samples of format 7 with 8 bits: PCM of .* ffmpeg"),
        (chunks(header(channels=0), (b"data", TWO)), r"^a\.wav claims 0 channels and 8000 samples per second"),
        (chunks(header(), (b"data", b"odd")), r"^a\.wav claims 3 bytes of samples"),
    ],
)
def test_damaged_recordings(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_wave(source_of(data, "a.wav"))


def test_a_folder_of_recordings_and_their_rates(tmp_path: Path) -> None:
    for name, rate in (("dog/a.wav", 8000), ("dog/b.wav", 8000), ("cat/a.wav", 8000), ("more/c.wav", 16000)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(recording(TWO, rate=rate))
    account = Account()
    entries = list(read([tmp_path / "dog", tmp_path / "cat/a.wav"], Reading(), account))
    names = [(entry.id, entry.length, entry.rate) for entry in entries]
    assert names == [("a.wav", 2, 8000), ("b.wav", 2, 8000), ("a.wav", 2, 8000)]
    assert account.notes == {"recordings at 8,000 samples per second": 3}
    with pytest.raises(ValueError, match=r"more/c\.wav has 16,000 samples per second, and .*a\.wav 8,000: .* ffmpeg"):
        list(read([tmp_path], Reading(), Account()))


def test_a_file_that_is_named_like_one(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"ID3 music")
    with pytest.raises(ValueError, match=r"a\.wav does not begin like a \.wav file: use another copy, or rename it"):
        list(read([tmp_path / "a.wav"], Reading(), Account()))
