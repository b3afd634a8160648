"""Predictions of a run in files: rows, long and bad records, inputs, options and kills."""

from __future__ import annotations

import io
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.forked import Forked
from tests.training.trained_runs import CLASSES, SEVERAL, dna, make_run, write_fasta

from chordmixer.data.alphabets import Dna, Kmers
from chordmixer.data.columns import Columns
from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading, read
from chordmixer.data.tokenizers import Numbers
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training import Experiment, TrainingConfig, inference
from chordmixer.training.loop import train
from chordmixer.training.prediction import embed, predict

LENGTHS = [5, 90, 1, 40, 128, 3, 64, 17, 80, 33, 7, 100, 2, 55]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def fasta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fasta(tmp_path_factory.mktemp("data") / "x.fa", LENGTHS)


def rows(path: Path) -> list[dict[str, str]]:
    header, *lines = (line.split("\t") for line in path.read_text().splitlines())
    return [dict(zip(header, line, strict=True)) for line in lines]


def direct(run: Path, texts: list[str], tokenizer: Any = None) -> np.ndarray:
    """The model's own outputs, one record at a time."""
    model, tokenizer = Model.from_pretrained(run), tokenizer or Dna()
    with torch.inference_mode():
        outputs = [model(Packed.from_list([torch.tensor(tokenizer.encode(t).astype(np.int64))])) for t in texts]
    return torch.cat(outputs).double().numpy()


# --- Rows ---


@pytest.mark.parametrize("batch_tokens", [1, 100, 100_000])
def test_a_row_a_record_in_order_whatever_the_batches(
    run: Path, fasta: Path, tmp_path: Path, batch_tokens: int
) -> None:
    account = predict(run, [fasta], tmp_path / "y.tsv", batch_tokens=batch_tokens)
    table = rows(tmp_path / "y.tsv")
    assert list(table[0]) == ["id", "length", "windows", "class", "probability", "worm", "fly", "yeast"]
    assert [row["id"] for row in table] == [f"r{i}" for i in range(len(LENGTHS))]
    assert [int(row["length"]) for row in table] == LENGTHS
    assert (account.read, account.used, account.rejected.total()) == (len(LENGTHS), len(LENGTHS), 0)

    outputs = direct(run, [dna(n, i) for i, n in enumerate(LENGTHS)])
    scaled = (outputs - np.log(CLASSES.weights.numpy())) / 1.5
    shares = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
    for row, expected in zip(table, shares, strict=True):
        probabilities = np.array([float(row[label]) for label in CLASSES.labels])
        np.testing.assert_allclose(probabilities, expected, atol=1e-5)
        assert row["class"] == CLASSES.labels[probabilities.argmax()]
        assert row["probability"] == row[row["class"]] and len(row["probability"]) == len("0.123456")


def test_all_formats_hold_the_same(run: Path, fasta: Path, tmp_path: Path) -> None:
    for ending in ("tsv", "jsonl", "parquet"):
        predict(run, [fasta], tmp_path / f"y.{ending}", batch_tokens=64)
    tsv = rows(tmp_path / "y.tsv")
    jsonl = [json.loads(line) for line in (tmp_path / "y.jsonl").read_text().splitlines()]
    parquet = pq.read_table(tmp_path / "y.parquet", page_checksum_verification=True).to_pylist()
    assert jsonl == parquet
    assert [{k: f"{v:.6f}" if isinstance(v, float) else str(v) for k, v in row.items()} for row in jsonl] == tsv
    assert sorted(p.name for p in tmp_path.iterdir()) == ["y.jsonl", "y.parquet", "y.tsv"]


def test_under_the_least_confidence_a_record_is_unclassified(run: Path, fasta: Path, tmp_path: Path) -> None:
    predict(run, [fasta], tmp_path / "y.tsv")
    plain = rows(tmp_path / "y.tsv")
    threshold = float(np.median([float(row["probability"]) for row in plain]))
    predict(run, [fasta], tmp_path / "z.tsv", min_confidence=threshold)
    for before, after in zip(plain, rows(tmp_path / "z.tsv"), strict=True):
        confident = float(before["probability"]) > threshold
        assert after == before | ({} if confident else {"class": "unclassified"})
    assert {row["class"] for row in rows(tmp_path / "z.tsv")} > {"unclassified"}


