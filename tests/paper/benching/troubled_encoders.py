"""Encoders that get into trouble; processes of the tests import them by name."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch import nn

from chordmixer.packed import Packed


@dataclass(frozen=True)
class TroubledConfig:
    max_length: int


class Harmless(nn.Module):
    """No trouble yet: every token through one map."""

    Config = TroubledConfig
    width = 4

    def __init__(self, config: TroubledConfig) -> None:
        super().__init__()
        self.config = config
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Packed) -> Packed:
        return x.with_values(self.mix(x.values))


class Greedy(Harmless):
    """Asks for more memory than there is, in training."""

    def forward(self, x: Packed) -> Packed:
        if self.training:
            torch.zeros(1 << 45)
        return super().forward(x)


class Crashing(Harmless):
    """Takes its process with it, in training."""

    def forward(self, x: Packed) -> Packed:
        print("what an encoder prints is no event")
        if self.training:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().forward(x)


class Dependent(Harmless):
    """Gives other answers in other company."""

    def forward(self, x: Packed) -> Packed:
        return x.with_values(self.mix(x.values) + x.values.mean())


class Endless(Harmless):
    """Its numbers are not finite."""

    def forward(self, x: Packed) -> Packed:
        return x.with_values(self.mix(x.values) / 0)
