"""Run folders of untrained models, for tests of prediction, embedding and explanation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chordmixer import files
from chordmixer.data.alphabets import Dna
from chordmixer.data.tokenizers import Tokenizer
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.labels import OutputLabels

CLASSES = Classification.of_counts(["worm", "fly", "yeast"], [50, 30, 20])
SEVERAL = MultiLabel(["red", "round"], [30, 60], 100)


def make_run(
    folder: Path,
    target: Regression | Classification | MultiLabel = CLASSES,
    tokenizer: Tokenizer | None = None,
    *,
    max_length: int = 128,
    both_strands: bool = False,
    temperature: float | None = 1.5,
    seed: int = 0,
) -> Path:
    """Write a folder that `predict` and `embed` accept as a run."""
    tokenizer = tokenizer or Dna()
    torch.manual_seed(seed)
    network = ChordMixerConfig(max_length=max_length, track_size=2, hidden=8)
    embedding = "real" if tokenizer.dtype.kind == "f" else "tokens"
    model = Model(ModelConfig(tokenizer.size, target.outputs, embedding, final_norm="layer", network=network))
    model.save_pretrained(folder)
    files.write_json(folder / "tokenizer.json", tokenizer.to_json())
    OutputLabels(target, tokenizer.name, temperature, both_strands).save(folder)
    files.write_manifest(folder, ["tokenizer.json", "labels.json"])
    return folder


def dna(length: int, seed: int) -> str:
    return "".join(np.random.default_rng(seed).choice([*"ACGT"], length).tolist())


def write_fasta(path: Path, lengths: list[int]) -> Path:
    path.write_text("".join(f">r{i}\n{dna(n, i)}\n" for i, n in enumerate(lengths)))
    return path


def contents(folder: Path) -> dict[str, Any]:
    """The files that two runs of the same settings share: all but run.json, which has times and durations."""
    content: dict[str, Any] = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    content.pop("run.json", None)
    if "manifest.json" in content:
        content["manifest.json"] = {k: v for k, v in json.loads(content["manifest.json"]).items() if k != "run.json"}
    return content
