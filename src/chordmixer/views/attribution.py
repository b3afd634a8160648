"""Where an answer came from: a number a token, by gradients or by hiding blocks; as bedGraph, and over text.

Gradients take a pass forward and back, whatever the length; hiding takes a pass forward for each of a bounded number
of blocks. Both tell what a model uses, which may be what is true of its training set alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from chordmixer.data.alphabets import Kmers
from chordmixer.data.encoding import Tokenizer
from chordmixer.data.tokenizers import Bytes, Characters, Numbers
from chordmixer.packed import Packed
from chordmixer.training.inference import BATCH_TOKENS
from chordmixer.training.strands import BothStrands, other_strand
from chordmixer.views import axes, charts, page
from chordmixer.views.drawing import full_colour, strongest

BLOCKS = 128
"""Most that are hidden, one after the other."""
SPANS = 20_000
"""Most pieces of a text with a colour of their own, for the browser's sake."""
SHADES = 8
FOR, AGAINST = "184,74,0", "0,87,168"
"""Orange and blue, which all eyes tell apart; see-through, so that they fit a light and a dark page."""


@dataclass(frozen=True)
class Attribution:
    """What each token of one sequence does for one output of a model."""

    values: ndarray
    """(N,), float32."""
    output: int
    """Which one: the largest, so that of classes it is the predicted one, unless another was asked for."""
    answer: float
    """What the model says there for the whole sequence: the output itself, or its log-odds against the others."""


# --- Numbers --------------------------------------------------------------------------------------------


def gradients(model: nn.Module, x: Packed, output: int | None = None, *, odds: bool = False) -> Attribution:
    """How much an output feels each token of one sequence; of answers over both strands, the mean of the two.

    Of real numbers gradient times input, summed over channels: where the model is linear, what the token adds to the
    answer. Of ids the norm of the gradient with respect to the token's vector: a size, without a sign.
    `odds` asks for the log-odds of one of several classes: what raises all outputs alike then counts for nothing.
    """
    answers = _whole(model, x)
    output = _chosen(answers[0], output)
    answer = float(_score(answers, output, odds))
    if isinstance(model, BothStrands):
        there = _felt(model.model, other_strand(x, model.complement), output, odds)
        values = (_felt(model.model, x, output, odds) + there[::-1]) / 2
    else:
        values = _felt(model, x, output, odds)
    return Attribution(values, output, answer)


