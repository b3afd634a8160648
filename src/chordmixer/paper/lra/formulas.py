"""The formulas of ListOps as tokens, and the same ones with their arguments in another order.

All four operations give the same result whatever the order of their arguments, so a formula of which one knows the
result gives many others.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy import ndarray

from chordmixer.data import draws

TOKENS = (*"0123456789", "[MAX", "[MIN", "[MED", "[SM", "]")
"""By their ids. A bracket opens with its operator, as one token; the release's parentheses say nothing more."""
MAX, MIN, MED, SM, CLOSE = range(10, 15)


def reordered(tokens: ndarray, lengths: ndarray, keys: ndarray) -> ndarray:
    """Formulas that lie end to end, each with the arguments of all its operations in an order that its key decides.

    One that was cut, so that brackets are left open, stays as it is.

    >>> formula = [MAX, 1, MIN, 2, 3, CLOSE, 4, CLOSE]
    >>> other = reordered(np.array(formula), np.array([8]), np.array([1]))
    >>> " ".join(TOKENS[i] for i in other)
    '[MAX 1 4 [MIN 3 2 ] ]'
    """
    opens, closes = (tokens >= MAX) & (tokens < CLOSE), tokens == CLOSE
    rises = opens.astype(np.int64) - closes
    owner, starts = np.repeat(np.arange(len(lengths)), lengths), np.cumsum(lengths) - lengths
    whole = np.add.reduceat(rises, starts) == 0
    if not whole.all():
        result = tokens.copy()
        result[whole[owner]] = reordered(tokens[whole[owner]], lengths[whole], keys[whole])
        return result
    depth = np.cumsum(rises) + ~opens  # the same for brackets that belong together, and 1 for the outermost
    index = torch.from_numpy(np.arange(len(tokens)) - starts[owner])
    chance = draws.bits(torch.from_numpy(keys[owner]), index).numpy()
    size, result = np.ones(len(tokens), dtype=np.int64), np.full_like(tokens, CLOSE)
    parents = places = starts - 1  # before and after; the first ones have no token
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        operations, nodes = here[opens[here]], here[~closes[here]]
        size[operations] = here[closes[here]] - operations + 1
        parent = np.searchsorted(parents, nodes) - 1
        order = np.lexsort((chance[nodes], parent))
        before = np.cumsum(size[nodes[order]]) - size[nodes[order]]
        firsts = before[np.searchsorted(parent, parent)]
        own = np.empty(len(nodes), dtype=np.int64)
        own[order] = places[parent] + 1 + before - firsts  # in its new order too, a family has the same parent
        result[own] = tokens[nodes]
        parents, places = operations, own[opens[nodes]]
    return result
