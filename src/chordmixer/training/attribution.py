"""What each token does for an answer: by hiding blocks of tokens, or by the gradients of a network.

Both estimate one thing: how far the answer falls when a token is hidden, that is replaced by one that says little.
Hiding takes an answer for each of a bounded number of blocks, whatever gives the answers. Gradients take a pass
forward and back, and a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from chordmixer.data.alphabets import Kmers
from chordmixer.data.tokenizers import Bytes, Characters, Numbers, Tokenizer
from chordmixer.models.words import Words, hashed
from chordmixer.packed import Packed
from chordmixer.training.strands import BothStrands, other_strand

Score = Callable[[Float[Tensor, "B outputs"]], Float[Tensor, "B"]]
"""The number to explain, from a network's outputs."""


# --- Hiding ---------------------------------------------------------------------------------------------


def neutral(tokens: ndarray, tokenizer: Tokenizer) -> ndarray:
    """What stands in place of each token while it is hidden.

    Zero for real numbers, which tokenizers centre; a blank in a text with blanks; else another token of the same
    record, drawn at random by a fixed seed: a network has seen these, and hardly ever the one for unknown, which
    stands in only where the record has no other.

    >>> from chordmixer.data.alphabets import Dna
    >>> Dna().decode(neutral(Dna().encode(b"AAAA"), Dna())), Bytes().decode(neutral(Bytes().encode("a bc"), Bytes()))
    ('NNNN', '    ')
    """
    if tokens.dtype.kind == "f":
        return np.zeros_like(tokens)
    if isinstance(tokenizer, Bytes | Characters) and (blank := tokenizer.encode(" ")[0]) in tokens:
        return np.full_like(tokens, blank)
    kinds = np.unique(tokens[tokens < tokenizer.certain])
    if len(kinds) < 2:
        return np.full_like(tokens, min(tokenizer.certain, tokenizer.size - 1))
    further = np.random.default_rng(0).integers(1, len(kinds), len(tokens))
    return np.asarray(kinds[(np.searchsorted(kinds, tokens) + further) % len(kinds)])


def edges(tokens: int, blocks: int) -> ndarray:
    """Where blocks of about the same size start and end.

    >>> edges(10, 3).tolist(), edges(2, 3).tolist()
    ([0, 3, 6, 10], [0, 1, 2])
    """
    count = min(blocks, tokens)
    return np.arange(count + 1) * tokens // count


def hidden(tokens: ndarray, by: ndarray, start: int, stop: int) -> ndarray:
    """A copy with one block replaced."""
    copy = tokens.copy()
    copy[start:stop] = by[start:stop]
    return copy


# --- Gradients ------------------------------------------------------------------------------------------


def gradients(model: nn.Module, x: Packed, score: Score) -> ndarray:
    """The gradient of a network's score for one sequence, times what hiding would take away at each token, (N,).

    That is the number itself where inputs are real, and of ids the difference of the token's vector from the mean
    over the sequence. A word's part is shared among its tokens. Where the network is linear this is what each token
    adds to the score. Of answers over both strands it is the mean of the two.
    """
    if len(x) != 1:
        raise ValueError(f"{len(x)} sequences at once have no one answer: give them one by one")
    if not isinstance(model, BothStrands):
        return _felt(model, x, score)
    there = _felt(model.model, other_strand(x, model.complement), score)
    return np.asarray((_felt(model.model, x, score) + there[::-1]) / 2)


