"""Which sequences go into which batch: mixed lengths, under a token budget and a sequence count.

Everything is a function of (seed, epoch), worked out on every rank alike, so a position in a run is two numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chordmixer.data import draws

Step = list[list[int]]
"""The batches that the ranks take at the same time."""


class TokenSampler:
    """Batches of record indices for one rank; iterating gives those from `start` on, its length counts them.

    >>> sampler = TokenSampler([5, 3, 9, 4], tokens=10, sequences=2, shuffle=False)
    >>> list(sampler), len(sampler)
    ([[0, 1], [2], [3]], 3)
    """

    def __init__(
        self,
        lengths: Sequence[int],
        tokens: int,
        sequences: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        longest = max(lengths)
        if longest > tokens:
            raise ValueError(
                f"a budget of {tokens:,} tokens a batch cannot hold record {list(lengths).index(longest)} of "
                f"{longest:,} tokens: no sequence is ever cut; set training.batch_tokens={longest} or more"
            )
        if len(lengths) < ranks:
            raise ValueError(f"{len(lengths)} records cannot be shared by {ranks} ranks: use fewer ranks")
        self.lengths = [int(n) for n in lengths]
        self.tokens, self.sequences = tokens, sequences
        self.shuffle, self.seed = shuffle, seed
        self.rank, self.ranks = rank, ranks
        self.set_epoch(0)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Plan this epoch; iteration begins with its batch number `start`."""
        self.epoch, self.start = epoch, start
        self.steps = self._plan()

    def __iter__(self) -> Iterator[list[int]]:
        return (step[self.rank] for step in self.steps[self.start :])

    def __len__(self) -> int:
        return len(self.steps) - self.start

    @property
    def left_out(self) -> list[int]:
        """Records that this epoch skips, fewer than there are ranks: always none on a single rank."""
        used = {i for step in self.steps for batch in step for i in batch}
        return [i for i in range(len(self.lengths)) if i not in used]

    def _plan(self) -> list[Step]:
        """Each sequence goes to the rank with the fewest tokens; a step is full when that rank has no room."""
        steps: list[Step] = []
        batches: Step = [[] for _ in range(self.ranks)]
        loads = [0] * self.ranks
        for index in self._order():
            rank = min(range(self.ranks), key=loads.__getitem__)
            full = len(batches[rank]) == self.sequences or loads[rank] + self.lengths[index] > self.tokens
            if full:
                steps.append(batches)
                batches, loads, rank = [[] for _ in range(self.ranks)], [0] * self.ranks, 0
            batches[rank].append(index)
            loads[rank] += self.lengths[index]
        return [*steps, batches] if all(batches) else steps

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(len(self.lengths)))
        order: list[int] = draws.permutation(draws.key(self.seed, "epoch", self.epoch), len(self.lengths)).tolist()
        return order
