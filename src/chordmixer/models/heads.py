"""From the encoder's tokens to answers: one a sequence (pooled), one a pair of sequences, or one a token.

A head may add tokens of its own before the encoder (`prepare`); `extra` says how many a sequence. `sequences` says of
how many sequences a record is made, which follow each other in a batch.
"""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer import ops
from chordmixer.models.norms import Standard
from chordmixer.models.shards import maximum, mean
from chordmixer.packed import Packed, StaticPacked

MOST_WEIGHTS = 1 << 31
"""Of a head whose weights grow with the longest length: 8 GB in float32, and three times that to learn them."""
MARK = 256
"""Letters have ids below it. In pairs of alleles one token of each is marked: raised by it once and, for the context
with number k, k times more."""
CONTEXTS = 256
"""Tissues or other circumstances that a model of variants can tell apart, at most: a row of weights each."""


class TokensHead(nn.Module):
    """An answer for every token: a linear map.

    >>> TokensHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8)])).values.shape
    torch.Size([5, 3])
    """

    extra = 0
    sequences = 1

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @classmethod
    def sized(cls, width: int, outputs: int, longest: int) -> Self:
        """For sequences of up to `longest` tokens, its own among them; most heads do not mind how long they are."""
        return cls(width, outputs)

    def unmarked(self, x: Packed) -> tuple[Packed, tuple[Tensor, ...]]:
        """The sequences as the embedding knows them, and what the head is to know besides: of most heads, nothing."""
        return x, ()

    def prepare(self, x: Packed) -> Packed:
        return x

    def forward(self, x: Packed) -> Packed | Float[Tensor, "B outputs"]:
        return x.with_values(self.linear(x.values))


class AverageHead(TokensHead):
    """The paper's predictor: the mean of a sequence's tokens, then a linear map.

    >>> AverageHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        answers: Tensor = self.linear(_counted(mean(x), x))
        return answers


def _counted(rows: Float[Tensor, "B D"], x: Packed) -> Float[Tensor, "B D"]:
    """Without the filler's row, where a batch has one."""
    return rows[: len(x)] if isinstance(x, StaticPacked) else rows


class StandardHead(AverageHead):
    """Pooled channels, each centred and scaled over records, then a linear map: here of the mean of the tokens.

    `words` further features of each record stand beside them; in training a share `dropout` of all is set to zero.
    """

    views = 1
    """Vectors of a sequence's tokens that stand side by side."""

    def __init__(self, width: int, outputs: int, words: int = 0, dropout: float = 0.0) -> None:
        super().__init__(self.views * width + words, outputs)
        self.standard, self.dropout = Standard(self.views * width + words), dropout

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        """One vector a sequence."""
        return mean(x)

    def forward(self, x: Packed, words: Float[Tensor, "B W"] | None = None) -> Float[Tensor, "B outputs"]:
        pooled = _counted(self.pool(x), x).float()
        own = pooled if words is None else torch.cat([pooled, _counted(words, x).float()], dim=1)
        features = self.standard(own)
        with torch.autocast(features.device.type, enabled=False):  # a few rows: answers keep all of their digits
            answers: Tensor = self.linear(F.dropout(features, self.dropout, self.training))
        return answers


class MaximumHead(StandardHead):
    """The maximum of each channel: a pattern counts wherever it is, however long the sequence."""

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        return maximum(x)


class MeanMaximumHead(StandardHead):
    """Mean and maximum side by side.

    >>> MeanMaximumHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    views = 2

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        return mean_and_maximum(x)


def mean_and_maximum(x: Packed) -> Float[Tensor, "B D"]:
    """Of each sequence's tokens, side by side."""
    average = mean(x)
    return torch.cat([average, maximum(x).to(average.dtype)], dim=1)


