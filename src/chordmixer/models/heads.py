"""Heads: from the encoder's tokens to one output per sequence, per pair of sequences or per token.

A head may add tokens to each sequence before the encoder (`prepare`); `extra` is their number. `sequences` is the
number of consecutive sequences of a batch that make up one record.
"""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from chordmixer import ops
from chordmixer.models.norms import Standard
from chordmixer.models.shards import maximum, mean
from chordmixer.packed import Packed, StaticPacked

MAX_WEIGHTS = 1 << 31
"""Limit for a head whose weights grow with the maximum length: 8 GB in float32, and three times that to train."""
MARK = 256
"""Ids of letters are below it. In pairs of alleles one token of each is marked: its id is raised by (1 + k) times
this number, where k is the number of the context."""
CONTEXTS = 256
"""Maximum number of contexts (such as tissues) of a model of variants; each has a row of weights."""


class TokensHead(nn.Module):
    """One output for every token: a linear map.

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
    def for_length(cls, width: int, outputs: int, longest: int) -> Self:
        """Build a head for up to `longest` tokens, `extra` ones included; most heads do not depend on the length."""
        return cls(width, outputs)

    def split_marks(self, x: Packed) -> tuple[Packed, tuple[Tensor, ...]]:
        """Split marked ids into plain ids for the embedding, and marks for the head; most heads have no marks."""
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
        outputs: Tensor = self.linear(_without_filler(mean(x), x))
        return outputs


def _without_filler(rows: Float[Tensor, "B D"], x: Packed) -> Float[Tensor, "B D"]:
    """Remove the filler's row if the batch has one."""
    return rows[: len(x)] if isinstance(x, StaticPacked) else rows


class StandardHead(AverageHead):
    """Pooled channels, each standardised over records, then a linear map. This class pools by the mean.

    `further` is the number of other features of each record, such as its length; `dropout` applies to all features.
    """

    views = 1
    """Number of pooled vectors of a sequence, which are concatenated."""

    def __init__(self, width: int, outputs: int, further: int = 0, dropout: float = 0.0) -> None:
        super().__init__(self.views * width + further, outputs)
        self.standard, self.dropout = Standard(self.views * width + further), dropout

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        """One vector per sequence."""
        return mean(x)

    def forward(self, x: Packed, further: Float[Tensor, "B F"] | None = None) -> Float[Tensor, "B outputs"]:
        pooled = _without_filler(self.pool(x), x).float()
        inputs = pooled if further is None else torch.cat([pooled, _without_filler(further, x).float()], dim=1)
        features = self.standard(inputs)
        with torch.autocast(features.device.type, enabled=False):  # few rows, in full precision
            outputs: Tensor = self.linear(F.dropout(features, self.dropout, self.training))
        return outputs


def log_lengths(lengths: Shaped[Tensor, "B"]) -> Float[Tensor, "B 1"]:
    """The logarithm of each length, as a feature of a head."""
    return lengths.float().log()[:, None]


class MaximumHead(StandardHead):
    """The maximum of each channel: a pattern counts the same anywhere in a sequence of any length."""

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        return maximum(x)


class MeanMaximumHead(StandardHead):
    """Mean and maximum, concatenated.

    >>> MeanMaximumHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    views = 2

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        return mean_and_maximum(x)


def mean_and_maximum(x: Packed) -> Float[Tensor, "B D"]:
    """Mean and maximum of each sequence's tokens, concatenated."""
    average = mean(x)
    return torch.cat([average, maximum(x).to(average.dtype)], dim=1)


class AttentionHead(StandardHead):
    """The mean of the tokens, weighted by the softmax over a sequence of a learned score of each.

    >>> AttentionHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    def __init__(self, width: int, outputs: int, further: int = 0, dropout: float = 0.0) -> None:
        super().__init__(width, outputs, further, dropout)
        self.score = nn.Linear(width, 1)
        nn.init.zeros_(self.score.weight)  # starts as the mean
        nn.init.zeros_(self.score.bias)

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        scores = self.score(x.values).float()
        highest = maximum(x.with_values(scores.detach()))
        weights = (scores - highest.repeat_interleave(x.offsets.diff(), 0, output_size=x.tokens)).exp()
        return mean(x.with_values(weights * x.values.float())) / mean(x.with_values(weights))


class MeanMaximumAttentionHead(AttentionHead):
    """Mean, maximum and attention, concatenated.

    >>> MeanMaximumAttentionHead(width=8, outputs=3)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    views = 3

    def pool(self, x: Packed) -> Float[Tensor, "B D"]:
        return torch.cat([mean_and_maximum(x).float(), super().pool(x)], dim=1)


class LastHead(TokensHead):
    """The last token of each sequence, then a linear map."""

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        outputs: Tensor = self.linear(x.values.index_select(0, x.offsets[1:] - 1))
        return outputs


