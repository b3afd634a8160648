"""Explain predictions: the change of the score when a part of the record is hidden.

Occlusion predicts once for each of a bounded number of blocks, with any predictor. Gradients estimate the same number
with one forward and one backward pass of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from chordmixer.data.alphabets import Kmers
from chordmixer.data.entries import Account, Entry
from chordmixer.data.tokenizers import Bytes, Characters, Numbers, Tokenizer
from chordmixer.models.words import Words, hashed
from chordmixer.packed import Packed
from chordmixer.tasks.scores import log_odds
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.inference import Engine, Item, OnBad, OverLength, batched, check_choice
from chordmixer.training.labels import OutputLabels
from chordmixer.training.progress import Throughput
from chordmixer.training.strands import BothStrands, averaged, other_strand

Method = Literal["occlusion", "gradients"]
ScoreFunction = Callable[[Float[Tensor, "B outputs"]], Float[Tensor, "B"]]
"""Computes the score to explain from a network's outputs."""
BLOCKS = 128
"""Default maximum number of blocks that are hidden in turn."""


@dataclass(frozen=True)
class Explanation:
    """Contribution of each token of a record to one prediction: a class, a label or a number."""

    entry: Entry
    tokenizer: Tokenizer
    values: ndarray
    """(N,), float32: decrease of the score when the token is hidden. Tokens with positive values support the
    prediction, tokens with negative values oppose it. All tokens of a block have the block's value."""
    answer: str | float
    """The prediction: the class, the most probable label, or the number."""
    explained: str | None
    """The explained class or label; None for a number."""
    probability: float | None
    """Probability of the explained class or label, as in `predict`; None for a number."""
    score: float
    """The log-odds of that probability, or the predicted number."""

    @cached_property
    def sequence(self) -> bytes | str | ndarray:
        """The part of the record that the tokens represent, without what the run cuts off."""
        return covered(self.entry.sequence, self.tokenizer, len(self.values))

    @property
    def letters(self) -> str | None:
        """The sequence as text; None for a series."""
        if isinstance(self.sequence, ndarray):
            return None
        return self.sequence if isinstance(self.sequence, str) else self.sequence.decode("latin-1")

    @property
    def by_letter(self) -> ndarray:
        """A value for each letter or sample of `sequence`."""
        return to_letters(self.values, self.tokenizer, self.sequence)


def explain(
    engine: Engine,
    entries: Iterable[Entry],
    *,
    method: Method = "occlusion",
    target: str | None = None,
    blocks: int = BLOCKS,
    over_length: OverLength = "error",
    on_bad: OnBad | None = None,
    account: Account | None = None,
) -> Iterator[Explanation]:
    """Explain the prediction for each record, in order; records are in memory or come from `data.reading.read`.

    `occlusion` hides each of at most `blocks` blocks of tokens in turn and predicts again, with the network, the
    baseline, both, or the members of an ensemble. `gradients` estimates this with the network alone, in one pass.
    `target` is the class or label to explain, by default the predicted one.
    """
    check_choice("method", method, get_args(Method))
    if blocks < 1:
        raise ValueError(f"--blocks {blocks} is too small: something must be hidden; give 1 or more")
    labels = engine.labels  # raises an error for a run without labels, before a record is read
    output = None if target is None else _output(labels, target)
    networks = _networks(engine, over_length) if method == "gradients" else []
    account = Account() if account is None else account
    windows = engine.windows(entries, account, on_bad, over_length)
    return _explained(engine, windows, networks, output, blocks, over_length, Throughput())


