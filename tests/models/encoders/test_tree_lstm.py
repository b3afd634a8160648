from __future__ import annotations

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.encoders.tree_lstm import Tree, TreeLstm, TreeLstmConfig

Node = tuple[torch.Tensor, torch.Tensor]


def leaf(tree: Tree, token: torch.Tensor) -> Node:
    enter, out, new = tree.leaf(token).chunk(3)
    memory = enter.sigmoid() * new.tanh()
    return out.sigmoid() * memory.tanh(), memory


def joined(tree: Tree, left: Node, right: Node) -> Node:
    """Tai et al.'s equations 9 to 14 for two children and no input at inner nodes."""
    i, f1, f2, o, u = tree.join(torch.cat([left[0], right[0]])).chunk(5)
    memory = i.sigmoid() * u.tanh() + f1.sigmoid() * left[1] + f2.sigmoid() * right[1]
    return o.sigmoid() * memory.tanh(), memory


def naive(tree: Tree, tokens: torch.Tensor) -> torch.Tensor:
    """The tree, node by node, with lists."""
    nodes = leaves = [leaf(tree, token) for token in tokens]
    while len(nodes) > 1:
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        nodes = [joined(tree, *pair) for pair in pairs] + nodes[len(nodes) - len(nodes) % 2 :]
    return torch.stack([state + nodes[0][0] for state, _ in leaves])


def test_is_a_tree_node_by_node() -> None:
    tree = Tree(4).double()
    lengths = [1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 33]
    x = Packed.from_lengths(torch.randn(sum(lengths), 4, dtype=torch.float64), lengths)
    torch.testing.assert_close(tree(x.values, x), torch.cat([naive(tree, tokens) for tokens in x.to_list()]))


@pytest.mark.parametrize("length", [1, 2, 1000])
def test_steps_grow_with_the_logarithm(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TreeLstm(TreeLstmConfig(max_length=1000, width=4))
    steps = []
    monkeypatch.setattr(
        Tree, "_joined", lambda self, *args, original=Tree._joined: steps.append(1) or original(self, *args)
    )
    encoder(Packed.from_lengths(torch.randn(length, 4), [length]))
    assert len(steps) == (length - 1).bit_length()
