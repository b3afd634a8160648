from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from chordmixer.data import tables
from chordmixer.data.columns import Columns
from chordmixer.data.entries import Entry
from chordmixer.data.sources import open_source, source_of, until_broken
from chordmixer.data.tables import read_table, table_rows

SHARED = Path(__file__).parents[3] / "shared" / "data"

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
WORD = st.text("abcXYZ0189äß,;\"' ", min_size=1, max_size=8).map(str.strip).filter(bool)


def from_csv(data: bytes | str, columns: Columns = Columns()) -> list[Entry]:  # noqa: B008
    source = source_of(data if isinstance(data, bytes) else data.encode(), "t.csv")
    return list(until_broken(source, read_table(source, columns, "csv")))


def from_jsonl(data: bytes | str, columns: Columns = Columns()) -> list[Entry]:  # noqa: B008
    source = source_of(data if isinstance(data, bytes) else data.encode(), "t.jsonl")
    return list(read_table(source, columns, "jsonl"))


def read_parquet(path: Path) -> list[Entry]:
    with open_source(path) as source:
        return list(read_table(source, Columns(), "parquet"))


def pairs(entries: list[Entry]) -> list[tuple[Any, Any]]:
    return [(entry.sequence, entry.label) for entry in entries]


# --- CSV ---


def test_a_row_becomes_an_entry() -> None:
    data = "ID,Sequence,Label,target,split,group,weight\ng1,ACGT,worm,0.5,dev,f1,2\ng2,AC,,,test,,1\n"
    first, second = from_csv(data)
    assert first == Entry("g1", "ACGT", "t.csv, row 1", "", "worm", 0.5, "validation", "f1", 2.0)
    assert second == Entry("g2", "AC", "t.csv, row 2", split="test")


