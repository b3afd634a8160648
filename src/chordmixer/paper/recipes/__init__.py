"""The paper's runs as functions that return an `Experiment`."""

from chordmixer.paper.recipes.adding import adding, demo
from chordmixer.paper.recipes.documents import documents
from chordmixer.paper.recipes.files import paper_files
from chordmixer.paper.recipes.lra import image, listops, pathfinder, retrieval, text
from chordmixer.paper.recipes.taxonomy import fragments, taxonomy

__all__ = [
    "adding",
    "demo",
    "documents",
    "fragments",
    "image",
    "listops",
    "paper_files",
    "pathfinder",
    "retrieval",
    "taxonomy",
    "text",
]
