"""Exported networks, on other lengths than those of the example."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chordmixer import ChordMixer, ChordMixerConfig, Model, ModelConfig, Packed
from chordmixer.models.exporting import export

LENGTHS = ([64], [1], [2, 2, 2], [1, 64, 33, 32, 31, 3, 2, 17])
Make = Callable[..., Any]


def letters(lengths: list[int]) -> Packed:
    return Packed.from_list([torch.randint(5, (n,)) for n in lengths])


@pytest.mark.parametrize(
    "settings",
    [{}, {"order": "released", "prenorm": "layer", "norm": "group"}, {"prenorm": "batch", "reversible": True}],
    ids=str,
)
def test_an_encoder_on_new_lengths(settings: dict[str, Any], scrambled: Make, random_batch: Make) -> None:
    encoder = scrambled(ChordMixer(ChordMixerConfig(max_length=64, track_size=2, hidden=8, **settings)))
    program = export(encoder, random_batch([5, 9], encoder.width)).module()
    for lengths in LENGTHS:
        x = random_batch(lengths, encoder.width)
        with torch.no_grad():
            torch.testing.assert_close(program(x.values, x.offsets), encoder(x).values, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch itself
@pytest.mark.parametrize("head", ["average", "maximum"])
def test_a_whole_model_in_onnxruntime(head: Any, tmp_path: Path) -> None:
    """The program also runs in torch, except on a single sequence."""
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'chordmixer[onnx]'")
    runtime = pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed: pip install 'chordmixer[onnx]'"
    )
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=8, prenorm="layer")
    model = Model(ModelConfig(inputs=5, outputs=3, head=head, network=network)).eval()
    program = export(model, letters([5, 9]))
    torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for lengths in LENGTHS:
        x = letters(lengths)
        with torch.no_grad():
            expected = model(x)
        (output,) = session.run(None, {"values": x.values.numpy(), "offsets": x.offsets.numpy()})
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-5, atol=1e-5)
        if len(lengths) > 1:
            torch.testing.assert_close(program.module()(x.values, x.offsets), expected, rtol=1e-5, atol=1e-5)


def test_errors() -> None:
    encoder = ChordMixer(ChordMixerConfig(max_length=8, track_size=2, hidden=8))
    x = Packed.from_lengths(torch.randn(5, encoder.width), [2, 3])
    with pytest.raises(ValueError, match=r"in training mode cannot be exported: .* call .eval\(\) first"):
        export(encoder, x)
    with pytest.raises(
        ValueError, match="an example of 1 sequence makes a program for one sequence: give two or more"
    ):
        export(encoder.eval(), x.select([0]))
