"""Every encoder on a GPU: independence of sequences, and finite gradients in bfloat16. Run with `make test-gpu`."""

from __future__ import annotations

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.encoders import ENCODERS, build, encoder_class
from chordmixer.models.encoders.lstm import Lstm, LstmConfig

pytestmark = pytest.mark.gpu
LENGTHS = (1, 2, 700, 3_000, 64, 2_999)


def encoder_and_input(name: str) -> tuple[torch.nn.Module, Packed]:
    torch.manual_seed(0)
    encoder = build(name, encoder_class(name).Config(max_length=3_000)).cuda()
    width = int(encoder.width)  # type: ignore[arg-type]
    return encoder, Packed.from_lengths(torch.randn(sum(LENGTHS), width, device="cuda"), LENGTHS)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_sequence_is_the_same_alone_and_in_a_batch(name: str) -> None:
    encoder, x = encoder_and_input(name)
    with torch.inference_mode():
        batched = encoder.eval()(x).to_list()
        for number, output in enumerate(batched):
            single = encoder(x.select([number])).values
            torch.testing.assert_close(output, single, rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("name", ENCODERS)
def test_gradients_are_finite_in_bfloat16(name: str) -> None:
    """Gradients of the tokens and of the weights; one encoder has no weights."""
    encoder, x = encoder_and_input(name)
    x.values.requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        loss = encoder.train()(x).values.float().square().mean()
    loss.backward()
    assert torch.isfinite(loss) and x.values.grad is not None
    gradients = [x.values.grad, *(p.grad for p in encoder.parameters() if p.grad is not None)]
    assert all(bool(torch.isfinite(g).all()) for g in gradients)
    assert len(gradients) > 1 or not [*encoder.parameters()]


@pytest.mark.parametrize("name", sorted({*ENCODERS} - {"lstm"}))
def test_long_sequences_are_as_on_a_cpu(name: str) -> None:
    """Long sequences move one by one, and few queries meet many keys, which never happens to short ones."""
    torch.manual_seed(0)
    lengths = (300, 40_000, 20_001)
    encoder = build(name, encoder_class(name).Config(max_length=40_000)).eval()
    x = Packed.from_lengths(torch.randn(sum(lengths), int(encoder.width)), lengths)  # type: ignore[arg-type]
    shuffled = x.select([1, 2, 0]).to("cuda")
    with torch.inference_mode():
        expected = encoder(x.select([0])).values
        encoder.cuda()
        outputs, moved = encoder(x.to("cuda")).to_list(), encoder(shuffled).to_list()
        single = encoder(x.select([2]).to("cuda")).values
    torch.testing.assert_close(outputs[0].cpu(), expected, rtol=1e-3, atol=1e-3)
    for first, second in ((outputs[2], single), (outputs[2], moved[1]), (outputs[1], moved[0])):
        difference = (first - second).abs()
        assert float((difference > 1e-3).float().mean()) < (1e-3 if name == "reformer" else 1e-7), name


def test_an_lstm_reads_on_where_cudnn_ends() -> None:
    torch.manual_seed(0)
    encoder = Lstm(LstmConfig(max_length=140_000, width=8, layers=1))
    x = Packed.from_lengths(torch.randn(140_100, 8), [100, 140_000])
    with torch.inference_mode():
        expected = encoder(x).values
        torch.testing.assert_close(encoder.cuda()(x.to("cuda")).values.cpu(), expected, rtol=1e-4, atol=1e-4)
    bidirectional = Lstm(LstmConfig(max_length=140_000, width=8, layers=1, direction="both")).cuda()
    with pytest.raises(
        ValueError, match=r"^a sequence of 140,000 tokens is above the 65,535 that cuDNN reads from both"
    ):
        bidirectional(x.to("cuda"))
