"""The effect of variants: settings for a user's own, for saturation mutagenesis, and for the tissues of GTEx."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

from chordmixer.data.variants import VariantColumns, values_of_name
from chordmixer.models import ModelConfig
from chordmixer.recipes.batches import SMALL, network_for, training
from chordmixer.tasks.variants import Variants, VariantsConfig, variant_files
from chordmixer.training import Experiment

logger = logging.getLogger(__name__)

GTEX_NAMES = r"(?P<context>.+)_(?P<label>pos|neg)\.vcf"
"""The layout of the fine-mapped eQTLs that Enformer was tested on (Avsec et al., 2021): for each of 49 tissues of
GTEx the probably causal variants in, say, `Whole_Blood_pos.vcf`, and others, matched to them, in
`Whole_Blood_neg.vcf`."""
GTEX_WINDOW = 20_000
"""Bases, the most that the paper takes."""
MPRA = ("variants.tsv.gz", "elements.fa")
"""Variants, and the elements that they are in, each a contig of its own."""
MPRA_WINDOW = 21
"""Bases. There are some twenty loci to learn from, and with a wider window the network overfits. ROC-AUC of
validation within elements, the mean of three splits on a CPU (S = 8, H = 64, four passes), from scratch and from a
pre-trained network: 0.66 and 0.65 with 21 bases, 0.64 and 0.66 with 51, 0.64 and 0.63 with 101."""


def variants(data: VariantsConfig) -> Experiment:
    """An experiment for these variants; reads them, and checks them against the reference.

    A ChordMixer with layer norms and an identity start, a quarter of the size below 1,000 training variants; batches,
    passes and the weight decay of 0.1 are those of `batches.training`. A record is as long as both its windows.
    """
    task = Variants(data)
    for line in task.account.lines():
        logger.info(line)
    about = task.documents()["data.json"]
    sizes = ", ".join(
        f"{count:,} in {about['split']['loci'][part]:,} loci for {part}"
        for part, count in about["split"]["sizes"].items()
    )
    logger.info(f"split ({about['split']['method']}): {sizes}")
    lengths = task.records("training").lengths
    own = network_for(task.max_length, small=len(lengths) < SMALL)
    model = ModelConfig(task.inputs, task.target.outputs, head="variant", final_norm="layer", network=own)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    longest = max(max(task.records(part).lengths) for part in task.split.parts)
    return Experiment("variants", task.config, model, training(lengths, longest, device))


def mpra(folder: Path | str) -> Experiment:
    """Is a single-base change of a regulatory element significant? Whole elements are held out.

    From `variants.tsv.gz` (element, pos, ref, alt, significant: yes, no, or empty for what is between and left out)
    and `elements.fa`. Elements that were measured several times, in other cells or on the other strand, are one
    locus. The window is narrow (`MPRA_WINDOW`), or an element's variants would all look alike.
    """
    table, reference = (Path(folder) / name for name in MPRA)
    if not table.is_file() or not reference.is_file():
        raise ValueError(
            f"{folder} has no {' and '.join(MPRA)}: give the folder of a saturation mutagenesis with both"
        )
    columns = VariantColumns(contig="element", label="significant")
    data = VariantsConfig((str(table),), str(reference), MPRA_WINDOW, columns, on_unmatched="reject")
    return variants(data)


def gtex(data: VariantsConfig) -> Experiment:
    """Does a variant change the expression of a gene in a tissue? One VCF file for each tissue and class.

    The tissue is the context of a variant, and its class `pos` or `neg`, both by the file's name (`GTEX_NAMES`).
    A window that was left as it is by default is the paper's, of 20,000 bases.
    """
    check_tissues(variant_files(data.files))
    window = GTEX_WINDOW if data.window == VariantsConfig().window else data.window
    return variants(replace(data, names=data.names or GTEX_NAMES, window=window))


def check_tissues(found: list[Path]) -> None:
    """Refuse a tissue that has one class alone."""
    seen: dict[str, dict[str, Path]] = {}
    for path in found:
        said = values_of_name(path, GTEX_NAMES)
        seen.setdefault(said["context"], {})[said["label"]] = path
    for tissue, own in seen.items():
        if len(own) < 2:
            (label, path), *_ = own.items()
            other = "neg" if label == "pos" else "pos"
            raise ValueError(f"{path} has no {tissue}_{other}.vcf beside it: each tissue needs both; add it")


def is_gtex(found: list[Path]) -> bool:
    """Whether files are named by this layout."""
    return len(found) > 1 and all(path.stem.removesuffix(".vcf").endswith(("_pos", "_neg")) for path in found)
