"""A predictor answers alike from memory, from files, after saving and in a fresh process."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer import Dataset, Predictor, fit
from chordmixer.training.prediction import predict as predict_files

QUICK = {"training.steps": 2, "training.trial": 0.0, "training.device": "cpu"}
RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(9, 40, 45).tolist()


def letters(alphabet: str) -> list[str]:
    return ["".join(RNG.choice(list(alphabet), n)) for n in LENGTHS]


KINDS: dict[str, tuple[list[Any], list[Any], dict[str, Any]]] = {
    "classes": (letters("ACGT"), ["worm", "fly", "fish"] * 15, {}),
    "labels": (letters("ACDEFGHIKLMNPQRSTVWY"), [["a", "b"], ["b"], []] * 15, {"target_type": "labels"}),
    "numbers": (letters("ACDEFGHIKLMNPQRSTVWY"), [float(n) for n in LENGTHS], {}),
    "strands": (letters("ACGT"), ["worm", "fly", "fish"] * 15, {"both_strands": True}),
    "text": (letters("ab cäö"), ["good", "bad", "good"] * 15, {"tokenizer": "bytes"}),
    "series": ([RNG.normal(size=(n, 2)).astype(np.float32) for n in LENGTHS], [0, 1, 1] * 15, {}),
}


@pytest.fixture(scope="module")
def predictors(
    quick_runs: Callable[[pytest.MonkeyPatch], None], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Predictor]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        quick_runs(patch)
        return {
            kind: fit(
                Dataset.from_lists(sequences, targets, cache=folder / "cache", **options),
                folder / kind,
                settings=QUICK,
                verbose=False,
            )
            for kind, (sequences, targets, options) in KINDS.items()
        }


def predicted(kind: str, predictor: Predictor) -> list[Any]:
    sequences = KINDS[kind][0]
    return (predictor.predict if kind == "numbers" else predictor.predict_proba)(sequences).tolist()


FRESH = """
import json, sys
import numpy as np
from chordmixer import Predictor
kinds = json.load(open(sys.argv[1]))
outputs = {}
for kind, sequences in kinds.items():
    predictor = Predictor.from_pretrained(f"file://{sys.argv[2]}/{kind}")
    sequences = [np.array(s, dtype=np.float32) if kind == "series" else s for s in sequences]
    outputs[kind] = (predictor.predict if kind == "numbers" else predictor.predict_proba)(sequences).tolist()
