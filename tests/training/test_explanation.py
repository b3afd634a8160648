"""Explanations, compared with predictions for records changed by hand and with gradients of simple models."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy import ndarray
from tests.conftest import MOTIFS
from tests.training.trained_runs import CLASSES, SEVERAL, dna, make_run
from torch import Tensor, nn

from chordmixer import Model, ModelConfig, Packed, files, ops
from chordmixer.config import to_dict
from chordmixer.data.alphabets import Dna, Kmers, Protein
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.data.tokenizers import Bytes, Characters, Numbers, Tokenizer
from chordmixer.models import ChordMixerConfig
from chordmixer.models.stem import StemConfig
from chordmixer.models.words import WordsConfig
from chordmixer.tasks.targets import Regression
from chordmixer.training import ensemble
from chordmixer.training.ensemble import Ensemble, EnsembleMember
from chordmixer.training.explanation import (
    Explanation,
    covered,
    edges,
    explain,
    from_tokens,
    gradients,
    hidden,
    neutral,
    to_letters,
)
from chordmixer.training.inference import Engine, EnsembleEngine, Item, open_run
from chordmixer.training.intervals import Score
from chordmixer.training.strands import averaged

NUMBER = Regression(mean=20.0, scale=5.0)


def records(*lengths: int) -> list[Entry]:
    return [Entry(f"r{n}", dna(n, n).encode(), f"x.fa, record {i + 1}") for i, n in enumerate(lengths)]


def predicted(engine: Engine, tokens: list[ndarray]) -> ndarray:
    """The probabilities of each record, or its number, as `predict` gives them."""
    window = [Item(Entry("x", b"", "x"), record) for record in tokens]
    outputs = engine.outputs(window, engine.pieces(window, "error"))
    target = engine.labels.target
    return target.values(outputs) if isinstance(target, Regression) else engine.labels.probabilities(outputs)


def by_hand(engine: Engine, tokens: ndarray, blocks: int, output: int | None) -> ndarray:
    """Values of occlusion, computed one record at a time from probabilities."""
    replacement, cuts = neutral(tokens, engine.tokenizer), edges(len(tokens), blocks)
    rows = [tokens]
    for start, stop in pairwise(cuts.tolist()):
        rows.append(np.concatenate([tokens[:start], replacement[start:stop], tokens[stop:]]))
    predictions = np.concatenate([predicted(engine, [row]) for row in rows])
    scores = predictions if output is None else np.log(predictions[:, output] / (1 - predictions[:, output]))
    return np.repeat(scores[0] - scores[1:], np.diff(cuts))


@pytest.mark.parametrize("strands", [False, True])
@pytest.mark.parametrize("target", [CLASSES, SEVERAL, NUMBER], ids=["classes", "labels", "number"])
def test_values_are_how_far_the_answer_falls(tmp_path: Path, target: Any, strands: bool) -> None:
    engine = Engine(make_run(tmp_path, target, both_strands=strands), batch_tokens=100)  # two copies at once
    results = list(explain(engine, records(40, 9, 25), blocks=12))
    assert [result.entry.id for result in results] == ["r40", "r9", "r25"]
    for result in results:
        tokens = engine.tokenizer.encode(result.entry.sequence)
        answer = predicted(engine, [tokens])[0]
        output = None if target is NUMBER else int(answer.argmax())
        assert result.values == pytest.approx(by_hand(engine, tokens, 12, output), abs=2e-5) and result.values.any()
        if output is None:
            assert (result.explained, result.probability) == (None, None) and result.answer == pytest.approx(
                answer, rel=1e-6
            )
        else:
            assert result.explained == result.answer == target.labels[output]
            assert result.probability == pytest.approx(answer[output])
            assert result.score == pytest.approx(np.log(answer[output] / (1 - answer[output])), abs=1e-5)


def test_another_class(tmp_path: Path) -> None:
    engine = Engine(make_run(tmp_path))
    for name in CLASSES.labels:
        (result,) = explain(engine, records(30), target=name)
        tokens = engine.tokenizer.encode(result.entry.sequence)
        assert result.explained == name and result.answer == CLASSES.labels[int(predicted(engine, [tokens]).argmax())]
        assert result.values == pytest.approx(by_hand(engine, tokens, 128, CLASSES.labels.index(name)), abs=2e-5)


def hits(results: list[Explanation]) -> float:
    """The share of records whose strongest block is a part of the motif."""
    inside = []
    for result in results:
        motif = MOTIFS[result.entry.id.partition("-")[0]]
        place, peak = (result.letters or "").index(motif), int(result.by_letter.argmax())
        inside.append(place <= peak < place + len(motif))
    return float(np.mean(inside))


def test_a_trained_run_points_at_the_motif(planted: Path) -> None:
    """One of seven letters among 30 to 60 would be hit by chance in one record of six."""
    engine = open_run(planted)
    entries = [e for name in MOTIFS for e in list(read([planted.parent / f"{name}.fa"], Reading(), Account()))[:30]]
    results = list(explain(engine, entries))
    assert hits(results) > 0.9
    assert np.mean([result.answer == result.entry.id.partition("-")[0] for result in results]) > 0.9


def test_an_ensemble_is_explained_as_a_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "model.safetensors").unlink()
    files.unrecord(run, ["model.safetensors"])
    members = tuple(EnsembleMember(k, "network", Score(0.5), Score(0.5)) for k in range(2))
    document = Ensemble("replicates", 2, False, "accuracy", members)
    files.write_recorded(run, {ensemble.FILE: files.json_bytes(to_dict(document))})
    for number in range(2):
        make_run(ensemble.folder_of(run, number), seed=number)
    engine = open_run(run)
    assert isinstance(engine, EnsembleEngine)
    (result,) = explain(engine, records(30), target="fly")
    tokens = engine.tokenizer.encode(result.entry.sequence)
    assert result.values == pytest.approx(by_hand(engine, tokens, 128, 1), abs=2e-5)
    (mean,) = explain(engine, records(30), target="fly", method="gradients")
    values = [next(explain(m, records(30), target="fly", method="gradients")).values for m in engine.members]
    assert mean.values == pytest.approx(np.mean(values, axis=0), abs=1e-6) and (values[0] != values[1]).any()


@pytest.mark.parametrize("target", [CLASSES, SEVERAL, NUMBER], ids=["classes", "labels", "number"])
def test_gradients_are_of_the_same_score(tmp_path: Path, target: Any) -> None:
    engine = Engine(make_run(tmp_path, target, temperature=None))
    (result,) = explain(engine, records(30), method="gradients")

    def score(outputs: torch.Tensor) -> torch.Tensor:
        if target is NUMBER:
            return outputs[:, 0] * 5.0
        k = target.labels.index(result.explained)
        if target is SEVERAL:
            return outputs[:, k]
        return torch.logit((outputs - target.weights.log()).softmax(1))[:, k]

    x = Packed.from_list([torch.from_numpy(engine.tokenizer.encode(result.entry.sequence).astype(np.int32))])
    assert (
        result.values == pytest.approx(gradients(engine.model, x, score), rel=1e-3, abs=1e-6) and result.values.any()
    )


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
    engine = Engine(make_run(tmp_path, tokenizer=tokenizer))
    for cut in (None, 4):
        engine.cut = cut
        (result,) = explain(engine, [Entry("r", sequence, "x, record 1")])
        length = len(result.sequence)
        assert len(result.values) == (cut or len(tokenizer.encode(sequence))) and len(result.by_letter) == length
        assert result.letters == (None if letters is None else letters[:length])
        assert length == len(sequence) if cut is None else length < len(sequence)


def test_a_record_that_is_too_long(tmp_path: Path, planted: Path) -> None:
    engine = Engine(make_run(tmp_path, max_length=32))
    for method in ("occlusion", "gradients"):
        with pytest.raises(ValueError, match=r"has 40 tokens, above this model's max_length=32: .*--over-length"):
            list(explain(engine, records(40), method=method))  # type: ignore[arg-type]
    assert len(next(explain(engine, records(40), over_length="windows", blocks=5)).values) == 40
    account = Account()
    assert [
        result.entry.id for result in explain(engine, records(40, 20), over_length="reject", account=account)
    ] == ["r20"]
    assert account.rejected.total() == 1


def test_mistakes_are_told_before_a_record_is_read(tmp_path: Path, planted: Path) -> None:
    classifier, regressor = Engine(make_run(tmp_path / "a")), Engine(make_run(tmp_path / "b", NUMBER))
    baseline = open_run(planted, using="baseline")
    cases: list[tuple[Engine, dict[str, Any], str]] = [
        (classifier, {"target": "cow"}, "--class cow is not an answer of this run: give one of worm, fly, yeast"),
        (regressor, {"target": "cow"}, "--class cow is for classes and labels: this run predicts a number; leave it"),
        (classifier, {"blocks": 0}, "--blocks 0 is too small: something must be hidden; give 1 or more"),
        (classifier, {"method": "magic"}, "--method magic is not a choice: give one of occlusion, gradients"),
        (
            classifier,
            {"method": "gradients", "over_length": "windows"},
            "--over-length windows is for --method occlusion",
        ),
        (
            baseline,
            {"method": "gradients"},
            "answers by its baseline alone, .*leave out --method, or add --using net",
        ),
    ]
    for engine, settings, message in cases:
        with pytest.raises(ValueError, match=message):
            explain(engine, iter(()), **settings)
    with pytest.raises(ValueError, match=re.escape("x (e) has no token: there is nothing to hide; leave it out")):
        list(explain(classifier, [Entry("e", b"", "x")]))


def test_progress_of_long_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("chordmixer.training.progress.EVERY_SECONDS", 0.0)
    list(explain(Engine(make_run(tmp_path), batch_tokens=60), records(30), blocks=4))
    assert [line.split(" done")[0] for line in log.messages] == [
        "0 records, 60 tokens",
        "0 records, 120 tokens",
        "1 records, 120 tokens",
    ]


IDS = Packed.from_list([torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 1, 0])])


def output_score(number: int) -> Any:
    return lambda outputs: outputs[:, number]


class Linear(nn.Module):
    """Two outputs, each a weighted mean of all numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))

    def forward(self, x: Packed) -> Tensor:
        return ops.segment_mean(x.values, x.offsets) @ self.weight.T


