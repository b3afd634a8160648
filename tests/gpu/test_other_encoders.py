"""Every encoder on a GPU: the promise to neighbours, and finite gradients in bfloat16. Run with `make test-gpu`."""

from __future__ import annotations

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.encoders import ENCODERS, build, encoder_class
from chordmixer.models.encoders.lstm import Lstm, LstmConfig

pytestmark = pytest.mark.gpu
LENGTHS = (1, 2, 700, 3_000, 64, 2_999)


def made(name: str) -> tuple[torch.nn.Module, Packed]:
    torch.manual_seed(0)
    encoder = build(name, encoder_class(name).Config(max_length=3_000)).cuda()
    width = int(encoder.width)  # type: ignore[arg-type]
    return encoder, Packed.from_lengths(torch.randn(sum(LENGTHS), width, device="cuda"), LENGTHS)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_sequence_is_the_same_alone_and_in_a_batch(name: str) -> None:
    encoder, x = made(name)
    with torch.inference_mode():
        together = encoder.eval()(x).to_list()
        for number, own in enumerate(together):
            alone = encoder(x.select([number])).values
            torch.testing.assert_close(own, alone, rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("name", ENCODERS)
def test_gradients_are_finite_in_bfloat16(name: str) -> None:
    """Of the tokens, and of the weights: one encoder has none."""
    encoder, x = made(name)
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
    """Where sequences move one by one and few queries meet many keys, which short ones never do; in any order."""
    torch.manual_seed(0)
    lengths = (300, 40_000, 20_001)
    encoder = build(name, encoder_class(name).Config(max_length=40_000)).eval()
    x = Packed.from_lengths(torch.randn(sum(lengths), int(encoder.width)), lengths)  # type: ignore[arg-type]
    turned = x.select([1, 2, 0]).to("cuda")
    with torch.inference_mode():
        expected = encoder(x.select([0])).values
        encoder.cuda()
        found, other = encoder(x.to("cuda")).to_list(), encoder(turned).to_list()
        alone = encoder(x.select([2]).to("cuda")).values
    torch.testing.assert_close(found[0].cpu(), expected, rtol=1e-3, atol=1e-3)
    for mine, same in ((found[2], alone), (found[2], other[1]), (found[1], other[0])):
        far = (mine - same).abs()
        assert float((far > 1e-3).float().mean()) < (1e-3 if name == "reformer" else 1e-7), name


def test_an_lstm_reads_on_where_cudnn_ends() -> None:
    torch.manual_seed(0)
    encoder = Lstm(LstmConfig(max_length=140_000, width=8, layers=1))
    x = Packed.from_lengths(torch.randn(140_100, 8), [100, 140_000])
    with torch.inference_mode():
        expected = encoder(x).values
        torch.testing.assert_close(encoder.cuda()(x.to("cuda")).values.cpu(), expected, rtol=1e-4, atol=1e-4)
    both = Lstm(LstmConfig(max_length=140_000, width=8, layers=1, direction="both")).cuda()
    with pytest.raises(
        ValueError, match=r"^a sequence of 140,000 tokens is above the 65,535 that cuDNN reads from both"
    ):
        both(x.to("cuda"))