class AttentionHead(StandardHead):
    """The mean of the tokens, weighted by the softmax over a sequence of a learned score of each.

    >>> AttentionHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    def __init__(self, width: int, outputs: int, words: int = 0, dropout: float = 0.0) -> None:
        super().__init__(width, outputs, words, dropout)
        self.score = nn.Linear(width, 1)
        nn.init.zeros_(self.score.weight)  # at first the mean
        nn.init.zeros_(self.score.bias)

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        scores = self.score(x.values).float()
        highest = maximum(x.with_values(scores.detach()))
        weights = (scores - highest.repeat_interleave(x.offsets.diff(), 0, output_size=x.tokens)).exp()
        return mean(x.with_values(weights * x.values.float())) / mean(x.with_values(weights))


class MeanMaximumAttentionHead(AttentionHead):
    """Mean, maximum and attention side by side.

    >>> MeanMaximumAttentionHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    views = 3

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        return torch.cat([mean_and_maximum(x).float(), super().pool(x)], dim=1)


class LastHead(TokensHead):
    """The last token of each sequence, then a linear map."""

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        answers: Tensor = self.linear(x.values.index_select(0, x.offsets[1:] - 1))
        return answers


class ClassTokenHead(LastHead):
    """A learned token behind each sequence, read out after the encoder (CLS in the paper's ablation)."""

    extra = 1

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.token = nn.Parameter(torch.randn(width))

    def prepare(self, x: Packed) -> Packed:
        own = torch.arange(len(x), device=x.device)
        at = torch.arange(x.tokens, device=x.device) + x.owners()
        values = x.values.new_empty(x.tokens + len(x), x.values.shape[1])
        values = values.index_copy(0, at, x.values)
        values = values.index_copy(0, x.offsets[1:] + own, self.token.to(values.dtype).expand(len(x), -1))
        return Packed.from_lengths(values, [n + 1 for n in x.lengths])