def identity_model(head: str = "last") -> Model:
    """A model whose blocks are the identity, so that tokens are never mixed."""
    torch.manual_seed(0)
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4, init="identity")
    return Model(ModelConfig(inputs=5, outputs=3, head=head, network=network))  # type: ignore[arg-type]


def mixing_model(**settings: Any) -> Model:
    torch.manual_seed(0)
    network = ChordMixerConfig(max_length=64, track_size=4, hidden=8)
    return Model(ModelConfig(inputs=5, outputs=2, network=network, **settings))


class TestHiding:
    @given(st.text("ACGTN", min_size=1, max_size=60))
    def test_letters_become_others_of_the_record(self, text: str) -> None:
        tokens = Dna().encode(text)
        replaced = Dna().decode(neutral(tokens, Dna()))
        letters = {*text} - {"N"}
        assert all(a != b for a, b in zip(text, replaced, strict=True) if a != "N") or len(letters) < 2
        assert {*replaced} <= (letters if len(letters) > 1 else {"N"})
        assert (neutral(tokens, Dna()) == neutral(tokens, Dna())).all()

    def test_every_other_letter_is_drawn(self) -> None:
        tokens = Dna().encode(b"ACGT" * 200)
        replaced = neutral(tokens, Dna())[::4]
        assert np.bincount(replaced, minlength=4)[1:].min() > 40

    def test_text_becomes_blank_and_numbers_zero(self) -> None:
        assert Bytes().decode(neutral(Bytes().encode("to be"), Bytes())) == " " * 5
        assert " " not in Bytes().decode(neutral(Bytes().encode("tobe"), Bytes()))
        vocabulary = Characters.of(["a b"])
        assert neutral(vocabulary.encode("ab a"), vocabulary).tolist() == [0] * 4
        assert not neutral(np.ones((3, 2), np.float32), Numbers(2)).any()

    @given(st.integers(1, 400), st.integers(1, 200))
    def test_blocks_cover_all_tokens_and_are_alike(self, tokens: int, blocks: int) -> None:
        cuts = edges(tokens, blocks)
        sizes = np.diff(cuts)
        assert (cuts[0], cuts[-1], len(sizes)) == (0, tokens, min(tokens, blocks))
        assert sizes.min() >= 1 and np.ptp(sizes) <= 1

    def test_a_copy_is_hidden(self) -> None:
        tokens = np.arange(5)
        assert hidden(tokens, np.full(5, 9), 1, 3).tolist() == [0, 9, 9, 3, 4] and tokens[1] == 1


