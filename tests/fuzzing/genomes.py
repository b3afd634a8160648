"""Variants, references and NCBI's answers, and how commands read them: targets of `benchmarks/fuzz.py`."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

from tests.data.mutants import CHANGES, change_json
from tests.data.ncbi_server import fasta, genbank
from tests.fuzzing.targets import Files, SilentChange, Target
from tests.tasks.variant_files import HEAD, genome, rows

from chordmixer.data import ncbi
from chordmixer.data.entrez import FORMATS, Service
from chordmixer.data.entrez import NCBI as SERVER
from chordmixer.data.reference import BgzipWriter
from chordmixer.data.variants import VariantColumns, open_vcf, with_scores
from chordmixer.tasks.variants import VariantData, VariantsConfig

VCF = (HEAD + "".join(rows(contigs=4, length=200))).encode()
GENOME = "".join(
    f">{name}\n" + "".join(f"{letters[i : i + 60]}\n" for i in range(0, len(letters), 60))
    for name, letters in genome(contigs=4, length=200).items()
).encode()
FAI = "".join(f"chr{k}\t200\t{6 + (k - 1) * 210}\t60\t61\n" for k in range(1, 5)).encode()


def _bgzip(data: bytes) -> bytes:
    file = io.BytesIO()
    writer = BgzipWriter(file)
    writer.write(data)
    writer.finish()
    return file.getvalue()


def _variants_table(delimiter: str) -> bytes:
    fields = [row.split("\t") for row in rows(contigs=4, length=200)]
    lines = [["chrom", "pos", "ref", "alt", "label"], *[[f[0], f[1], f[3], f[4], f[7][6:9]] for f in fields]]
    return "".join(delimiter.join(line) + "\n" for line in lines).encode()


def variants(files: Files, damaged: str = "") -> Target:
    """Read variants as `variants` does before it trains, and write them as with `--run`."""
    calls, reference = [*files][:2]

    def call(folder: Path, rng: random.Random, damaged: str) -> None:
        path = folder / calls
        columns = VariantColumns(label="CLASS") if calls.startswith("calls.vcf") else VariantColumns()
        config = VariantsConfig(
            (str(path),), str(folder / reference), 64, columns, on_mismatch="reject", on_unmatched="reject"
        )
        data = VariantData(config)
        for part in data.split.parts.values():
            data.records(part)[0]
        account, expected = data.account, None
        if calls.startswith("calls.vcf"):
            with open_vcf(path) as lines:
                expected = sum(len(line.alts) for line in lines if line.fields and with_scores(line, {0: 0.5}))
        if account.read != account.used + account.rejected.total() or expected not in (None, account.read):
            raise SilentChange(f"{expected} variants, {account.read} read, {account.used} used, {account.rejected}")

    return Target(files, call, (damaged or calls,))


# --- NCBI ---


class _Answers(Service):
    """Answers from a folder in place of a server's."""

    def __init__(self, folder: Path) -> None:
        super().__init__("me@here", clock=lambda: 0.0, sleep=lambda seconds: None)
        self.folder = folder

    def _post(self, utility: str, form: dict[str, Any]) -> bytes:
        kind = "search" if utility == "esearch" else "page" if "id" in form else "list"
        return (self.folder / kind).read_bytes()


def _search(count: int) -> bytes:
    return (
        f"<?xml version='1.0'?><eSearchResult><Count>{count}</Count><QueryKey>1</QueryKey><WebEnv>M_7</WebEnv>"
        "<ErrorList><PhraseNotFound>x</PhraseNotFound></ErrorList></eSearchResult>"
    ).encode()


NAMES = [f"AB{number:06}.1" for number in range(3)]
NCBI = {"search": _search(3), "list": "\n".join(NAMES).encode()}


def fetching(form: str, page: bytes, damaged: str, note: bool = False) -> Target:
    """Fetch as `fetch` does; with a note, resume an earlier fetch."""
    query = {"term": ncbi.entrez_term("Carassius"), "most": None, "server": SERVER}
    state = {**query, "total": 3, "wanted": 3, "found": "2026-01-01", "records": 0, "without": []}
    name = ncbi.file_name("Carassius", form)
    earlier = {f"{name}.fetch.json": json.dumps(state).encode(), f".parts/{name}/accessions.txt": NCBI["list"]}

    def call(folder: Path, rng: random.Random, damaged: str) -> None:
        config = ncbi.FetchConfig("me@here", format=form)  # type: ignore[arg-type]
        path = ncbi.fetch("Carassius", folder, config, service=_Answers(folder))
        saved = json.loads((folder / f"{name}.fetch.json").read_bytes())
        data = gzip.decompress(path.read_bytes())
        count = FORMATS[form].count(data)
        if saved["records"] != count or saved["records"] + len(saved["without"]) != saved["wanted"]:
            raise SilentChange(f"{count} records, and the note says {saved}")

    changes = (*CHANGES, *[change_json] * 9) if note else CHANGES
    return Target({**NCBI, "page": page, **(earlier if note else {})}, call, (damaged.format(name=name),), changes)


GENOMES: dict[str, Target] = {
    "vcf": variants({"calls.vcf": VCF, "genome.fa": GENOME}),
    "vcf.gz": variants({"calls.vcf.gz": _bgzip(VCF), "genome.fa": GENOME}),
    "variants csv": variants({"t.csv": _variants_table(","), "genome.fa": GENOME}),
    "variants tsv": variants({"t.tsv": _variants_table("\t"), "genome.fa": GENOME}),
    "reference": variants({"calls.vcf": VCF, "genome.fa": GENOME}, "genome.fa"),
    "reference bgzip": variants({"calls.vcf": VCF, "genome.fa.gz": _bgzip(GENOME)}, "genome.fa.gz"),
    "reference fai": variants({"calls.vcf": VCF, "genome.fa": GENOME, "genome.fa.fai": FAI}, "genome.fa.fai"),
    "reference gzi": variants(
        {"calls.vcf": VCF, "genome.fa.gz": _bgzip(GENOME), "genome.fa.gz.gzi": bytes(8)}, "genome.fa.gz.gzi"
    ),
    "ncbi search": fetching("fasta", "".join(map(fasta, NAMES)).encode(), "search"),
    "ncbi list": fetching("fasta", "".join(map(fasta, NAMES)).encode(), "list"),
    "ncbi fasta": fetching("fasta", "".join(map(fasta, NAMES)).encode(), "page"),
    "ncbi genbank": fetching("genbank", "".join(map(genbank, NAMES)).encode(), "page"),
    "ncbi accessions": fetching(
        "fasta", "".join(map(fasta, NAMES)).encode(), ".parts/{name}/accessions.txt", note=True
    ),
    "ncbi note": fetching("fasta", "".join(map(fasta, NAMES)).encode(), "{name}.fetch.json", note=True),
}
