"""Everything that can be reproduced: the paper's runs and figures, and runs of ours on data that anyone can have.

Numbers are those of Khalitov et al. (ICLR 2023). Where a result stands only in a picture of the paper, its words do.
"""

from __future__ import annotations

from chordmixer.paper.reproduction.ablations import ablations
from chordmixer.paper.reproduction.entries import RELEASED, DataNeeded, Figure, Hyper, RunEntry

SMALL = Hyper(hidden=128, track_size=16, rate=1e-4, batch=2)
"""Of the Adding problem and of all sets of DNA."""
ARENA_FILES = "lra_release.gz of github.com/google-research/long-range-arena"
MODELS = ("transformer", "longformer", "linformer", "reformer", "performer", "nystromformer", "chordmixer")
ARENA = {
    "listops": (36.37, 35.63, 37.70, 37.27, 18.01, 37.15, 60.12),
    "text": (64.27, 62.58, 53.94, 56.10, 65.40, 65.52, 88.82),
    "image": (42.44, 42.22, 38.56, 38.07, 42.77, 41.58, 89.98),
    "retrieval": (57.46, 56.89, 52.27, 53.40, 53.82, 79.56, 90.17),
    "pathfinder": (71.40, 69.71, 76.34, 68.50, 77.05, 70.94, 96.69),
    "pathx": (None, None, None, None, None, None, 98.63),
}
"""The paper's table 5: accuracies in per cent of `MODELS`, the other encoders' as it quotes them; None: failed."""
PADS = "Sequences are packed, and none is padded; the Arena pads."
APART: dict[str, tuple[str, ...]] = {
    "listops": (PADS,),
    "text": (PADS, "Validation reviews are drawn from the official training set; its test set is whole."),
    "image": (
        "Validation pictures are drawn from the official training set; those of the Arena are its last tenth.",
        "Copies of CIFAR-10 in JPEG are slightly lossy; the official ones are not.",
    ),
    "retrieval": (PADS, "Papers and citations from Parquet files are another set than AAN."),
    "pathfinder": (),
    "pathx": (),
}
"""Where our tasks of the Arena differ from its own."""
NO_NUMBER = "The number stands only in a picture of the paper."


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


def _pair(first: str, second: str, lengths: str, size: str, claim: str = NO_NUMBER) -> RunEntry:
    return RunEntry(
        title=f"DNA taxonomy, {first} against {second}",
        where="section 4.3, figure 5",
        recipe="chordmixer.paper.recipes:taxonomy",
        config="chordmixer.tasks.files:FilesConfig",
        data=DataNeeded(
            needs=f"FASTA or GenBank files of {first} and of {second}, one a genus",
            get=f"get them by chordmixer fetch {first} {second} --lengths {lengths} --email YOURS --out FOLDER",
            setting="files",
            several=True,
            size=size,
        ),
        metric="roc_auc",
        claim=claim,
        hyper=SMALL,
        released=RELEASED[f"{first}-{second}".lower()],
        seeds=3,
        classes=(first, second),
        differences=(
            "GenBank has grown since: today's records of a genus are not those of the paper, which lists none.",
            "The paper does not give the shares of its split; ours are 70 : 10 : 20, stratified, with exact copies "
            "(and reverse complements) on one side.",
            "ROC-AUC is of scores, not of answers.",
        ),
    )


def _own(title: str, needs: str, get: str, size: str, differences: tuple[str, ...] = ()) -> RunEntry:
    return RunEntry(
        title=title,
        where="",
        recipe="chordmixer.paper.recipes:taxonomy",
        config="chordmixer.tasks.files:FilesConfig",
        data=DataNeeded(needs=needs, get=get, setting="files", least=2, several=True, size=size),
        metric="roc_auc",
        differences=("Not in the paper: data that anyone can have, by the recipe of its DNA sets.", *differences),
    )