def _explained(
    engine: Engine,
    windows: Iterable[list[Item]],
    networks: Sequence[Engine],
    output: int | None,
    blocks: int,
    over_length: OverLength,
    throughput: Throughput,
) -> Iterator[Explanation]:
    labels = engine.labels
    for window in windows:
        for entry, tokens in window:
            if not len(tokens):
                raise ValueError(f"{entry.place} ({entry.id}) has no token: there is nothing to hide; leave it out")
        outputs = engine.outputs(window, engine.pieces(window, over_length))
        predicted = np.asarray(labels.unweighted(outputs).argmax(axis=1))
        chosen = predicted if output is None else np.full(len(window), output)
        scores = _scores(labels, outputs, chosen)
        if networks:
            values_by_record = _by_gradients(networks, window, chosen, throughput)
        else:
            values_by_record = _by_occlusion(engine, window, chosen, scores, blocks, over_length, throughput)
        for row, values in enumerate(values_by_record):
            throughput.done(1, 0)
            entry, score, k = window[row].entry, float(scores[row]), int(chosen[row])
            if not np.isfinite(values).all():
                raise ValueError(f"{entry.place} ({entry.id}): an answer is NaN or infinite: train again")
            values = values.astype(np.float32)
            if isinstance(labels.target, Regression):
                yield Explanation(entry, engine.tokenizer, values, score, None, None, score)
                continue
            names, probability = labels.target.labels, float(labels.probabilities(outputs[row : row + 1])[0, k])
            yield Explanation(entry, engine.tokenizer, values, names[predicted[row]], names[k], probability, score)


# --- The score that is explained ---


def _output(labels: OutputLabels, target: str) -> int:
    if isinstance(labels.target, Regression):
        raise ValueError(f"--class {target} is for classes and labels: this run predicts a number; leave it out")
    names = labels.target.labels
    if target not in names:
        known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise ValueError(f"--class {target} is not an answer of this run: give one of {known}")
    return names.index(target)


def _scores(labels: OutputLabels, outputs: ndarray, chosen: ndarray) -> ndarray:
    """The calibrated log-odds of the chosen class or label, or the predicted number, for each row."""
    target = labels.target
    if isinstance(target, Regression):
        return target.values(outputs).astype(np.float64)
    rows = labels.unweighted(outputs.astype(np.float64)) / (labels.temperature or 1.0)
    odds = rows if isinstance(target, MultiLabel) else log_odds(rows)
    return np.asarray(odds[np.arange(len(odds)), chosen])


def _differentiable_score(labels: OutputLabels, output: int) -> ScoreFunction:
    """The score as a differentiable function of the network's outputs, without the temperature."""
    target = labels.target
    if isinstance(target, Regression):
        return lambda outputs: outputs[:, 0].float() * target.scale
    if isinstance(target, MultiLabel):
        return lambda outputs: outputs[:, output].float()
    return lambda outputs: _log_odds(outputs, target, output)


def _log_odds(outputs: Tensor, target: Classification, output: int) -> Tensor:
    rows = outputs.float() - target.weights.log().to(outputs.device)
    others = [k for k in range(rows.shape[1]) if k != output]
    return rows[:, output] - rows[:, others].logsumexp(dim=1)


# --- Occlusion ---


def _by_occlusion(
    engine: Engine,
    window: Sequence[Item],
    chosen: ndarray,
    before: ndarray,
    blocks: int,
    over_length: OverLength,
    throughput: Throughput,
) -> Iterator[ndarray]:
    """The decrease of the score at every token of each record, which is known once all its blocks were hidden."""
    limits = [edges(len(tokens), blocks) for _, tokens in window]
    replacements = [neutral(tokens, engine.tokenizer) for _, tokens in window]
    jobs = ((row, block) for row in range(len(window)) for block in pairwise(limits[row].tolist()))
    scores: list[list[float]] = [[] for _ in window]
    complete = 0
    for batch in batched(jobs, lambda job: len(window[job[0]].tokens), engine.batch_tokens):
        items = [
            Item(window[row].entry, hidden(window[row].tokens, replacements[row], *block)) for row, block in batch
        ]
        rows = [row for row, _ in batch]
        outputs = engine.outputs(items, engine.pieces(items, over_length))
        for row, score in zip(rows, _scores(engine.labels, outputs, chosen[rows]).tolist(), strict=True):
            scores[row].append(score)
        throughput.done(0, sum(len(item.tokens) for item in items))
        while complete < len(window) and len(scores[complete]) == len(limits[complete]) - 1:
            yield np.repeat(before[complete] - np.array(scores[complete]), np.diff(limits[complete]))
            complete += 1


