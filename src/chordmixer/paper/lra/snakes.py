"""Generator of Pathfinder's pictures of dashed curves that do not touch, in batches (Linsley et al., 2018).

Two long curves of dashes ("snakes") start near each other and grow alternately; short ones are placed between them. A
picture is a function of its key. Angles are multiples of 1/4096 turn and sines are rounded table entries, so that the
arithmetic is exact and pictures are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray

from chordmixer.data import draws

TURN = 4096  # angle units of a full turn
TRIES = 8  # directions tried for a dash before its snake is abandoned
LOOK_AHEAD = 4  # distance that a long snake looks ahead, in halves of a dash with its gaps
RETRIES = 5  # attempts for a short snake before it is left out
BORDER = 255  # mask value of the border and of short snakes
_ANGLES = np.arange(TURN) * (2 * np.pi / TURN)
_COS, _SIN = (np.round(f(_ANGLES) * 2**20).astype(np.float32) / np.float32(2**20) for f in (np.cos, np.sin))


@dataclass(frozen=True)
class PictureStyle:
    """Lengths in pixels, as in comments of the Arena's builders, with names of the authors' generator in brackets."""

    size: int
    dash: int  # length of a dash (paddle_length)
    margins: tuple[int, ...]  # half the gap between dashes, one is drawn for each picture (paddle_margin_list)
    thickness: float  # of a dash (paddle_thickness)
    marker: float  # radius of the two discs (marker_radius)
    distance: int  # between the starts of the long snakes (seed_distance)
    continuity: float  # a turn by d has weight cos^2(continuity * d), zero where the argument exceeds 90 degrees
    clutter: int  # total number of dashes in short snakes
    brightness: float  # of a fully covered pixel (snake_contrast times paddle_contrast), clipped to 1


class _Dash(NamedTuple):
    """One dash per picture: centre and direction."""

    y: ndarray
    x: ndarray
    angle: ndarray


def pictures(style: PictureStyle, contour: int, keys: ndarray, joined: ndarray) -> ndarray:
    """Generate grey pictures of shape (n, size, size); where `joined`, both discs are on one long snake."""
    margins = np.array(style.margins)[_words(keys, -1)[:, 0] % len(style.margins)].astype(np.float32)
    masks, dashes = _two_snakes(style, contour, keys, margins)
    drawn = np.zeros((len(keys), style.size**2), dtype=np.float32)
    rows = np.arange(len(keys))
    for y, x, angle in dashes.transpose(1, 2, 0):
        _draw(drawn, rows, style, _Dash(y, x, angle.astype(np.int64)))
    length = max(contour // 3, 1)
    for number in range(style.clutter // length):
        _short_snake(style, length, keys, margins, masks, drawn, number)
    chosen = _words(keys, -2)[:, 0] & 1
    for snake, step, sign in ((chosen, 0, -1), (np.where(joined, chosen, 1 - chosen), contour - 1, 1)):
        y, x, angle = dashes[rows, 2 * step + snake].T
        _draw(drawn, rows, style, _ahead(y, x, angle.astype(np.int64), np.float32(sign * style.dash / 2)), disc=True)
    return np.rint(drawn * 255).astype(np.uint8).reshape(-1, style.size, style.size)


# --- Growing ---


def _two_snakes(style: PictureStyle, contour: int, keys: ndarray, margins: ndarray) -> tuple[ndarray, ndarray]:
    """Masks and dashes (n, 2 L, 3) of the first attempt per picture in which both long snakes are completed."""
    masks = np.zeros((len(keys), style.size**2), dtype=np.uint8)
    dashes = np.zeros((len(keys), 2 * contour, 3), dtype=np.float32)
    missing, attempt = np.arange(len(keys)), 0
    while len(missing):
        tries = max(2, len(keys) // len(missing))  # fills late rounds: small ones cost as much
        picture = np.repeat(missing, tries)
        counters = np.tile(np.arange(attempt, attempt + tries), len(missing))
        rows, grown_masks, grown = _attempt(style, contour, _bits(keys[picture], counters), margins[picture])
        done, first = np.unique(picture[rows], return_index=True)
        masks[done], dashes[done] = grown_masks[rows[first]], grown[rows[first]]
        missing = np.setdiff1d(missing, done)
        attempt += tries
    return masks, dashes


def _attempt(style: PictureStyle, contour: int, keys: ndarray, margins: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Indices of the attempts that succeed, with masks and dashes of all attempts.

    A mask has the number of the first dash near a pixel, so that a snake can continue next to its own last dash.
    """
    masks = np.full((len(keys), style.size, style.size), BORDER, dtype=np.uint8)
    masks[:, 1:-1, 1:-1] = 0
    field = _Field(style, masks.reshape(len(keys), -1))
    dashes, rows = np.zeros((len(keys), 2 * contour, 3), dtype=np.float32), np.arange(len(keys))
    start = _words(keys, 0)
    inset = 2 * style.distance  # distance of the starts from the border
    tails = [inset + _fraction(start[:, k]) * np.float32(style.size - 2 * inset) for k in (0, 1)]
    other = _ahead(tails[0], tails[1], start[:, 2] & (TURN - 1), style.distance)
    pivots: list[list[ndarray]] = [tails, [other.y, other.x]]  # where the gap before the next dash begins
    angles = [start[:, 3] & (TURN - 1), start[:, 4] & (TURN - 1)]
    for step in range(2 * contour):
        snake, first = step % 2, step < 2
        y, x = (axis[rows] for axis in pivots[snake])
        turns = _words(keys[rows], step + 1)
        directions = turns if first else angles[snake][rows, None] + _turns(style.continuity)[turns & 0xFFFF]
        angle = directions & (TURN - 1)
        gap = np.zeros(len(rows), np.float32) if first else margins[rows]
        chosen, free = field.best(rows, y, x, angle, gap, last=step - 1)
        rows, y, x, angle, gap = rows[free], y[free], x[free], chosen[free], gap[free]
        reach = gap + np.float32(style.dash / 2)
        dash = _ahead(y, x, angle, reach)
        field.block(rows, dash, margins[rows], step + 1)
        dashes[rows, step] = np.stack([dash.y, dash.x, angle.astype(np.float32)], axis=1)
        pivot = _ahead(y, x, angle, reach + np.float32(style.dash / 2) + margins[rows])
        pivots[snake][0][rows], pivots[snake][1][rows], angles[snake][rows] = pivot
    return rows, field.masks, dashes


