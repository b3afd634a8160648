"""Pictures of dashed curves that never touch, many at a time: the rule of Pathfinder (Linsley et al., 2018).

Two long snakes of dashes start near each other and grow in turn; short ones are strewn between them. A picture is a
function of its key. Angles are 4096ths of a turn and sines come rounded from a table, so that what follows is exact
arithmetic and the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray

from chordmixer.data import draws

TURN = 4096  # steps of a whole turn
TRIES = 8  # directions that are tried for a dash before its snake is given up
AHEAD = 4  # half dashes with their gaps that a long snake looks ahead
RETRIES = 5  # how often a short snake is begun anew before the picture does without
BORDER = 255
_ANGLES = np.arange(TURN) * (2 * np.pi / TURN)
_COS, _SIN = (np.round(f(_ANGLES) * 2**20).astype(np.float32) / np.float32(2**20) for f in (np.cos, np.sin))


@dataclass(frozen=True)
class PictureStyle:
    """Lengths in pixels. The comments of the Arena's builders give these, with names of the authors' generator."""

    size: int
    dash: int  # length of a dash (paddle_length)
    margins: tuple[int, ...]  # half the gap between the dashes of a snake, one for each picture (paddle_margin_list)
    thickness: float  # of a dash (paddle_thickness)
    marker: float  # radius of the two discs (marker_radius)
    distance: int  # between the starts of the two long snakes (seed_distance)
    continuity: float  # a turn by d has weight cos^2(continuity * d), and none beyond a right angle of that
    clutter: int  # dashes in short snakes, all together
    brightness: float  # of a dash that covers a pixel whole (snake_contrast times paddle_contrast); at most 1


class _Dash(NamedTuple):
    """One dash in each of some pictures: its middle and direction."""

    y: ndarray
    x: ndarray
    angle: ndarray


def pictures(style: PictureStyle, contour: int, keys: ndarray, joined: ndarray) -> ndarray:
    """Grey pictures of shape (n, size, size); the discs lie on the ends of one long snake where `joined`."""
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
    """For each picture the first attempt in which both long snakes find their way: masks, and dashes (n, 2 L, 3)."""
    masks = np.zeros((len(keys), style.size**2), dtype=np.uint8)
    dashes = np.zeros((len(keys), 2 * contour, 3), dtype=np.float32)
    missing, attempt = np.arange(len(keys)), 0
    while len(missing):
        tries = max(2, len(keys) // len(missing))  # late rounds are as large as the first: a small one costs as much
        own = np.repeat(missing, tries)
        counters = np.tile(np.arange(attempt, attempt + tries), len(missing))
        rows, tried, grown = _attempt(style, contour, _bits(keys[own], counters), margins[own])
        found, first = np.unique(own[rows], return_index=True)
        masks[found], dashes[found] = tried[rows[first]], grown[rows[first]]
        missing = np.setdiff1d(missing, found)
        attempt += tries
    return masks, dashes


def _attempt(style: PictureStyle, contour: int, keys: ndarray, margins: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Which attempts succeed, with masks and dashes of all.

    A mask holds the number of the first dash that came near a pixel, so that a snake may go on past its own last one.
    """
    masks = np.full((len(keys), style.size, style.size), BORDER, dtype=np.uint8)
    masks[:, 1:-1, 1:-1] = 0
    field = _Field(style, masks.reshape(len(keys), -1))
    dashes, rows = np.zeros((len(keys), 2 * contour, 3), dtype=np.float32), np.arange(len(keys))
    start = _words(keys, 0)
    inner = 2 * style.distance  # starts keep away from the border
    tails = [inner + _fraction(start[:, k]) * np.float32(style.size - 2 * inner) for k in (0, 1)]
    other = _ahead(tails[0], tails[1], start[:, 2] & (TURN - 1), style.distance)
    pivots: list[list[ndarray]] = [tails, [other.y, other.x]]  # where the next dash leaves a margin and begins
    angles = [start[:, 3] & (TURN - 1), start[:, 4] & (TURN - 1)]
    for step in range(2 * contour):
        snake, first = step % 2, step < 2
        y, x = (axis[rows] for axis in pivots[snake])
        turns = _words(keys[rows], step + 1)
        turned = turns if first else angles[snake][rows, None] + _turns(style.continuity)[turns & 0xFFFF]
        angle = turned & (TURN - 1)
        gap = np.zeros(len(rows), np.float32) if first else margins[rows]
        chosen, free = field.best(rows, y, x, angle, gap, own=step - 1)
        rows, y, x, angle, gap = rows[free], y[free], x[free], chosen[free], gap[free]
        reach = gap + np.float32(style.dash / 2)
        dash = _ahead(y, x, angle, reach)
        field.block(rows, dash, margins[rows], step + 1)
        dashes[rows, step] = np.stack([dash.y, dash.x, angle.astype(np.float32)], axis=1)
        onward = _ahead(y, x, angle, reach + np.float32(style.dash / 2) + margins[rows])
        pivots[snake][0][rows], pivots[snake][1][rows], angles[snake][rows] = onward
    return rows, field.masks, dashes