def _arena(name: str, title: str, data: DataNeeded, hyper: Hyper, config: str, **settings: int) -> RunEntry:
    recipe = name if name != "pathx" else "pathfinder"
    return RunEntry(
        title=f"Long Range Arena, {title}",
        where="appendix, table 5",
        recipe=f"chordmixer.paper.recipes:{recipe}",
        config=f"chordmixer.paper.lra.{config}",
        data=data,
        settings=settings,
        paper={model: number for model, number in zip(MODELS, ARENA[name], strict=True) if number is not None},
        hyper=hyper,
        released=RELEASED[name],
        differences=APART[name],
        if_by_rule=("The data come from our own generator by the published rule, not from the release's files.",),
    )


ENTRIES: dict[str, RunEntry | Figure] = {
    "adding-200": _adding(200, "All models that were tested worked perfectly."),
    "adding-1000": _adding(1_000, f"ChordMixer is not among the models that lost accuracy. {NO_NUMBER}"),
    "adding-16k": _adding(16_000, "ChordMixer alone reached nearly 100 %."),
    "adding-128k": _adding(128_000, "Almost 90 % for all sequences.", batch_tokens=1 << 21, accumulate=8),
    "documents": RunEntry(
        title="Long document classification",
        where="section 4.2, figure 4",
        recipe="chordmixer.paper.recipes:documents",
        config="chordmixer.tasks.files:FilesConfig",
        data=DataNeeded(
            needs="a folder with a folder of text files a class, or a Parquet file with id, text and label",
            get="the paper's are cs.AI, cs.NE, math.AC and math.GR of github.com/LiqunW/Long-document-dataset",
            setting="files",
            several=True,
            size="11,956 documents of 4.5k to 131k characters, median 39k",
        ),
        claim="Nearly or above 80 % at all length percentiles.",
        hyper=Hyper(hidden=196, track_size=16, rate=2e-4, batch=2),
        released=RELEASED["documents"],
        classes=("cs.AI", "cs.NE", "math.AC", "math.GR"),
        differences=("The split is drawn by our own seed, stratified; that of the paper is not published.",),
    ),
    "carassius-labeo": _pair(
        "Carassius", "Labeo", "79:100101", "13,981 sequences of 79 to 100,101 bases, median 651"
    ),
    "danio-cyprinus": _pair("Danio", "Cyprinus", "34:261943", "130,456 sequences of 34 to 261,943 bases, median 868"),
    "mus-rattus": _pair("Mus", "Rattus", "32:261093", "408,946 sequences of 32 to 261,093 bases, median 979"),
    "sus-bos": _pair(
        "Sus",
        "Bos",
        "63:447010",
        "102,000 sequences of 63 to 447,010 bases, median 664",
        "Around 84 to 89 % at all length percentiles, 89 % for the longest (99.5).",
    ),
    "mitogenomes": RunEntry(
        title="Fragments of fish mitochondria, Cyprinidae against four families",
        where="",
        recipe="chordmixer.paper.recipes:fragments",
        config="chordmixer.paper.fragments:FragmentsConfig",
        settings={"against": "cyprinidae"},
        data=DataNeeded(
            needs="FASTA files of whole mitochondrial genomes, one a family, of which one is cyprinidae.fa.gz",
            get="Cypriniformes of github.com/grandhawa/MLDSP",
            setting="files",
            least=2,
            several=True,
            size="635 genomes of about 16,600 bases",
        ),
        metric="roc_auc",
        differences=(
            "Not in the paper: fragments whose lengths follow its smallest set (79 to 100,101, median 651), cut "
            "from genomes that are split before.",
        ),
    ),
    "introns": _own(
        "Introns of a worm against those of a fly",
        "FASTA files of introns, one a species",
        "caenorhabditis and drosophila of github.com/KorfLab/datacore",
        "67,968 introns of 40 to 16.5k bases, median 60",
        ("Isoforms overlap: split by gene, with --set data.reading.group=header:NAME where the headers name it.",),
    ),
    "plasmids": _own(
        "Plasmids of Firmicutes against those of Proteobacteria",
        "FASTA files of whole plasmids, one a phylum",
        "plasmids of github.com/grandhawa/MLDSP",
        "978 plasmids of 20k to 460k bases, median 70k",
        ("Composition alone tells the two apart: a test of length, not of accuracy.",),
    ),
    "listops": _arena(
        "listops",
        "ListOps",
        DataNeeded(setting="folder", size="100,000 sequences of 500 to 2,000 tokens"),
        Hyper(hidden=88, track_size=8, rate=0.007, batch=150),
        "listops:ListOpsConfig",
    ),
    "image": _arena(
        "image",
        "Image",
        DataNeeded(
            needs="CIFAR-10: its binary version, folders of pictures, or a Parquet file",
            get="cifar-10-binary.tar.gz of cs.toronto.edu/~kriz/cifar.html",
            setting="source",
            size="60,000 pictures of 1,024 pixels",
        ),
        Hyper(hidden=420, track_size=28, rate=0.01, batch=100),
        "image:ImageConfig",
    ),
    "text": _arena(
        "text",
        "Text",
        DataNeeded(
            needs="the IMDb reviews: the folder aclImdb, or a Parquet file with text, label and split",
            get="aclImdb_v1.tar.gz of ai.stanford.edu/~amaas/data/sentiment",
            setting="source",
            size="50,000 reviews of up to 4,000 bytes",
        ),
        Hyper(hidden=96, track_size=16, rate=0.007, batch=90),
        "text:TextConfig",
    ),
    "retrieval": _arena(
        "retrieval",
        "Retrieval",
        DataNeeded(
            needs="the AAN pairs, new_aan_pairs.{train,eval,test}.tsv, or papers and citations as Parquet files",
            get=f"they are in {ARENA_FILES}",
            setting="source",
            size="about 180,000 pairs of texts of up to 4,000 bytes",
        ),
        Hyper(hidden=128, track_size=12, rate=0.007, batch=90),
        "retrieval:RetrievalConfig",
    ),
    "pathfinder": _arena(
        "pathfinder",
        "Pathfinder",
        DataNeeded(setting="folder", size="200,000 pictures of 1,024 pixels"),
        Hyper(hidden=320, track_size=24, rate=0.005, batch=150),
        "pathfinder:PathfinderConfig",
    ),
    "pathx": _arena(
        "pathx",
        "Path-X",
        DataNeeded(setting="folder", size="200,000 pictures of 16,384 pixels"),
        Hyper(hidden=128, track_size=10, rate=0.001, batch=120),
        "pathfinder:PathfinderConfig",
        size=128,
    ),
    "reach": Figure(
        title="Reaching probabilities in a Chord network of 5,000 positions",
        where="appendix, figure 10",
        draw="chordmixer.paper.reproduction.figures:reach",
        claim="Around the uniform 2e-4 with a deviation of 3e-5.",
    ),
    "attention": Figure(
        title="Matrices after the first and the last block, Adding problem",
        where="appendix, figure 8",
        draw="chordmixer.paper.reproduction.figures:attention",
        data=DataNeeded(
            needs="a trained run of the Adding problem",
            get="chordmixer reproduce adding-200 --out RUN leaves RUN/chordmixer-seed0",
            setting="run",
        ),
        claim="The top track shows the positions around the markers, in both matrices.",
    ),
    "lengths": Figure(
        title="Lengths of data sets",
        where="appendix, figure 7 and table 6",
        draw="chordmixer.paper.reproduction.figures:lengths",
        data=DataNeeded(
            needs="files or folders, each a data set",
            get="chordmixer reproduce alone says where each is to be had",
            setting="files",
            several=True,
        ),
        claim="Taxa that length alone does not tell apart.",
    ),
    "tradeoff": Figure(
        title="Accuracy against speed and memory",
        where="appendix, figure 11",
        draw="chordmixer.paper.reproduction.figures:tradeoff",
        data=DataNeeded(
            needs="trained runs, best of the same task",
            get="chordmixer reproduce listops --models a,b --out RUN leaves one a model in RUN",
            setting="run",
            several=True,
        ),
        claim="About the memory of the approximate Transformers; those that are faster are 20 % less accurate.",
        differences=(
            "Speed and memory are measured anew, on this device, on sequences of the run's own test set; the paper's "
            "numbers behind the picture are not published.",
        ),
    ),
}
ENTRIES |= ablations(ENTRIES)
"""By the name that `chordmixer reproduce NAME` takes."""
