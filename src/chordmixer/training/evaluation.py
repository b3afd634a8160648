"""How good a model is: overall and by length, each number with its interval, beside guessing."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from accelerate.utils import gather_object
from numpy import ndarray
from torch import nn

from chordmixer import files
from chordmixer.data import Loader, Records, TokenSampler
from chordmixer.models import Model
from chordmixer.tasks import Task
from chordmixer.tasks.targets import Classification, MultiLabel, Target, target_outputs
from chordmixer.training import delivery, ensemble
from chordmixer.training.experiment import Experiment, TrainingConfig
from chordmixer.training.intervals import Sample, Score
from chordmixer.training.run_folder import WAIT, RunLock
from chordmixer.training.speed import choose_inference_threads
from chordmixer.training.strands import averaged

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

PERCENTILES = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
"""Of length: each bin holds what is longer than the one before and not longer than its own (the paper's figures)."""
RESAMPLES = 1000
TEMPERATURES = tuple(2.0 ** (k / 4) for k in range(-8, 17))
"""That outputs are divided by to judge weights; 1 is one of them."""


@dataclass(frozen=True)
class LengthBin:
    """Records between two length percentiles."""

    percentile: int
    shortest: int
    longest: int
    records: int
    scores: dict[str, Score]


@dataclass(frozen=True)
class Evaluation:
    """All scores of a model on one split."""

    task: str
    split: str
    encoder: str
    headline: str
    records: int
    loss: float
    scores: dict[str, Score]
    guessing: dict[str, float]
    """The same metrics of the best constant answer, chosen on this split itself."""
    by_length: list[LengthBin]


@dataclass(frozen=True)
class Predictions:
    """A row a record, in the records' order."""

    names: list[str]
    lengths: ndarray
    """In tokens; of a pair, those of both sequences together."""
    targets: ndarray
    outputs: ndarray
    groups: ndarray | None = None
    """The number of each record's group; None: each record is on its own."""

    def of_task(self, task: Task, split: str) -> Predictions:
        """With the groups of its records, where the task knows any."""
        groups = getattr(task, "groups", lambda _: None)(split)
        return self if groups is None else replace(self, groups=groups)

    def same_records(self, other: Predictions) -> bool:
        """Whether both answer the same records, in the same order."""
        return self.names == other.names and np.array_equal(self.targets, other.targets)

    def sample(self, target: Target, inside: ndarray | slice = slice(None)) -> Sample:
        """The records, or those `inside`, for scores with intervals."""
        groups = None if self.groups is None else self.groups[inside]
        return Sample(target, self.targets[inside], groups, RESAMPLES)

    def loss(self, target: Target) -> float:
        return float(target.losses(torch.from_numpy(self.outputs), torch.from_numpy(self.targets)).mean())

    def calibrated_loss(self, target: Target) -> float:
        """The loss at the temperature that suits these records best, as answers are given; of numbers the plain loss.

        A network that overfits is too sure of itself long before it is wrong more often: judged by its plain loss,
        weights of a better accuracy are thrown away (2 to 5 points on the Arena's Image and Text).
        """
        if not isinstance(target, Classification | MultiLabel):
            return self.loss(target)
        return min(replace(self, outputs=self.outputs / hot).loss(target) for hot in TEMPERATURES)

    def not_finite(self) -> list[str]:
        """The records whose outputs are not all finite."""
        return [self.names[i] for i in np.flatnonzero(~np.isfinite(self.outputs).all(axis=1))]

    def constant(self, target: Target) -> Predictions:
        """The best constant answer to the same records."""
        answer = target.constant(self.targets)
        return replace(self, outputs=np.tile(answer, (len(self.names), 1)))

    def columns(self) -> dict[str, Any]:
        """Of a table with a row a record."""
        targets = self.targets if self.targets.ndim == 1 else self.targets.tolist()  # of one type, wherever from
        columns = {"id": self.names, "length": self.lengths, "target": targets}
        columns |= {} if self.groups is None else {"group": self.groups}
        return columns | {f"output_{k}": column for k, column in enumerate(self.outputs.T)}

    @staticmethod
    def of_table(rows: pa.Table) -> Predictions:
        """From such a table."""
        outputs = [name for name in rows.column_names if name.startswith("output_")]
        target = [name for name in rows.column_names if name.startswith("target_")] or ["target"]
        columns = [np.array(rows.column(name).to_pylist()) for name in target]
        return Predictions(
            names=[str(name) for name in rows.column("id").to_pylist()],
            lengths=rows.column("length").to_numpy(),
            targets=columns[0] if target == ["target"] else np.stack(columns, axis=1),
            outputs=np.stack([rows.column(name).to_numpy() for name in outputs], axis=1).astype(np.float32),
            groups=rows.column("group").to_numpy() if "group" in rows.column_names else None,
        )

    def parquet(self) -> bytes:
        return parquet_bytes(self.columns())

    @staticmethod
    def read(path: Path) -> Predictions:
        """From what `parquet` gave."""
        return read_table(path, Predictions.of_table)


def parquet_bytes(columns: dict[str, Any]) -> bytes:
    """A table whose pages have checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, write_page_checksum=True)
    return buffer.getvalue()


def read_table(path: Path, build: Callable[[pa.Table], T]) -> T:
    """What `build` makes of a Parquet file, or one line that says what is wrong with it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return build(pq.read_table(path, page_checksum_verification=True))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} cannot be read ({reason}): use another copy, or evaluate again") from None