@pytest.mark.parametrize("delimiter", ["\t", ",", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("last", [True, False], ids=["final-newline", "no-final-newline"])
def test_delimiters_and_line_ends(delimiter: str, end: str, last: bool) -> None:
    lines = ["text,label", "one,a", "", '"two\n, ""2""",b']
    data = end.join(line.replace(",", delimiter) for line in lines) + end * last
    assert pairs(from_csv(data)) == [("one", "a"), (f'two\n{delimiter} "2"', "b")]


def test_the_delimiter_is_the_one_of_most_columns() -> None:
    assert pairs(from_csv("label;text, raw;y\na;b, c;1\n", Columns(sequence="text, raw"))) == [("b, c", "a")]
    assert pairs(from_csv("text\nfirst\nsecond\n")) == [("first", None), ("second", None)]


@given(
    st.lists(st.tuples(TEXT, WORD), min_size=1, max_size=8), st.sampled_from("\t,;"), st.sampled_from(["\n", "\r\n"])
)
def test_what_python_writes_is_what_we_read(rows: list[tuple[str, str]], delimiter: str, end: str) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerows([("text", "label"), *rows])
    assert pairs(from_csv(file.getvalue())) == rows


def test_a_table_without_a_header() -> None:
    needed = "; if its first row is a record, add a header row, such as id,sequence,label"
    for text in ("g1,ACGT,worm\ng2,AC,fly\n", "1,1,2\n3,4,5\n"):
        with pytest.raises(ValueError) as error:
            from_csv(text)
        assert str(error.value).startswith("t.csv has ") and str(error.value).endswith(needed)
    with pytest.raises(ValueError, match="has no column for the sequence") as error:
        from_csv("id,letters\ng1,ACGT\n")
    assert needed not in str(error.value)


@pytest.mark.parametrize("length", [131_071, 131_072, 131_073, 3_000_000])
@pytest.mark.parametrize("quote", ["", '"'], ids=["bare", "quoted"])
def test_long_fields(length: int, quote: str) -> None:
    text = "ACGT\n"[: 5 if quote else 4] * (length // 4)
    first, second = from_csv(f"sequence,label\n{quote}{text}{quote},a\nACGT,b\n")
    assert first.sequence == text and second.sequence == "ACGT"


def test_a_compressed_table(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_bytes(bz2.compress(b"\xef\xbb\xbftext\tlabel\nhello\ta\n"))
    with open_source(tmp_path / "t.tsv") as source:
        assert pairs(list(read_table(source, Columns(), "csv"))) == [("hello", "a")]


def streamed(kind: str, head: bytes, row: bytes) -> int:
    """The number of bytes read from an endless stream for its first two records."""

    class Endless(io.RawIOBase):
        delivered = 0

        def readable(self) -> bool:
            return True

        def readinto(self, target: Any) -> int:
            data = (head if not self.delivered else row * (len(target) // len(row) + 1))[: len(target)]
            target[: len(data)] = data
            self.delivered += len(data)
            return len(data)

    stream = Endless()
    source = source_of(b"x", "endless")
    object.__setattr__(source, "stream", io.BufferedReader(stream))
    entries = read_table(source, Columns(), kind)
    next(entries), next(entries)
    return stream.delivered


def test_text_tables_are_streamed() -> None:
    assert streamed("csv", b"text,label\n", b"a,b\n") < 1e6
    assert streamed("jsonl", b'{"text": "a"}\n', b'{"text": "b"}\n') < 1e6


def test_a_cut_table_says_how_many_came_before() -> None:
    data = gzip.compress(b"text,label\n" + b"".join(b"%d text %d,a\n" % (i, i * i) for i in range(99_999)))
    with pytest.raises(ValueError, match=r"t.csv: the gzip stream is cut .*; \d[\d,]+ records were read before it"):
        from_csv(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n \n", "t.csv is empty: give a table with a header"),
        (b"text,label\n", "t.csv has a header and no rows: give a table with records"),
        (b"text,label\n\n\n", "t.csv has a header and no rows"),
        (b"text,text\na,b\n", "t.csv has 'text' as the name of several columns"),
        (
            b"text,label\na,b\nc\n",
            r"t.csv, row 2 \(before line 4\) has 1 fields and the header 2: they must agree; quote",
        ),
        (b'text,label\n"a\nb",b\nc,d,e\n', r"t.csv, row 2 \(before line 5\) has 3 fields and the header 2"),
        (b"text,label\na,b\x00\n", "t.csv, line 2 holds a NUL byte: a table is UTF-8 text; save it as that"),
        ("text,label\na,b\n".encode("utf-16-le"), "line 1 holds a NUL byte"),
        (
            b"text,label\na,b\n\xc3\xa4\xe4,b\n",
            "t.csv, line 3: byte 0xe4 after 1 characters is not UTF-8: save the file",
        ),
        (b"te\xffxt,label\na,b\n", "t.csv, line 1: byte 0xff after 2 characters"),
        (b'text,label\n"a,b\n', r"t.csv, line 2 cannot be parsed \(unexpected end of data\): quote the field well"),
        (b'text,label\n"a"b,c\n', r"t.csv, line 2 cannot be parsed \(',' expected after '\"'\)"),
        (b"name,label\na,b\n", "t.csv has no column for the sequence: it has 'name', 'label'"),
        (b"text,split\na,train\nb,other\n", "t.csv, row 2, column 'split': 'other' is not a split"),
    ],
    ids=repr,
)
def test_csv_that_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        from_csv(data)
    assert "\n" not in str(error.value)


def test_a_field_over_the_parsers_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    before = csv.field_size_limit()
    monkeypatch.setattr(tables, "LONGEST_FIELD", 1000)
    try:
        with pytest.raises(
            ValueError, match=r"t.csv, line 2 cannot be parsed \(field larger than field limit \(1000\)\)"
        ):
            from_csv("text,label\n" + "A" * 1001 + ",b\n")
    finally:
        csv.field_size_limit(before)


# --- JSON Lines ---


def test_objects_become_entries() -> None:
    data = '{"id": 7, "text": "a\\nb", "label": true}\r\n\n{"label": null, "text": "c", "weight": 2, "x": {"y": [1]}}'
    first, second = from_jsonl(data)
    assert first == Entry("7", "a\nb", "t.jsonl, row 1", label="true")
    assert second == Entry("t.jsonl:2", "c", "t.jsonl, row 2", weight=2.0)


def test_lists_are_series() -> None:
    first, second = from_jsonl('{"series": [1, 2.5, -3]}\n{"series": [[1, 2], [3, 4], [5, 6]]}\n')
    assert isinstance(first.sequence, np.ndarray) and first.sequence.dtype == np.float32
    assert first.sequence.tolist() == [1, 2.5, -3] and second.sequence.shape == (3, 2)


@given(st.lists(st.tuples(TEXT, WORD), min_size=1, max_size=8), st.booleans())
def test_what_json_writes_is_what_we_read(rows: list[tuple[str, str]], ascii_only: bool) -> None:
    lines = [json.dumps({"text": text, "label": label}, ensure_ascii=ascii_only) for text, label in rows]
    assert pairs(from_jsonl("\n".join(lines))) == rows


def test_a_given_name_may_be_missing_in_some_rows() -> None:
    data = '{"text": "a"}\n{"text": "b", "kind": "x"}\n'
    assert pairs(from_jsonl(data, Columns(label="kind"))) == [("a", None), ("b", "x")]
    with pytest.raises(ValueError, match=r"t.jsonl has no column 'sort': it has 'text', 'kind'"):
        from_jsonl(data, Columns(label="sort"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n\n", "t.jsonl is empty: give a file with one JSON object a line"),
        (b'{"text": "a"}\n{"text": \n', r"t.jsonl, line 2 is not JSON \(.*\): write one whole object a line"),
        (b'[{"text": "a"}]', "t.jsonl, line 1 is list, not an object: write one object a line"),
        (b'{"text": "a", "text": "b"}', r"line 1 is not JSON \(a key stands twice in one object\)"),
        (b'{"text": "a"}\n{"label": "a"}', "t.jsonl, row 2 has no column for the sequence: it has 'label'"),
        (b'{"a":' * 100_000, "line 1 is not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "line 1 is not JSON"),
        (b'{"text": "\xff"}', "t.jsonl, line 1: byte 0xff after 10 characters is not UTF-8"),
        (b'{"text": "\x00"}', "t.jsonl, line 1 holds a NUL byte"),
        (b'{"text": "\\u0000"}', "t.jsonl, row 1, column 'text': a NUL character at position 0"),
        (b'{"text": "\\ud800"}', "t.jsonl, row 1, column 'text': half a character"),
        (b'{"text": "a", "target": Infinity}', "column 'target': inf is not a finite number"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_jsonl_that_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        from_jsonl(data)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


# --- Parquet ---


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_rows_become_entries(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.parquet",
        {
            "id": pa.array([1, 2, 3]),
            "text": pa.array(["a", "", None], pa.large_string()),
            "label": pa.array(["x", None, "y"]).dictionary_encode(),
            "target": pa.array([1, None, 2], pa.int8()),
            "split": ["train", "val", "test"],
            "when": pa.array([2**62] * 3, pa.timestamp("ns")),
        },
    )
    assert read_parquet(path) == [
        Entry("1", "a", f"{path}, row 1", label="x", target=1.0, split="training"),
        Entry("2", "", f"{path}, row 2", split="validation"),
        Entry("3", "", f"{path}, row 3", label="y", target=2.0, split="test"),
    ]


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (pa.list_(pa.float64()), [[1.0, 2.0], [], [3.0]]),
        (pa.large_list(pa.int16()), [[1, 2], [], [3]]),
        (pa.list_(pa.float32(), 2), [[1.0, 2.0], [3.0, 4.0]]),
        (pa.list_(pa.list_(pa.float32())), [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [], [[7.0]]]),
        (pa.list_(pa.list_(pa.uint8(), 2)), [[[1, 2], [3, 4]], [[5, 6]]]),
        (pa.list_(pa.bool_()), [[True, False]]),
    ],
    ids=str,
)
def test_list_columns_are_series(tmp_path: Path, kind: pa.DataType, rows: list[Any]) -> None:
    path = write(tmp_path / "t.parquet", {"series": pa.array(rows, kind)})
    for entry, row in zip(read_parquet(path), rows, strict=True):
        assert isinstance(entry.sequence, np.ndarray) and entry.sequence.dtype == np.float32
        np.testing.assert_array_equal(entry.sequence, np.array(row, dtype=np.float32))


def test_lists_of_words_are_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {"dna": [b"AC", b"GT"], "labels": [["a", "b"], []]})
    assert pairs(read_parquet(path)) == [(b"AC", "a;b"), (b"GT", "")]


@pytest.mark.parametrize("piece", [1, 1000, 16 * 2**20])
def test_pieces_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(tables, "PIECE", piece)
    texts = [f"text {i} " * (i % 7) for i in range(500)]
    path = write(tmp_path / "t.parquet", {"text": texts}, row_group_size=64)
    entries = read_parquet(path)
    assert [entry.sequence for entry in entries] == texts and entries[-1].id == "t.parquet:500"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": pa.array([], pa.string())}, r"t.parquet has no rows: give a table with records"),
        ({"series": [[[1.0], [2.0, 3.0]]]}, r"t.parquet, row 1, column 'series': lists of unequal lengths"),
        ({"series": [[[1.0], None]]}, r"column 'series': lists of unequal lengths"),
        ({"series": [[[[1.0]]]]}, r"column 'series': shape \(1, 1, 1\) is not \(steps,\) or \(steps, channels\)"),
        ({"series": [[[], []]]}, r"is not a type of real number|shape \(2, 0\) is not"),
        ({"series": [["a"]]}, r"column 'series': <U1 is not a type of real number"),
        ({"text": [1, 2]}, r"t.parquet, row 1, column 'text': 1 is not a sequence"),
        ({"text": ["a"], "label": [{"x": 1}]}, r"column 'label': \{'x': 1\} is not a single value"),
        ({"text": ["a\0"]}, r"column 'text': a NUL character at position 1"),
        ({"words": ["a"]}, r"t.parquet has no column for the sequence: it has 'words'"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_parquet_that_is_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.parquet", columns)
    with pytest.raises(ValueError, match=message):
        read_parquet(path)


def test_repeated_names_in_parquet(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t.parquet has 'text' as the name of several columns"):
        read_parquet(tmp_path / "t.parquet")


def test_text_in_parquet_that_is_not_utf8(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    path = write(tmp_path / "t.parquet", {"text": broken}, write_statistics=False)
    with pytest.raises(ValueError, match=r"t.parquet cannot be read as Parquet \(.*UTF8.*\): use another copy"):
        read_parquet(path)


def test_a_flipped_bit_in_a_page_with_a_checksum(tmp_path: Path) -> None:
    texts = ["ACGTACGT" * 50] * 3
    path = write(
        tmp_path / "t.parquet",
        {"text": texts},
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    data = bytearray(path.read_bytes())
    data[data.index(b"ACGTACGT") + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"t.parquet cannot be read as Parquet \(.*CRC.*\): use another copy"):
        read_parquet(path)


@pytest.mark.parametrize("data", [b"PAR1", b"PAR1" * 99, b"text,label\n"], ids=repr)
def test_what_is_not_parquet(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.parquet").write_bytes(data)
    with pytest.raises(ValueError, match=r"t.parquet cannot be read as Parquet") as error:
        read_parquet(tmp_path / "t.parquet")
    assert "\n" not in str(error.value)


# --- Any ---


def test_rows_of_any_format(tmp_path: Path) -> None:
    (tmp_path / "csv").write_text("id,label\ng1,a\n")
    (tmp_path / "jsonl").write_text('\n{"id": "g1", "label": "a"}\n')
    write(tmp_path / "parquet", {"id": ["g1"], "label": ["a"]})
    for name in ("csv", "jsonl", "parquet"):
        assert list(table_rows(tmp_path / name, Columns(sequence="-"))) == [(1, {"id": "g1", "label": "a"})]


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not here: real tables cannot be read")
def test_real_tables() -> None:
    reviews = read_parquet(SHARED / "imdb.parquet")
    assert Counter((e.split, e.label) for e in reviews) == dict.fromkeys(
        [(split, label) for split in ("training", "test") for label in ("pos", "neg")], 12_500
    )
    papers = Counter(e.label for e in read_parquet(SHARED / "arxiv_papers.parquet"))
    assert papers == {"cs.AI": 1600, "cs.CL": 1600, "cs.LG": 1600}
