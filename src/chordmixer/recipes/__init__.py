"""The paper's runs, and ours, as functions that return an `Experiment`."""

from collections.abc import Callable
from typing import Any

from chordmixer.recipes.adding import adding
from chordmixer.recipes.demo import demo
from chordmixer.recipes.documents import documents
from chordmixer.recipes.files import files
from chordmixer.recipes.lra import image, listops, pathfinder, text
from chordmixer.recipes.masking import masking
from chordmixer.recipes.paper_files import paper_files
from chordmixer.recipes.retrieval import retrieval
from chordmixer.recipes.taxonomy import fragments, taxonomy
from chordmixer.recipes.variants import gtex, mpra, variants
from chordmixer.training import Experiment

RECIPES: dict[str, Callable[[Any], Experiment]] = {
    "adding": adding,
    "fragments": fragments,
    "image": image,
    "listops": listops,
    "masking": masking,
    "pathfinder": pathfinder,
    "retrieval": retrieval,
    "text": text,
    "variants": variants,
}
"""What `chordmixer train TASK` starts from: a function of the task's config. `files` is for the user's own."""

__all__ = [
    "RECIPES",
    "adding",
    "demo",
    "documents",
    "files",
    "fragments",
    "gtex",
    "image",
    "listops",
    "masking",
    "mpra",
    "paper_files",
    "pathfinder",
    "retrieval",
    "taxonomy",
    "text",
    "variants",
]
