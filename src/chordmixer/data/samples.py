"""Small data sets for trying the commands. They are made by a rule: nothing in them was sequenced or measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from chordmixer import files

RECORDS = 120
"""Records of each class; the sample without classes has twice as many."""
NEW = 20
"""Further records, for `predict`."""
MOTIFS = ("GATTACA", "CATTAGA")
"""Motifs of the two classes of DNA: the same letters, so that composition does not separate them."""
GAP = 18
"""Random bases between two copies of the motif, at most."""
PERIODS = {"slow": 30.0, "fast": 12.0}
"""Periods of the two classes of series, in steps."""


def write_sample(name: str, folder: Path | str, seed: int = 0) -> list[Path]:
    """Write the files of a sample into a folder; the same seed gives the same bytes, and no file is replaced."""
    if name not in SAMPLES:
        raise ValueError(f"{name!r} is not a sample: choose one of {', '.join(SAMPLES)}")
    contents = SAMPLES[name](Random(f"{name} {seed}"))
    paths = [Path(folder) / file for file in contents]
    there = next((path for path in paths if path.exists()), None)
    if there is not None:
        raise ValueError(f"{there} is there already: give a new folder with --out")
    for path, lines in zip(paths, contents.values(), strict=True):
        files.write_text(path, "".join(f"{line}\n" for line in lines))
    return paths


def dna(draw: Random) -> dict[str, list[str]]:
    """Two kinds of DNA of 40 to 2,000 bases: random, with copies of one motif or the other all along."""

    def records(name: str, motifs: Sequence[str]) -> Iterator[str]:
        for number, motif in enumerate(motifs):
            length, letters = _length(draw, 2000), ""
            while len(letters) < length:
                letters += "".join(_one(draw, "ACGT") for _ in range(int(GAP * draw.random()))) + motif
            yield from (f">{name}-{number} synthetic", letters[:length])

    made = {f"{motif.lower()}.fa": list(records(motif.lower(), [motif] * RECORDS)) for motif in MOTIFS}
    return made | {"new.fa": list(records("new", [*MOTIFS] * (NEW // 2)))}


def table(draw: Random) -> dict[str, list[str]]:
    """A CSV file of DNA of 40 to 400 bases with a number to predict: the share of G and C, with some noise."""

    def row() -> tuple[str, float]:
        share = 0.2 + 0.6 * draw.random()
        letters = [_one(draw, "GC" if draw.random() < share else "AT") for _ in range(_length(draw, 400))]
        return "".join(letters), share + 0.05 * (draw.random() - 0.5)

    known = [f"t{number},{{}},{{:.4f}}".format(*row()) for number in range(2 * RECORDS)]
    new = [f"new-{number},{row()[0]}" for number in range(NEW)]
    return {"table.csv": ["id,sequence,target", *known], "new.csv": ["id,sequence", *new]}


def series(draw: Random) -> dict[str, list[str]]:
    """A CSV file of noisy waves of 40 to 400 steps, slow or fast, with all numbers of a series in one cell."""

    def cell(kind: str) -> str:
        start, rate = draw.random(), 1 / PERIODS[kind]
        waves = (math.sin(2 * math.pi * (start + rate * step)) for step in range(_length(draw, 400)))
        return " ".join(f"{wave + 0.5 * (draw.random() - 0.5):.3f}" for wave in waves)

    known = [f"s{number},{cell(kind)},{kind}" for number, kind in enumerate([*PERIODS] * RECORDS)]
    new = [f"new-{number},{cell(kind)}" for number, kind in enumerate([*PERIODS] * (NEW // 2))]
    return {"series.csv": ["id,series,label", *known], "new.csv": ["id,series", *new]}


SAMPLES: dict[str, Callable[[Random], dict[str, list[str]]]] = {"dna": dna, "table": table, "series": series}


def _length(draw: Random, most: int) -> int:
    """From 40 on, the short ones more often."""
    return int(40 * (most / 40) ** (draw.random() ** 2))


def _one(draw: Random, letters: str) -> str:
    """One of these letters; of `random`, only the method `random()` is the same on every version of Python."""
    return letters[int(len(letters) * draw.random())]
