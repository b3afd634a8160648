"""Outputs of a network trained on the Adding problem after the first and the last block (paper, figure 8).

Columns of a panel are positions, rows are channels, grouped by track: Rotate does not move the top track, and brings
the next ones from 1, 2, 4, 8, ... positions ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from chordmixer.models import Model
from chordmixer.packed import Packed
from chordmixer.training import Experiment
from chordmixer.views import plots
from chordmixer.views.plots import COLOURS, full_colour, strongest

MAX_COLUMNS = 1200  # columns of a panel; for longer sequences a column shows the strongest of several positions
CAPTION = """\
A column is a position, a row a channel of its token. Channels form tracks: before a block mixes a token, Rotate
brings it the top track of its own position, the next one from 1 position on, then 2, 4, 8, ... Colour below the \
input:
how far a channel is from its median over the sequence. Blue arrow heads: positions that the answer depends on."""


@dataclass(frozen=True)
class Example:
    """A sequence and the outputs of blocks for it."""

    title: str
    layers: list[tuple[str, ndarray]]  # from `matrices`: the input, then outputs of blocks
    marked: tuple[int, ...]  # positions of the two markers, from 0


def matrices(model: Model, x: Packed) -> list[tuple[str, ndarray]]:
    """The input of one sequence and its tokens after the first and the last block, (N, channels) each.

    A class token that the head adds is left out. For a reversible network the last matrix is the stream that its last
    block updates.
    """
    outputs: list[tuple[int, Tensor]] = []

    def keep(number: int, module: nn.Module, inputs: Any, output: Tensor) -> None:
        del outputs[1:]
        outputs.append((number, output.detach()[: x.tokens].clone()))  # cloned, since blocks reuse two buffers

    blocks: Any = model.encoder.blocks
    handles = [block.register_forward_hook(partial(keep, number)) for number, block in enumerate(blocks, 1)]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(x)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    names = [f"after block {number}" for number, _ in outputs]
    names[-1] += ", the last"
    after = [(name, tokens.float().cpu().numpy()) for name, (_, tokens) in zip(names, outputs, strict=True)]
    return [("input", x.values.cpu().numpy()), *after]


def prominence(matrix: ndarray, track_size: int) -> ndarray:
    """Distance of the top track of each token from the median over the sequence, (N,).

    >>> prominence(np.array([[1.0, 9.0], [1.0, 5.0], [4.0, 7.0]]), track_size=1).tolist()
    [0.0, 0.0, 3.0]
    """
    top = matrix[:, :track_size]
    distances: ndarray = np.linalg.norm(top - np.median(top, axis=0), axis=1)
    return distances


def ranks(matrix: ndarray, track_size: int, marked: Sequence[int]) -> list[int]:
    """Rank of each marked position by prominence, from 1 for the most prominent."""
    distances = prominence(matrix, track_size)
    return [int((distances > distances[position]).sum()) + 1 for position in marked]


def examples(run: Path, experiment: Experiment, lengths: Sequence[int]) -> list[Example]:
    """For each length, run the model of an Adding run on the test sequence of nearest length."""
    records, model = experiment.build_task().records("test"), Model.from_pretrained(run, device="cpu")
    examples = []
    for length in lengths:
        index = int(np.abs(np.asarray(records.lengths) - length).argmin())
        values, target = records[index]
        x = Packed.from_list([values])
        with torch.no_grad():
            output = model(x)
        assert isinstance(output, Tensor)
        title = f"{records.name(index)}: {x.tokens:,} positions, answer {float(output):.3f}, true {float(target):.3f}"
        examples.append(Example(title, matrices(model, x), tuple(values[:, 1].nonzero().flatten().tolist())))
    return examples


def plot(examples: Sequence[Example], track_size: int, path: Path) -> Path:
    """Plot one panel per layer of each sequence, with lines between tracks and arrow heads at marked positions."""
    panels = [(example, layer) for example in examples for layer in range(len(example.layers))]
    heights = [0.4 if layer == 0 else 2.0 for _, layer in panels]
    size = (11.0, 1.1 * sum(heights) + 0.75 * len(panels) + 0.8)
    figure, grid = plots.pyplot().subplots(len(panels), 1, figsize=size, height_ratios=heights, squeeze=False)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 0.75 / size[1]))
    for axes, (example, layer) in zip(grid[:, 0], panels, strict=True):
        figure.colorbar(_panel(axes, example, layer, track_size), ax=axes, pad=0.01, aspect=12 if layer else 3)
    grid[-1, 0].set_xlabel("position in the sequence")
    figure.text(0.01, 1 - 0.1 / size[1], CAPTION, va="top", fontsize=10)
    return plots.save(figure, path, dpi=130)


def _panel(axes: Any, example: Example, layer: int, track_size: int) -> Any:
    name, matrix = example.layers[layer]
    positions, channels = matrix.shape
    if layer == 0:
        title = f"{example.title}: {name}"
        image, limit = matrix, float(np.abs(matrix).max()) or 1.0
        axes.set_yticks(range(channels), [f"channel {c}" for c in range(channels)], fontsize=10)
    else:
        title = name + _rank_note(matrix, track_size, example.marked)
        image = matrix - np.median(matrix, axis=0)
        limit = full_colour(image)
        _tracks(axes, channels, track_size)
    axes.set_title(title, loc="left", fontsize=10, fontweight=None if layer else "bold", pad=13)
    for position in example.marked:
        above = {"xytext": (0, 0), "textcoords": "offset points", "ha": "center", "va": "bottom"}
        axes.annotate("▼", (position, 1), xycoords=axes.get_xaxis_transform(), color=COLOURS[0], fontsize=9, **above)
    return axes.imshow(
        strongest(image, MAX_COLUMNS).T,
        cmap="RdGy",
        vmin=-limit,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, positions - 0.5, channels - 0.5, -0.5),
    )


def _rank_note(matrix: ndarray, track_size: int, marked: Sequence[int]) -> str:
    places = " and ".join(f"{place:,}" for place in ranks(matrix, track_size, marked))
    top = int(prominence(matrix, track_size).argmax())
    distances = [abs(top - position) for position in marked]
    nearest = min(min(d, len(matrix) - d) for d in distances)  # circular, like Rotate
    where = "a marked one" if nearest == 0 else f"{nearest:,} from a marked one"
    return f". In the top track the marked stand out as no. {places} of {len(matrix):,}; no. 1 is {where}"


def _tracks(axes: Any, channels: int, track_size: int) -> None:
    tracks = channels // track_size
    names = ["own", *(f"+{1 << t:,}" for t in range(tracks - 1))]
    axes.set_yticks([(t + 0.5) * track_size - 0.5 for t in range(tracks)], names, fontsize=8)
    for t in range(1, tracks):
        axes.axhline(t * track_size - 0.5, color="black", linewidth=0.4)
    axes.set_ylabel("track")
