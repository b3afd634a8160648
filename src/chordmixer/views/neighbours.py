"""Whether embeddings put records of one label together: how often a neighbour has it too, and a map to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float
from numpy import ndarray

from chordmixer.views import drawing
from chordmixer.views.drawing import COLOURS, MARKERS

SHOWN = len(COLOURS) * len(MARKERS)
"""Labels with a colour and a mark of their own: the most frequent ones."""
OTHERS = "#c8c8c8"


@dataclass(frozen=True)
class NeighbourShares:
    """How often the nearest records have a record's own label."""

    records: int
    labels: int
    shares: dict[int, float]
    """By k: of the k nearest other records, the mean share with the same label."""
    chance: float
    """The same of other records drawn at random."""
    even_shares: dict[int, float]
    """As `shares`, but first within each label: a rare one counts as much as a frequent one."""
    even_chance: float

    def lines(self) -> list[str]:
        """In words."""
        found = [
            f"{share:.1%} of the {_nearest(k)} have the same label; as a mean over labels {self.even_shares[k]:.1%}"
            for k, share in self.shares.items()
        ]
        chance = f"by chance {self.chance:.1%}; as a mean over labels {self.even_chance:.1%}"
        return [f"{self.records:,} records of {self.labels:,} labels", *found, chance]


def read(path: Path | str, labels: Mapping[str, str]) -> tuple[Float[ndarray, "B C"], list[str]]:
    """Vectors and labels from a Parquet file of `chordmixer embed`; records without a label are left out."""
    try:
        table = pq.read_table(path, columns=["id", "embedding"])
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} has no embeddings to read ({reason}): give a file of chordmixer embed") from None
    ids, column = table["id"].to_pylist(), table["embedding"].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        raise ValueError(f"{path} has several vectors a record: embed without --per-token")
    known = [i for i, name in enumerate(ids) if name in labels]
    if not known:
        raise ValueError(f"no record of {path} has a label: labels go by id, such as {ids[0] if ids else 'none'}")
    vectors = column.flatten().to_numpy().reshape(len(ids), -1)
    return vectors[known], [labels[ids[i]] for i in known]


def neighbours(vectors: Float[ndarray, "B C"], labels: Sequence[str], ks: Iterable[int] = (1, 5)) -> NeighbourShares:
    """Count labels among the nearest records, by Euclidean distance; a record is not its own neighbour.

    >>> around = neighbours(np.array([[0.0], [0.1], [5.0], [5.1], [5.4]]), ["a", "a", "b", "b", "a"], ks=(1,))
    >>> around.shares, around.chance, around.lines()[1]
    ({1: 0.8}, 0.4, '80.0% of the nearest have the same label; as a mean over labels 83.3%')
    """
    from sklearn.neighbors import NearestNeighbors

    wanted, records = sorted(ks), len(labels)
    if len(vectors) != records:
        raise ValueError(f"{len(vectors)} vectors and {records} labels do not go together: give one label a vector")
    if not wanted or wanted[0] < 1 or wanted[-1] >= records:
        raise ValueError(f"k={wanted} of {records} records is not a number of others: give 1 to {records - 1}")
    _, codes = np.unique(np.asarray(labels), return_inverse=True)
    search = NearestNeighbors(n_neighbors=wanted[-1], algorithm="brute").fit(vectors)
    same = codes[search.kneighbors(return_distance=False)] == codes[:, None]
    counts = np.bincount(codes)
    others = (counts - 1) / (records - 1)

    def within(k: int) -> float:
        return float((np.bincount(codes, same[:, :k].mean(1)) / counts).mean())

    return NeighbourShares(
        records,
        len(counts),
        shares={k: float(same[:, :k].mean()) for k in wanted},
        chance=float(others[codes].mean()),
        even_shares={k: within(k) for k in wanted},
        even_chance=float(others.mean()),
    )


def _nearest(k: int) -> str:
    return "nearest" if k == 1 else f"{k} nearest"


def plane(vectors: Float[ndarray, "B C"]) -> tuple[Float[ndarray, "B 2"], Float[ndarray, "2"]]:
    """The two directions in which records differ most (PCA), and the share of the variance that each holds."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(np.pad(centred, ((0, 0), (0, max(0, 2 - centred.shape[1])))), full_matrices=False)
    if len(sizes) < 2:
        raise ValueError(f"{len(vectors)} records make no map: give 2 or more")
    return left[:, :2] * sizes[:2], sizes[:2] ** 2 / max(float((sizes**2).sum()), 1e-300)


def plot(vectors: Float[ndarray, "B C"], labels: Sequence[str], path: Path) -> Path:
    """A point a record on the two main directions, by label, with the shares of neighbours above."""

    around, (points, shares) = neighbours(vectors, labels, [k for k in (1, 5) if k < len(labels)]), plane(vectors)
    own = np.asarray(labels)
    named = [label for label, _ in Counter(labels).most_common(SHOWN)]
    figure, axes = drawing.pyplot().subplots(figsize=(9, 6), layout="constrained")
    rest = points[~np.isin(own, named)]
    if len(rest):
        others = around.labels - len(named)
        axes.scatter(
            rest[:, 0],
            rest[:, 1],
            s=12,
            color=OTHERS,
            label=f"{others} other{'s' if others > 1 else ''} ({len(rest)})",
        )
    for number, label in enumerate(named):
        again, colour = divmod(number, len(COLOURS))
        mine = points[own == label]
        axes.scatter(
            mine[:, 0],
            mine[:, 1],
            s=18,
            color=COLOURS[colour],
            marker=MARKERS[again],
            alpha=0.7,
            label=f"{label} ({len(mine)})",
        )
    axes.set_xlabel(f"first direction, {shares[0]:.0%} of the variance")
    axes.set_ylabel(f"second direction, {shares[1]:.0%} of the variance")
    nearest = ", ".join(f"{share:.0%} of the {_nearest(k)}" for k, share in around.shares.items())
    counted = f"{around.records:,} records of {around.labels:,} labels"
    axes.set_title(f"{counted}\nsame label: {nearest}; {around.chance:.0%} by chance", fontsize=11)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return drawing.save(figure, path)
