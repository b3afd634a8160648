"""Where in each record a run's answer came from: how far it falls when a part of the record is hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from chordmixer.data.entries import Account, Entry
from chordmixer.data.tokenizers import Tokenizer
from chordmixer.packed import Packed
from chordmixer.tasks.scores import log_odds
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.answers import Answers
from chordmixer.training.attribution import covered, edges, gradients, hidden, neutral, to_letters
from chordmixer.training.ensemble_inference import TrainedEnsemble
from chordmixer.training.inference import Item, OnBad, OverLength, Trained, check_choice
from chordmixer.training.progress import Pace
from chordmixer.training.strands import averaged

Method = Literal["occlusion", "gradients"]
BLOCKS = 128
"""Most that are hidden, one after the other."""


@dataclass(frozen=True)
class Explanation:
    """What each token of a record does for one answer: a class, a label or a number."""

    entry: Entry
    tokenizer: Tokenizer
    values: ndarray
    """(N,), float32: how far the answer falls when the token is hidden. Above zero the token speaks for the answer,
    below zero against it. All tokens of a block have the block's number."""
    answer: str | float
    """What the run answers: the class, the most probable label, or the number."""
    explained: str | None
    """The class or label that the values are of; None: the number."""
    probability: float | None
    """Of the class or label explained, as `predict` gives it."""
    score: float
    """What falls: the log-odds of that probability, or the number."""

    @cached_property
    def sequence(self) -> bytes | str | ndarray:
        """What the tokens stand for: the record, without what the run cuts off."""
        return covered(self.entry.sequence, self.tokenizer, len(self.values))

    @property
    def letters(self) -> str | None:
        """The sequence as text; None of a series."""
        if isinstance(self.sequence, ndarray):
            return None
        return self.sequence if isinstance(self.sequence, str) else self.sequence.decode("latin-1")

    @property
    def by_letter(self) -> ndarray:
        """A value for each letter or sample of `sequence`."""
        return to_letters(self.values, self.tokenizer, self.sequence)


def explain(
    engine: Trained,
    entries: Iterable[Entry],
    *,
    method: Method = "occlusion",
    target: str | None = None,
    blocks: int = BLOCKS,
    over_length: OverLength = "error",
    on_bad: OnBad | None = None,
    account: Account | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Explanation]:
    """Explain the answer for each record, in their order; records may be in memory or come from `data.reading.read`.

    `occlusion` hides one of at most `blocks` blocks of tokens after the other and asks for the delivered answer each
    time, be it of a network, a baseline, both, or several members. `gradients` takes the network alone, in one pass,
    and is an estimate. `target` is the class or label to explain; else it is the predicted one.
    """
    check_choice("method", method, get_args(Method))
    if blocks < 1:
        raise ValueError(f"--blocks {blocks} is too small: something must be hidden; give 1 or more")
    answers = engine.answers  # a run without any says so before a record is read
    output = None if target is None else _output(answers, target)
    networks = _networks(engine, over_length) if method == "gradients" else []
    account = Account() if account is None else account
    windows = engine.windows(entries, account, on_bad, say, over_length)
    return _explained(engine, windows, networks, output, blocks, over_length, Pace(say))


def _explained(
    engine: Trained,
    windows: Iterable[list[Item]],
    networks: Sequence[Trained],
    output: int | None,
    blocks: int,
    over_length: OverLength,
    pace: Pace,
) -> Iterator[Explanation]:
    answers = engine.answers
    for window in windows:
        for entry, tokens in window:
            if not len(tokens):
                raise ValueError(f"{entry.place} ({entry.id}) has no token: there is nothing to hide; leave it out")
        outputs = engine.outputs(window, engine.pieces(window, over_length))
        chosen = _decided(answers, outputs) if output is None else np.full(len(window), output)
        before = _scores(answers, outputs, chosen)
        if networks:
            falls = _by_gradients(networks, window, chosen, pace)
        else:
            falls = _by_occlusion(engine, window, chosen, before, blocks, over_length, pace)
        for row, values in enumerate(falls):
            pace.done(1, 0)
            if not np.isfinite(values).all():
                entry = window[row].entry
                raise ValueError(f"{entry.place} ({entry.id}): an answer is NaN or infinite: train again")
            yield _explanation(engine, window[row].entry, values, outputs[row : row + 1], int(chosen[row]))


def _explanation(engine: Trained, entry: Entry, values: ndarray, outputs: ndarray, chosen: int) -> Explanation:
    answers, target = engine.answers, engine.answers.target
    score = float(_scores(answers, outputs, np.array([chosen]))[0])
    values = values.astype(np.float32)
    if isinstance(target, Regression):
        return Explanation(entry, engine.tokenizer, values, score, None, None, score)
    share = float(answers.probabilities(outputs)[0, chosen])
    best = target.labels[int(_decided(answers, outputs)[0])]
    return Explanation(entry, engine.tokenizer, values, best, target.labels[chosen], share, score)


# --- What is explained ----------------------------------------------------------------------------------


def _output(answers: Answers, target: str) -> int:
    if isinstance(answers.target, Regression):
        raise ValueError(f"--class {target} is for classes and labels: this run predicts a number; leave it out")
    labels = answers.target.labels
    if target not in labels:
        some = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
        raise ValueError(f"--class {target} is not an answer of this run: give one of {some}")
    return labels.index(target)