print(json.dumps(outputs))
"""


def test_the_same_answers_in_a_fresh_process_elsewhere(predictors: dict[str, Predictor], tmp_path: Path) -> None:
    for kind, predictor in predictors.items():
        assert predictor.push_to_hub(f"file://{tmp_path}/hub/{kind}") == f"file://{tmp_path}/hub/{kind}"
    sequences = {kind: [getattr(s, "tolist", lambda s=s: s)() for s in KINDS[kind][0]] for kind in KINDS}
    (tmp_path / "sequences.json").write_text(json.dumps(sequences))
    command = [sys.executable, "-c", FRESH, str(tmp_path / "sequences.json"), str(tmp_path / "hub")]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    outputs = json.loads(completed.stdout)
    for kind, predictor in predictors.items():
        assert outputs[kind] == predicted(kind, predictor), kind


def test_what_is_answered(predictors: dict[str, Predictor]) -> None:
    classes, labels, numbers = (predictors[kind] for kind in ("classes", "labels", "numbers"))
    assert classes.classes == ["fish", "fly", "worm"] and classes.target_type == "classes"
    shares = classes.predict_proba(KINDS["classes"][0])
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    assert classes.predict(KINDS["classes"][0]).tolist() == [classes.classes[k] for k in shares.argmax(axis=1)]
    label_shares = labels.predict_proba(KINDS["labels"][0])
    expected = [[name for name, share in zip("ab", row, strict=True) if share > 0.5] for row in label_shares]
    assert labels.predict(KINDS["labels"][0]).tolist() == expected and labels.target_type == "labels"
    assert numbers.predict(KINDS["numbers"][0]).dtype == np.float64 and numbers.classes == []
    with pytest.raises(ValueError, match="predicts a number, which has no probability: use predict"):
        numbers.predict_proba(KINDS["numbers"][0])
    assert repr(classes).startswith("<Predictor of 3 classes from dna tokens")


def test_memory_and_files_give_the_same_rows(predictors: dict[str, Predictor], tmp_path: Path) -> None:
    sequences = KINDS["strands"][0]
    (tmp_path / "new.fa").write_text("".join(f">r{i}\n{sequence}\n" for i, sequence in enumerate(sequences)))
    predict_files(predictors["strands"].folder, [tmp_path / "new.fa"], tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    shares = [[row[name] for name in predictors["strands"].classes] for row in rows]
    np.testing.assert_allclose(predictors["strands"].predict_proba(sequences), shares, atol=1e-6)
    from_files = predictors["strands"].predict_proba(Dataset.from_files(tmp_path / "new.fa"))
    np.testing.assert_array_equal(from_files, predictors["strands"].predict_proba(sequences))


def test_an_answer_does_not_depend_on_its_neighbours(predictors: dict[str, Predictor]) -> None:
    for kind in ("classes", "series"):
        alone = [predictors[kind].predict_proba([sequence])[0] for sequence in KINDS[kind][0][:5]]
        np.testing.assert_allclose(alone, predictors[kind].predict_proba(KINDS[kind][0])[:5], atol=1e-5)


def test_vectors(predictors: dict[str, Predictor]) -> None:
    predictor, sequences = predictors["classes"], KINDS["classes"][0][:4]
    embeddings, tokens = predictor.embed(sequences), predictor.embed(sequences, per_token=True)
    assert [vectors.shape for vectors in tokens] == [(len(s), embeddings.shape[1]) for s in sequences]  # type: ignore[union-attr]
    np.testing.assert_allclose(embeddings, [vectors.mean(axis=0) for vectors in tokens], atol=1e-5)
    baseline = Predictor.from_pretrained(predictor.folder, using="baseline")
    assert baseline.max_length is None and predictor.folder == baseline.folder
    np.testing.assert_array_equal(baseline.embed(sequences), embeddings)


def test_scores(predictors: dict[str, Predictor]) -> None:
    sequences, targets, options = KINDS["classes"]
    evaluation = predictors["classes"].evaluate(Dataset.from_lists(sequences, targets, **options))
    accuracy = np.mean(predictors["classes"].predict(sequences) == np.array(targets))
    assert evaluation.records == 45 and evaluation.scores["accuracy"].value == pytest.approx(accuracy)
    with pytest.raises(ValueError, match=r"\(list:1\) has no label: scoring needs one"):
        predictors["classes"].evaluate(Dataset.from_lists(sequences))
    with pytest.raises(ValueError, match="label 'bird', which this run never saw"):
        predictors["classes"].evaluate(Dataset.from_lists(sequences[:1], ["bird"]))


def test_explanations(predictors: dict[str, Predictor]) -> None:
    for kind in ("classes", "labels", "numbers", "series"):
        sequences = KINDS[kind][0][:2]
        explanations = predictors[kind].explain(sequences, blocks=5)
        assert [len(explanation.values) for explanation in explanations] == [len(sequence) for sequence in sequences]
        assert all(len(np.unique(explanation.values)) <= 5 for explanation in explanations)
    of_worm = predictors["classes"].explain(KINDS["classes"][0][:1], target="worm", blocks=3)
    assert of_worm[0].explained == "worm"
    with pytest.raises(ValueError, match="bird"):
        predictors["classes"].explain(KINDS["classes"][0][:1], target="bird")


def test_pickled_as_scikit_learn_does(predictors: dict[str, Predictor]) -> None:
    restored = pickle.loads(pickle.dumps(predictors["classes"]))
    np.testing.assert_array_equal(predicted("classes", restored), predicted("classes", predictors["classes"]))
    folder = restored.folder
    del restored
    assert not folder.exists()


def test_what_cannot_be_answered(predictors: dict[str, Predictor]) -> None:
    network = Predictor.from_pretrained(predictors["classes"].folder, using="network")
    for sequences, match in (
        ([], "no sequences were given"),
        ("ACGT", "'ACGT' is one value where a list of them is needed"),
        (["ACGT7"], "character '7' at position 5 is not a nucleotide"),
        (["A" * 65], "has 65 tokens, above this model's max_length=64"),
        ([np.zeros(3)], "numbers are not letters"),
    ):
        with pytest.raises(ValueError, match=match):
            network.predict(sequences)
    assert network.predict(["ACGT7"], on_bad="unknown").shape == (1,)
    assert network.predict(["A" * 65], over_length="windows").shape == (1,)
    with pytest.raises(ValueError, match="--over-length reject is not a choice: give one of error, windows"):
        network.predict(["ACGT"], over_length="reject")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="neither a folder nor a repository that can be reached"):
        Predictor.from_pretrained("file:///nothing/here")