def evaluate(
    run: Path | str, split: str = "test", *, cache: Path | str | None = None, unverified: bool = False
) -> Evaluation:
    """Score a trained run on a split of its own task; writes the scores and predictions into the run folder.

    Of a run on files the answers are scored that it delivers (`delivery`, `ensemble`), of others the network's.
    """
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache, unverified=unverified)
    task: Any = experiment.build_task()
    if ensemble.read(folder) is None:
        predictions, title = answer(folder, experiment, task, split)
    else:
        from chordmixer.training.ensemble_inference import answer_together  # which asks each member by `answer`

        predictions, title = answer_together(folder, task, split, unverified)
    evaluation = replace(summarise(predictions, task.target, experiment, split), encoder=title)
    with RunLock(folder, WAIT):
        save_evaluation(folder, evaluation, predictions)
    return evaluation


def answer(
    folder: Path, experiment: Experiment, task: Any, split: str, target: Target | None = None
) -> tuple[Predictions, str]:
    """What a run delivers for a part of the data, and what gave it; `target` is its own where not the task's."""
    from chordmixer.tasks.files import Files

    model = Model.from_pretrained(str(folder))
    device = torch.device("cuda" if torch.cuda.is_available() and experiment.training.device != "cpu" else "cpu")
    answering = averaged(model.to(device), task.complement, device)
    choose_inference_threads(model)
    network = predict_records(answering, task.records(split), experiment.training, device, task.target)
    network, own = network.of_task(task, split), target or task.target
    known = delivery.load(folder, own, task.complement) if isinstance(task, Files) else None  # type: ignore[arg-type]
    if known is None:
        return network, experiment.model.encoder
    return replace(network, outputs=known.outputs(network.outputs, task.tokens(split))), known.title


def predict_records(
    model: nn.Module,
    records: Records,
    config: TrainingConfig,
    device: torch.device,
    target: Target | None = None,
    *,
    alone: bool = False,
) -> Predictions:
    """The model's outputs for all records, or what `target` counts over its tokens.

    With several ranks each takes its share and all get the whole, unless one works `alone`.
    """
    rank, ranks = 0, 1
    if torch.distributed.is_initialized() and not alone:
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    sampler = _Share(records.lengths, config.tokens_for(records.lengths), 4 * config.batch_sequences, rank, ranks)
    rows = []
    model.eval()
    half = config.precision == "bf16"
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=half):
        for batch in Loader(records, sampler, device=device).epoch():
            asked = (
                model(batch.inputs) if target is None else target_outputs(target, model, batch.inputs, batch.targets)
            )
            outputs = asked.float().cpu().numpy()
            rows += list(zip(batch.indices, batch.targets.cpu().numpy(), outputs, strict=True))
    rows = sorted(gather_object(rows) if ranks > 1 else rows, key=lambda row: row[0])
    indices, targets, outputs = zip(*rows, strict=True)
    return Predictions(
        [records.name(i) for i in indices],
        np.array([records.lengths[i] for i in indices]),
        np.array(targets),
        np.stack(outputs),
    )


class _Share(TokenSampler):
    """Every `ranks`-th record from `rank` on, in order: together all records, each once."""

    def __init__(self, lengths: Sequence[int], tokens: int, sequences: int, rank: int, ranks: int) -> None:
        self.records = range(rank, len(lengths), ranks)
        super().__init__([lengths[i] for i in self.records], tokens, sequences, shuffle=False)

    def __iter__(self) -> Iterator[list[int]]:
        return ([self.records[i] for i in batch] for batch in super().__iter__())


def summarise(predictions: Predictions, target: Target, experiment: Experiment, split: str) -> Evaluation:
    """Scores of all records and of each length bin."""
    everything = np.ones(len(predictions.names), dtype=bool)
    constant = predictions.constant(target)
    return Evaluation(
        task=experiment.task,
        split=split,
        encoder=experiment.model.encoder,
        headline=target.headline,
        records=len(predictions.names),
        loss=predictions.loss(target),
        scores=_scores(predictions, target, everything),
        guessing=target.metrics(constant.outputs, constant.targets),
        by_length=[
            LengthBin(p, int(own.min()), int(own.max()), len(own), _scores(predictions, target, inside))
            for p, inside in _length_bins(predictions.lengths)
            if len(own := predictions.lengths[inside])
        ],
    )


def save_evaluation(folder: Path, evaluation: Evaluation, predictions: Predictions) -> None:
    """Write scores and predictions, and their SHA-256 into the manifest."""
    files.write_recorded(folder, evaluation_contents(evaluation, predictions))


def evaluation_contents(evaluation: Evaluation, predictions: Predictions) -> dict[str, bytes]:
    """The two files of a split, by name."""
    scores, rows = f"evaluation-{evaluation.split}.json", predictions_file(evaluation.split)
    return {scores: files.json_bytes(asdict(evaluation)), rows: predictions.parquet()}


def predictions_file(split: str) -> str:
    return "predictions.parquet" if split == "test" else f"predictions-{split}.parquet"


def _length_bins(lengths: ndarray) -> list[tuple[int, ndarray]]:
    """Of each length percentile, the records above the one before; of several at the same length the last."""
    edges = np.percentile(lengths, PERCENTILES, method="higher").tolist()
    last = dict(zip(edges, PERCENTILES, strict=True))
    return [
        (p, (lengths > low) & (lengths <= high)) for low, (high, p) in zip([0, *last], last.items(), strict=False)
    ]


def _scores(predictions: Predictions, target: Target, inside: ndarray) -> dict[str, Score]:
    return predictions.sample(target, inside).scores(predictions.outputs[inside])
