"""Tree-LSTM: an LSTM up a balanced binary tree over positions (Tai, Socher and Manning 2015, the binary form).

Tokens are the leaves. On each level neighbours are joined in pairs, all pairs of all sequences at once, and an odd
node is passed on unchanged; after ceil(log2 N) levels each sequence has one root. The authors' trees come from a
parser; ours, over positions, depend on the length only. Also ours: a token's output is the sum of its leaf's state
and the root's, in the residual block that most encoders share. The ChordMixer paper compares with a Tree-LSTM and
gives no settings.
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
    """Default sizes are ours: the paper gives none."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 64
    """Number of channels per token and of a node's state."""
    layers: int = 1
    """Number of stacked trees."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each part's output that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)


def pairs(x: Packed) -> tuple[Packed, Int[Tensor, "P"], Bool[Tensor, "P"]]:
    """The next level of a binary tree: left children of nodes as a `Packed`, right ones, and which nodes have two.

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
    """The sum of the states of leaf and root for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 3 * width)
        self.join = nn.Linear(2 * width, 5 * width)

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T C"]:
        write, read, new = self.leaf(values).chunk(3, dim=1)
        cells = write.sigmoid() * new.tanh()
        leaves = states = read.sigmoid() * cells.tanh()
        level = x
        while max(level.lengths) > 1:
            level, right, paired = pairs(level)
            states, cells = self._joined(states, cells, level.values, right, paired)
        mixed: Tensor = leaves + states.index_select(0, x.owners())
        return mixed

    def _joined(
        self,
        states: Float[Tensor, "L C"],
        cells: Float[Tensor, "L C"],
        left: Int[Tensor, "P"],
        right: Int[Tensor, "P"],
        paired: Bool[Tensor, "P"],
    ) -> tuple[Float[Tensor, "P C"], Float[Tensor, "P C"]]:
        """States and cells one level up, with a forget gate per child; a node without a pair does not change."""
        left_states, right_states = gathered(states, left), gathered(states, right)
        left_cells, right_cells = gathered(cells, left), gathered(cells, right)
        gates = self.join(torch.cat([left_states, right_states], dim=1))
        write, keep_left, keep_right, read, new = gates.chunk(5, dim=1)
        joined = write.sigmoid() * new.tanh() + keep_left.sigmoid() * left_cells + keep_right.sigmoid() * right_cells
        joined_states = read.sigmoid() * joined.tanh()
        is_pair = paired[:, None]
        return torch.where(is_pair, joined_states, left_states), torch.where(is_pair, joined, left_cells)


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