def _short_snake(
    style: PictureStyle, length: int, keys: ndarray, margins: ndarray, masks: ndarray, drawn: ndarray, number: int
) -> None:
    """One more in each picture that has room for it: drawn, and blocked for others."""
    field, missing = _Field(style, masks), np.arange(len(keys))
    for retry in range(RETRIES):
        own = _bits(keys[missing], np.full(len(missing), -10 - number * RETRIES - retry))
        rows, found = np.arange(len(missing)), []
        places = _words(own, 0)
        ys, xs = ((_fraction(places >> by) * np.float32(style.size)) for by in (0, 24))
        angle = _words(own, 1) & (TURN - 1)
        gap = np.zeros(len(missing), np.float32)
        for step in range(length):
            chosen, free, y, x = field.first(missing[rows], ys[rows], xs[rows], angle, gap[rows])
            rows, angle, y, x = rows[free], chosen[free], y[free], x[free]
            reach = gap[rows] + np.float32(style.dash / 2)
            found.append((rows, _ahead(y, x, angle, reach)))
            onward = _ahead(y, x, angle, reach + np.float32(style.dash / 2) + margins[missing[rows]])
            gap = margins[missing]
            ys, xs = np.empty((len(missing), 1), np.float32), np.empty((len(missing), 1), np.float32)
            ys[rows, 0], xs[rows, 0] = onward.y, onward.x
            angle = (angle[:, None] + _turns(style.continuity)[_words(own[rows], step + 2) & 0xFFFF]) & (TURN - 1)
        for alive, dash in found:
            kept = np.isin(alive, rows)
            whole = _Dash(*(own[kept] for own in dash))
            _draw(drawn, missing[rows], style, whole)
            field.block(missing[rows], whole, margins[missing[rows]], BORDER)
        missing = np.delete(missing, rows)