def neutral(tokens: ndarray, tokenizer: Tokenizer) -> ndarray:
    """The replacement of each token while it is hidden.

    Real numbers, which tokenizers centre, are replaced by zero; text with blanks by a blank; other tokens by a
    different token of the same record, drawn at random with a fixed seed. The token for unknown letters, which a
    network has hardly seen, is used only if the record has no other token.

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
    shift = np.random.default_rng(0).integers(1, len(kinds), len(tokens))
    return np.asarray(kinds[(np.searchsorted(kinds, tokens) + shift) % len(kinds)])


def edges(tokens: int, blocks: int) -> ndarray:
    """The limits of at most `blocks` blocks of about the same size.

    >>> edges(10, 3).tolist(), edges(2, 3).tolist()
    ([0, 3, 6, 10], [0, 1, 2])
    """
    count = min(blocks, tokens)
    return np.arange(count + 1) * tokens // count


def hidden(tokens: ndarray, replacement: ndarray, start: int, stop: int) -> ndarray:
    """A copy of the tokens with one block replaced."""
    copy = tokens.copy()
    copy[start:stop] = replacement[start:stop]
    return copy


# --- Gradients ---


def _networks(engine: Engine, over_length: OverLength) -> list[Engine]:
    """The run, or the members of an ensemble, that predict with a network."""
    if over_length == "windows":
        raise ValueError("--over-length windows is for --method occlusion: leave out one of them")
    used = [member for member in engine.members if member.network]
    if not used:
        raise ValueError(
            f"{engine.folder} answers by its baseline alone, and gradients need a network: leave out --method, or "
            "add --using network"
        )
    return used


def _by_gradients(
    networks: Sequence[Engine], window: Sequence[Item], chosen: ndarray, throughput: Throughput
) -> Iterator[ndarray]:
    """The gradients for each record, as a mean over the networks."""
    for (entry, tokens), output in zip(window, chosen.tolist(), strict=True):
        values = []
        for member in networks:
            network = averaged(member.model, member.complement, member.device)
            try:
                score = _differentiable_score(member.labels, output)
                values.append(gradients(network, member.packed([tokens]), score))
            except torch.OutOfMemoryError:
                raise ValueError(
                    f"{entry.place} ({entry.id}): gradients of {len(tokens):,} tokens do not fit into the memory of "
                    f"{member.device}: use --method occlusion, or a device with more"
                ) from None
        throughput.done(0, len(tokens))
        yield np.mean(values, axis=0)


def gradients(model: nn.Module, x: Packed, score: ScoreFunction) -> ndarray:
    """Gradient times input of a network's score for one sequence, (N,).

    The input is the number itself for real inputs, and for ids the token's embedding minus the sequence's mean.
    The value of a word is divided among its tokens. For a linear network the result is the contribution of each token
    to the score. With both strands it is the mean over the two.
    """
    if len(x) != 1:
        raise ValueError(f"{len(x)} sequences at once have no one answer: give them one by one")
    if not isinstance(model, BothStrands):
        return _strand_gradients(model, x, score)
    reverse = _strand_gradients(model.model, other_strand(x, model.complement), score)
    return np.asarray((_strand_gradients(model.model, x, score) + reverse[::-1]) / 2)


def _strand_gradients(model: Any, x: Packed, score: ScoreFunction) -> ndarray:
    """Gradient times input for one strand, where the input is real numbers, or the embeddings of ids and words."""
    real = x.values.is_floating_point()
    leaves = [x.values.detach().clone().requires_grad_()] if real else []

    def cut(module: nn.Module, inputs: Any, embedded: Packed) -> Packed:
        leaves.append(embedded.values.detach().requires_grad_())
        return embedded.with_values(leaves[-1])

    def cut_words(module: Words, inputs: Any, outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        leaves.append(outputs[0].detach().requires_grad_())
        return leaves[-1], module.linear(leaves[-1])

    words = getattr(model, "words", None)
    hooks = [] if real else [model.embedding.register_forward_hook(cut)]
    hooks += [words.register_forward_hook(cut_words)] if words is not None else []
    try:
        with _frozen(model), torch.enable_grad():
            outputs = model(x.with_values(leaves[0]) if real else x)
            if isinstance(outputs, Packed):
                raise ValueError(
                    "this model answers for every token: one answer a sequence is needed; use a model with "
                    "head=average"
                )
            gradient = torch.autograd.grad(score(outputs)[0], leaves)
    finally:
        for hook in hooks:
            hook.remove()
    vectors = leaves[0].detach()
    values = (gradient[0] * (vectors if real else vectors - vectors.mean(0))).sum(1)
    if words is not None:
        values = values + _word_gradients(words, x, gradient[1])
    return np.asarray(values.float().cpu().numpy())


@torch.no_grad()
def _word_gradients(words: Words, x: Packed, gradient: Float[Tensor, "T W"]) -> Float[Tensor, "T"]:
    """Gradient times input of each word, divided equally among its tokens."""
    lengths = words.config.lengths
    rows, present = hashed(x, lengths, words.config.bits)
    total = torch.zeros(x.tokens + max(lengths), device=x.device)
    for i, k in enumerate(lengths):
        vectors = F.embedding(rows[:, i], words.table) * present[:, i, None]
        part = ((vectors - vectors.mean(0)) * gradient).sum(1) * present[:, i] / k
        for step in range(k):
            total[step : step + x.tokens] += part
    return total[: x.tokens]


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Set the model to evaluation mode without gradients for the weights, which would take memory, for the block."""
    training, trainable = model.training, [p for p in model.parameters() if p.requires_grad]
    model.eval().requires_grad_(False)
    try:
        yield
    finally:
        model.train(training)
        for parameter in trainable:
            parameter.requires_grad_()


