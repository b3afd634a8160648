"""Tree-LSTM: an LSTM up a balanced binary tree over positions (Tai, Socher and Manning 2015, the binary form).

Tokens are the leaves. On each level neighbours are joined in pairs, all pairs of all sequences at once, and an odd
node is carried up as it is; after ceil(log2 N) levels one root a sequence is left. Their trees come from a parser;
ours, over positions, from nothing but the length. Also ours: a token's output is its own leaf's state and the root's,
added, in the residual block that most encoders share. The ChordMixer paper compares with a Tree-LSTM and gives no
settings.
Receptive field: the whole sequence, through the root. Cost: O(N) a layer, in log2 N steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from chordmixer.models.encoders.layers import Residual, check_settings
from chordmixer.models.encoders.packed_layers import PackedStack
from chordmixer.packed import Packed, gathered


@dataclass(frozen=True)
class TreeLstmConfig:
    """Ours: the paper gives none."""

    max_length: int
    """The longest sequence that it takes; nothing else follows from it."""
    width: int = 64
    """Channels of a token, and of a node's state."""
    layers: int = 1
    """Trees, one upon the output of another."""
    expansion: int = 2
    """Width of the MLP's hidden layer, in widths."""
    dropout: float = 0.0
    """Share of each part's output that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)


def pairs(x: Packed) -> tuple[Packed, Int[Tensor, "P"], Bool[Tensor, "P"]]:
    """The next level of a binary tree: its nodes' left children as a `Packed`, their right ones, and who has one.

    >>> parents, right, paired = pairs(Packed.from_lengths(torch.zeros(5), [3, 2]))
    >>> parents.values.tolist(), right.tolist(), paired.tolist(), parents.lengths
    ([0, 2, 3], [1, 2, 4], [True, False, True], (2, 1))
    """
    lengths = [(n + 1) // 2 for n in x.lengths]
    parents = Packed.from_lengths(torch.arange(sum(lengths), device=x.device), lengths)
    sequence = parents.owners()
    left = x.offsets[sequence] + 2 * parents.places()
    right = torch.minimum(left + 1, x.offsets[sequence + 1] - 1)
    return parents.with_values(left), right, right > left


class Tree(nn.Module):
    """From tokens to the states of leaf and root."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 3 * width)
        self.join = nn.Linear(2 * width, 5 * width)

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T C"]:
        enter, out, new = self.leaf(values).chunk(3, dim=1)
        memory = enter.sigmoid() * new.tanh()
        leaves = states = out.sigmoid() * memory.tanh()
        level = x
        while max(level.lengths) > 1:
            level, right, paired = pairs(level)
            states, memory = self._joined(states, memory, level.values, right, paired)
        mixed: Tensor = leaves + states.index_select(0, x.owners())
        return mixed

    def _joined(
        self,
        states: Float[Tensor, "L C"],
        memory: Float[Tensor, "L C"],
        left: Int[Tensor, "P"],
        right: Int[Tensor, "P"],
        paired: Bool[Tensor, "P"],
    ) -> tuple[Float[Tensor, "P C"], Float[Tensor, "P C"]]:
        """States and memories one level up: a forget gate for each child; a node alone stays as it is."""
        first, second = gathered(states, left), gathered(states, right)
        older, younger = gathered(memory, left), gathered(memory, right)
        gates = self.join(torch.cat([first, second], dim=1))
        enter, keep_older, keep_younger, out, new = gates.chunk(5, dim=1)
        joined = enter.sigmoid() * new.tanh() + keep_older.sigmoid() * older + keep_younger.sigmoid() * younger
        upper = out.sigmoid() * joined.tanh()
        both = paired[:, None]
        return torch.where(both, upper, first), torch.where(both, joined, older)


class TreeLstm(PackedStack):
    """A tree over each sequence.

    >>> encoder = TreeLstm(TreeLstmConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (100, 1)])).values.shape
    torch.Size([101, 8])
    """

    Config = TreeLstmConfig

    def __init__(self, config: TreeLstmConfig) -> None:
        width = config.width
        super().__init__(
            config,
            (Residual(width, Tree(width), config.expansion, config.dropout) for _ in range(config.layers)),
        )