def _decided(answers: Answers, outputs: ndarray) -> ndarray:
    """The predicted class, or the most probable label, of each record."""
    return np.asarray(answers.unweighted(outputs).argmax(axis=1))


def _scores(answers: Answers, outputs: ndarray, chosen: ndarray) -> ndarray:
    """The log-odds of the chosen class or label, as probabilities have them, or the number; one a row."""
    target = answers.target
    if isinstance(target, Regression):
        return target.values(outputs).astype(np.float64)
    rows = answers.unweighted(outputs.astype(np.float64)) / (answers.temperature or 1.0)
    odds = rows if isinstance(target, MultiLabel) else log_odds(rows)
    return np.asarray(odds[np.arange(len(odds)), chosen])


# --- By hiding ------------------------------------------------------------------------------------------


def _by_occlusion(
    engine: Trained,
    window: Sequence[Item],
    chosen: ndarray,
    before: ndarray,
    blocks: int,
    over_length: OverLength,
    pace: Pace,
) -> Iterator[ndarray]:
    """Of each record the fall at every token, once all of its blocks were hidden."""
    cuts = [edges(len(tokens), blocks) for _, tokens in window]
    by = [neutral(tokens, engine.tokenizer) for _, tokens in window]
    left: list[list[float]] = [[] for _ in window]
    whole = 0
    for jobs in _batched(window, cuts, engine.batch_tokens):
        items = [Item(window[row].entry, hidden(window[row].tokens, by[row], *cut)) for row, cut in jobs]
        rows = [row for row, _ in jobs]
        outputs = engine.outputs(items, engine.pieces(items, over_length))
        for row, score in zip(rows, _scores(engine.answers, outputs, chosen[rows]).tolist(), strict=True):
            left[row].append(score)
        pace.done(0, sum(len(item.tokens) for item in items))
        while whole < len(window) and len(left[whole]) == len(cuts[whole]) - 1:
            yield np.repeat(before[whole] - np.array(left[whole]), np.diff(cuts[whole]))
            whole += 1


def _batched(
    window: Sequence[Item], cuts: Sequence[ndarray], tokens: int
) -> Iterator[list[tuple[int, tuple[int, int]]]]:
    """Records and the blocks to hide in them, so many that the copies have at most so many tokens; at least one."""
    batch: list[tuple[int, tuple[int, int]]] = []
    total = 0
    for row, item in enumerate(window):
        for cut in pairwise(cuts[row].tolist()):
            if batch and total + len(item.tokens) > tokens:
                yield batch
                batch, total = [], 0
            batch.append((row, cut))
            total += len(item.tokens)
    if batch:
        yield batch


# --- By gradients ---------------------------------------------------------------------------------------


def _networks(engine: Trained, over_length: OverLength) -> list[Trained]:
    """Those of the run, or of its members, that have a part in its answers."""
    if over_length == "windows":
        raise ValueError("--over-length windows is for --method occlusion: leave out one of them")
    own = [each for each in members_of(engine) if each.network]
    if not own:
        raise ValueError(
            f"{engine.folder} answers by its baseline alone, and gradients need a network: leave out --method, or "
            "add --using network"
        )
    return own


def members_of(engine: Trained) -> Sequence[Trained]:
    """The members of an ensemble, or the run itself."""
    return engine.members if isinstance(engine, TrainedEnsemble) else [engine]


def _by_gradients(
    networks: Sequence[Trained], window: Sequence[Item], chosen: ndarray, pace: Pace
) -> Iterator[ndarray]:
    """The mean over networks."""
    for (entry, tokens), output in zip(window, chosen.tolist(), strict=True):
        values = tokens if tokens.dtype.kind == "f" else tokens.astype(np.int32)
        x = Packed.from_list([torch.from_numpy(np.array(values))])
        felt = []
        for own in networks:
            complement = own.tokenizer.complement if own.both_strands else None
            network = averaged(own.model, complement, own.device)
            try:
                felt.append(gradients(network, x.to(own.device), _differentiable(own.answers, output)))
            except torch.OutOfMemoryError:
                raise ValueError(
                    f"{entry.place} ({entry.id}): gradients of {len(tokens):,} tokens do not fit into the memory of "
                    f"{own.device}: use --method occlusion, or a device with more"
                ) from None
        pace.done(0, len(tokens))
        yield np.mean(felt, axis=0)


def _differentiable(answers: Answers, output: int) -> Callable[[Tensor], Tensor]:
    """The same score as of occlusion, of the network's own outputs and without the temperature."""
    target = answers.target
    if isinstance(target, Regression):
        return lambda outputs: outputs[:, 0].float() * target.scale
    if isinstance(target, MultiLabel):
        return lambda outputs: outputs[:, output].float()
    return lambda outputs: _odds(outputs, target, output)


def _odds(outputs: Tensor, target: Classification, output: int) -> Tensor:
    rows = outputs.float() - target.weights.log().to(outputs.device)
    others = [k for k in range(rows.shape[1]) if k != output]
    return rows[:, output] - rows[:, others].logsumexp(dim=1)
