"""Taxa from files as NCBI gives them, the paper's pairs, and the settings that its runs and ours have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chordmixer.data.entries import Entry
from chordmixer.data.reading import Reading, header_pattern, header_value
from chordmixer.paper.fragments import FragmentsConfig
from chordmixer.paper.recipes import GENUS, PAIRS, fragments, taxonomy
from chordmixer.recipes import RECIPES, load
from chordmixer.tasks.files import Files, FilesConfig

SHARED = Path(__file__).parents[3] / "shared" / "data" / "plasmids"
LINEAGES = {
    "Carassius auratus": "Eukaryota; Metazoa; Chordata; Craniata; Vertebrata; Cyprinidae;\n"
    "            Cyprininae; Carassius.",
    "Labeo rohita": "Eukaryota; Metazoa; Chordata; Craniata; Vertebrata; Cyprinidae;\n            Labeoninae; Labeo.",
}


def letters(rng: random.Random, organism: str) -> str:
    """The letters of a record; one genus has more G and C."""
    weights = (3, 2, 2, 3) if organism.startswith("Carassius") else (2, 3, 3, 2)
    return "".join(rng.choices("acgt", weights, k=rng.randint(40, 150)))


def fasta(organism: str, count: int, rng: random.Random) -> str:
    """FASTA records with headers as NCBI writes them; every third is predicted."""
    headers = [
        f">{'XM' if i % 3 == 0 else 'MN'}_{rng.randrange(10**8):09d}.1 "
        f"{'PREDICTED: ' if i % 3 == 0 else ''}{organism} voucher {i} cytochrome b (cytb) gene, partial cds"
        for i in range(count)
    ]
    return "".join(f"{header}\n{letters(rng, organism).upper()}\n\n" for header in headers)


def genbank(organism: str, count: int, rng: random.Random) -> str:
    """Flat-file records, with a lineage that ends in the genus."""
    records = []
    for i in range(count):
        name, bases = f"MN{rng.randrange(10**6):06d}", letters(rng, organism)
        rows = [bases[at : at + 60] for at in range(0, len(bases), 60)]
        origin = "\n".join(
            f"{at * 60 + 1:>9} " + " ".join(row[k : k + 10] for k in range(0, len(row), 10))
            for at, row in enumerate(rows)
        )
        records.append(
            f"LOCUS       {name:<16} {len(bases):>11} bp    DNA     linear   VRT 09-MAR-2021\n"
            f"DEFINITION  {organism} voucher {i} cytochrome b (cytb) gene, partial cds;\n            mitochondrial.\n"
            f"ACCESSION   {name}\nVERSION     {name}.1\nKEYWORDS    .\n"
            f"SOURCE      mitochondrion {organism}\n  ORGANISM  {organism}\n            {LINEAGES[organism]}\n"
            "FEATURES             Location/Qualifiers\n"
            f"     source          1..{len(bases)}\n"
            f'                     /organism="{organism}"\n                     /mol_type="genomic DNA"\n'
            f"ORIGIN\n{origin}\n//\n"
        )
    return "\n".join(records)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 records of one genus and 20 of the other, in each format: only to be read."""
    folder = tmp_path_factory.mktemp("taxa")
    for suffix, write in (("fa", fasta), ("gb", genbank)):
        rng = random.Random(0)
        parts = [write(organism, count, rng) for organism, count in zip(LINEAGES, (30, 20), strict=True)]
        (folder / f"goldfish.{suffix}").write_text(parts[0])
        (folder / f"rohu.{suffix}").write_text(parts[1])
        (folder / f"all.{suffix}").write_text("\n".join(parts))
    return folder


# --- Where the class is ---


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("goldfish.fa", "rohu.fa"), ["goldfish", "rohu"]),
        (("all.fa",), ["Carassius", "Labeo"]),
        (("goldfish.gb", "rohu.gb"), ["Carassius", "Labeo"]),
        (("all.gb",), ["Carassius", "Labeo"]),
    ],
    ids=["FASTA by file", "FASTA by header", "GenBank files by lineage", "one GenBank file by lineage"],
)
def test_taxa_of_files_as_they_come(folder: Path, names: tuple[str, ...], labels: list[str]) -> None:
    if names[0].endswith(".gb"):
        pytest.importorskip("Bio", reason="GenBank needs Biopython: pip install 'chordmixer[genbank]'")
    experiment = taxonomy(FilesConfig(tuple(str(folder / name) for name in names)))
    task = experiment.build_task()
    assert isinstance(task, Files) and task.target.labels == labels and task.target.headline == "roc_auc"
    assert task.target.counts.tolist() == [21, 14]
    assert task.target.weights.tolist() == pytest.approx([35 / 42, 35 / 28])
    shares = [task.question.targets[indices].mean() for indices in task.split.parts.values()]
    assert shares == pytest.approx([0.4] * 3)
    assert taxonomy(experiment.data) == experiment


