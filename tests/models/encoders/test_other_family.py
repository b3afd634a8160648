"""What every encoder of the other families promises, at tiny sizes: convolutions, recurrences, state spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chordmixer import Packed
from chordmixer.models.encoders.cnn import Cnn
from chordmixer.models.encoders.enformer import Enformer
from chordmixer.models.encoders.hyena import Hyena
from chordmixer.models.encoders.lstm import Lstm
from chordmixer.models.encoders.mamba2 import Mamba2
from chordmixer.models.encoders.poolformer import Poolformer
from chordmixer.models.encoders.s4d import S4d
from chordmixer.models.encoders.tcn import Tcn
from chordmixer.models.encoders.tree_lstm import TreeLstm

Make = Callable[..., Any]

LENGTHS = [1, 2, 3, 16, 17, 64, 65, 200]
SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "cnn": (Cnn, {"layers": 3, "kernel": 9}),
    "tcn": (Tcn, {}),
    "poolformer": (Poolformer, {"layers": 3, "pool": 9, "layer_scale": 0.1}),
    "lstm": (Lstm, {"layers": 2}),
    "lstm-both": (Lstm, {"layers": 1, "direction": "both"}),
    "tree_lstm": (TreeLstm, {"layers": 1}),
    "s4d": (S4d, {"layers": 2, "modes": 4}),
    "hyena": (Hyena, {"layers": 2, "filter_width": 8, "bands": 4, "frequency": 1.0}),
    "mamba2": (Mamba2, {"layers": 2, "heads": 2, "state": 4, "chunk": 8}),
    "mamba2-both": (Mamba2, {"layers": 2, "heads": 2, "state": 4, "chunk": 8, "direction": "both"}),
    "enformer": (Enformer, {"layers": 1, "heads": 2, "halvings": 2}),
}
GLOBAL, CAUSAL = {"lstm-both", "tree_lstm", "mamba2-both", "enformer"}, {"tcn", "lstm", "s4d", "hyena", "mamba2"}
each_encoder = pytest.mark.parametrize("name", SMALL)


def small(name: str, **settings: Any) -> Any:
    cls, sizes = SMALL[name]
    return cls(cls.Config(**({"max_length": 200, "width": 8} | sizes | settings)))


@each_encoder
class TestPromise:
    def test_alone_in_any_batch_in_any_order(
        self, name: str, scrambled: Make, random_batch: Make, noise_in_padding: Callable[[], None]
    ) -> None:
        encoder = scrambled(small(name))
        x = random_batch(LENGTHS, encoder.width)
        order = torch.randperm(len(LENGTHS)).tolist()
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
        with torch.no_grad():
            unbatched = [encoder(Packed.from_list([s])).values for s in x.to_list()]
            torch.testing.assert_close(encoder(x).to_list(), unbatched, **tolerance)
            torch.testing.assert_close(encoder(x.select(order)).to_list(), [unbatched[i] for i in order], **tolerance)
            noise_in_padding()
            torch.testing.assert_close(encoder(x).to_list(), unbatched, **tolerance)

    def test_large_neighbours_have_no_effect(self, name: str, scrambled: Make, random_batch: Make) -> None:
        encoder = scrambled(small(name))
        x = random_batch([40, 33, 40], encoder.width)
        scaled = x.with_values(torch.cat([1e4 * x.values[:40], x.values[40:73], -1e4 * x.values[73:]]))
        with torch.no_grad():
            expected, actual = encoder(x).to_list()[1], encoder(scaled).to_list()[1]
        torch.testing.assert_close(expected, actual, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("length", [1, 2, 3, 200])
    def test_forward_and_backward_are_finite(self, name: str, length: int, random_batch: Make) -> None:
        encoder = small(name, dropout=0.1)
        x = random_batch([length, 5], encoder.width)
        entry = x.values.clone().requires_grad_()
        y = encoder(x.with_values(entry))
        assert y.lengths == x.lengths and y.values.shape == x.values.shape and y.values.isfinite().all()
        y.values.square().sum().backward()
        for gradient in (entry.grad, *(p.grad for p in encoder.parameters())):
            assert gradient is not None and gradient.isfinite().all()
        assert entry.grad.any(dim=1).all()

    def test_receptive_field(self, name: str) -> None:
        """The tokens that affect token 100 of 200: all, all up to it, or those in a window around it."""
        encoder = small(name).double().eval()
        entry = torch.randn(200, 8, dtype=torch.float64, requires_grad=True)
        encoder(Packed.from_lengths(entry, [200])).values[100].sum().backward()
        rounding = 1e-13 if name in ("s4d", "hyena") else 0.0  # of the Fourier transform
        visible = (entry.grad.abs().amax(dim=1) > rounding).nonzero().flatten().tolist()
        if name in GLOBAL:
            assert visible == list(range(200))
        elif name in CAUSAL:
            assert visible == list(range(101))
        else:
            reach = encoder.config.receptive_field // 2
            assert reach == 12 and visible == list(range(100 - reach, 100 + reach + 1))

    def test_too_long_sequences_are_named(self, name: str, random_batch: Make) -> None:
        message = "sequence 1 of the batch has 201 tokens, above this network's max_length=200: build it with"
        with pytest.raises(ValueError, match=message):
            small(name)(random_batch([3, 201], 8))
        with pytest.raises(ValueError, match=r"tokens of shape \(6,\) do not fit an encoder of width 8"):
            small(name)(random_batch([3], 6))

    def test_refuses_settings(self, name: str) -> None:
        with pytest.raises(ValueError, match="layers=0 is too small"):
            small(name, layers=0)
        with pytest.raises(ValueError, match=r"dropout=1\.0 is not a share"):
            small(name, dropout=1.0)

    def test_same_answers_from_saved_weights(self, name: str, random_batch: Make) -> None:
        encoder, loaded = small(name).eval(), small(name).eval()
        x = random_batch([7, 200], 8)
        assert not torch.equal(encoder(x).values, loaded(x).values)
        loaded.load_state_dict(encoder.state_dict())
        assert torch.equal(encoder(x).values, loaded(x).values)

    def test_drops_out_in_training_only(self, name: str, random_batch: Make) -> None:
        encoder = small(name, dropout=0.5, layers=2)
        x = random_batch([30], 8)
        assert not torch.equal(encoder(x).values, encoder(x).values)
        encoder.eval()
        assert torch.equal(encoder(x).values, encoder(x).values)

    def test_under_autocast(self, name: str, random_batch: Make) -> None:
        encoder = small(name)
        x = random_batch([7, 200], 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = encoder(x).values
        y.square().sum().backward()
        assert y.dtype == torch.float32 and y.isfinite().all()
        assert all(p.grad.isfinite().all() for p in encoder.parameters())
        torch.testing.assert_close(y, encoder(x).values, rtol=0.1, atol=0.1 * y.std().item())

    def test_learns_to_remember_the_first_token(self, name: str) -> None:
        """The last token must predict which of two kinds the first is; the others are of two other kinds."""
        embedding, encoder, head = nn.Embedding(4, 16), small(name, width=16, max_length=10), nn.Linear(16, 2)
        parameters = [*embedding.parameters(), *encoder.parameters(), *head.parameters()]
        optimiser = torch.optim.Adam(parameters, lr=1e-2)

        def batch(size: int) -> tuple[Packed, torch.Tensor]:
            lengths = torch.randint(4, 11, (size,)).tolist()
            tokens = Packed.from_lengths(torch.randint(2, 4, (sum(lengths),)), lengths)
            first = torch.randint(2, (size,))
            return tokens.with_values(tokens.values.index_copy(0, tokens.offsets[:-1], first)), first

        def answers(tokens: Packed) -> torch.Tensor:
            y = encoder(tokens.with_values(embedding(tokens.values)))
            return head(y.values[y.offsets[1:] - 1])

        def accuracy() -> float:
            encoder.eval()
            with torch.no_grad(), torch.random.fork_rng():
                tokens, first = batch(100)
                share = float((answers(tokens).argmax(1) == first).float().mean())
            encoder.train()
            return share

        for step in range(1, 121):
            tokens, first = batch(16)
            optimiser.zero_grad()
            F.cross_entropy(answers(tokens), first).backward()
            optimiser.step()
            if step % 10 == 0 and accuracy() > 0.95:
                break
        assert accuracy() > 0.9
