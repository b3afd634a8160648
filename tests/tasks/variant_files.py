"""A small genome and variants of it, whose class depends on the alternative letter."""

from __future__ import annotations

import random
from pathlib import Path

HEAD = "##fileformat=VCFv4.3\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def genome(contigs: int = 12, length: int = 300) -> dict[str, str]:
    rng = random.Random(0)
    return {f"chr{k}": "".join(rng.choices("ACGT", k=length)) for k in range(1, contigs + 1)}


def write_genome(folder: Path, **sizes: int) -> Path:
    path = folder / "genome.fa"
    lines = (
        f">{name}\n" + "".join(f"{letters[i : i + 60]}\n" for i in range(0, len(letters), 60))
        for name, letters in genome(**sizes).items()
    )
    path.write_text("".join(lines))
    return path


def rows(every: int = 12, **sizes: int) -> list[str]:
    """Lines of a VCF: an alternative A or C is a hit, G or T a miss, with a noisy effect of 1 or -1."""
    rng, lines = random.Random(1), []
    for name, letters in genome(**sizes).items():
        for position in range(10, len(letters) - 9, every):
            ref = letters[position - 1]
            alt = rng.choice([letter for letter in "ACGT" if letter != ref])
            label, effect = ("hit", 1) if alt in "AC" else ("miss", -1)
            info = f"CLASS={label};BETA={effect + rng.random() / 9:.4f};T={('liver', 'skin')[position // 12 % 2]}"
            lines.append(f"{name}\t{position}\t.\t{ref}\t{alt}\t.\tPASS\t{info}\n")
    return lines


def write_vcf(path: Path, lines: list[str]) -> Path:
    path.write_text(HEAD + "".join(lines))
    return path
