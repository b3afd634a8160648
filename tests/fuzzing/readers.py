"""Small valid files of records, and how `inspect` reads them: targets of `benchmarks/fuzz.py`."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import re
import wave
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard
from pyarrow import parquet
from tests.data.mutants import CHANGES, Change, change_json
from tests.fuzzing.targets import Files, SilentChange, Target

from chordmixer.data.inspection import inspect
from chordmixer.data.reading import Reading
from chordmixer.data.sources import open_source
from chordmixer.data.store_cache import gather
from chordmixer.data.tokenizers import TokenizerConfig

Count = Callable[[bytes], int | None]


def reading(files: Files, count: Count = lambda data: None, **settings: Any) -> Target:
    """Read as `inspect` does; `count` gives the number of records of a damaged file, or None if it is unknown."""

    def call(folder: Path, rng: random.Random, damaged: str) -> None:
        path, table = folder / next(iter(files)).split("/")[0], folder / "labels.csv"
        options = {**settings, **({"labels": str(table)} if table.exists() else {}), "on_unmatched": "reject"}
        tokenizer = TokenizerConfig(on_bad=rng.choice(("unknown", "reject")))
        store, _ = gather([str(path)], Reading(on_empty="reject", **options), tokenizer, folder / "cache")
        inspect(store)
        account = store.account
        if not account.read == account.used + account.rejected.total() == len(store) + account.rejected.total():
            raise SilentChange(f"{account.read} read, {account.used} used, {account.rejected}, {len(store)} stored")
        expected = count(_plain(path)) if path.is_file() and not table.exists() else None
        if expected is not None and expected != account.read:
            raise SilentChange(f"{expected} records in the file, {account.read} read")

    return Target(files, call)


def _plain(path: Path) -> bytes:
    with open_source(path) as source:
        return source.stream.read()


def _lines(data: bytes) -> list[bytes]:
    return re.split(rb"\r\n|\r|\n", data)


def _of_fasta(data: bytes) -> int:
    return sum(line.startswith(b">") for line in _lines(data))


def _of_genbank(data: bytes) -> int:
    return sum(line.rstrip() == b"//" for line in _lines(data))


def _of_csv(data: bytes) -> int | None:
    return None if b'"' in data else sum(map(bool, _lines(data.lstrip()))) - 1


def _of_jsonl(data: bytes) -> int:
    return sum(bool(line.strip()) for line in io.StringIO(data.decode(errors="replace"), newline=None))


def _of_parquet(data: bytes) -> int:
    return int(parquet.read_metadata(io.BytesIO(data)).num_rows)


def _one(data: bytes) -> int:
    return 1


def _letters(number: int) -> str:
    return "".join(random.Random(number).choices("ACGT", k=20 + number * 7 % 60))


TABLE: dict[str, list[Any]] = {
    "id": [f"g{i}" for i in range(20)],
    "sequence": [_letters(i) for i in range(20)],
    "label": ["ab"[i % 2] for i in range(20)],
    "target": [i / 7 for i in range(20)],
    "split": [("train", "val", "test")[i % 3] for i in range(20)],
}
FASTA = "".join(f">g{i} gene:g{i // 2} a worm\n{_letters(i)}\n{_letters(i + 1)}\n" for i in range(12)).encode()
FASTQ = "".join(f"@r{i}\n{_letters(i)}\n+\n{'I' * len(_letters(i))}\n" for i in range(12)).encode()
LABELS = b"id,label\n" + b"".join(b"g%d,%s\n" % (i, b"ab"[i % 2 : i % 2 + 1]) for i in range(12))


def _csv(delimiter: str) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([[*TABLE], *zip(*TABLE.values(), strict=True)])
    return file.getvalue().encode()


def _jsonl() -> bytes:
    return "".join(
        json.dumps(dict(zip(TABLE, row, strict=True))) + "\n" for row in zip(*TABLE.values(), strict=True)
    ).encode()


def _parquet(table: dict[str, list[Any]]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(table), file, row_group_size=8, write_page_checksum=True)
    return file.getvalue()


def _npy(save: Callable[..., None] = np.save) -> bytes:
    file = io.BytesIO()
    save(file, np.arange(60, dtype=np.float32).reshape(20, 3))
    return file.getvalue()


def _wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(2)
        recording.setsampwidth(2)
        recording.setframerate(8000)
        recording.writeframes(np.arange(80, dtype="<i2").tobytes())
    return file.getvalue()


def _npy_with_header(text: bytes) -> bytes:
    """A damaged header, of a length that fits."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(240)