class FlatHead(TokensHead):
    """All tokens of a sequence side by side, then a linear map (FLAT in the paper's ablation).

    Every position has weights of its own. Behind a sequence's end it is as if zeros stood there, so that the answer
    is that of a padded and flattened sequence, however long the padding; but no padding is made.

    The map is of tokens over the root of `longest`, with weights that start as large as those for a single token:
    the same start as that of a plain map, and steps that are smaller by that root. A step of Adam moves each weight
    by the whole rate: a plain map of 10,000 tokens at rate 1e-3 was at losses of 95 and 289 after 26 steps.

    >>> FlatHead(width=8, outputs=3, longest=5)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    def __init__(self, width: int, outputs: int, longest: int) -> None:
        own = longest * width * outputs
        if own > MOST_WEIGHTS and torch.get_default_device().type != "meta":  # there they are only counted
            raise ValueError(
                f"head='flat' over {longest:,} tokens of {width} channels for {outputs} outputs has {own:,} weights: "
                "more than 2^31 are too many; set a smaller network.max_length, strategy=truncate, or head=average"
            )
        super().__init__(longest * width, outputs)
        self.longest, self.scale = longest, longest**-0.5
        with torch.no_grad():
            self.linear.weight /= self.scale

    @classmethod
    def sized(cls, width: int, outputs: int, longest: int) -> Self:
        return cls(width, outputs, longest)

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        if max(x.lengths) > self.longest:
            raise ValueError(
                f"a sequence of {max(x.lengths):,} tokens is above the {self.longest:,} that this head has weights "
                f"for: build the model with network.max_length={max(x.lengths)} or more"
            )
        place = x.places()
        of_outputs = self.linear.weight.unflatten(1, (self.longest, -1))
        # One output at a time: what is gathered is as large as the tokens, not as all that they are multiplied with.
        each = [(own.index_select(0, place) * x.values).sum(1) for own in of_outputs]
        sums = ops.segment_mean(torch.stack(each, dim=1), x.offsets) * x.offsets.diff()[:, None]
        outputs: Tensor = sums * self.scale + self.linear.bias
        return outputs


class PairHead(TokensHead):
    """One answer for two sequences: their means a and b, then an MLP of the features [a, b, a * b, a - b].

    The features are the Long Range Arena's; the hidden layer is as wide as the encoder.

    >>> PairHead(width=8, outputs=3)(Packed.from_list([torch.randn(n, 8) for n in (5, 2, 1, 7)])).shape
    torch.Size([2, 3])
    """

    sequences = 2

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.compare = nn.Linear(4 * width, width)
        nn.init.xavier_uniform_(self.compare.weight)
        nn.init.zeros_(self.compare.bias)

    def forward(self, x: Packed) -> Float[Tensor, "B/2 outputs"]:
        if len(x) % 2:
            raise ValueError(
                f"{len(x)} sequences are not pairs: this model answers for two sequences at a time; give each first "
                "one with its second behind it"
            )
        a, b = mean(x).unflatten(0, (-1, 2)).unbind(1)
        answers: Tensor = self.linear(F.gelu(self.compare(torch.cat([a, b, a * b, a - b], dim=1))))
        return answers


class VariantHead(TokensHead):
    """One answer for a window with the reference allele (r) and with the alternative (a), its place marked in both.

    An MLP of the features [r, a, a - r, a * r], of the means and of the marked tokens; a learned vector for the
    context, such as a tissue, is added to its hidden layer, which is as wide as the encoder.

    >>> head = VariantHead(width=8, outputs=3)
    >>> letters, marks = head.unmarked(Packed.from_list([torch.tensor([0, 1 + MARK]), torch.tensor([2 + MARK])]))
    >>> letters.values, head(letters.with_values(torch.randn(3, 8)), *marks).shape
    (tensor([0, 1, 2]), torch.Size([1, 3]))
    """

    sequences = 2

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.compare = nn.Linear(8 * width, width)
        nn.init.xavier_uniform_(self.compare.weight)
        nn.init.zeros_(self.compare.bias)
        self.context = nn.Embedding(CONTEXTS, width)
        nn.init.zeros_(self.context.weight)

    def unmarked(self, x: Packed) -> tuple[Packed, tuple[Tensor, ...]]:
        return x.with_values(x.values % MARK), (x.values // MARK,)

    def forward(self, x: Packed, marks: Tensor | None = None) -> Float[Tensor, "B/2 outputs"]:
        if marks is None or len(marks) != x.tokens or len(x) % 2:
            raise ValueError(
                f"{len(x)} sequences are not pairs of alleles, token by token as they were given: this model answers "
                "for variants; use chordmixer variants, and strategy=packed"
            )
        before = (marks > 0).cumsum(0)
        if not (self.training and x.device.type == "cuda") and int(before[-1]) != len(x):  # training never waits
            raise ValueError(
                f"{int(before[-1])} tokens are marked in {len(x)} sequences: each has one at its variant; "
                "use chordmixer variants"
            )
        places = torch.searchsorted(before, torch.arange(1, len(x) + 1, device=x.device))
        means, there = mean(x), x.values.index_select(0, places)
        features = []
        for each in (means, there):
            r, a = each.unflatten(0, (-1, 2)).unbind(1)
            features += [r, a, a - r, a * r]
        context = self.context(marks.index_select(0, places)[::2].long() - 1)
        answers: Tensor = self.linear(F.gelu(self.compare(torch.cat(features, dim=1)) + context))
        return answers


HEADS: dict[str, type[TokensHead]] = {
    "average": AverageHead,
    "standard": StandardHead,
    "maximum": MaximumHead,
    "mean_maximum": MeanMaximumHead,
    "attention": AttentionHead,
    "mean_maximum_attention": MeanMaximumAttentionHead,
    "class_token": ClassTokenHead,
    "flat": FlatHead,
    "last": LastHead,
    "pair": PairHead,
    "tokens": TokensHead,
    "variant": VariantHead,
}
