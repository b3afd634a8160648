"""Which taxon is a piece of DNA from (paper, section 4.3): the paper's four pairs, and fragments of whole genomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from chordmixer.data.entries import Account
from chordmixer.data.reading import read
from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.paper.recipes.documents import check_there
from chordmixer.paper.recipes.files import paper_files
from chordmixer.paper.tasks.fragments import Fragments, FragmentsConfig
from chordmixer.tasks.files import FilesConfig
from chordmixer.terminal import tell
from chordmixer.training import Experiment, TrainingConfig

GENUS = r"header:/^\S+ (?:(?:[A-Z]+(?: [A-Z]+)?(?:_[a-z]+)?): )*\[?([A-Z][a-z]+)/"
"""Labels from the headers of NCBI's FASTA files: the first word of the organism's name, after the accession and words
such as `PREDICTED:` or `TPA_asm:`. GenBank's definitions begin in the same way."""
RELEASED = "2022/02/16"
"""When the authors fetched GenBank, by their public code."""


@dataclass(frozen=True)
class Pair:
    """Two genera of the paper. Its records are a sample of GenBank's, which has grown since, and has no list of them.

    >>> PAIRS["sus-bos"].queries["Bos"]
    'Bos[Organism] AND gbdiv_mam[PROP] AND 63:447010[SLEN] AND 1900/01/01:2022/02/16[PDAT]'
    """

    first: str
    second: str
    records: tuple[int, int]
    """Of each, in the paper."""
    shortest: int
    median: int
    longest: int
    """Lengths of all records together, in the paper; the medians are of its last table."""
    division: str
    """Of GenBank, from which the authors took both, by their public code."""
    roc_auc: tuple[float, float] | None = None
    """Lowest and highest over the length percentiles, where the paper says so; the others stand in a figure alone."""

    @property
    def queries(self) -> dict[str, str]:
        """What to ask NCBI's nucleotide database for each genus."""
        rest = (
            f"[Organism] AND gbdiv_{self.division}[PROP] AND {self.shortest}:{self.longest}[SLEN] "
            f"AND 1900/01/01:{RELEASED}[PDAT]"
        )
        return {genus: genus + rest for genus in (self.first, self.second)}


PAIRS = {
    "carassius-labeo": Pair("Carassius", "Labeo", (7_263, 6_718), 79, 651, 100_101, "vrt"),
    "mus-rattus": Pair("Mus", "Rattus", (275_636, 133_310), 32, 979, 261_093, "rod"),
    "danio-cyprinus": Pair("Danio", "Cyprinus", (47_135, 83_321), 34, 868, 261_943, "vrt"),
    "sus-bos": Pair("Sus", "Bos", (50_027, 51_973), 63, 664, 447_010, "mam", (0.84, 0.89)),
}
"""The paper's four, by name."""
CURE = (
    "give FASTA or GenBank files as NCBI has them, most simply one a class, such as carassius.fa.gz and labeo.fa.gz; "
    "chordmixer.paper.recipes.taxonomy.PAIRS has the queries for the paper's pairs"
)


def taxonomy(data: FilesConfig, say: Callable[[str], None] = tell) -> Experiment:
    """The taxon of each record; of two taxa the score is ROC-AUC, and classes weigh the same whatever their size.

    The class is what `data.reading` says. Else it is the genus that ends a GenBank record's lineage; or of several
    FASTA files each is a class; or of a single one the genus in its headers. Where lineages end below the genus, as
    in subgenera of Mus, `labels="files"` with a file a genus or `labels=GENUS` say what is meant.

    - H = 128 and S = 16 are the paper's. Its batch of 2 at rate 1e-4, without a norm, is replaced by what `files`
      chooses: 16 to 128 records a step at 1e-3, a layer norm before Rotate and an identity start.
    - The split is stratified, as the paper's; it does not say its shares.
    """
    check_there(data, "taxonomy", CURE)
    experiment = paper_files(_with_taxa(data, say), say)
    network = replace(experiment.model.network, track_size=16, hidden=128)
    return replace(experiment, model=replace(experiment.model, network=network))


def fragments(data: FragmentsConfig, say: Callable[[str], None] = tell) -> Experiment:
    """The class of fragments of whole genomes, cut anew in each epoch, with lengths like the paper's first pair.

    H = 128 and S = 16 are the paper's. 60 epochs of batches of 128 at rate 1e-3, weight decay 0.1, layer norms before
    Rotate and before the head, and an identity start: what a sketch of the network had on carps against other
    families of their order, with ROC-AUC 0.988. This recipe itself has not been run at full size yet.
    """
    task = Fragments(data, say)
    for line in task.genomes.account.lines():
        say(line)
    network = ChordMixerConfig(
        max_length=1 << (task.max_length - 1).bit_length(),
        track_size=16,
        hidden=128,
        prenorm="layer",
        init="identity",
    )
    model = ModelConfig(task.inputs, task.target.outputs, "tokens", final_norm="layer", network=network)
    training = TrainingConfig(
        epochs=60,
        batch_sequences=128,
        rate=1e-3,
        weight_decay=0.1,
        precision="bf16" if torch.cuda.is_available() else "fp32",
        evaluate_epochs=2,
    )
    return Experiment("fragments", task.config, model, training)


def _with_taxa(data: FilesConfig, say: Callable[[str], None]) -> FilesConfig:
    """The same, with a rule for the classes where none was given and the store is still to be made."""
    reading = data.reading
    if data.key is not None or reading.labels is not None or "-" in data.files:
        return data
    reading = replace(reading, rank=reading.rank or "genus")
    if len(data.files) == 1:
        first = next(read(data.files, replace(reading, on_empty="reject"), Account()), None)
        if first is not None and first.label is None and first.target is None:
            say("the records have no labels of their own, so the genus in each header is the class")
            reading = replace(reading, labels=GENUS)
    return replace(data, reading=reading)
