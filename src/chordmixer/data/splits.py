"""Which records are for training, for validation, for the test: decided once, from a seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from chordmixer.data import draws


def stratified(labels: Sequence[Hashable], fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Indices of each part, every label spread over the parts in the given proportions.

    >>> train, test = stratified(["a"] * 6 + ["b"] * 3, [2 / 3, 1 / 3], seed=0)
    >>> len(train), len(test), sorted(train + test) == list(range(9))
    (6, 3, True)
    """
    if abs(sum(fractions) - 1) > 1e-6 or min(fractions) <= 0:
        raise ValueError(f"split fractions {list(fractions)} must be above 0 and add up to 1: correct them")
    members = defaultdict(list)
    for index, label in enumerate(labels):
        members[label].append(index)
    parts: list[list[int]] = [[] for _ in fractions]
    for label, indices in members.items():
        if len(indices) < len(fractions):
            raise ValueError(
                f"label {label!r} has {len(indices)} records for {len(fractions)} splits: each split needs one; "
                "add records or merge labels"
            )
        order = draws.permutation(draws.key(seed, "split", str(label)), len(indices)).tolist()
        for part, (start, end) in zip(parts, _cuts(len(indices), fractions), strict=True):
            part += [indices[i] for i in order[start:end]]
    return [sorted(part) for part in parts]


def _cuts(count: int, fractions: Sequence[float]) -> list[tuple[int, int]]:
    """Consecutive ranges in the given proportions, none empty."""
    ends: list[int] = []
    total = 0.0
    for done, fraction in enumerate(fractions, start=1):
        total += fraction
        least = (ends[-1] if ends else 0) + 1
        ends.append(min(max(round(count * total), least), count - (len(fractions) - done)))
    return list(zip([0, *ends], ends, strict=False))
