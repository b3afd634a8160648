"""Words (k-mers) as inputs of the network: each token also gets learned vectors of the k-mers that start at it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from chordmixer.config import check_numbers
from chordmixer.packed import Packed

MAX_LENGTH = 64
CODE_MULTIPLIER, HASH_MULTIPLIER, CODE_BITS = 1_000_003, 2_654_435_761, 31


@dataclass(frozen=True)
class WordsConfig:
    """Settings of the word embeddings."""

    lengths: tuple[int, ...] = ()
    """Lengths of words, in tokens, such as (4, 6, 8). Default: none."""
    bits: int = 16
    """Each length has a table of 2^bits rows; words are hashed into it, with collisions. Default 16."""
    width: int = 16
    """Numbers per row, mapped linearly to the encoder's width. Default 16."""
    dropout: float = 0.5
    """Share of the words that are left out in training, against overfitting. Default 0.5."""

    def __post_init__(self) -> None:
        check_numbers(self, bits=(1, 24), width=(1, 1 << 12))
        if any(not 1 <= k <= MAX_LENGTH for k in self.lengths) or len(set(self.lengths)) < len(self.lengths):
            raise ValueError(
                f"lengths={list(self.lengths)} of words are not different lengths from 1 to {MAX_LENGTH}: give "
                "some such as [4,6,8], or [] for no words"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} of words is not a share: give 0 or more, and less than 1")


class Words(nn.Module):
    """The sum of hashed embeddings of the words of each length that start at a token, and its map to `width`.

    The last k - 1 tokens of a sequence start no word of k tokens; a sequence shorter than k has none.

    >>> words = Words(WordsConfig(lengths=(2, 3), width=4), width=32).eval()
    >>> vectors, mapped = words(Packed.from_list([torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 1])]))
    >>> vectors.shape, mapped.shape, bool(vectors[4].any()), bool((vectors[3] == vectors[5]).all())
    (torch.Size([7, 4]), torch.Size([7, 32]), False, True)
    """

    def __init__(self, config: WordsConfig, width: int) -> None:
        super().__init__()
        self.config = config
        rows = len(config.lengths) << config.bits
        self.table = nn.Parameter(torch.randn(rows, config.width).mul_(0.1))  # 0.1 * loads torch's compiler: seconds
        self.linear = nn.Linear(config.width, width, bias=False)

    def forward(self, x: Packed) -> tuple[Float[Tensor, "T W"], Float[Tensor, "T C"]]:
        config = self.config
        rows, exists = hashed(x, config.lengths, config.bits)
        if self.training and config.dropout:
            exists = exists & (torch.rand(rows.shape, device=rows.device) >= config.dropout)
        vectors = F.embedding(rows, self.table)
        total = (vectors * exists[..., None].to(vectors.dtype)).sum(1)
        return total, self.linear(total)


def hashed(x: Packed, lengths: tuple[int, ...], bits: int) -> tuple[Int[Tensor, "T K"], Bool[Tensor, "T K"]]:
    """The table row of the word of each length that starts at each token, and whether there is such a word."""
    ids, tokens = x.values.long(), x.tokens
    remaining = x.offsets[1:].index_select(0, x.owners()) - torch.arange(tokens, device=x.device)
    code, rows, exists = torch.zeros_like(ids), {}, {}
    padded = F.pad(ids, (0, max(lengths)))
    for k in range(1, max(lengths) + 1):
        code = (code * CODE_MULTIPLIER + padded[k - 1 : k - 1 + tokens] + 1) & ((1 << CODE_BITS) - 1)
        if k in lengths:
            row = ((code * HASH_MULTIPLIER) & 0xFFFFFFFF) >> (32 - bits)
            rows[k], exists[k] = row + (lengths.index(k) << bits), remaining >= k
    return torch.stack([rows[k] for k in lengths], 1), torch.stack([exists[k] for k in lengths], 1)