def _in_header(change: Change) -> Change:
    return lambda data, rng: _npy_with_header(change(data[10:-240], rng)[:9000])


def _genbank(name: str) -> str:
    letters, features = "acgtnacgta" * 6, "     source          1..60\n     CDS             join(1..3,7..9)\n"
    return (
        f"LOCUS       {name:<16} {60:>11} bp    DNA     linear   INV 09-MAR-2022\nDEFINITION  A worm.\n"
        f"ACCESSION   {name}\nVERSION     {name}.1\nKEYWORDS    .\nSOURCE      C. elegans\n  ORGANISM  C. elegans\n"
        f"            Eukaryota; Metazoa.\nFEATURES             Location/Qualifiers\n{features}"
        f'                     /gene="abc"\n     CDS             complement(4..12)\nORIGIN\n        1 {letters}\n//\n'
    )


HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (20, 3), }\n"
GENBANK = "".join(map(_genbank, ("A1", "A2", "A3"))).encode()
SERIES = {"id": TABLE["id"], "series": [[[float(i), 2.0]] * (i + 1) for i in range(20)]}
TEXTS = {f"texts/{c}/{i}.txt": f"some words of {c}, ü {i}\nand a line\r\n".encode() for c in "ab" for i in range(3)}

RECORDS: dict[str, Target] = {
    "fasta": reading({"a.fa": FASTA}, _of_fasta),
    "fasta.gz": reading({"a.fa.gz": gzip.compress(FASTA, mtime=0)}, _of_fasta),
    "fasta.bz2": reading({"a.fa.bz2": bz2.compress(FASTA)}, _of_fasta),
    "fasta.xz": reading({"a.fa.xz": lzma.compress(FASTA)}, _of_fasta),
    "fasta.zst": reading({"a.fa.zst": zstandard.ZstdCompressor(write_checksum=True).compress(FASTA)}, _of_fasta),
    "fasta and labels": reading({"a.fa": FASTA, "labels.csv": LABELS}),
    "headers": reading({"a.fa": FASTA}, _of_fasta, group="header:gene"),
    "fastq": reading({"a.fq": FASTQ}),
    "genbank": reading({"a.gb": GENBANK}, _of_genbank, rank="organism"),
    "genbank features": reading({"a.gb": GENBANK}, features="CDS"),
    "csv": reading({"t.csv": _csv(",")}, _of_csv),
    "tsv": reading({"t.tsv": _csv("\t")}, _of_csv),
    "jsonl": replace(reading({"t.jsonl": _jsonl()}, _of_jsonl), changes=(*CHANGES, *[change_json] * 9)),
    "parquet": reading({"t.parquet": _parquet(TABLE)}, _of_parquet),
    "parquet series": reading({"t.parquet": _parquet(SERIES)}, _of_parquet),
    "npy": reading({"s.npy": _npy()}, _one),
    "npy header": replace(
        reading({"s.npy": _npy_with_header(HEADER)}, _one), changes=tuple(map(_in_header, CHANGES))
    ),
    "wav": reading({"s.wav": _wav()}, _one),
    "npz": reading({"s.npz": _npy(np.savez)}, _one),
    "texts": reading(TEXTS, kind="text"),
    "text": reading({"t.txt": TEXTS["texts/a/0.txt"] * 9}, _one, kind="text"),
}
