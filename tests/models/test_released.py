"""The authors' public network, rewritten here from its structure, against `load_released`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import ceil, log2
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chordmixer import Packed, load_released

Make = Callable[..., Any]
MAX_LENGTH, TRACK_SIZE, HIDDEN, OUTPUTS = 50, 3, 12, 4
WIDTH = (ceil(log2(MAX_LENGTH)) + 1) * TRACK_SIZE
KINDS = (None, "layer", "batch", "group")
LENGTHS = [2, 3, 4, 5, 8, 9, 33, 50]


class OverTime(nn.Module):
    """A torch norm that expects channels before time, under the authors' name for it."""

    def __init__(self, name: str, norm: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.name)(x.transpose(1, 2)).transpose(1, 2)


def released_norm(kind: str | None) -> nn.Module:
    return {
        None: nn.Identity(),
        "layer": nn.LayerNorm(WIDTH),
        "batch": OverTime("bn", nn.BatchNorm1d(WIDTH)),
        "group": OverTime("gn", nn.GroupNorm(TRACK_SIZE, WIDTH)),
    }[kind]


class ReleasedBlock(nn.Module):
    def __init__(self, prenorm: str | None, norm: str | None) -> None:
        super().__init__()
        self.prenorm, self.norm = released_norm(prenorm), released_norm(norm)
        self.mix = nn.ModuleDict({"fc1": nn.Linear(WIDTH, HIDDEN), "fc2": nn.Linear(HIDDEN, WIDTH)})

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix["fc2"](nn.functional.gelu(self.mix["fc1"](self.prenorm(x))))
        tracks = [
            track if i == 0 else track.roll(-(2 ** (i - 1)), dims=1)
            for i, track in enumerate(mixed.split(TRACK_SIZE, dim=2))
        ]
        return self.norm(x + torch.cat(tracks, dim=2))


class Released(nn.Module):
    """One sequence at a time, of shape (1, N) or (1, N, channels)."""

    def __init__(self, real: bool, prenorm: str | None, norm: str | None) -> None:
        super().__init__()
        self.embedding = nn.Linear(2, WIDTH) if real else nn.Embedding(7, WIDTH)
        blocks = nn.ModuleList(ReleasedBlock(prenorm, norm) for _ in range(ceil(log2(MAX_LENGTH))))
        self.encoder = nn.ModuleDict({"chordmixer_blocks": blocks})
        self.decoder = nn.ModuleDict({"decoder": nn.Linear(WIDTH, OUTPUTS)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for block in self.encoder["chordmixer_blocks"][: ceil(log2(x.shape[1]))]:
            x = block(x)
        return self.decoder["decoder"](x.mean(dim=1))


def load(released: Released, **changes: Any) -> Any:
    settings = {"max_length": MAX_LENGTH, "track_size": TRACK_SIZE, "hidden": HIDDEN, **changes}
    return load_released(released.state_dict(), **settings)


@pytest.mark.parametrize("real", [False, True], ids=["tokens", "real"])
@pytest.mark.parametrize(("prenorm", "norm"), list(product(KINDS, KINDS)), ids=str)
def test_equals_the_released_network(real: bool, prenorm: str | None, norm: str | None, scrambled: Make) -> None:
    released = scrambled(Released(real, prenorm, norm))
    model = load(released, prenorm=prenorm, norm=norm)
    sequences = [torch.randn(n, 2) if real else torch.randint(7, (n,)) for n in LENGTHS]
    with torch.no_grad():
        expected = torch.cat([released(s[None]) for s in sequences])
        assert not model.training
        torch.testing.assert_close(model(Packed.from_list(sequences)), expected, rtol=1e-5, atol=1e-5)


def test_weights_are_copies() -> None:
    released = Released(True, None, None)
    model = load(released)
    nn.init.zeros_(released.embedding.weight)
    assert model.embedding.linear.weight.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"max_length": 100},
        {"max_length": 20},
        {"track_size": 4},
        {"hidden": 13},
        {"prenorm": "layer"},
        {"norm": None},
        {"norm": "layer"},
    ],
    ids=str,
)
def test_other_settings_are_refused(changes: dict[str, Any]) -> None:
    released = Released(True, None, "batch")
    with pytest.raises(ValueError, match=r"do not fit this network, first at .*: max_length, track_size, hidden"):
        load(released, **{"norm": "batch", **changes})


def test_an_unknown_name_is_refused() -> None:
    state = Released(True, None, None).state_dict() | {"lstm.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"parameter 'lstm\.weight' is not one of the released ChordMixer's"):
        load_released(state, max_length=MAX_LENGTH, track_size=TRACK_SIZE, hidden=HIDDEN)


@pytest.mark.parametrize("name", ["embedding.weight", "decoder.decoder.weight"])
def test_a_missing_part_is_refused(name: str) -> None:
    state = Released(True, None, None).state_dict()
    del state[name]
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load_released(state, max_length=MAX_LENGTH, track_size=TRACK_SIZE, hidden=HIDDEN)
