"""A trained model for sequences: tokenizer, network, baseline, labels and calibration in one object."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy import ndarray

from chordmixer.data.entries import Account
from chordmixer.dataset import Dataset, as_entries
from chordmixer.models.model import downloaded
from chordmixer.tasks.targets import MultiLabel, Regression
from chordmixer.training import run_folder
from chordmixer.training.combination import Using
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.explanation import BLOCKS, Explanation, Method, explain
from chordmixer.training.file_evaluation import score_entries, with_targets
from chordmixer.training.inference import Engine, EnsembleEngine, Item, Piece, check_choice, open_run
from chordmixer.training.labels import label_names
from chordmixer.training.prediction import record_vectors, token_vectors
from chordmixer.views.report import model_card

OverLength = Literal["error", "windows"]
OnBad = Literal["error", "unknown"]
LOCAL_PREFIX = "file://"
"""Prefix of a folder that is used in place of a Hugging Face repository."""


class Predictor:
    """A trained run, ready to predict.

    `Predictor.from_pretrained(RUN)` opens the folder of a run, a folder made by `save_pretrained`, or a repository
    of the Hugging Face hub. `fit` returns one.

    Sequences are strings, bytes or arrays of numbers, in a list or a `Dataset`. Predictions have the same order, and
    the prediction of a sequence does not depend on the others. A sequence above the model's `max_length` is an error;
    `over_length="windows"` takes the mean over windows that overlap by half. Letters outside the alphabet are an
    error; `on_bad="unknown"` reads them as unknown.
    """

    def __init__(self, engine: Engine, temporary: Path | None = None) -> None:
        """`temporary` is a folder that is removed with this object."""
        self.engine = engine
        """Computes the outputs, also for the command line."""
        if temporary is not None:
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    @classmethod
    def from_pretrained(
        cls,
        source: Path | str,
        *,
        device: str | None = None,
        batch_tokens: int | None = None,
        using: Using | None = None,
        unverified: bool = False,
        **hub: Any,
    ) -> Predictor:
        """Load a trained model from a folder, `file://FOLDER`, or a repository of the Hugging Face hub.

        `using` selects the `network`, the `baseline` or `both`, in place of the best of them. `hub` are arguments of
        `huggingface_hub.snapshot_download`, such as `revision` and `token`.
        """
        folder = downloaded(source, run_folder.PATTERNS, hub)
        return cls(open_run(folder, device, batch_tokens, using=using, unverified=unverified))

    # --- Properties ---

    @property
    def folder(self) -> Path:
        """The folder of the run, or of the saved model."""
        return self.engine.folder

    @property
    def target_type(self) -> Literal["classes", "labels", "number"]:
        """The kind of prediction: one of several classes, several labels per record, or a number."""
        target = self.engine.labels.target
        return (
            "number" if isinstance(target, Regression) else "labels" if isinstance(target, MultiLabel) else "classes"
        )

    @property
    def classes(self) -> list[str]:
        """Names of the classes or labels, in the order of the columns of `predict_proba`; empty for a number."""
        target = self.engine.labels.target
        return [] if isinstance(target, Regression) else list(target.labels)

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of a sequence; None if only a baseline predicts, which has no limit."""
        return self.engine.max_length if self.engine.network else None

    def __repr__(self) -> str:
        content = "vectors"  # of a pre-trained model
        if not self.engine.pretrained:
            content = f"{len(self.classes)} {self.target_type}" if self.classes else "a number"
        return f"<Predictor of {content} from {self.engine.tokenizer.name} tokens, {self.folder}>"

    # --- Predictions ---

    def predict(
        self, sequences: Dataset | Iterable[Any], *, over_length: OverLength = "error", on_bad: OnBad = "error"
    ) -> ndarray:
        """Predict the class of each sequence (a string), its labels (a list of strings) or its number."""
        rows, target = self._outputs(sequences, over_length, on_bad), self.engine.labels.target
        if isinstance(target, Regression):
            return target.values(rows)
        shares = self.engine.labels.probabilities(rows)
        if not isinstance(target, MultiLabel):
            return np.asarray(np.array(target.labels)[shares.argmax(axis=1)])
        names = np.empty(len(shares), dtype=object)
        names[:] = label_names(target, shares > 0.5)
        return names

    def predict_proba(
        self, sequences: Dataset | Iterable[Any], *, over_length: OverLength = "error", on_bad: OnBad = "error"
    ) -> ndarray:
        """Calibrated probabilities, (sequences, classes), with columns in the order of `classes`."""
        if self.target_type == "number":
            raise ValueError("this model predicts a number, which has no probability: use predict")
        return self.engine.labels.probabilities(self._outputs(sequences, over_length, on_bad))

    def embed(
        self,
        sequences: Dataset | Iterable[Any],
        *,
        per_token: bool = False,
        over_length: OverLength = "error",
        on_bad: OnBad = "error",
    ) -> ndarray | list[ndarray]:
        """Compute the network's vector of each sequence, (sequences, C); with `per_token` a list of arrays (N, C)."""
        engine = self._network()
        if per_token:
            vectors: list[ndarray] = []
            for window, pieces in self._windows(engine, sequences, "error", on_bad):
                vectors += token_vectors(engine, window, pieces)
            return vectors
        windows = self._windows(engine, sequences, over_length, on_bad)
        return np.concatenate([record_vectors(engine, *window) for window in windows])

    def evaluate(self, data: Dataset, *, over_length: OverLength = "error", on_bad: OnBad = "error") -> Evaluation:
        """Score on records with targets, overall and by length, with 95 % intervals.

        Records that the run was trained on are not excluded; `chordmixer evaluate RUN FILES` separates them.
        """
        self._check(over_length, on_bad)
        account = Account()
        reject = data.config.reading.on_unmatched == "reject"
        entries = with_targets(data.entries(account), self.engine.labels.target, reject, account)
        return score_entries(self.engine, entries, account, over_length, on_bad).overall

    def explain(
        self,
        sequences: Dataset | Iterable[Any],
        *,
        method: Method = "occlusion",
        target: str | None = None,
        blocks: int = BLOCKS,
        on_bad: OnBad = "error",
    ) -> list[Explanation]:
        """Explain predictions: `values` has the contribution of each token.

        Occlusion hides each of up to `blocks` parts in turn, and measures by how much the prediction of the network,
        the baseline or both falls; `gradients` are faster, less reliable, and only of the network. `target` is a
        class or label to explain; by default the predicted one.
        """
        self._check("error", on_bad)
        options: dict[str, Any] = {"method": method, "target": target, "blocks": blocks, "on_bad": on_bad}
        return list(explain(self.engine, as_entries(sequences), **options))

    # --- Saving and sharing ---

    def save_pretrained(self, folder: Path | str) -> None:
        """Write all files for predictions, and a model card (README.md), into a new or empty folder."""
        run_folder.save_model(self.folder, Path(folder), self.card())

    def push_to_hub(self, repository: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the model to the Hugging Face hub, or save it to `file://FOLDER`; returns the address."""
        if repository.startswith(LOCAL_PREFIX):
            self.save_pretrained(repository.removeprefix(LOCAL_PREFIX))
            return repository
        from huggingface_hub import HfApi

        hub = HfApi(token=token)
        name = hub.create_repo(repository, private=private, exist_ok=True).repo_id
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(Path(folder) / "model")
            return str(hub.upload_folder(repo_id=name, folder_path=Path(folder) / "model"))

    def card(self) -> str:
        """The model card: data, scores by length, baselines and how to load it, in Markdown."""
        path = self.folder / run_folder.CARD
        return path.read_text(encoding="utf-8") if path.exists() else model_card(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        """Support pickle, with which scikit-learn's tools send models between processes."""
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "model"
            self.save_pretrained(saved)
            paths = [path for path in saved.rglob("*") if path.is_file()]
            contents = {path.relative_to(saved).as_posix(): path.read_bytes() for path in paths}
        using = None if self.engine.combined is None else self.engine.combined.using
        return {"files": contents, "how": {"batch_tokens": self.engine.batch_tokens, "using": using}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="chordmixer-"))
        for name, content in state["files"].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        self.__init__(open_run(folder, **state["how"]), folder)  # type: ignore[misc]

    # --- From sequences to outputs ---

    def _outputs(self, sequences: Dataset | Iterable[Any], over_length: str, on_bad: str) -> ndarray:
        """Outputs for each sequence, in the layout of the network's head."""
        windows = self._windows(self.engine, sequences, over_length, on_bad)
        return np.concatenate([self.engine.outputs(window, pieces) for window, pieces in windows])

    def _windows(
        self, engine: Engine, sequences: Dataset | Iterable[Any], over_length: str, on_bad: str
    ) -> Iterator[tuple[Sequence[Item], Sequence[Piece]]]:
        self._check(over_length, on_bad)
        windows = engine.windows(as_entries(sequences), Account(), on_bad)  # type: ignore[arg-type]
        has_sequences = False
        for window in windows:
            has_sequences = True
            yield window, engine.pieces(window, over_length)  # type: ignore[arg-type]
        if not has_sequences:
            raise ValueError("no sequences were given: there is nothing to answer; give at least one")

    def _check(self, over_length: str, on_bad: str) -> None:
        check_choice("over_length", over_length, get_args(OverLength))
        check_choice("on_bad", on_bad, get_args(OnBad))

    def _network(self) -> Engine:
        """The engine with the network, for embeddings, also if a baseline predicts."""
        if isinstance(self.engine, EnsembleEngine):
            raise ValueError(
                f"{self.folder} is an ensemble, whose networks have no vectors in common: embed with one of them, "
                f"Predictor.from_pretrained({str(self.folder / 'members' / '0')!r})"
            )
        if self.engine.network:
            return self.engine
        return open_run(self.folder, self.engine.device.type, self.engine.batch_tokens, using="network")
