"""Plots by matplotlib, written as PNG files: scores by length, lengths of records, embeddings."""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float
from numpy import ndarray

from chordmixer import files
from chordmixer.training.evaluation import Evaluation
from chordmixer.views import metrics
from chordmixer.views.tables import CONSTANT, in_percent, interval_name, length_cell, mean_over_seeds, records_name

if TYPE_CHECKING:
    from chordmixer.data.inspection import Inspection

COLOURS = ("#1f5fbf", "#c4501b", "#2f8f4e", "#8a4fb0", "#8c8c1f", "#444444")
"""Colours that can be distinguished in print and by colour-blind readers."""
MARKERS = "osD^"  # the next marker is used after all colours
FULL_PERCENTILE = 99.5  # percentile of the absolute values with full colour, so that outliers do not hide the rest
SPREAD = 0.5
"""Fraction of the distance between length bins over which models are spread, so that no error bar hides another."""
LETTERS_PER_INCH = 11  # letters of a title per inch
PANELS_PER_ROW = 4  # number of panels in a row
MAX_NAMED = len(COLOURS) * len(MARKERS)  # number of labels, the most frequent, with a colour and marker of their own


def pyplot() -> Any:
    """Import matplotlib's pyplot, with a backend that needs no window."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path, dpi: int = 150) -> Path:
    """Write a figure as PNG and close it."""
    content = io.BytesIO()
    figure.savefig(content, dpi=dpi)
    pyplot().close(figure)
    files.write_bytes(path, content.getvalue())
    return path


def strongest(rows: ndarray, most: int) -> ndarray:
    """Reduce to at most `most` rows: in each group of neighbours, for each column, the number farthest from zero.

    >>> strongest(np.array([[1], [-3], [0], [2], [1]]), most=3).ravel().tolist()
    [-3, 2, 1]
    """
    size = -(-len(rows) // most)
    if size == 1:
        return rows
    missing = -len(rows) % size
    filled = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    grouped = filled.reshape(-1, size, *rows.shape[1:])
    index = np.abs(grouped).argmax(axis=1)[:, None]
    chosen: ndarray = np.take_along_axis(grouped, index, axis=1)[:, 0]
    return chosen


def full_colour(values: ndarray) -> float:
    """The absolute value with full colour: the `FULL_PERCENTILE` percentile, or the largest if most are zero.

    >>> full_colour(np.array([0.0, 0.0, -2.0])), full_colour(np.zeros(3))
    (1.98, 1.0)
    """
    sizes = np.abs(values)
    return float(np.percentile(sizes, FULL_PERCENTILE)) or float(sizes.max()) or 1.0


# --- Lengths of records ---


def plot_histogram(inspection: Inspection, path: Path) -> Path:
    """Plot the lengths of records on a logarithmic axis, with median and 99th percentile."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    figure, axes = pyplot().subplots(figsize=(8, 4.5), layout="constrained")
    edges = inspection.edges
    widths = [after - before for before, after in pairwise(edges)]
    axes.bar(edges[:-1], inspection.histogram, widths, align="edge", color=COLOURS[0], edgecolor="white")
    for colour, percentile, name in ((COLOURS[1], 50, "median"), (COLOURS[2], 99, "99th percentile")):
        length = inspection.percentiles[percentile]
        axes.axvline(length, color=colour, linestyle="--", label=f"{name}: {length:,}")
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if edges[-1] < 1000 * edges[0] else (1,)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set(xlabel="length in tokens", ylabel="records")
    axes.set_title(f"{inspection.records:,} records, {inspection.tokens:,} tokens")
    axes.grid(alpha=0.3)
    axes.legend()
    return save(figure, path)


# --- Scores by length ---


def plot_lengths(evaluations: Sequence[Evaluation], path: Path, title: str = "") -> Path:
    """Plot the headline metric, or for R² the mean absolute error, by length; dashed: the constant prediction.

    Error bars are 95 % intervals, or the range over a model's runs with several seeds. If there are more models than
    colours, each has a panel, together with the first model. The default title is the name of the task.
    """
    models, first = mean_over_seeds(evaluations), evaluations[0]
    runs = Counter(e.encoder for e in evaluations)
    names = {e: e + (f", {n} runs" if n > 1 else "") for e, n in runs.items()}
    named = replace(first, task=title) if title else first
    title_text = f"{records_name(named)}, {first.records:,} sequences; bars: {interval_name(evaluations)}"
    figure = _panels(models, names) if len(models) > len(COLOURS) else _one_panel(models, names)
    figure.suptitle(textwrap.fill(title_text, int(LETTERS_PER_INCH * figure.get_figwidth())), fontsize=11)
    return save(figure, path)


