"""The paper's ablations: entries of the catalogue, with each model in several versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chordmixer.paper.reproduction.entries import Figure, RunEntry

PADDED = {
    "longformer": (75.3, 75.7),
    "nystromformer": (73.1, 73.0),
    "poolformer": (67.0, 68.1),
    "cosformer": (72.3, 72.6),
}
"""The paper's table 3: accuracies in per cent, padded to the longest of all and to that of the batch."""
BATCHES = "Of padded sequences a batch holds fewer, and a step as many."
POOLING = (
    "average, class_token and flat read packed sequences, in which nothing is padded. The paper pads those of all "
    "models but ChordMixer with zeros to the longest; a model with -padded is that, read by flat.",
    "chordmixer-class_token starts at random, as in the paper, chordmixer-average with blocks that do nothing yet.",
    BATCHES,
    "The paper does not say by what segments were read: here by flat, as truncated sequences are. It does not say "
    "either which versions of each model its figure 9 has.",
)
PADDING = (
    "The zeros count as tokens, and the networks mix them with the others: with batch_max the answer to a document "
    "changes with its neighbours in the batch, which no model of ours allows. It is here because the paper has it.",
    BATCHES,
)


def ablations(entries: Mapping[str, RunEntry | Figure]) -> dict[str, RunEntry | Figure]:
    """Of data of the catalogue that models are trained on in one version."""
    taxa, fragments, texts = (entries[name] for name in ("carassius-labeo", "mitogenomes", "documents"))
    assert isinstance(taxa, RunEntry) and isinstance(fragments, RunEntry) and isinstance(texts, RunEntry)
    numbers = {
        f"{model}-{strategy}": number
        for model, both in PADDED.items()
        for strategy, number in zip(("overall_max", "batch_max"), both, strict=True)
    }
    return {
        "ablation": replace(
            taxa,
            title="Ablation: readouts and inputs of several models, Carassius against Labeo",
            where="section 4.4, figure 6; appendix, figure 9",
            recipe="chordmixer.paper.recipes.ablation:ablation",
            versions="chordmixer.paper.recipes.ablation:POOLING",
            claim="ChordMixer, read by average or class token, wins at all length percentiles but 20 and 95. Flat "
            "sometimes improves the rivals, which stay behind at most percentiles, as with all other strategies.",
            differences=(*taxa.differences, *POOLING),
        ),
        "ablation-mitogenomes": replace(
            fragments,
            title="Ablation: readouts and inputs of several models, fragments of fish mitochondria",
            recipe="chordmixer.paper.recipes.ablation:ablation_of_fragments",
            versions="chordmixer.paper.recipes.ablation:POOLING",
            differences=(*fragments.differences, *POOLING),
        ),
        "padding": replace(
            texts,
            title="Long documents, padded to the longest of all or of the batch",
            where="appendix, table 3",
            recipe="chordmixer.paper.recipes.ablation:padding",
            versions="chordmixer.paper.recipes.ablation:PADDING",
            paper=numbers,
            claim="No significant change between the two: 67 to 76 % for four models. Reformer runs out of memory; "
            "ChordMixer, which pads nothing, is not in the table.",
            differences=(*texts.differences, *PADDING),
        ),
    }