@pytest.mark.parametrize(
    ("header", "genus"),
    [
        ("NC_001606.1 Cyprinus carpio mitochondrion, complete genome", "Cyprinus"),
        ("XM_026196789.1 PREDICTED: Carassius auratus actin", "Carassius"),
        ("BK006946.2 TPA_inf: Saccharomyces cerevisiae S288C", "Saccharomyces"),
        ("MW000001.1 UNVERIFIED: Labeo rohita isolate A", "Labeo"),
        ("CP1.1 MAG TPA_asm: Bacteroides fragilis", "Bacteroides"),
        ("X1.1 [Candida] glabrata", "Candida"),
        ("X1.1 uncultured bacterium clone", None),
        ("NC_008102.1", None),
    ],
    ids=str,
)
def test_the_genus_of_a_header(header: str, genus: str | None) -> None:
    name, _, description = header.partition(" ")
    assert header_value(header_pattern(GENUS), Entry(name, b"ACGT", "x", description=description)) == genus


def test_labels_that_were_asked_for_stay(folder: Path) -> None:
    data = FilesConfig((str(folder / "all.fa"),), Reading(labels=r"header:/(rohita|auratus)/"))
    assert taxonomy(data).build_task().target.labels == ["auratus", "rohita"]


def test_a_header_without_a_genus(tmp_path: Path) -> None:
    (tmp_path / "x.fa").write_text(">NC_1.1 Danio rerio\nACGT\n>NC_2.1\nACGG\n")
    with pytest.raises(ValueError, match=r"record 2: 'header:/.*finds no label in the header 'NC_2\.1': correct it"):
        taxonomy(FilesConfig((str(tmp_path / "x.fa"),)))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "taxonomy: no files were given: give FASTA or GenBank files as NCBI has them"),
        (("labeo.fa",), r"taxonomy: labeo\.fa is not there: give .*PAIRS has the queries for the paper's pairs"),
    ],
    ids=str,
)
def test_missing_files_and_how_to_get_them(files: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        taxonomy(FilesConfig(files))
    assert "\n" not in str(error.value)


# --- The paper ---


def test_the_papers_pairs() -> None:
    assert list(PAIRS) == ["carassius-labeo", "mus-rattus", "danio-cyprinus", "sus-bos"]
    for name, pair in PAIRS.items():
        assert name == f"{pair.first}-{pair.second}".lower()
        assert pair.shortest < pair.median < pair.longest and list(pair.queries) == [pair.first, pair.second]
    assert (
        PAIRS["mus-rattus"].queries["Rattus"].startswith("Rattus[Organism] AND gbdiv_rod[PROP] AND 32:261093[SLEN]")
    )
    assert [pair.longest for pair in PAIRS.values()] == [100_101, 261_093, 261_943, 447_010]


def test_the_papers_sizes_and_our_training(folder: Path) -> None:
    taxa = taxonomy(FilesConfig((str(folder / "all.fa"),)))
    genomes = (str(folder / "goldfish.fa"), str(folder / "rohu.fa"))
    pieces = fragments(FragmentsConfig(genomes, shortest=20, median=40))
    for experiment in (taxa, pieces):
        network = experiment.model.network
        assert (network.track_size, network.hidden, network.prenorm, network.init) == (16, 128, "layer", "identity")
        assert experiment.model.final_norm == "layer"
        assert (experiment.training.learning_rate, experiment.training.weight_decay) == (1e-3, 0.1)
    assert (pieces.training.epochs, pieces.training.batch_sequences) == (60, 128)
    assert load(RECIPES["fragments"]) is fragments and pieces.data.key is not None and pieces.task == "fragments"
    assert fragments(pieces.data) == pieces


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not beside this checkout")
def test_real_plasmids() -> None:
    paths = tuple(str(path) for path in sorted(SHARED.glob("*.fa.gz")))
    experiment = taxonomy(FilesConfig(paths))
    assert experiment.model.network.max_length == 1 << 19
    assert experiment.build_task().target.labels == ["firmicutes", "proteobacteria"]