def occlusion(
    model: nn.Module,
    x: Packed,
    output: int | None = None,
    *,
    odds: bool = False,
    neutral: int | None = None,
    blocks: int = BLOCKS,
    batch_tokens: int | None = None,
) -> Attribution:
    """How much an output falls when a block of tokens is hidden: by zeros, or ids by a `neutral` one.

    Above zero the block speaks for the answer, below it against. All tokens of a block have its number. `odds` is as
    in `gradients`.
    """
    if blocks < 1:
        raise ValueError(f"blocks={blocks} is too small: something must be hidden; give 1 or more")
    if neutral is None and not x.values.is_floating_point():
        raise ValueError("neutral=None hides no token: ids need one; give neutral_token(tokenizer)")
    answers = _whole(model, x)
    output = _chosen(answers[0], output)
    answer = float(_score(answers, output, odds))
    count = min(blocks, x.tokens)
    edges = [x.tokens * i // count for i in range(count + 1)]
    hidden = list(pairwise(edges))
    together = max(1, (batch_tokens or BATCH_TOKENS.get(x.device.type, 1 << 16)) // x.tokens)
    left: list[float] = []
    for first in range(0, count, together):
        copies = [x.values.clone() for _ in hidden[first : first + together]]
        for copy, (start, stop) in zip(copies, hidden[first:], strict=False):
            copy[start:stop] = 0 if neutral is None else neutral
        left += _score(_answers(model, Packed.from_list(copies)), output, odds).tolist()
    falls = np.repeat(answer - np.array(left), np.diff(edges))
    return Attribution(falls.astype(np.float32), output, answer)


def neutral_token(tokenizer: Tokenizer) -> int | None:
    """An id that says little: a blank in text, else the one for unknown; None for real numbers, which have zero.

    >>> from chordmixer.data.alphabets import Dna
    >>> neutral_token(Dna()), neutral_token(Bytes()), neutral_token(Characters("ab"))
    (4, 32, 2)
    """
    if isinstance(tokenizer, Numbers):
        return None
    if isinstance(tokenizer, Bytes | Characters):
        return int(tokenizer.encode(" ")[0])
    return tokenizer.certain


def _felt(model: Any, x: Packed, output: int, odds: bool) -> ndarray:
    """The gradient starts at real inputs, or at the vectors that the embedding gives for ids."""
    real = x.values.is_floating_point()
    leaves = [x.values.detach().clone().requires_grad_()] if real else []

    def cut(module: nn.Module, inputs: Any, embedded: Packed) -> Packed:
        leaves.append(embedded.values.detach().requires_grad_())
        return embedded.with_values(leaves[0])

    watch = None if real else model.embedding.register_forward_hook(cut)
    try:
        with _still(model), torch.enable_grad():
            answers = model(x.with_values(leaves[0]) if real else x)
            (gradient,) = torch.autograd.grad(_score(answers, output, odds)[0], leaves)
    finally:
        if watch is not None:
            watch.remove()
    felt = (gradient * leaves[0].detach()).sum(dim=1) if real else gradient.norm(dim=1)
    values: ndarray = felt.float().cpu().numpy()
    return values


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


def _answers(model: nn.Module, x: Packed) -> Float[Tensor, "B outputs"]:
    with _still(model), torch.no_grad():
        answers = model(x)
    if isinstance(answers, Packed):
        raise ValueError(
            "this model answers for every token: one answer a sequence is needed; use a model with head=average"
        )
    rows: Tensor = answers.double().cpu()
    return rows


def _whole(model: nn.Module, x: Packed) -> Float[Tensor, "1 outputs"]:
    if len(x) != 1:
        raise ValueError(f"{len(x)} sequences at once have no one answer: give them one by one")
    return _answers(model, x)


def _chosen(answers: Float[Tensor, "outputs"], output: int | None) -> int:
    if output is not None and not 0 <= output < len(answers):
        raise ValueError(f"output={output} is not there: the model has {len(answers)}; give 0 to {len(answers) - 1}")
    return int(answers.argmax()) if output is None else output


def _score(answers: Float[Tensor, "B outputs"], output: int, odds: bool) -> Float[Tensor, "B"]:
    if not odds:
        return answers[:, output]
    if answers.shape[1] == 1:
        raise ValueError("odds=True of a model with one output: odds need two classes or more; leave it out")
    others = [k for k in range(answers.shape[1]) if k != output]
    return answers[:, output] - answers[:, others].logsumexp(dim=1)


# --- From tokens to letters -----------------------------------------------------------------------------


def to_letters(values: ndarray, tokenizer: Tokenizer, sequence: bytes | str) -> ndarray:
    """A number a letter: of words of letters the mean of those that hold it, of a character's bytes the strongest.

    >>> to_letters(np.array([3.0, 1.0]), Kmers(k=2), b"ACG").tolist()
    [3.0, 2.0, 1.0]
    >>> to_letters(np.array([1.0, 2.0, -3.0, 1.0]), Bytes(), "aüb").tolist()
    [1.0, -3.0, 1.0]
    """
    tokens = len(tokenizer.encode(sequence))
    if tokens != len(values):
        raise ValueError(f"{len(values):,} numbers do not fit {tokens:,} tokens: give those of this sequence")
    if isinstance(tokenizer, Kmers):
        at = np.arange(len(sequence))
        last = np.minimum(at // tokenizer.stride, tokens - 1)
        first = np.minimum(np.maximum(-((tokenizer.k - 1 - at) // tokenizer.stride), 0), last)
        sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        means: ndarray = (sums[last + 1] - sums[first]) / (last + 1 - first)
        return means
    if isinstance(tokenizer, Bytes) and isinstance(sequence, str):
        starts = np.cumsum([0, *(len(letter.encode()) for letter in sequence[:-1])])
        high, low = np.maximum.reduceat(values, starts), np.minimum.reduceat(values, starts)
        return np.where(high >= -low, high, low)
    return values


# --- As files -------------------------------------------------------------------------------------------


def bedgraph(records: Iterable[tuple[str, int, ndarray]]) -> str:
    """Records, each a name, a start and numbers: lines from 0, half-open, sorted, equal neighbours joined.

    >>> print(bedgraph([("chr2", 0, np.array([0.5])), ("chr1", 10, np.array([1, 1, 2]))]).expandtabs(6), end="")
    chr1  10    12    1
    chr1  12    13    2
    chr2  0     1     0.5
    """
    lines: list[str] = []
    before = ("", 0)
    for name, start, values in sorted(records, key=lambda record: record[:2]):
        if not name or any(c.isspace() or not c.isprintable() for c in name):
            raise ValueError(f"name {name!r} cannot stand in a bedGraph: it needs one word; give the record's id")
        if start < 0 or (name == before[0] and start < before[1]):
            raise ValueError(f"{name} from {start:,} overlaps another record or starts before 0: give places apart")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} has numbers that are NaN or infinite: a bedGraph has none; look at the model")
        edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        lines += [f"{name}\t{start + a}\t{start + b}\t{values[a]:.6g}\n" for a, b in pairwise(edges) if a < b]
        before = (name, start + len(values))
    return "".join(lines)


def heat_page(title: str, sequence: str, values: ndarray, answer: str) -> page.Html:
    """A page of its own with a letter's number as its colour, and a chart over all positions."""
    if len(sequence) != len(values) or not sequence:
        raise ValueError(
            f"{len(values):,} numbers do not fit {len(sequence):,} letters: give one each, and at least one"
        )
    full = full_colour(values)
    signs = "Orange speaks for the answer, blue against it" if values.min() < 0 else "Orange is where it came from"
    share = -(-len(values) // SPANS)
    joined = f" Each piece of {share:,} letters has the colour of its strongest." if share > 1 else ""
    return page.document(
        title,
        page.tag("h1", title),
        page.tag("p", answer, class_="lead"),
        page.tag("p", f"{signs}; colours are full from {full:.3g} on.{joined}"),
        page.figure("The strongest numbers by position", _chart(values)),
        page.tag("pre", *_spans(sequence, values, full, share)),
    )


def _spans(sequence: str, values: ndarray, full: float, share: int) -> Iterator[page.Html | str]:
    """Neighbours of one shade are one piece."""
    shown = sequence.replace("\r\n", " \n").replace("\r", "\n")  # as long as before
    pieces = strongest(values, SPANS)
    shades = np.clip(np.rint(pieces / full * SHADES), -SHADES, SHADES).astype(int)
    edges = [0, *(np.flatnonzero(np.diff(shades)) + 1).tolist(), len(shades)]
    for a, b in pairwise(edges):
        piece, shade = shown[a * share : b * share], shades[a]
        if not shade:
            yield piece
            continue
        colour = f"background:rgba({FOR if shade > 0 else AGAINST},{0.6 * abs(shade) / SHADES:.2f})"
        peak = pieces[a:b][np.abs(pieces[a:b]).argmax()]
        yield page.tag("span", piece, style=colour, title=f"{peak:+.3g}")


def _chart(values: ndarray) -> page.Html:
    heights = strongest(values, charts.WIDTH)
    step = -(-len(values) // charts.WIDTH)
    x = axes.linear([1, max(len(values), 2)], "position")
    plot = charts.Plot(x, axes.linear([0.0, *heights.tolist()], "number"), height=160)
    plot.across(0.0)
    plot.line([(1 + i * step, float(height)) for i, height in enumerate(heights)])
    return plot.svg("Numbers by position", f"Of each {step:,} neighbouring positions the one farthest from zero")
