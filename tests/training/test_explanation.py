"""Where answers came from: of whatever answers, and against answers for records that are changed by hand."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from tests.conftest import MOTIFS
from tests.training.trained_runs import CLASSES, SEVERAL, dna, make_run

from chordmixer import Packed, files
from chordmixer.config import to_dict
from chordmixer.data.alphabets import Kmers
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.data.tokenizers import Bytes, Numbers
from chordmixer.tasks.targets import Regression
from chordmixer.training import ensemble
from chordmixer.training.attribution import edges, gradients, neutral
from chordmixer.training.ensemble import Ensemble, EnsembleMember
from chordmixer.training.ensemble_inference import TrainedEnsemble, open_run
from chordmixer.training.explanation import Explanation, explain
from chordmixer.training.inference import Item, Trained
from chordmixer.training.intervals import Score

NUMBER = Regression(mean=20.0, scale=5.0)


def records(*lengths: int) -> list[Entry]:
    return [Entry(f"r{n}", dna(n, n).encode(), f"x.fa, record {i + 1}") for i, n in enumerate(lengths)]


def asked(engine: Trained, tokens: list[ndarray]) -> ndarray:
    """Probabilities of each record, or its number, as `predict` gives them."""
    window = [Item(Entry("x", b"", "x"), own) for own in tokens]
    outputs = engine.outputs(window, engine.pieces(window, "error"))
    target = engine.answers.target
    return target.values(outputs) if isinstance(target, Regression) else engine.answers.probabilities(outputs)


def by_hand(engine: Trained, tokens: ndarray, blocks: int, output: int | None) -> ndarray:
    """One record at a time, through probabilities."""
    by, cuts = neutral(tokens, engine.tokenizer), edges(len(tokens), blocks)
    rows = [tokens]
    for start, stop in pairwise(cuts.tolist()):
        rows.append(np.concatenate([tokens[:start], by[start:stop], tokens[stop:]]))
    answers = np.concatenate([asked(engine, [row]) for row in rows])
    scores = answers if output is None else np.log(answers[:, output] / (1 - answers[:, output]))
    return np.repeat(scores[0] - scores[1:], np.diff(cuts))


@pytest.mark.parametrize("strands", [False, True])
@pytest.mark.parametrize("target", [CLASSES, SEVERAL, NUMBER], ids=["classes", "labels", "number"])
def test_values_are_how_far_the_answer_falls(tmp_path: Path, target: Any, strands: bool) -> None:
    engine = Trained(make_run(tmp_path, target, both_strands=strands), batch_tokens=100)  # two copies at once
    found = list(explain(engine, records(40, 9, 25), blocks=12))
    assert [own.entry.id for own in found] == ["r40", "r9", "r25"]
    for own in found:
        tokens = engine.tokenizer.encode(own.entry.sequence)
        answer = asked(engine, [tokens])[0]
        output = None if target is NUMBER else int(answer.argmax())
        assert own.values == pytest.approx(by_hand(engine, tokens, 12, output), abs=2e-5) and own.values.any()
        if output is None:
            assert (own.explained, own.probability) == (None, None) and own.answer == pytest.approx(answer, rel=1e-6)
        else:
            assert own.explained == own.answer == target.labels[output]
            assert own.probability == pytest.approx(answer[output])
            assert own.score == pytest.approx(np.log(answer[output] / (1 - answer[output])), abs=1e-5)


def test_another_class(tmp_path: Path) -> None:
    engine = Trained(make_run(tmp_path))
    for name in CLASSES.labels:
        (own,) = explain(engine, records(30), target=name)
        tokens = engine.tokenizer.encode(own.entry.sequence)
        assert own.explained == name and own.answer == CLASSES.labels[int(asked(engine, [tokens]).argmax())]
        assert own.values == pytest.approx(by_hand(engine, tokens, 128, CLASSES.labels.index(name)), abs=2e-5)


def hits(found: list[Explanation]) -> float:
    """The share of records whose strongest block is a part of the motif."""
    inside = []
    for own in found:
        motif = MOTIFS[own.entry.id.partition("-")[0]]
        place, peak = (own.letters or "").index(motif), int(own.by_letter.argmax())
        inside.append(place <= peak < place + len(motif))
    return float(np.mean(inside))


def test_a_trained_run_points_at_the_motif(planted: Path) -> None:
    """One of seven letters among 30 to 60 would be hit by chance in one record of six."""
    engine = open_run(planted)
    entries = [e for name in MOTIFS for e in list(read([planted.parent / f"{name}.fa"], Reading(), Account()))[:30]]
    found = list(explain(engine, entries))
    assert hits(found) > 0.9
    assert np.mean([own.answer == own.entry.id.partition("-")[0] for own in found]) > 0.9


def test_an_ensemble_is_explained_as_a_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "model.safetensors").unlink()
    files.unrecord(run, ["model.safetensors"])
    members = tuple(EnsembleMember(k, "network", Score(0.5), Score(0.5)) for k in range(2))
    known = Ensemble("replicates", 2, False, "accuracy", members)
    files.write_recorded(run, {ensemble.FILE: files.json_bytes(to_dict(known))})
    for number in range(2):
        make_run(ensemble.folder_of(run, number), seed=number)
    engine = open_run(run)
    assert isinstance(engine, TrainedEnsemble)
    (own,) = explain(engine, records(30), target="fly")
    tokens = engine.tokenizer.encode(own.entry.sequence)
    assert own.values == pytest.approx(by_hand(engine, tokens, 128, 1), abs=2e-5)
    (whole,) = explain(engine, records(30), target="fly", method="gradients")
    each = [next(explain(one, records(30), target="fly", method="gradients")).values for one in engine.members]
    assert whole.values == pytest.approx(np.mean(each, axis=0), abs=1e-6) and (each[0] != each[1]).any()


@pytest.mark.parametrize("target", [CLASSES, SEVERAL, NUMBER], ids=["classes", "labels", "number"])
def test_gradients_are_of_the_same_score(tmp_path: Path, target: Any) -> None:
    engine = Trained(make_run(tmp_path, target, temperature=None))
    (own,) = explain(engine, records(30), method="gradients")

    def score(outputs: torch.Tensor) -> torch.Tensor:
        if target is NUMBER:
            return outputs[:, 0] * 5.0
        k = target.labels.index(own.explained)
        if target is SEVERAL:
            return outputs[:, k]
        return torch.logit((outputs - target.weights.log()).softmax(1))[:, k]

    x = Packed.from_list([torch.from_numpy(engine.tokenizer.encode(own.entry.sequence).astype(np.int32))])
    assert own.values == pytest.approx(gradients(engine.model, x, score), rel=1e-3, abs=1e-6) and own.values.any()


@pytest.mark.parametrize(
    ("tokenizer", "sequence", "letters"),
    [
        (Kmers(k=3), b"ACGTACGTAC", "ACGTACGTAC"),
        (Bytes(), "gr\u00fcn & co", "gr\u00fcn & co"),
        (Numbers(2), np.ones((8, 2), np.float32), None),
    ],
    ids=["kmers", "text", "series"],
)
def test_letters_of_every_kind(tmp_path: Path, tokenizer: Any, sequence: Any, letters: str | None) -> None:
    engine = Trained(make_run(tmp_path, tokenizer=tokenizer))
    for cut in (None, 4):
        engine.cut = cut
        (own,) = explain(engine, [Entry("r", sequence, "x, record 1")])
        length = len(own.sequence)
        assert len(own.values) == (cut or len(tokenizer.encode(sequence))) and len(own.by_letter) == length
        assert own.letters == (None if letters is None else letters[:length])
        assert length == len(sequence) if cut is None else length < len(sequence)


def test_a_record_that_is_too_long(tmp_path: Path, planted: Path) -> None:
    engine = Trained(make_run(tmp_path, max_length=32))
    for method in ("occlusion", "gradients"):
        with pytest.raises(ValueError, match=r"has 40 tokens, above this model's max_length=32: .*--over-length"):
            list(explain(engine, records(40), method=method))  # type: ignore[arg-type]
    assert len(next(explain(engine, records(40), over_length="windows", blocks=5)).values) == 40
    account = Account()
    assert [own.entry.id for own in explain(engine, records(40, 20), over_length="reject", account=account)] == [
        "r20"
    ]
    assert account.rejected.total() == 1


def test_mistakes_are_told_before_a_record_is_read(tmp_path: Path, planted: Path) -> None:
    engine, number = Trained(make_run(tmp_path / "a")), Trained(make_run(tmp_path / "b", NUMBER))
    baseline = open_run(planted, using="baseline")
    given: list[tuple[Trained, dict[str, Any], str]] = [
        (engine, {"target": "cow"}, "--class cow is not an answer of this run: give one of worm, fly, yeast"),
        (number, {"target": "cow"}, "--class cow is for classes and labels: this run predicts a number; leave it"),
        (engine, {"blocks": 0}, "--blocks 0 is too small: something must be hidden; give 1 or more"),
        (engine, {"method": "magic"}, "--method magic is not a choice: give one of occlusion, gradients"),
        (
            engine,
            {"method": "gradients", "over_length": "windows"},
            "--over-length windows is for --method occlusion",
        ),
        (
            baseline,
            {"method": "gradients"},
            "answers by its baseline alone, .*leave out --method, or add --using net",
        ),
    ]
    for own, settings, message in given:
        with pytest.raises(ValueError, match=message):
            explain(own, iter(()), **settings)
    with pytest.raises(ValueError, match=re.escape("x (e) has no token: there is nothing to hide; leave it out")):
        list(explain(engine, [Entry("e", b"", "x")]))


def test_progress_of_long_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chordmixer.training.progress.EVERY_SECONDS", 0.0)
    lines: list[str] = []
    list(explain(Trained(make_run(tmp_path), batch_tokens=60), records(30), blocks=4, say=lines.append))
    assert [line.split(" done")[0] for line in lines] == [
        "0 records, 60 tokens",
        "0 records, 120 tokens",
        "1 records, 120 tokens",
    ]