def test_numbers(tmp_path: Path) -> None:
    target = Regression.of([100.0, 300.0])
    run = make_run(tmp_path / "run", target, temperature=None)
    write_fasta(tmp_path / "x.fa", [10, 20])
    predict(run, [tmp_path / "x.fa"], tmp_path / "y.jsonl")
    predicted = [json.loads(line) for line in (tmp_path / "y.jsonl").read_text().splitlines()]
    assert [list(row) for row in predicted] == [["id", "length", "windows", "value"]] * 2
    expected = target.values(direct(run, [dna(10, 0), dna(20, 1)]))
    np.testing.assert_allclose([row["value"] for row in predicted], expected, rtol=1e-5)


def test_several_labels(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", SEVERAL)
    write_fasta(tmp_path / "x.fa", LENGTHS)
    predict(run, [tmp_path / "x.fa"], tmp_path / "y.parquet")
    table = pq.read_table(tmp_path / "y.parquet").to_pylist()
    outputs = direct(run, [dna(n, i) for i, n in enumerate(LENGTHS)])
    odds = np.exp((outputs - np.log((SEVERAL.positive / SEVERAL.negative).numpy())) / 1.5)
    for row, expected in zip(table, odds / (1 + odds), strict=True):
        np.testing.assert_allclose([row["red"], row["round"]], expected, atol=1e-5)
        assert row["labels"] == [label for label in ("red", "round") if row[label] > 0.5]


def test_labels_with_the_names_of_columns(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Classification.of_counts(["id", "class", "other"], [1, 1, 1]))
    predict(run, [write_fasta(tmp_path / "x.fa", [9])], tmp_path / "y.tsv")
    assert list(rows(tmp_path / "y.tsv")[0])[3:] == ["class", "probability", "p(id)", "p(class)", "other"]


def test_both_strands(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", both_strands=True)
    forward = dna(50, 3)
    reverse = forward[::-1].translate(str.maketrans("ACGT", "TGCA"))
    (tmp_path / "x.fa").write_text(f">forth\n{forward}\n>back\n{reverse}\n>other\n{dna(50, 4)}\n")
    predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv")
    first, second, third = ({**row, "id": ""} for row in rows(tmp_path / "y.tsv"))
    assert first == second != third
    outputs = direct(run, [forward, reverse]).mean(axis=0, keepdims=True)
    shares = CLASSES.unweighted(outputs) / 1.5
    np.testing.assert_allclose(
        [float(first[k]) for k in CLASSES.labels], (np.exp(shares) / np.exp(shares).sum())[0], atol=1e-5
    )


def test_real_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Regression(), Numbers(channels=2), temperature=None)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32))
    predict(run, [tmp_path / "x.npy"], tmp_path / "y.tsv")
    assert [row["length"] for row in rows(tmp_path / "y.tsv")] == ["30"]


# --- Records that are too long, or bad ---


def test_windows_of_long_records(run: Path, tmp_path: Path) -> None:
    """Max length 128: 300 tokens are the windows 0-128, 64-192, 128-256, 192-300."""
    write_fasta(tmp_path / "x.fa", [128, 300, 10, 129])
    predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv", over_length="windows", batch_tokens=200)
    table = rows(tmp_path / "y.tsv")
    assert [row["windows"] for row in table] == ["1", "4", "1", "2"]
    text = dna(300, 1)
    parts = [text[:128], text[64:192], text[128:256], text[192:]]
    outputs = np.average(direct(run, parts), axis=0, weights=[128, 128, 128, 108])
    shares = np.exp(CLASSES.unweighted(outputs) / 1.5)
    np.testing.assert_allclose([float(table[1][k]) for k in CLASSES.labels], shares / shares.sum(), atol=1e-5)


def test_long_records_can_be_left_out(run: Path, tmp_path: Path) -> None:
    """Long records are counted and named as rejected; a run that cuts records rejects none."""
    write_fasta(tmp_path / "x.fa", [128, 300, 10, 129])
    with pytest.raises(ValueError, match="add --over-length windows or --over-length reject, or train with a larger"):
        predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv")
    account = predict(run, [tmp_path / "x.fa"], tmp_path / "y.csv", over_length="reject")
    assert (tmp_path / "y.csv").read_text().splitlines()[0] == "id,length,windows,class,probability,worm,fly,yeast"
    assert [line.split(",")[0] for line in (tmp_path / "y.csv").read_text().splitlines()[1:]] == ["r0", "r2"]
    assert (account.read, account.used, account.rejected.total()) == (4, 2, 2)
    assert account.examples == {"longer than this model's max_length=128": ["r1", "r3"]}
    engine = inference.Engine(run)
    engine.cut = 100
    entries = read([tmp_path / "x.fa"], Reading(), Account())
    (window,) = engine.windows(entries, Account(), None, "reject")
    assert [len(tokens) for _, tokens in window] == [100, 100, 10, 100]


