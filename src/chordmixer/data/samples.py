"""Small synthetic data sets for trying the commands. Nothing in them was sequenced or measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from chordmixer import files

RECORDS = 120
"""Number of records of each class; the sample without classes has twice as many."""
NEW_RECORDS = 20
"""Number of further records without labels, for `predict`."""
MOTIFS = ("GATTACA", "CATTAGA")
"""Motifs of the two classes of DNA. They have the same letters, so that composition does not separate the classes."""
GAP = 18
"""Maximum number of random bases between two copies of the motif."""
PERIODS = {"slow": 30.0, "fast": 12.0}
"""Periods of the two classes of series, in steps."""


def write_sample(name: str, folder: Path | str, seed: int = 0) -> list[Path]:
    """Write the files of a sample into a folder; the same seed gives the same bytes, and no file is replaced."""
    if name not in SAMPLES:
        raise ValueError(f"{name!r} is not a sample: choose one of {', '.join(SAMPLES)}")
    contents = SAMPLES[name](Random(f"{name} {seed}"))
    paths = [Path(folder) / file for file in contents]
    existing = next((path for path in paths if path.exists()), None)
    if existing is not None:
        raise ValueError(f"{existing} is there already: give a new folder with --out")
    for path, lines in zip(paths, contents.values(), strict=True):
        files.write_text(path, "".join(f"{line}\n" for line in lines))
    return paths


def dna(rng: Random) -> dict[str, list[str]]:
    """Two kinds of DNA of 40 to 2,000 bases: random, with copies of one motif or the other all along."""

    def records(name: str, motifs: Sequence[str]) -> Iterator[str]:
        for number, motif in enumerate(motifs):
            length, letters = _random_length(rng, 2000), ""
            while len(letters) < length:
                letters += "".join(_random_letter(rng, "ACGT") for _ in range(int(GAP * rng.random()))) + motif
            yield from (f">{name}-{number} synthetic", letters[:length])

    samples = {f"{motif.lower()}.fa": list(records(motif.lower(), [motif] * RECORDS)) for motif in MOTIFS}
    return samples | {"new.fa": list(records("new", [*MOTIFS] * (NEW_RECORDS // 2)))}


def table(rng: Random) -> dict[str, list[str]]:
    """A CSV file of DNA of 40 to 400 bases with a number to predict: the share of G and C, with some noise."""

    def row() -> tuple[str, float]:
        share = 0.2 + 0.6 * rng.random()
        length = _random_length(rng, 400)
        letters = [_random_letter(rng, "GC" if rng.random() < share else "AT") for _ in range(length)]
        return "".join(letters), share + 0.05 * (rng.random() - 0.5)

    known = [f"t{number},{{}},{{:.4f}}".format(*row()) for number in range(2 * RECORDS)]
    new = [f"new-{number},{row()[0]}" for number in range(NEW_RECORDS)]
    return {"table.csv": ["id,sequence,target", *known], "new.csv": ["id,sequence", *new]}


def series(rng: Random) -> dict[str, list[str]]:
    """A CSV file of noisy waves of 40 to 400 steps, slow or fast, with all numbers of a series in one cell."""

    def cell(kind: str) -> str:
        start, rate = rng.random(), 1 / PERIODS[kind]
        waves = (math.sin(2 * math.pi * (start + rate * step)) for step in range(_random_length(rng, 400)))
        return " ".join(f"{wave + 0.5 * (rng.random() - 0.5):.3f}" for wave in waves)

    known = [f"s{number},{cell(kind)},{kind}" for number, kind in enumerate([*PERIODS] * RECORDS)]
    new = [f"new-{number},{cell(kind)}" for number, kind in enumerate([*PERIODS] * (NEW_RECORDS // 2))]
    return {"series.csv": ["id,series,label", *known], "new.csv": ["id,series", *new]}


SAMPLES: dict[str, Callable[[Random], dict[str, list[str]]]] = {"dna": dna, "table": table, "series": series}


def _random_length(rng: Random, most: int) -> int:
    """A random length from 40 to `most`; short ones are more frequent."""
    return int(40 * (most / 40) ** (rng.random() ** 2))


def _random_letter(rng: Random, letters: str) -> str:
    """A random one of the letters, by `random()`, whose numbers are the same in every version of Python."""
    return letters[int(len(letters) * rng.random())]