class _Field(NamedTuple):
    """What is taken in some pictures: of each pixel the number of the dash that came near first, or 0."""

    style: PictureStyle
    masks: ndarray

    def free(
        self, rows: ndarray, y: ndarray, x: ndarray, angle: ndarray, gap: ndarray, distances: ndarray, own: int = -1
    ) -> ndarray:
        """Whether at these distances from (y, x) and a gap there is nothing but dash `own`, by row and direction."""
        free, last = np.ones(angle.shape, dtype=bool), self.style.size - 1
        for along in distances.astype(np.float32):
            seen = _ahead(y, x, angle, gap[:, None] + along)
            at_y, at_x = (np.clip(np.rint(axis), 0, last).astype(np.int64) for axis in (seen.y, seen.x))
            near = self.masks[rows[:, None], at_y * self.style.size + at_x]
            free &= (near == 0) | ((near == own) & (own > 0))
        return free

    def first(
        self, rows: ndarray, ys: ndarray, xs: ndarray, angle: ndarray, gap: ndarray
    ) -> tuple[ndarray, ndarray, ndarray, ndarray]:
        """The first free one of some dashes that may differ in place too."""
        free = self.free(rows, ys, xs, angle, gap, np.arange(self.style.dash + 1))
        at, first = np.arange(len(rows)), free.argmax(axis=1)
        place = np.minimum(first, ys.shape[1] - 1)
        return angle[at, first], free[at, first], ys[at, place], xs[at, place]

    def best(
        self, rows: ndarray, y: ndarray, x: ndarray, angle: ndarray, gap: ndarray, own: int
    ) -> tuple[ndarray, ndarray]:
        """Of the free directions the first that stays free longest beyond the dash: a blind one ends in a corner."""
        ys, xs, dash = y[:, None], x[:, None], np.arange(self.style.dash + 1)
        free = self.free(rows, ys, xs, angle, gap, dash, own)
        view, score = free, free.astype(np.int64)
        pitch = self.style.dash + 2 * max(self.style.margins)
        for ahead in range(1, AHEAD + 1):
            view = view & self.free(rows, ys, xs, angle, gap, dash[-1:] + ahead * pitch // 2, own)
            score += view
        at, best = np.arange(len(rows)), score.argmax(axis=1)
        return angle[at, best], free[at, best]

    def block(self, rows: ndarray, dash: _Dash, margins: ndarray, code: int) -> None:
        """Give free pixels nearer to a dash than the gap within a snake its number: no other snake looks like it."""
        clear, at = 2 * margins + np.float32(self.style.thickness), rows[:, None]
        flat, squared = _around(self.style, dash, self.style.dash, 2 * max(self.style.margins) + self.style.thickness)
        near = (squared < (clear**2)[:, None]) & (self.masks[at, flat] == 0)
        self.masks[at, flat] = np.where(near, code, self.masks[at, flat])


def _ahead(y: ndarray, x: ndarray, angle: ndarray, by: Any) -> _Dash:
    """So far on in these directions."""
    return _Dash(y + by * _SIN[angle], x + by * _COS[angle], angle)


@lru_cache
def _turns(continuity: float) -> ndarray:
    """The quantiles of a turn in 65,536 steps."""
    widest = int(TURN / 4 / continuity)
    offsets = np.arange(-widest, widest + 1)
    weights = np.round(np.cos(offsets * (2 * np.pi / TURN) * continuity).clip(0) ** 2 * 2**20).astype(np.int64)
    quantiles = (np.arange(65536) * 2 + 1) * weights.sum() // 131072
    turns: ndarray = offsets[np.searchsorted(np.cumsum(weights), quantiles, side="right")]
    return turns


# --- Marking pixels ---


def _draw(drawn: ndarray, rows: ndarray, style: PictureStyle, dash: _Dash, disc: bool = False) -> None:
    """Lighten the pixels that a dash, or a disc at its middle, covers in part or whole."""
    length, radius = (0, style.marker) if disc else (style.dash, style.thickness / 2)
    flat, squared = _around(style, dash, length, radius + 0.5)
    cover = np.clip(np.float32(0.5 + radius) - np.sqrt(squared), 0, 1) * np.float32(1 if disc else style.brightness)
    at = rows[:, None]
    drawn[at, flat] = np.maximum(drawn[at, flat], np.minimum(cover, 1))


def _around(style: PictureStyle, dash: _Dash, length: float, reach: float) -> tuple[ndarray, ndarray]:
    """Pixels about a dash, as flat indices, and their squared distances from its line.

    A pixel beyond the picture is given as the nearest one within, at a distance that never counts.
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


# --- Drawing numbers ---


def _bits(keys: ndarray, counters: ndarray) -> ndarray:
    return draws.bits(torch.from_numpy(keys), torch.from_numpy(counters)).numpy()


def _words(keys: ndarray, step: int) -> ndarray:
    """Non-negative whole numbers, TRIES for each key."""
    counters = np.tile(np.arange(step * TRIES, (step + 1) * TRIES), len(keys))
    return (_bits(np.repeat(keys, TRIES), counters) >> 1 & (1 << 62) - 1).reshape(-1, TRIES)


def _fraction(words: ndarray) -> ndarray:
    """From 0 to 1, exact in float32."""
    return (words >> 4 & 0xFFFFF).astype(np.float32) * np.float32(2**-20)