def _short_snake(
    style: PictureStyle, length: int, keys: ndarray, margins: ndarray, masks: ndarray, drawn: ndarray, number: int
) -> None:
    """Add a short snake to each picture that has space for it: draw it, and block its pixels."""
    field, missing = _Field(style, masks), np.arange(len(keys))
    for retry in range(RETRIES):
        bits = _bits(keys[missing], np.full(len(missing), -10 - number * RETRIES - retry))
        rows, steps = np.arange(len(missing)), []
        places = _words(bits, 0)
        ys, xs = ((_fraction(places >> by) * np.float32(style.size)) for by in (0, 24))
        angle = _words(bits, 1) & (TURN - 1)
        gap = np.zeros(len(missing), np.float32)
        for step in range(length):
            chosen, free, y, x = field.first(missing[rows], ys[rows], xs[rows], angle, gap[rows])
            rows, angle, y, x = rows[free], chosen[free], y[free], x[free]
            reach = gap[rows] + np.float32(style.dash / 2)
            steps.append((rows, _ahead(y, x, angle, reach)))
            pivot = _ahead(y, x, angle, reach + np.float32(style.dash / 2) + margins[missing[rows]])
            gap = margins[missing]
            ys, xs = np.empty((len(missing), 1), np.float32), np.empty((len(missing), 1), np.float32)
            ys[rows, 0], xs[rows, 0] = pivot.y, pivot.x
            angle = (angle[:, None] + _turns(style.continuity)[_words(bits[rows], step + 2) & 0xFFFF]) & (TURN - 1)
        for step_rows, dash in steps:
            completed = np.isin(step_rows, rows)
            final = _Dash(*(values[completed] for values in dash))
            _draw(drawn, missing[rows], style, final)
            field.block(missing[rows], final, margins[missing[rows]], BORDER)
        missing = np.delete(missing, rows)


