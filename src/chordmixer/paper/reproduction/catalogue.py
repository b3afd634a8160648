"""Everything that can be reproduced: the paper's runs and figures, and runs of ours on public data.

Numbers are those of Khalitov et al. (ICLR 2023). Results that the paper shows only in plots are quoted in its words.
"""

from __future__ import annotations

from typing import Any

from chordmixer.paper.recipes import PAIRS, Pair
from chordmixer.paper.reproduction.ablations import ablations
from chordmixer.paper.reproduction.entries import RELEASED, DataNeeded, Figure, Hyper, RunEntry

SMALL = Hyper(hidden=128, track_size=16, rate=1e-4, batch=2)  # for the Adding problem and all DNA sets
FILES = "chordmixer.tasks.files:FilesConfig"
MODELS = ("transformer", "longformer", "linformer", "reformer", "performer", "nystromformer", "chordmixer")
PACKED = "Sequences are packed, and none is padded; the Arena pads."


def _adding(base: int, claim: str, **training: int) -> RunEntry:
    return RunEntry(
        title=f"Adding problem, base length {base:,}",
        where="section 4.1, figure 3",
        recipe="chordmixer.paper.recipes:adding",
        config="chordmixer.paper.adding:AddingConfig",
        settings={"base_length": base},
        versions="chordmixer.paper.reproduction.ablations:READING",
        training=training,
        right="An answer is right within 0.04 of the true one.",
        claim=claim,
        hyper=SMALL,
        released=RELEASED[f"adding-{base if base < 10_000 else f'{base // 1000}k'}"],
        seeds=3,
        differences=(
            "Sequences are made by the paper's rule, from seeds of our own, and none is longer than its longest.",
            f"The paper has {'12,000' if base == 128_000 else '60,000'} sequences in all, and does not say how it "
            "shares them out.",
            "Other encoders are read by flat, as in the paper's table 1: each position has its own weights, and what "
            "they say is summed, as the answer is a sum. A model with -average is read as ChordMixer is.",
        ),
    )


def _taxa(title: str, needs: str, get: str, size: str, **others: Any) -> RunEntry:
    """An entry of DNA classes, one file per class, by the recipe for the paper's sets."""
    defaults = {"where": "", "recipe": "chordmixer.paper.recipes:taxonomy", "config": FILES, "metric": "roc_auc"}
    least = 1 if "hyper" in others else 2
    return RunEntry(title, data=DataNeeded(needs, get, "files", least, several=True, size=size), **defaults | others)


def _pair(pair: Pair) -> RunEntry:
    lengths = f"{pair.shortest}:{pair.longest}"
    return _taxa(
        f"DNA taxonomy, {pair.first} against {pair.second}",
        f"FASTA or GenBank files of {pair.first} and of {pair.second}, one a genus",
        f"get them by chordmixer fetch {pair.first} {pair.second} --lengths {lengths} --email YOURS --out FOLDER",
        f"{sum(pair.records):,} sequences of {pair.shortest:,} to {pair.longest:,} bases, median {pair.median}",
        where="section 4.3, figure 5",
        claim=pair.claim,
        hyper=SMALL,
        released=RELEASED[f"{pair.first}-{pair.second}".lower()],
        seeds=3,
        classes=(pair.first, pair.second),
        differences=(
            "GenBank has grown since: today's records of a genus are not those of the paper, which lists none.",
            "The paper does not give the shares of its split; ours are 70 : 10 : 20, stratified, with exact copies "
            "(and reverse complements) on one side.",
            "ROC-AUC is of scores, not of answers.",
        ),
    )


def _public(title: str, needs: str, get: str, size: str, difference: str) -> RunEntry:
    ours = "Not in the paper: data that anyone can have, by the recipe of its DNA sets."
    return _taxa(title, needs, get, size, differences=(ours, difference))