def _felt(model: Any, x: Packed, score: Score) -> ndarray:
    """The gradient starts at real inputs, or at the vectors that ids and words get."""
    real = x.values.is_floating_point()
    leaves = [x.values.detach().clone().requires_grad_()] if real else []

    def cut(module: nn.Module, inputs: Any, embedded: Packed) -> Packed:
        leaves.append(embedded.values.detach().requires_grad_())
        return embedded.with_values(leaves[-1])

    def cut_words(module: Words, inputs: Any, found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        leaves.append(found[0].detach().requires_grad_())
        return leaves[-1], module.linear(leaves[-1])

    words = getattr(model, "words", None)
    watched = [] if real else [model.embedding.register_forward_hook(cut)]
    watched += [words.register_forward_hook(cut_words)] if words is not None else []
    try:
        with _still(model), torch.enable_grad():
            answers = model(x.with_values(leaves[0]) if real else x)
            found = torch.autograd.grad(score(_one_answer(answers))[0], leaves)
    finally:
        for hook in watched:
            hook.remove()
    vectors = leaves[0].detach()
    values = (found[0] * (vectors if real else vectors - vectors.mean(0))).sum(1)
    if words is not None:
        values = values + _of_words(words, x, found[1])
    felt: ndarray = values.float().cpu().numpy()
    return felt


@torch.no_grad()
def _of_words(words: Words, x: Packed, gradient: Float[Tensor, "T W"]) -> Float[Tensor, "T"]:
    """Each word's part, shared among the tokens that it is made of."""
    lengths = words.config.lengths
    rows, there = hashed(x, lengths, words.config.bits)
    total = torch.zeros(x.tokens + max(lengths), device=x.device)
    for place, k in enumerate(lengths):
        own = F.embedding(rows[:, place], words.table) * there[:, place, None]
        part = ((own - own.mean(0)) * gradient).sum(1) * there[:, place] / k
        for step in range(k):
            total[step : step + x.tokens] += part
    return total[: x.tokens]


@contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """As it answers, and with no gradient for its weights, which would take memory."""
    training, learning = model.training, [p for p in model.parameters() if p.requires_grad]
    model.eval().requires_grad_(False)
    try:
        yield
    finally:
        model.train(training)
        for parameter in learning:
            parameter.requires_grad_()


def _one_answer(answers: Tensor | Packed) -> Float[Tensor, "1 outputs"]:
    if isinstance(answers, Packed):
        raise ValueError(
            "this model answers for every token: one answer a sequence is needed; use a model with head=average"
        )
    return answers


# --- From tokens to letters -----------------------------------------------------------------------------


def covered(sequence: bytes | str | ndarray, tokenizer: Tokenizer, tokens: int) -> bytes | str | ndarray:
    """The part of a sequence that its first tokens stand for: all of it, unless the record was cut.

    >>> covered(b"ACGTA", Kmers(k=3), 2), covered("aüb", Bytes(), 2)
    (b'ACGT', 'a')
    """
    if isinstance(tokenizer, Kmers):
        return sequence[: tokens * tokenizer.stride + tokenizer.k - tokenizer.stride]
    if isinstance(tokenizer, Bytes) and isinstance(sequence, str):
        return sequence.encode()[:tokens].decode(errors="ignore")
    return sequence[:tokens]


def to_letters(values: ndarray, tokenizer: Tokenizer, sequence: bytes | str | ndarray) -> ndarray:
    """A number a letter: of words of letters the mean of those that hold it, of a character's bytes the strongest.

    >>> to_letters(np.array([3.0, 1.0]), Kmers(k=2), b"ACG").tolist()
    [3.0, 2.0, 1.0]
    >>> to_letters(np.array([1.0, 2.0, -3.0, 1.0]), Bytes(), "aüb").tolist()
    [1.0, -3.0, 1.0]
    """
    tokens, letters = len(values), len(sequence)
    if isinstance(tokenizer, Kmers):
        at = np.arange(letters)
        last = np.minimum(at // tokenizer.stride, tokens - 1)
        first = np.minimum(np.maximum(-((tokenizer.k - 1 - at) // tokenizer.stride), 0), last)
        sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        means: ndarray = (sums[last + 1] - sums[first]) / (last + 1 - first)
        return means
    if isinstance(tokenizer, Bytes) and isinstance(sequence, str):
        starts = np.cumsum([0, *(len(letter.encode()) for letter in sequence)])
        known = values[: starts[-1]]  # a character that was cut in the middle is left out
        high, low = (own.reduceat(known, starts[:-1]) for own in (np.maximum, np.minimum))
        return np.where(high >= -low, high, low)
    if tokens != letters:
        raise ValueError(f"{tokens:,} numbers do not fit {letters:,} letters: give those of this sequence")
    return values


def from_tokens(tokens: ndarray, tokenizer: Tokenizer) -> bytes | str | ndarray:
    """A sequence that these tokens stand for.

    >>> from_tokens(Kmers(k=2).encode(b"ACGN"), Kmers(k=2))
    'ACGN'
    """
    if isinstance(tokenizer, Numbers):
        series: ndarray = tokens * np.array(tokenizer.scale or 1.0) + np.array(tokenizer.mean or 0.0)
        return series
    if isinstance(tokenizer, Bytes):
        data = tokens.astype(np.uint8).tobytes()
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data
    text = tokenizer.decode(tokens)
    if not isinstance(tokenizer, Kmers):
        return text
    first, *others = text.split(" ")
    return first + "".join(word[-tokenizer.stride :] for word in others)


def runs(values: ndarray) -> ndarray:
    """Where stretches of equal numbers start and end.

    >>> runs(np.array([5, 5, 1, 1, 1])).tolist()
    [0, 2, 5]
    """
    return np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [len(values)]])