class TestGradients:
    @pytest.mark.parametrize("number", [0, 1])
    def test_of_a_linear_model_add_up_to_its_answer(self, number: int) -> None:
        model, x = Linear(), Packed.from_list([torch.randn(40, 2, generator=torch.Generator().manual_seed(1))])
        values = gradients(model, x, output_score(number))
        expected = (x.values * model.weight[number]).sum(1) / 40
        torch.testing.assert_close(torch.from_numpy(values), expected.detach())
        assert values.sum() == pytest.approx(model(x)[0, number].item(), rel=1e-4)

    def test_only_the_last_token_counts_where_only_it_is_read(self) -> None:
        model = identity_model()
        values = gradients(model, IDS, output_score(2))
        vectors = model.embedding.table.weight[IDS.values]
        assert values[:-1].tolist() == [0] * 9
        expected = (vectors[-1] - vectors.mean(0)) @ model.head.linear.weight[2]
        assert values[-1] == pytest.approx(expected.item(), rel=1e-5)

    def test_of_both_strands_come_from_both_ends(self) -> None:
        values = gradients(averaged(identity_model(), Dna().complement), IDS, output_score(0))
        assert values.nonzero()[0].tolist() == [0, 9]

    def test_add_up_to_the_slope_away_from_the_mean(self) -> None:
        model = mixing_model(stem=StemConfig(layers=1, taps=3)).eval()
        total = gradients(model, IDS, output_score(1)).sum()

        def output_after(step: float) -> float:
            def shift(module: nn.Module, inputs: Any, embedded: Packed) -> Packed:
                return embedded.with_values(embedded.values + step * (embedded.values - embedded.values.mean(0)))

            hook = model.embedding.register_forward_hook(shift)
            answer = model(IDS)[0, 1].item()
            hook.remove()
            return answer

        model.double()
        slope = (output_after(1e-4) - output_after(-1e-4)) / 2e-4
        assert total == pytest.approx(slope, rel=1e-3) and abs(slope) > 0.01

    def test_a_word_counts_for_all_its_tokens(self) -> None:
        """Only the word of tokens 3 to 5 has an embedding that is not zero."""
        model = mixing_model(head="standard", words=WordsConfig(lengths=(3,), bits=12, width=4))
        assert model.words is not None
        x = Packed.from_list([torch.tensor([0, 1, 2, 3, 1, 4, 2, 0, 1, 2])])
        row = int(_word_rows(model, x)[3, 0])
        with torch.no_grad():
            for weight in (model.embedding.table.weight, model.words.linear.weight):
                weight.zero_()
            word = model.words.table[row].clone()
            model.words.table.zero_()
            model.words.table[row] = word
        values = np.abs(gradients(model, x, output_score(0)))
        assert {*np.argsort(-values)[:3].tolist()} == {3, 4, 5} and values[3:6] == pytest.approx(values[3])

    def test_leave_the_model_as_it_was(self) -> None:
        model = mixing_model().train()
        model.head.linear.bias.requires_grad_(False)
        gradients(model, IDS, output_score(0))
        assert model.training and not model.embedding._forward_hooks
        assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["head.linear.bias"]
        assert all(p.grad is None for p in model.parameters())

    def test_several_sequences_have_no_one_answer(self) -> None:
        with pytest.raises(ValueError, match="2 sequences at once have no one answer: give them one by one"):
            gradients(mixing_model(), Packed.from_list(IDS.to_list() * 2), output_score(0))

    def test_an_answer_a_token_has_no_origin(self) -> None:
        with pytest.raises(ValueError, match="this model answers for every token: one answer a sequence is needed"):
            gradients(identity_model("tokens"), IDS, output_score(0))