class _Field(NamedTuple):
    """Occupied pixels of some pictures: masks have the number of the first dash near a pixel, or 0."""

    style: PictureStyle
    masks: ndarray

    def free(
        self, rows: ndarray, y: ndarray, x: ndarray, angle: ndarray, gap: ndarray, distances: ndarray, last: int = -1
    ) -> ndarray:
        """Whether pixels at these distances beyond the gap are free or of dash `last`, by row and direction."""
        free, border = np.ones(angle.shape, dtype=bool), self.style.size - 1
        for along in distances.astype(np.float32):
            point = _ahead(y, x, angle, gap[:, None] + along)
            at_y, at_x = (np.clip(np.rint(axis), 0, border).astype(np.int64) for axis in (point.y, point.x))
            near = self.masks[rows[:, None], at_y * self.style.size + at_x]
            free &= (near == 0) | ((near == last) & (last > 0))
        return free

    def first(
        self, rows: ndarray, ys: ndarray, xs: ndarray, angle: ndarray, gap: ndarray
    ) -> tuple[ndarray, ndarray, ndarray, ndarray]:
        """The first free dash among candidates that may differ in position and direction."""
        free = self.free(rows, ys, xs, angle, gap, np.arange(self.style.dash + 1))
        at, first = np.arange(len(rows)), free.argmax(axis=1)
        place = np.minimum(first, ys.shape[1] - 1)
        return angle[at, first], free[at, first], ys[at, place], xs[at, place]

    def best(
        self, rows: ndarray, y: ndarray, x: ndarray, angle: ndarray, gap: ndarray, last: int
    ) -> tuple[ndarray, ndarray]:
        """The free direction with most free space beyond the dash, so that snakes do not end in corners."""
        ys, xs, dash = y[:, None], x[:, None], np.arange(self.style.dash + 1)
        free = self.free(rows, ys, xs, angle, gap, dash, last)
        view, score = free, free.astype(np.int64)
        pitch = self.style.dash + 2 * max(self.style.margins)
        for ahead in range(1, LOOK_AHEAD + 1):
            view = view & self.free(rows, ys, xs, angle, gap, dash[-1:] + ahead * pitch // 2, last)
            score += view
        at, best = np.arange(len(rows)), score.argmax(axis=1)
        return angle[at, best], free[at, best]

    def block(self, rows: ndarray, dash: _Dash, margins: ndarray, code: int) -> None:
        """Mark free pixels that are closer to a dash than the gap within a snake, so that snakes stay distinct."""
        clear, at = 2 * margins + np.float32(self.style.thickness), rows[:, None]
        flat, squared = _around(self.style, dash, self.style.dash, 2 * max(self.style.margins) + self.style.thickness)
        near = (squared < (clear**2)[:, None]) & (self.masks[at, flat] == 0)
        self.masks[at, flat] = np.where(near, code, self.masks[at, flat])


def _ahead(y: ndarray, x: ndarray, angle: ndarray, distance: Any) -> _Dash:
    """Move points by a distance in their directions."""
    return _Dash(y + distance * _SIN[angle], x + distance * _COS[angle], angle)


@lru_cache
def _turns(continuity: float) -> ndarray:
    """Quantiles of the distribution of turns, in 65,536 steps."""
    widest = int(TURN / 4 / continuity)
    offsets = np.arange(-widest, widest + 1)
    weights = np.round(np.cos(offsets * (2 * np.pi / TURN) * continuity).clip(0) ** 2 * 2**20).astype(np.int64)
    quantiles = (np.arange(65536) * 2 + 1) * weights.sum() // 131072
    turns: ndarray = offsets[np.searchsorted(np.cumsum(weights), quantiles, side="right")]
    return turns


# --- Marking pixels ---


def _draw(drawn: ndarray, rows: ndarray, style: PictureStyle, dash: _Dash, disc: bool = False) -> None:
    """Draw a dash, or a disc at its centre, with anti-aliasing."""
    length, radius = (0, style.marker) if disc else (style.dash, style.thickness / 2)
    flat, squared = _around(style, dash, length, radius + 0.5)
    cover = np.clip(np.float32(0.5 + radius) - np.sqrt(squared), 0, 1) * np.float32(1 if disc else style.brightness)
    at = rows[:, None]
    drawn[at, flat] = np.maximum(drawn[at, flat], np.minimum(cover, 1))


def _around(style: PictureStyle, dash: _Dash, length: float, reach: float) -> tuple[ndarray, ndarray]:
    """Flat indices of the pixels around a dash, and their squared distances from its line.

    Pixels outside the picture are clamped to the border and get an infinite distance.
    """
    half = int(np.ceil(length / 2 + reach))
    window = np.arange(-half, half + 1)
    pixel_y = np.rint(dash.y).astype(np.int64)[:, None] + np.repeat(window, len(window))
    pixel_x = np.rint(dash.x).astype(np.int64)[:, None] + np.tile(window, len(window))
    dy, dx = pixel_y.astype(np.float32) - dash.y[:, None], pixel_x.astype(np.float32) - dash.x[:, None]
    sine, cosine = _SIN[dash.angle][:, None], _COS[dash.angle][:, None]
    along = np.maximum(np.abs(dy * sine + dx * cosine) - np.float32(length / 2), 0)
    squared = along**2 + (dy * cosine - dx * sine) ** 2
    inside = (pixel_y >= 0) & (pixel_y < style.size) & (pixel_x >= 0) & (pixel_x < style.size)
    flat = np.clip(pixel_y, 0, style.size - 1) * style.size + np.clip(pixel_x, 0, style.size - 1)
    return flat, np.where(inside, squared, np.float32(np.inf))


# --- Random numbers ---


def _bits(keys: ndarray, counters: ndarray) -> ndarray:
    return draws.bits(torch.from_numpy(keys), torch.from_numpy(counters)).numpy()


def _words(keys: ndarray, step: int) -> ndarray:
    """Random non-negative integers, TRIES for each key."""
    counters = np.tile(np.arange(step * TRIES, (step + 1) * TRIES), len(keys))
    return (_bits(np.repeat(keys, TRIES), counters) >> 1 & (1 << 62) - 1).reshape(-1, TRIES)


def _fraction(words: ndarray) -> ndarray:
    """Random fractions from 0 to 1, exact in float32."""
    return (words >> 4 & 0xFFFFF).astype(np.float32) * np.float32(2**-20)
