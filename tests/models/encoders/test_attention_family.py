"""What every encoder of the attention family promises, at tiny sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chordmixer import Packed
from chordmixer.models.encoders.cosformer import Cosformer
from chordmixer.models.encoders.linformer import Linformer
from chordmixer.models.encoders.longformer import Longformer
from chordmixer.models.encoders.luna import Luna
from chordmixer.models.encoders.nystromformer import Nystromformer
from chordmixer.models.encoders.performer import Performer
from chordmixer.models.encoders.reformer import Reformer
from chordmixer.models.encoders.transformer import Transformer

Make = Callable[..., Any]

LENGTHS = [1, 2, 3, 16, 17, 23, 50, 60]
SMALL = {
    Transformer: {},
    Linformer: {"rank": 5},
    Reformer: {"chunk": 4, "hashes": 2, "buckets": 8},
    Nystromformer: {"landmarks": 6},
    Luna: {"rows": 3},
    Longformer: {"window": 4},
    Cosformer: {},
    Performer: {"features": 12},
}
each_encoder = pytest.mark.parametrize("cls", SMALL, ids=lambda cls: cls.__name__.lower())


def small(cls: Any, **settings: Any) -> Any:
    sizes = {"max_length": 60, "width": 8, "layers": 2, "heads": 2}
    return cls(cls.Config(**(sizes | SMALL[cls] | settings)))


@each_encoder
class TestPromise:
    def test_alone_in_any_batch_in_any_order(
        self, cls: Any, scrambled: Make, random_batch: Make, noise_in_padding: Callable[[], None]
    ) -> None:
        encoder = scrambled(small(cls))
        x = random_batch(LENGTHS, encoder.width)
        order = torch.randperm(len(LENGTHS)).tolist()
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
        with torch.no_grad():
            unbatched = [encoder(Packed.from_list([s])).values for s in x.to_list()]
            torch.testing.assert_close(encoder(x).to_list(), unbatched, **tolerance)
            torch.testing.assert_close(encoder(x.select(order)).to_list(), [unbatched[i] for i in order], **tolerance)
            noise_in_padding()
            torch.testing.assert_close(encoder(x).to_list(), unbatched, **tolerance)

    @pytest.mark.parametrize("length", [1, 2, 3, 60])
    def test_forward_and_backward_are_finite(self, cls: Any, length: int, random_batch: Make) -> None:
        encoder = small(cls, dropout=0.1)
        x = random_batch([length, 5], encoder.width)
        entry = x.values.clone().requires_grad_()
        y = encoder(x.with_values(entry))
        assert y.lengths == x.lengths and y.values.shape == x.values.shape and y.values.isfinite().all()
        y.values.square().sum().backward()
        for gradient in (entry.grad, *(p.grad for p in encoder.parameters())):
            assert gradient is not None and gradient.isfinite().all()
        assert entry.grad.any(dim=1).all()

    def test_too_long_sequences_are_named(self, cls: Any, random_batch: Make) -> None:
        message = "sequence 1 of the batch has 61 tokens, above this network's max_length=60: build it with"
        with pytest.raises(ValueError, match=message):
            small(cls)(random_batch([3, 61], 8))

    def test_refuses_settings(self, cls: Any) -> None:
        with pytest.raises(ValueError, match="heads=3 do not divide width=8"):
            small(cls, heads=3)
        with pytest.raises(ValueError, match="layers=0 is too small"):
            small(cls, layers=0)

    def test_same_answers_from_saved_weights(self, cls: Any, random_batch: Make) -> None:
        """Random features and rotations are kept with the weights."""
        encoder, loaded = small(cls).eval(), small(cls).eval()
        x = random_batch([7, 60], 8)
        assert not torch.equal(encoder(x).values, loaded(x).values)
        loaded.load_state_dict(encoder.state_dict())
        assert torch.equal(encoder(x).values, loaded(x).values)

    def test_under_autocast(self, cls: Any, random_batch: Make) -> None:
        encoder = small(cls)
        x = random_batch([7, 60], 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = encoder(x).values
        y.square().sum().backward()
        assert y.dtype == torch.float32 and y.isfinite().all()
        assert all(p.grad.isfinite().all() for p in encoder.parameters())

    def test_settings_have_the_same_names(self, cls: Any) -> None:
        names = [f.name for f in fields(cls.Config)]
        assert names[:4] == ["max_length", "width", "layers", "heads"] and names[-2:] == ["expansion", "dropout"]
        encoder = cls(replace(cls.Config(20), layers=1))
        assert encoder.width == encoder.config.width and len(encoder.blocks) == 1

    def test_learns_to_remember_the_first_token(self, cls: Any) -> None:
        """The last token must predict which of four kinds the first is, 4 to 15 tokens before; chance is 25 %."""
        embedding, head = nn.Embedding(4, 16), nn.Linear(16, 4)
        encoder = small(cls, width=16, **({"chunk": 8} if cls is Reformer else {}))
        parameters = [*embedding.parameters(), *encoder.parameters(), *head.parameters()]
        optimiser = torch.optim.Adam(parameters, lr=1e-2)

        def batch() -> tuple[Packed, torch.Tensor]:
            lengths = torch.randint(5, 17, (2,)).repeat_interleave(32).tolist()
            tokens = Packed.from_lengths(torch.randint(4, (sum(lengths),)), lengths)
            return tokens, tokens.values[tokens.offsets[:-1]]

        def answers(tokens: Packed) -> torch.Tensor:
            y = encoder(tokens.with_values(embedding(tokens.values)))
            return head(y.values[y.offsets[1:] - 1])

        def accuracy() -> float:
            encoder.eval()
            with torch.no_grad(), torch.random.fork_rng():
                batches = [batch() for _ in range(4)]
                correct = [(answers(tokens).argmax(1) == first).float().mean() for tokens, first in batches]
            encoder.train()
            return float(torch.stack(correct).mean())

        for step in range(1, 1 + (100 if cls in (Cosformer, Reformer) else 60)):
            tokens, first = batch()
            optimiser.zero_grad()
            F.cross_entropy(answers(tokens), first).backward()
            optimiser.step()
            if step % 10 == 0 and accuracy() > 0.7:
                break
        assert accuracy() > 0.6