def _word_rows(model: Model, x: Packed) -> Tensor:
    from chordmixer.models.words import hashed

    assert model.words is not None
    return hashed(x, model.words.config.lengths, model.words.config.bits)[0]


class TestToLetters:
    @pytest.mark.parametrize(("k", "stride"), [(1, 1), (3, 1), (3, 3)])
    @pytest.mark.parametrize("length", [1, 2, 3, 7, 9])
    def test_words_give_their_letters_the_mean(self, k: int, stride: int, length: int) -> None:
        tokenizer = Kmers(k=k, stride=stride)
        values = np.arange(len(tokenizer.encode(b"A" * length)), dtype=np.float32) ** 2
        covering: list[list[float]] = [[] for _ in range(length)]
        for word, value in enumerate(values):
            for position in range(word * stride, min(word * stride + k, length)):
                covering[position].append(float(value))
        result = to_letters(values, tokenizer, b"A" * length)
        assert result == pytest.approx([np.mean(h) for h in covering])

    def test_letters_stay(self) -> None:
        values = np.array([1.0, 2.0])
        assert to_letters(values, Dna(), b"AC") is values

    def test_numbers_must_fit(self) -> None:
        with pytest.raises(ValueError, match="2 numbers do not fit 3 letters: give those of this sequence"):
            to_letters(np.zeros(2), Dna(), b"ACG")