def _arena(
    name: str, title: str, config: str, hyper: Hyper, paper: tuple[float, ...], data: DataNeeded, *differences: str
) -> RunEntry:
    """An entry of the Arena. `paper` has accuracies of its table 5 in per cent, for the last of `MODELS`."""
    return RunEntry(
        title=f"Long Range Arena, {title}",
        where="appendix, table 5",
        recipe=f"chordmixer.paper.recipes:{config.partition(':')[0]}",
        config=f"chordmixer.paper.lra.{config}",
        data=data,
        settings={"size": 128} if name == "pathx" else {},
        paper=dict(zip(MODELS[-len(paper) :], paper, strict=True)),
        hyper=hyper,
        released=RELEASED[name],
        differences=differences,
        if_by_rule=("The data come from our own generator by the published rule, not from the release's files.",),
    )


ENTRIES: dict[str, RunEntry | Figure] = {
    "adding-200": _adding(200, "All models that were tested worked perfectly."),
    "adding-1000": _adding(1_000, f"ChordMixer is not among the models that lost accuracy. {Pair.claim}"),
    "adding-16k": _adding(16_000, "ChordMixer alone reached nearly 100 %."),
    "adding-128k": _adding(128_000, "Almost 90 % for all sequences.", batch_tokens=1 << 21, accumulate=8),
    "documents": RunEntry(
        "Long document classification",
        "section 4.2, figure 4",
        "chordmixer.paper.recipes:documents",
        FILES,
        DataNeeded(
            "a folder with a folder of text files a class, or a Parquet file with id, text and label",
            "the paper's are cs.AI, cs.NE, math.AC and math.GR of github.com/LiqunW/Long-document-dataset",
            "files",
            several=True,
            size="11,956 documents of 4.5k to 131k characters, median 39k",
        ),
        claim="Nearly or above 80 % at all length percentiles.",
        hyper=Hyper(hidden=196, track_size=16, rate=2e-4, batch=2),
        released=RELEASED["documents"],
        classes=("cs.AI", "cs.NE", "math.AC", "math.GR"),
        differences=("The split is drawn by our own seed, stratified; that of the paper is not published.",),
    ),
    **{name: _pair(PAIRS[name]) for name in ("carassius-labeo", "danio-cyprinus", "mus-rattus", "sus-bos")},
    "mitogenomes": _taxa(
        "Fragments of fish mitochondria, Cyprinidae against four families",
        "FASTA files of whole mitochondrial genomes, one a family, of which one is cyprinidae.fa.gz",
        "Cypriniformes of github.com/grandhawa/MLDSP",
        "635 genomes of about 16,600 bases",
        recipe="chordmixer.paper.recipes:fragments",
        config="chordmixer.paper.fragments:FragmentsConfig",
        settings={"against": "cyprinidae"},
        differences=(
            "Not in the paper: fragments whose lengths follow its smallest set (79 to 100,101, median 651), cut "
            "from genomes that are split before.",
        ),
    ),
    "introns": _public(
        "Introns of a worm against those of a fly",
        "FASTA files of introns, one a species",
        "caenorhabditis and drosophila of github.com/KorfLab/datacore",
        "67,968 introns of 40 to 16.5k bases, median 60",
        "Isoforms overlap: split by gene, with --set data.reading.group=header:NAME where the headers name it.",
    ),
    "plasmids": _public(
        "Plasmids of Firmicutes against those of Proteobacteria",
        "FASTA files of whole plasmids, one a phylum",
        "plasmids of github.com/grandhawa/MLDSP",
        "978 plasmids of 20k to 460k bases, median 70k",
        "Composition alone tells the two apart: a test of length, not of accuracy.",
    ),
    "listops": _arena(
        "listops",
        "ListOps",
        "listops:ListOpsConfig",
        Hyper(hidden=88, track_size=8, rate=0.007, batch=150),
        (36.37, 35.63, 37.70, 37.27, 18.01, 37.15, 60.12),
        DataNeeded(setting="folder", size="100,000 sequences of 500 to 2,000 tokens"),
        PACKED,
    ),
    "image": _arena(
        "image",
        "Image",
        "image:ImageConfig",
        Hyper(hidden=420, track_size=28, rate=0.01, batch=100),
        (42.44, 42.22, 38.56, 38.07, 42.77, 41.58, 89.98),
        DataNeeded(
            "CIFAR-10: its binary version, folders of pictures, or a Parquet file",
            "cifar-10-binary.tar.gz of cs.toronto.edu/~kriz/cifar.html",
            "source",
            size="60,000 pictures of 1,024 pixels",
        ),
        "Validation pictures are drawn from the official training set; those of the Arena are its last tenth.",
        "Copies of CIFAR-10 in JPEG are slightly lossy; the official ones are not.",
        "With data.augment=true training pictures are mirrored and moved at random; the Arena's are not.",
    ),
    "text": _arena(
        "text",
        "Text",
        "text:TextConfig",
        Hyper(hidden=96, track_size=16, rate=0.007, batch=90),
        (64.27, 62.58, 53.94, 56.10, 65.40, 65.52, 88.82),
        DataNeeded(
            "the IMDb reviews: the folder aclImdb, or a Parquet file with text, label and split",
            "aclImdb_v1.tar.gz of ai.stanford.edu/~amaas/data/sentiment",
            "source",
            size="50,000 reviews of up to 4,000 bytes",
        ),
        PACKED,
        "Validation reviews are drawn from the official training set; its test set is whole.",
    ),
    "retrieval": _arena(
        "retrieval",
        "Retrieval",
        "retrieval:RetrievalConfig",
        Hyper(hidden=128, track_size=12, rate=0.007, batch=90),
        (57.46, 56.89, 52.27, 53.40, 53.82, 79.56, 90.17),
        DataNeeded(
            "the AAN pairs, new_aan_pairs.{train,eval,test}.tsv, or papers and citations as Parquet files",
            "they are in lra_release.gz of github.com/google-research/long-range-arena",
            "source",
            size="about 180,000 pairs of texts of up to 4,000 bytes",
        ),
        PACKED,
        "Papers and citations from Parquet files are another set than AAN.",
    ),
    "pathfinder": _arena(
        "pathfinder",
        "Pathfinder",
        "pathfinder:PathfinderConfig",
        Hyper(hidden=320, track_size=24, rate=0.005, batch=150),
        (71.40, 69.71, 76.34, 68.50, 77.05, 70.94, 96.69),
        DataNeeded(setting="folder", size="200,000 pictures of 1,024 pixels"),
    ),
    "pathx": _arena(
        "pathx",
        "Path-X",
        "pathfinder:PathfinderConfig",
        Hyper(hidden=128, track_size=10, rate=0.001, batch=120),
        (98.63,),  # all other models failed
        DataNeeded(setting="folder", size="200,000 pictures of 16,384 pixels"),
    ),
    "reach": Figure(
        "Reaching probabilities in a Chord network of 5,000 positions",
        "appendix, figure 10",
        "chordmixer.paper.reproduction.figures:reach",
        claim="Around the uniform 2e-4 with a deviation of 3e-5.",
    ),
    "attention": Figure(
        "Matrices after the first and the last block, Adding problem",
        "appendix, figure 8",
        "chordmixer.paper.reproduction.figures:attention",
        DataNeeded(
            "a trained run of the Adding problem",
            "chordmixer reproduce adding-200 --out RUN leaves RUN/chordmixer-seed0",
            "run",
        ),
        "The top track shows the positions around the markers, in both matrices.",
    ),
    "lengths": Figure(
        "Lengths of data sets",
        "appendix, figure 7 and table 6",
        "chordmixer.paper.reproduction.figures:lengths",
        DataNeeded(
            "files or folders, each a data set",
            "chordmixer reproduce alone says where each is to be had",
            "files",
            several=True,
        ),
        "Taxa that length alone does not tell apart.",
    ),
    "tradeoff": Figure(
        "Accuracy against speed and memory",
        "appendix, figure 11",
        "chordmixer.paper.reproduction.figures:tradeoff",
        DataNeeded(
            "trained runs, best of the same task",
            "chordmixer reproduce listops --models a,b --out RUN leaves one a model in RUN",
            "run",
            several=True,
        ),
        "About the memory of the approximate Transformers; those that are faster are 20 % less accurate.",
        (
            "Speed and memory are measured anew, on this device, on sequences of the run's own test set; the paper's "
            "numbers behind the picture are not published.",
        ),
    ),
}
ENTRIES |= ablations(ENTRIES)
"""Entries by the name that `chordmixer reproduce NAME` takes."""