@pytest.mark.parametrize("length", [129, 191, 192, 193, 256, 257, 1000])
@pytest.mark.parametrize("limit", [1, 2, 3, 128])
def test_windows_cover_a_record(run: Path, length: int, limit: int) -> None:
    engine = inference.Engine(run)
    engine.max_length = limit
    item = inference.Item(None, np.zeros(length, dtype=np.uint8))  # type: ignore[arg-type]
    pieces = engine.pieces([item], "windows")
    assert pieces[0].start == 0 and pieces[-1].stop == length
    assert all(b.start - a.start == max(1, limit // 2) and b.start <= a.stop for a, b in pairwise(pieces))
    assert all(p.stop - p.start == limit for p in pieces[:-1]) and pieces[-1].stop - pieces[-1].start > limit // 2 - 1


def test_a_record_above_the_models_length_is_refused(run: Path, tmp_path: Path) -> None:
    write_fasta(tmp_path / "x.fa", [10, 129])
    with pytest.raises(
        ValueError, match=r"x\.fa, record 2 \(r1\) has 129 tokens, above this model's max_length=128: .*--over-length"
    ):
        predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv")
    assert [p.name for p in tmp_path.iterdir()] == ["x.fa"]


def test_bad_letters(run: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.fa").write_text(">a\nACGT\n>b\nAC7T\n>c\nacgt\n")
    with pytest.raises(ValueError, match=r"x\.fa, record 2 \(b\): character '7' at position 3 is not a nucleotide"):
        predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv")
    account = predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv", on_bad="unknown")
    assert account.used == 3 and account.notes["bad characters taken as N"] == 1

    log.clear()
    account = predict(run, [tmp_path / "x.fa"], tmp_path / "z.tsv", on_bad="reject")
    assert [row["id"] for row in rows(tmp_path / "z.tsv")] == ["a", "c"]
    assert (account.read, account.used, dict(account.rejected)) == (3, 2, {"refused by the dna tokenizer": 1})
    messages = log.messages
    assert len(messages) == 1 and "rejected" in messages[0] and "record 2 (b): character '7'" in messages[0]


def test_a_file_of_which_nothing_is_left_has_no_rows(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.fa").write_text(">b\nAC7T\n")
    for ending in ("tsv", "parquet"):
        account = predict(run, [tmp_path / "x.fa"], tmp_path / f"y.{ending}", on_bad="reject")
        assert account.rejected.total() == 1
    assert rows(tmp_path / "y.tsv") == [] and pq.read_table(tmp_path / "y.parquet").num_rows == 0


def test_an_answer_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Regression(), Numbers(), temperature=None)
    np.save(tmp_path / "x.npy", np.full(30, 3e38, dtype=np.float32))
    with pytest.raises(ValueError, match=r"x\.npy.*: the model's answer is NaN or infinite"):
        predict(run, [tmp_path / "x.npy"], tmp_path / "y.tsv")


# --- Inputs ---


def test_labels_in_the_files_are_not_looked_at(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("name,dna,label,target,split,weight\na,ACGT,ferret,high,somewhere,-3\n")
    reading = Reading(labels="files", columns=Columns(label="nothing"))
    predict(run, [tmp_path / "x.csv"], tmp_path / "y.tsv", reading=reading)
    assert [row["id"] for row in rows(tmp_path / "y.tsv")] == ["a"]


def test_many_files_one_after_the_other(run: Path, fasta: Path, tmp_path: Path) -> None:
    (tmp_path / "one.fa").write_text(">r0\nACGT\n")
    predict(run, [tmp_path / "one.fa", fasta], tmp_path / "y.tsv")
    assert [row["id"] for row in rows(tmp_path / "y.tsv")] == ["r0", *(f"r{i}" for i in range(len(LENGTHS)))]


def test_standard_input_to_standard_output(
    run: Path, fasta: Path, tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(run, [fasta], tmp_path / "y.tsv", batch_tokens=50)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(fasta.read_bytes())))
    predict(run, ["-"], batch_tokens=50)
    captured = capfdbinary.readouterr()
    assert captured.out == (tmp_path / "y.tsv").read_bytes() and captured.err == b""


def test_words(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tokenizer=Kmers(k=3))
    predict(run, [write_fasta(tmp_path / "x.fa", [12])], tmp_path / "y.tsv")
    assert rows(tmp_path / "y.tsv")[0]["length"] == "10"


# --- Mistakes ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_confidence": 1.5}, "--min-confidence 1.5 is not a probability"),
        ({"over_length": "cut"}, "--over-length cut is not a choice: give one of error, windows, reject"),
        ({"on_bad": "drop"}, "--on-bad drop is not a choice: give one of error, unknown, reject"),
        ({"device": "tpu"}, "--device tpu is not a choice: give one of auto, cpu, cuda"),
        ({"batch_tokens": 0}, "--batch-tokens 0 is too small"),
    ],
)
def test_options_out_of_range(run: Path, fasta: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(run, [fasta], tmp_path / "y.tsv", **options)
    assert not any(tmp_path.iterdir())


def test_confidence_is_for_classes(fasta: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", SEVERAL)
    with pytest.raises(ValueError, match="--min-confidence is for a choice between classes"):
        predict(run, [fasta], tmp_path / "y.tsv", min_confidence=0.5)


# --- Kills ---

KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from chordmixer.training import inference, output_files
from chordmixer.training.prediction import embed
from chordmixer.training.prediction import predict

run, fasta, folder, seed = *map(Path, sys.argv[1:4]), int(sys.argv[4])
output_files.SECONDS = 0
rng = random.Random(seed)
averages = inference.Engine.averages

def slowly(*arguments):
    time.sleep(0.004)
    return averages(*arguments)

inference.Engine.averages = slowly
report = {}
for out, work in (("y.tsv", predict), ("y.jsonl", predict), ("y.parquet", predict), ("e.parquet", embed)):
    kills = resumed = 0
    while True:
        child = os.fork()
        if not child:
            work(run, [fasta], folder / out, batch_tokens=16, resume=True)
            os._exit(0)
        if kills < 5:
            deadline = time.monotonic() + 20
            while kills == 1 and not (folder / (out + ".journal")).exists() and time.monotonic() < deadline:
                time.sleep(0.002)  # at least one kill in the middle, however slow the machine is
            time.sleep(rng.uniform(0.0, 0.05) if kills == 1 else rng.uniform(0.02, 0.35))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not status:
            break
        kills += os.WIFSIGNALED(status)
        resumed += (folder / (out + ".journal")).exists()
        assert os.WIFSIGNALED(status) and kills < 20
    report[out] = [kills, resumed]
print(json.dumps(report))
"""


def test_killed_and_resumed_it_is_the_same_file(run: Path, fasta: Path, tmp_path: Path) -> None:
    uninterrupted, killed = tmp_path / "whole", tmp_path / "torn"
    uninterrupted.mkdir()
    killed.mkdir()
    long_fasta = write_fasta(tmp_path / "x.fa", LENGTHS * 6)
    for ending in ("tsv", "jsonl", "parquet"):
        predict(run, [long_fasta], uninterrupted / f"y.{ending}", batch_tokens=16)
    embed(run, [long_fasta], uninterrupted / "e.parquet", batch_tokens=16)
    killer = Forked([sys.executable, "-c", KILLER, str(run), str(long_fasta), str(killed), "7"])
    output, errors = killer.communicate(timeout=120)
    assert killer.returncode == 0, errors
    assert sorted(p.name for p in killed.iterdir()) == sorted(p.name for p in uninterrupted.iterdir())
    for path in uninterrupted.iterdir():
        assert (killed / path.name).read_bytes() == path.read_bytes(), path.name
    report = json.loads(output)
    assert all(kills >= 1 for kills, _ in report.values()) and sum(n for _, n in report.values()) >= 4, report


# --- What others make of the rows ---


def test_classes_may_be_called_as_columns_are(fasta: Path, tmp_path: Path) -> None:
    names = ["class", "id", "length", "p(class)", "probability", "value"]
    run = make_run(tmp_path / "run", Classification.of_counts(names, [9, 8, 7, 6, 5, 4]))
    predict(run, [fasta], tmp_path / "y.tsv")
    predict(run, [fasta], tmp_path / "y.parquet")
    columns = ["p(p(class))", "p(id)", "p(length)", "p(class)", "p(probability)", "p(value)"]
    table = rows(tmp_path / "y.tsv")
    assert list(table[0]) == ["id", "length", "windows", "class", "probability", *columns]
    assert pq.read_schema(tmp_path / "y.parquet").names == list(table[0])
    for row in table:
        shares = [float(row[name]) for name in columns]
        assert sum(shares) == pytest.approx(1, abs=1e-5) and row["class"] == names[int(np.argmax(shares))]


def test_formulas_are_guarded_where_asked(tmp_path: Path) -> None:
    ids = ["=cmd|'/C'!A0", "+1", "-2", "@x", "a=b"]
    (tmp_path / "x.fa").write_text("".join(f">{name}\nACGT\n" for name in ids))
    run = make_run(tmp_path / "run", Classification.of_counts(["=1+1", "b"], [3, 5]))
    for prefix in ("", "'"):
        predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv", safe_cells=bool(prefix), force=True)
        header, *lines = (line.split("\t") for line in (tmp_path / "y.tsv").read_text().splitlines())
        assert [line[0] for line in lines] == [prefix + name for name in ids[:4]] + ["a=b"]
        assert f"{prefix}=1+1" in header and {line[3] for line in lines} <= {f"{prefix}=1+1", "b"}
    with pytest.raises(ValueError, match=r"--safe-cells is for tables that a spreadsheet opens, and .*jsonl is none"):
        predict(run, [tmp_path / "x.fa"], tmp_path / "y.jsonl", safe_cells=True)


def test_a_terminal_shows_escapes_and_a_pipe_has_the_bytes(
    fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", Classification.of_counts(["a\x1b[31m", "b"], [3, 5]))
    for terminal, expected in ((True, rb"a\x1b[31m"), (False, b"a\x1b[31m")):
        stream = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(stream, "isatty", lambda answer=terminal: answer, raising=False)
        monkeypatch.setattr(sys, "stdout", stream)
        predict(run, [fasta])
        assert expected in stream.buffer.getvalue().split(b"\n")[0].split(b"\t")  # type: ignore[attr-defined]


def test_numbers_around_a_billion_are_learnt_as_well_as_small_ones(tmp_path: Path, quick_scores: None) -> None:
    """The same records with the targets i and 1e9 + i: in float32 all of the second are the same number."""
    results = {}
    for name, offset in (("near", 0), ("far", 1_000_000_000)):
        lines = [f"r{i},{'A' * (i % 20) + 'C' * (20 - i % 20)},{offset + i % 20}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("id,sequence,target\n" + "\n".join(lines) + "\n")
        task = Files(FilesConfig((str(tmp_path / f"{name}.csv"),)))
        network = ChordMixerConfig(max_length=20, track_size=2, hidden=8)
        model = ModelConfig(task.inputs, 1, network=network)
        training = TrainingConfig(epochs=3, batch_sequences=8, learning_rate=0.02, device="cpu")
        scores = train(Experiment("files", task.config, model, training), tmp_path / name).scores
        predict(tmp_path / name, [tmp_path / f"{name}.csv"], tmp_path / f"{name}.tsv")
        results[name] = {metric: score.value for metric, score in scores.items()}
        results[f"{name} values"] = [float(row["value"]) - offset for row in rows(tmp_path / f"{name}.tsv")]
    assert np.ptp(results["near values"]) > 1 and results["near"]["r2"] > 0.1
    np.testing.assert_allclose(results["far values"], results["near values"], atol=1e-3)
    assert results["far"] == pytest.approx(results["near"], rel=1e-3)


def test_empty_records_are_no_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "x.fa").write_text(">a\nACGT\n>b\n>c\nACG\n")
    with pytest.raises(ValueError, match="record 'b' is empty"):
        predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv")
    account = predict(run, [tmp_path / "x.fa"], tmp_path / "y.tsv", reading=Reading(on_empty="reject"))
    assert (account.read, account.used, dict(account.rejected)) == (3, 2, {"empty": 1})
    assert len((tmp_path / "y.tsv").read_text().splitlines()) == 3