CASES: list[tuple[Tokenizer, bytes | str]] = [
    (Dna(), b"ACGTNNA"),
    (Protein(others="own"), b"MKTU*"),
    (Kmers(k=3), b"ACGTACG"),
    (Kmers(k=3, stride=3), b"ACGTAC"),
    (Kmers(k=3), b"AC"),
    (Bytes(), "gr\u00fcn & co"),
    (Bytes(), b"\xff\xfe"),
    (Characters.of(["to be"]), "be to!"),
]


@pytest.mark.parametrize(("tokenizer", "sequence"), CASES, ids=lambda value: str(value)[:20])
def test_tokens_become_a_sequence_of_the_same_tokens(tokenizer: Tokenizer, sequence: bytes | str) -> None:
    tokens = tokenizer.encode(sequence)
    assert tokenizer.encode(from_tokens(tokens, tokenizer)).tolist() == tokens.tolist()


def test_numbers_become_a_series_of_the_same_numbers() -> None:
    tokenizer = Numbers(2, mean=(5.0, -1.0), scale=(2.0, 3.0))
    tokens = tokenizer.encode(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert from_tokens(tokens, tokenizer) == pytest.approx(np.array([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize(("tokenizer", "sequence"), CASES[:6], ids=lambda value: str(value)[:20])
def test_what_a_cut_record_still_covers(tokenizer: Tokenizer, sequence: bytes | str) -> None:
    for tokens in range(1, len(tokenizer.encode(sequence)) + 1):
        part = covered(sequence, tokenizer, tokens)
        assert sequence.startswith(part) and len(to_letters(np.ones(tokens), tokenizer, part)) == len(part)  # type: ignore[arg-type]
    assert covered(sequence, tokenizer, len(tokenizer.encode(sequence))) == sequence
