"""Scores of a model, overall and by length, with 95 % intervals and the scores of a constant prediction."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy import ndarray
from torch import nn

from chordmixer import files
from chordmixer.data import Loader, Records, TokenSampler
from chordmixer.models import Model
from chordmixer.tasks import Task
from chordmixer.tasks.targets import Classification, MultiLabel, Target, target_outputs
from chordmixer.training import ensemble, ranks
from chordmixer.training.combination import load_combination
from chordmixer.training.devices import choose_device
from chordmixer.training.experiment import Experiment, TrainingConfig
from chordmixer.training.intervals import Sample, Score
from chordmixer.training.labels import OutputLabels, RecordTarget
from chordmixer.training.run_folder import WAIT, RunLock
from chordmixer.training.speed import choose_inference_threads
from chordmixer.training.strands import averaged

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

PERCENTILES = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
"""Percentiles of length at the upper ends of the bins, as in the paper's figures."""
RESAMPLES = 1000
EVALUATION_TOKENS = 1 << 19
"""Tokens of a batch on a GPU up to which it is larger than a training batch."""
TEMPERATURES = tuple(2.0 ** (k / 4) for k in range(-8, 17))
"""Temperatures that `calibrated_loss` tries, 1 among them."""


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
    """The metrics of the best constant prediction, which is fitted on this split itself."""
    by_length: list[LengthBin]


@dataclass(frozen=True)
class Predictions:
    """Targets and outputs, one row per record in the order of the records."""

    names: list[str]
    lengths: ndarray
    """Lengths in tokens; of a pair the sum over both sequences."""
    targets: ndarray
    outputs: ndarray
    groups: ndarray | None = None
    """The number of each record's group; None if there are no groups."""

    def of_task(self, task: Task, split: str) -> Predictions:
        """Add the groups of the records, if the task has groups."""
        groups = getattr(task, "groups", lambda _: None)(split)
        return self if groups is None else replace(self, groups=groups)

    def same_records(self, other: Predictions) -> bool:
        """Whether both are of the same records, in the same order."""
        return self.names == other.names and np.array_equal(self.targets, other.targets)

    def sample(self, target: Target, inside: ndarray | slice = slice(None)) -> Sample:
        """The records, or the subset `inside`, as a sample for scores with intervals."""
        groups = None if self.groups is None else self.groups[inside]
        return Sample(target, self.targets[inside], groups, RESAMPLES)

    def loss(self, target: Target) -> float:
        return float(target.losses(torch.from_numpy(self.outputs), torch.from_numpy(self.targets)).mean())

    def calibrated_loss(self, target: Target) -> float:
        """The loss at the best temperature for these records; for regression the loss itself.

        A network that overfits becomes overconfident long before it makes more errors: selection by the uncalibrated
        loss discards weights of better accuracy (2 to 5 points on the Arena's Image and Text).
        """
        if not isinstance(target, Classification | MultiLabel):
            return self.loss(target)
        return min(replace(self, outputs=self.outputs / t).loss(target) for t in TEMPERATURES)

    def not_finite(self) -> list[str]:
        """The names of records whose outputs are not all finite."""
        return [self.names[i] for i in np.flatnonzero(~np.isfinite(self.outputs).all(axis=1))]

    def constant(self, target: Target) -> Predictions:
        """The best constant prediction for the same records."""
        return replace(self, outputs=np.tile(target.constant(self.targets), (len(self.names), 1)))

    def columns(self) -> dict[str, Any]:
        """The columns of a table with one row per record."""
        targets = self.targets if self.targets.ndim == 1 else self.targets.tolist()  # the same type for every source
        columns = {"id": self.names, "length": self.lengths, "target": targets}
        columns |= {} if self.groups is None else {"group": self.groups}
        return columns | {f"output_{k}": column for k, column in enumerate(self.outputs.T)}

    @staticmethod
    def of_table(rows: pa.Table) -> Predictions:
        """The inverse of `columns`."""
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
        """Read a file that was written from `parquet`."""
        return read_table(path, Predictions.of_table)