class ClassTokenHead(LastHead):
    """A learned token at the end of each sequence, read after the encoder (CLS in the paper's ablation)."""

    extra = 1

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.token = nn.Parameter(torch.randn(width))

    def prepare(self, x: Packed) -> Packed:
        added = torch.arange(len(x), device=x.device)
        index = torch.arange(x.tokens, device=x.device) + x.owners()
        values = x.values.new_empty(x.tokens + len(x), x.values.shape[1])
        values = values.index_copy(0, index, x.values)
        values = values.index_copy(0, x.offsets[1:] + added, self.token.to(values.dtype).expand(len(x), -1))
        return Packed.from_lengths(values, [n + 1 for n in x.lengths])


class FlatHead(TokensHead):
    """All tokens of a sequence, flattened, then a linear map (FLAT in the paper's ablation).

    Every position has its own weights. The output is that of a sequence padded with zeros to `longest`, without
    making the padding.

    Tokens are divided by the root of `longest`, and weights start as large as those for a single token: the initial
    outputs are those of a plain map, and training steps are smaller by that root. A step of Adam moves each weight by
    the full learning rate: a plain map of 10,000 tokens at rate 1e-3 had losses of 95 and 289 after 26 steps.

    >>> FlatHead(width=8, outputs=3, longest=5)(Packed.from_list([torch.randn(5, 8), torch.randn(2, 8)])).shape
    torch.Size([2, 3])
    """

    def __init__(self, width: int, outputs: int, longest: int) -> None:
        weights = longest * width * outputs
        if weights > MAX_WEIGHTS and torch.get_default_device().type != "meta":  # meta weights are only counted
            raise ValueError(
                f"head='flat' over {longest:,} tokens of {width} channels for {outputs} outputs has {weights:,} "
                "weights: more than 2^31 are too many; set a smaller network.max_length, strategy=truncate, "
                "or head=average"
            )
        super().__init__(longest * width, outputs)
        self.longest, self.scale = longest, longest**-0.5
        with torch.no_grad():
            self.linear.weight /= self.scale

    @classmethod
    def for_length(cls, width: int, outputs: int, longest: int) -> Self:
        return cls(width, outputs, longest)

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"]:
        if max(x.lengths) > self.longest:
            raise ValueError(
                f"a sequence of {max(x.lengths):,} tokens is above the {self.longest:,} that this head has weights "
                f"for: build the model with network.max_length={max(x.lengths)} or more"
            )
        place = x.places()
        by_output = self.linear.weight.unflatten(1, (self.longest, -1))
        # One output at a time, so that the gathered weights are no larger than the tokens.
        products = [(weights.index_select(0, place) * x.values).sum(1) for weights in by_output]
        sums = ops.segment_mean(torch.stack(products, dim=1), x.offsets) * x.offsets.diff()[:, None]
        outputs: Tensor = sums * self.scale + self.linear.bias
        return outputs


class PairHead(TokensHead):
    """One output for two sequences: their means a and b, then an MLP of the features [a, b, a * b, a - b].

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
        outputs: Tensor = self.linear(F.gelu(self.compare(torch.cat([a, b, a * b, a - b], dim=1))))
        return outputs


class VariantHead(TokensHead):
    """One output for a window with the reference allele (r) and the alternative (a), each marked at the variant.

    An MLP of the features [r, a, a - r, a * r], both of the means and of the marked tokens. A learned vector for the
    context, such as a tissue, is added to its hidden layer, which is as wide as the encoder.

    >>> head = VariantHead(width=8, outputs=3)
    >>> letters, marks = head.split_marks(Packed.from_list([torch.tensor([0, 1 + MARK]), torch.tensor([2 + MARK])]))
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

    def split_marks(self, x: Packed) -> tuple[Packed, tuple[Tensor, ...]]:
        return x.with_values(x.values % MARK), (x.values // MARK,)

    def forward(self, x: Packed, marks: Tensor | None = None) -> Float[Tensor, "B/2 outputs"]:
        if marks is None or len(marks) != x.tokens or len(x) % 2:
            raise ValueError(
                f"{len(x)} sequences are not pairs of alleles, token by token as they were given: this model answers "
                "for variants; use chordmixer variants, and strategy=packed"
            )
        count = (marks > 0).cumsum(0)
        if not (self.training and x.device.type == "cuda") and int(count[-1]) != len(x):  # training never waits
            raise ValueError(
                f"{int(count[-1])} tokens are marked in {len(x)} sequences: each has one at its variant; "
                "use chordmixer variants"
            )
        variant_index = torch.searchsorted(count, torch.arange(1, len(x) + 1, device=x.device))
        means, at_variant = mean(x), x.values.index_select(0, variant_index)
        features = []
        for vectors in (means, at_variant):
            r, a = vectors.unflatten(0, (-1, 2)).unbind(1)
            features += [r, a, a - r, a * r]
        context = self.context(marks.index_select(0, variant_index)[::2].long() - 1)
        outputs: Tensor = self.linear(F.gelu(self.compare(torch.cat(features, dim=1)) + context))
        return outputs


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