# --- From tokens to letters ---


def covered(sequence: bytes | str | ndarray, tokenizer: Tokenizer, tokens: int) -> bytes | str | ndarray:
    """The part of a sequence that its first tokens represent: all of it, unless the record was cut.

    >>> covered(b"ACGTA", Kmers(k=3), 2), covered("aüb", Bytes(), 2)
    (b'ACGT', 'a')
    """
    if isinstance(tokenizer, Kmers):
        return sequence[: tokens * tokenizer.stride + tokenizer.k - tokenizer.stride]
    if isinstance(tokenizer, Bytes) and isinstance(sequence, str):
        return sequence.encode()[:tokens].decode(errors="ignore")
    return sequence[:tokens]


def to_letters(values: ndarray, tokenizer: Tokenizer, sequence: bytes | str | ndarray) -> ndarray:
    """A value per letter: the mean over the k-mers that contain it, or the strongest value of a character's bytes.

    >>> to_letters(np.array([3.0, 1.0]), Kmers(k=2), b"ACG").tolist()
    [3.0, 2.0, 1.0]
    >>> to_letters(np.array([1.0, 2.0, -3.0, 1.0]), Bytes(), "aüb").tolist()
    [1.0, -3.0, 1.0]
    """
    tokens, letters = len(values), len(sequence)
    if isinstance(tokenizer, Kmers):
        positions = np.arange(letters)
        last = np.minimum(positions // tokenizer.stride, tokens - 1)
        first = np.minimum(np.maximum(-((tokenizer.k - 1 - positions) // tokenizer.stride), 0), last)
        sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        return np.asarray((sums[last + 1] - sums[first]) / (last + 1 - first))
    if isinstance(tokenizer, Bytes) and isinstance(sequence, str):
        starts = np.cumsum([0, *(len(letter.encode()) for letter in sequence)])
        complete = values[: starts[-1]]  # without a character that was cut in the middle
        high, low = (extreme.reduceat(complete, starts[:-1]) for extreme in (np.maximum, np.minimum))
        return np.where(high >= -low, high, low)
    if tokens != letters:
        raise ValueError(f"{tokens:,} numbers do not fit {letters:,} letters: give those of this sequence")
    return values


def from_tokens(tokens: ndarray, tokenizer: Tokenizer) -> bytes | str | ndarray:
    """A sequence that has these tokens.

    >>> from_tokens(Kmers(k=2).encode(b"ACGN"), Kmers(k=2))
    'ACGN'
    """
    if isinstance(tokenizer, Numbers):
        return np.asarray(tokens * np.array(tokenizer.scale or 1.0) + np.array(tokenizer.mean or 0.0))
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
    """The limits of runs of equal numbers.

    >>> runs(np.array([5, 5, 1, 1, 1])).tolist()
    [0, 2, 5]
    """
    return np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [len(values)]])