def _one_panel(models: Sequence[Evaluation], names: Mapping[str, str]) -> Any:
    figure, axes = pyplot().subplots(figsize=(8, 5), layout="constrained")
    metric = metrics.by_length(models[0].headline)
    for number, model in enumerate(models):
        shift = SPREAD * (number - (len(models) - 1) / 2) / max(len(models), 4)
        _line(axes, model, metric, names[model.encoder], shift, COLOURS[number], "o")
    _frame(axes, models[0], [f"{row.percentile}\n{row.longest:,}" for row in models[0].by_length])
    axes.set_xlabel("length percentile, and the longest sequence below it")
    axes.set_ylabel(metrics.name(metric))
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _panels(models: Sequence[Evaluation], names: Mapping[str, str]) -> Any:
    """Draw a panel for each model but the first, sorted by score, together with the first model."""
    first, *others = models
    metric = metrics.by_length(first.headline)
    sign = 1 if metric in metrics.LESS_IS_BETTER else -1
    others.sort(key=lambda model: sign * model.scores[metric].value)
    rows = -(-len(others) // PANELS_PER_ROW)
    figure, grid = pyplot().subplots(
        rows,
        PANELS_PER_ROW,
        figsize=(2.6 * PANELS_PER_ROW, 0.9 + 1.9 * rows),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axes, other in zip(grid.flat, others, strict=False):
        _line(axes, first, metric, names[first.encoder], -SPREAD / 6, COLOURS[0], "")
        _line(axes, other, metric, names[other.encoder], SPREAD / 6, COLOURS[1], "o")
        _frame(axes, first, [str(row.percentile) for row in first.by_length])
        axes.set_title(f"{names[other.encoder]}: {_overall(other, metric)}", fontsize=9)
        axes.tick_params(labelsize=7)
    for axes in [*grid.flat][len(others) :]:
        axes.set_visible(False)
    for axes in [*grid.flat][max(0, len(others) - PANELS_PER_ROW) : len(others)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("length percentile", fontsize=8)
    figure.supylabel(metrics.name(metric), fontsize=9)
    handles = {label: line for line, label in zip(*grid.flat[0].get_legend_handles_labels(), strict=True)}
    first_name = names[first.encoder]
    entries = {f"{first_name}: {_overall(first, metric)}": handles[first_name], CONSTANT: handles[CONSTANT]}
    figure.legend([*entries.values()], [*entries], loc="outside lower center", ncols=2, frameon=False)
    return figure


def _overall(model: Evaluation, metric: str) -> str:
    return length_cell(model.scores[metric], metric).value + (" %" if in_percent(metric) else "")


def _line(axes: Any, model: Evaluation, metric: str, label: str, shift: float, color: str, marker: str) -> None:
    scores = [row.scores[metric] for row in model.by_length]
    values = np.array([s.value for s in scores])
    low, high = np.array([metrics.ends(s) for s in scores]).reshape(-1, 2).T
    bars = np.maximum([values - low, high - values], 0.0)  # NaN, of which no bar is drawn, stays NaN
    places = np.arange(len(scores)) + shift
    axes.errorbar(places, values, bars, color=color, marker=marker, markersize=5, capsize=3, label=label)


def _frame(axes: Any, first: Evaluation, ticks: Sequence[str]) -> None:
    metric = metrics.by_length(first.headline)
    axes.axhline(first.guessing[metric], color="grey", linestyle="--", label=CONSTANT)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlim(-SPREAD, len(ticks) - 1 + SPREAD)
    axes.set_ylim(*((-0.02, 1.02) if in_percent(metric) else (0, None)))
    axes.grid(alpha=0.3)


# --- Embeddings ---


@dataclass(frozen=True)
class NeighbourShares:
    """How often the nearest records have the same label."""

    records: int
    labels: int
    shares: dict[int, float]  # by k: the mean fraction of the k nearest other records with the same label
    chance: float  # the same fraction for other records drawn at random
    even_shares: dict[int, float]
    """`shares` averaged within each label first, so that rare and frequent labels count equally."""
    even_chance: float

    def lines(self) -> list[str]:
        """The fractions as sentences."""
        sentences = [
            f"{share:.1%} of the {_nearest(k)} have the same label; as a mean over labels {self.even_shares[k]:.1%}"
            for k, share in self.shares.items()
        ]
        chance = f"by chance {self.chance:.1%}; as a mean over labels {self.even_chance:.1%}"
        return [f"{self.records:,} records of {self.labels:,} labels", *sentences, chance]


def read_embeddings(path: Path | str, labels: Mapping[str, str]) -> tuple[Float[ndarray, "B C"], list[str]]:
    """Read vectors and labels from a Parquet file of `chordmixer embed`; records without a label are omitted."""
    try:
        table = pq.read_table(path, columns=["id", "embedding"])
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} has no embeddings to read ({reason}): give a file of chordmixer embed") from None
    ids, column = table["id"].to_pylist(), table["embedding"].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        raise ValueError(f"{path} has several vectors a record: embed without --per-token")
    labelled = [i for i, name in enumerate(ids) if name in labels]
    if not labelled:
        raise ValueError(f"no record of {path} has a label: labels go by id, such as {ids[0] if ids else 'none'}")
    vectors = column.flatten().to_numpy().reshape(len(ids), -1)
    return vectors[labelled], [labels[ids[i]] for i in labelled]


def neighbours(vectors: Float[ndarray, "B C"], labels: Sequence[str], ks: Iterable[int] = (1, 5)) -> NeighbourShares:
    """Count labels among the nearest records, by Euclidean distance; a record is not its own neighbour."""
    from sklearn.neighbors import NearestNeighbors

    sorted_ks, records = sorted(ks), len(labels)
    if len(vectors) != records:
        raise ValueError(f"{len(vectors)} vectors and {records} labels do not go together: give one label per vector")
    if not sorted_ks or sorted_ks[0] < 1 or sorted_ks[-1] >= records:
        raise ValueError(f"k={sorted_ks} of {records} records is not a number of others: give 1 to {records - 1}")
    _, codes = np.unique(np.asarray(labels), return_inverse=True)
    search = NearestNeighbors(n_neighbors=sorted_ks[-1], algorithm="brute").fit(vectors)
    same = codes[search.kneighbors(return_distance=False)] == codes[:, None]
    counts = np.bincount(codes)
    others = (counts - 1) / (records - 1)
    return NeighbourShares(
        records,
        len(counts),
        shares={k: float(same[:, :k].mean()) for k in sorted_ks},
        chance=float(others[codes].mean()),
        even_shares={k: float((np.bincount(codes, same[:, :k].mean(1)) / counts).mean()) for k in sorted_ks},
        even_chance=float(others.mean()),
    )


def _nearest(k: int) -> str:
    return "nearest" if k == 1 else f"{k} nearest"


def principal_components(vectors: Float[ndarray, "B C"]) -> tuple[Float[ndarray, "B 2"], Float[ndarray, "2"]]:
    """Project records on the first two principal components; also return the fraction of variance of each."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(np.pad(centred, ((0, 0), (0, max(0, 2 - centred.shape[1])))), full_matrices=False)
    if len(sizes) < 2:
        raise ValueError(f"{len(vectors)} records make no map: give 2 or more")
    return left[:, :2] * sizes[:2], sizes[:2] ** 2 / max(float((sizes**2).sum()), 1e-300)


def plot_embeddings(vectors: Float[ndarray, "B C"], labels: Sequence[str], path: Path) -> Path:
    """Plot records on the first two principal components, coloured by label, with neighbour shares in the title."""
    neighbour_shares = neighbours(vectors, labels, [k for k in (1, 5) if k < len(labels)])
    points, shares = principal_components(vectors)
    label_array = np.asarray(labels)
    named = [label for label, _ in Counter(labels).most_common(MAX_NAMED)]
    figure, axes = pyplot().subplots(figsize=(9, 6), layout="constrained")
    rest = points[~np.isin(label_array, named)]
    if len(rest):
        others = neighbour_shares.labels - len(named)
        title = f"{others} other{'s' if others > 1 else ''} ({len(rest)})"
        axes.scatter(rest[:, 0], rest[:, 1], s=12, color="#c8c8c8", label=title)
    for number, label in enumerate(named):
        marker, colour = divmod(number, len(COLOURS))
        members = points[label_array == label]
        style = {"color": COLOURS[colour], "marker": MARKERS[marker], "alpha": 0.7}
        axes.scatter(members[:, 0], members[:, 1], s=18, label=f"{label} ({len(members)})", **style)
    axes.set_xlabel(f"first principal component, {shares[0]:.0%} of the variance")
    axes.set_ylabel(f"second principal component, {shares[1]:.0%} of the variance")
    nearest = ", ".join(f"{share:.0%} of the {_nearest(k)}" for k, share in neighbour_shares.shares.items())
    counted = f"{neighbour_shares.records:,} records of {neighbour_shares.labels:,} labels"
    axes.set_title(f"{counted}\nsame label: {nearest}; {neighbour_shares.chance:.0%} by chance", fontsize=11)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return save(figure, path)