def parquet_bytes(columns: dict[str, Any]) -> bytes:
    """The bytes of a Parquet file whose pages have checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, write_page_checksum=True)
    return buffer.getvalue()


def read_table(path: Path, build: Callable[[pa.Table], T]) -> T:
    """Apply `build` to the table of a Parquet file; raise a ValueError of one line if it cannot be read."""
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
    """Score a trained run on a split of its own task; write scores and predictions into the run folder.

    Runs on files are scored by the predictions that they deliver (`combination`, `ensemble`), others by the network.
    """
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache, unverified=unverified)
    task: Any = experiment.build_task()
    if ensemble.read(folder) is None:
        predictions, title = _run_predictions(folder, experiment, task, split)
    else:
        predictions, title = _ensemble_predictions(folder, task, split, unverified)
    evaluation = replace(summarise(predictions, task.target, experiment, split), encoder=title)
    with RunLock(folder, WAIT):
        save_evaluation(folder, evaluation, predictions)
    return evaluation


def _run_predictions(
    folder: Path, experiment: Experiment, task: Any, split: str, target: RecordTarget | None = None
) -> tuple[Predictions, str]:
    """The predictions that a run delivers for a split, and the title of the predictor.

    `target` is the run's own target if it differs from the task's, as for a member of an ensemble.
    """
    from chordmixer.tasks.files import Files

    model = Model.from_pretrained(str(folder))
    device = choose_device(TrainingConfig(device="cpu" if experiment.training.device == "cpu" else "auto"))
    network = averaged(model.to(device), task.complement, device)
    choose_inference_threads(model)
    predictions = predict_records(network, task.records(split), experiment.training, device, task.target)
    predictions = predictions.of_task(task, split)
    combined = None
    if isinstance(task, Files):
        combined = load_combination(folder, target or task.target, task.complement)
    if combined is None:
        return predictions, experiment.model.encoder
    return replace(predictions, outputs=combined.outputs(predictions.outputs, task.tokens(split))), combined.title


def _ensemble_predictions(run: Path, task: Any, split: str, unverified: bool) -> tuple[Predictions, str]:
    """The mean prediction of an ensemble, and its title."""
    document = ensemble.finished(run)
    assert document is not None, "it is an ensemble"
    if document.kind == "folds" and split != "test":
        raise ValueError(
            f"members of {run} trained on its {split} records: only the test part is apart from all folds; the "
            f"cross-validated scores stand in evaluation-{ensemble.CROSS_VALIDATION}.json"
        )
    rows = []
    for number in range(document.size):
        folder = ensemble.folder_of(run, number)
        target = OutputLabels.load(folder).target
        experiment = Experiment.load(folder, unverified=unverified)
        predictions, _ = _run_predictions(folder, experiment, task, split, target)
        rows.append((target, predictions.outputs))
    return replace(predictions, outputs=ensemble.mean(task.target, rows)), document.title


def predict_records(
    model: nn.Module,
    records: Records,
    config: TrainingConfig,
    device: torch.device,
    target: Target | None = None,
    *,
    alone: bool = False,
) -> Predictions:
    """The model's outputs for all records, or the counts that a target of tokens computes from them.

    Several ranks each predict a share, and all of them get all rows. With `alone`, or if the model splits every
    sequence over the ranks, this rank predicts all records.
    """
    rank, count = 0, 1
    if torch.distributed.is_initialized() and not alone and config.context_parallel == 1:
        rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    sampler = _evaluation_batches(records, config, device, rank, count)
    numbers: list[int] = []
    targets, outputs = [], []
    model.eval()
    half = config.precision == "bf16"
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=half):
        for batch in Loader(records, sampler, device=device).epoch():
            output = target_outputs(target, model, batch.inputs, batch.targets) if target else model(batch.inputs)
            numbers += batch.indices
            targets.append(batch.targets)
            outputs.append(output.float())
    # copied once: a copy for each batch would wait for the GPU
    pairs = zip(torch.cat(targets).cpu().numpy(), torch.cat(outputs).cpu().numpy(), strict=True)
    rows = dict(zip(numbers, pairs, strict=True))  # a rank without a share of a batch repeats one record
    if count > 1:
        rows = {i: row for share in ranks.all_gather(rows) for i, row in share.items()}
    all_targets, all_outputs = zip(*(rows[i] for i in range(len(rows))), strict=True)
    return Predictions(
        [records.name(i) for i in range(len(rows))],
        np.array(records.lengths),
        np.array(all_targets),
        np.stack(all_outputs),
    )


def _evaluation_batches(
    records: Records, config: TrainingConfig, device: torch.device, rank: int, ranks: int
) -> TokenSampler:
    """Batches without gradients; on a GPU of up to four times the tokens of a training batch, which need less memory
    than its gradients and keep the GPU from waiting for the host."""
    tokens, sequences = config.tokens_for(records.lengths), 4 * config.batch_sequences
    if device.type == "cuda":
        tokens, sequences = max(tokens, min(4 * tokens, EVALUATION_TOKENS)), 4 * sequences
    return TokenSampler(records.lengths, tokens, sequences, shuffle=False, rank=rank, ranks=ranks)


def summarise(predictions: Predictions, target: Target, experiment: Experiment, split: str) -> Evaluation:
    """The scores of all records and of each length bin."""
    all_records = np.ones(len(predictions.names), dtype=bool)
    constant = predictions.constant(target)
    return Evaluation(
        task=experiment.task,
        split=split,
        encoder=experiment.model.encoder,
        headline=target.headline,
        records=len(predictions.names),
        loss=predictions.loss(target),
        scores=_scores(predictions, target, all_records),
        guessing=target.metrics(constant.outputs, constant.targets),
        by_length=[
            LengthBin(p, int(lengths.min()), int(lengths.max()), len(lengths), _scores(predictions, target, inside))
            for p, inside in length_bins(predictions.lengths)
            if len(lengths := predictions.lengths[inside])
        ],
    )


def save_evaluation(folder: Path, evaluation: Evaluation, predictions: Predictions) -> None:
    """Write scores and predictions, and record their SHA-256 in the manifest."""
    files.write_recorded(folder, evaluation_contents(evaluation, predictions))


def evaluation_contents(evaluation: Evaluation, predictions: Predictions) -> dict[str, bytes]:
    """The contents of the two files of a split, by file name."""
    scores, rows = f"evaluation-{evaluation.split}.json", predictions_file(evaluation.split)
    return {scores: files.json_bytes(asdict(evaluation)), rows: predictions.parquet()}


def predictions_file(split: str) -> str:
    return "predictions.parquet" if split == "test" else f"predictions-{split}.parquet"


def length_bins(lengths: ndarray) -> list[tuple[int, ndarray]]:
    """Masks of the records between one length percentile and the next; of equal percentiles only the last is used."""
    edges = np.percentile(lengths, PERCENTILES, method="higher").tolist()
    last = dict(zip(edges, PERCENTILES, strict=True))
    return [
        (p, (lengths > low) & (lengths <= high)) for low, (high, p) in zip([0, *last], last.items(), strict=False)
    ]


def _scores(predictions: Predictions, target: Target, inside: ndarray) -> dict[str, Score]:
    return predictions.sample(target, inside).scores(predictions.outputs[inside])
