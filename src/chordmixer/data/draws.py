"""Counter-based random numbers: a function of a key and a counter, the same on every machine, device and version.

The generator is SplitMix64 (Steele, Lea and Flood, 2014) in torch's wrapping 64-bit integers. It has no state.
"""

from __future__ import annotations

import math
from hashlib import blake2b

import torch
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def key(*parts: int | str) -> int:
    """A 64-bit key from numbers and words."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def bits(key: int | Int[Tensor, "n"], counters: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """64 random bits for each counter, with one key for all or one for each."""
    z = (counters + 1).mul_(_GOLDEN).add_(key)
    z ^= _shift_right(z, 30)
    z *= _FIRST
    z ^= _shift_right(z, 27)
    z *= _SECOND
    return z.bitwise_xor_(_shift_right(z, 31))


def uniform(key: int | Int[Tensor, "n"], counters: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Uniform numbers on [-1, 1) in steps of 2^-23, exact in float32."""
    return _shift_right(bits(key, counters), 40).float().mul_(2.0**-23).sub_(1.0)


def below(key: int, counters: Int[Tensor, "n"], limits: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Integers from 0 to limit - 1."""
    return _shift_right(bits(key, counters), 1) % limits


def normal(key: int, counters: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Standard normal numbers (float64), by the Box-Muller transform."""
    first, second = (_shift_right(bits(key, counters * 2 + i), 11).double().add_(0.5).mul_(2.0**-53) for i in (0, 1))
    return first.log_().mul_(-2).sqrt_() * second.mul_(2 * math.pi).cos_()


def permutation(key: int, n: int) -> Int[Tensor, "n"]:
    """The numbers 0 to n - 1 in random order."""
    return torch.argsort(bits(key, torch.arange(n)), stable=True)


def _shift_right(z: Int[Tensor, "n"], by: int) -> Int[Tensor, "n"]:
    """Logical right shift: zeros are shifted in, not the sign bit."""
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)
