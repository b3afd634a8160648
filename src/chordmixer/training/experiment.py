"""Experiments: the task, data, model and training settings that reproduce a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chordmixer import files
from chordmixer.config import LONGEST, check_numbers, compared, from_dict, override, to_dict
from chordmixer.data.loading import PairedRecords, Records, TokenSampler
from chordmixer.models.heads import HEADS
from chordmixer.models.model import FORMAT, Model, ModelConfig, read_config, without_memory
from chordmixer.tasks import TASKS, Task, task_class
from chordmixer.tasks.targets import TokenTarget
from chordmixer.terminal import rank_count
from chordmixer.training import checkpoints
from chordmixer.training.run_folder import CONFIG, check
from chordmixer.version import __version__

LIMITS: dict[str, tuple[float, float]] = {
    "epochs": (1, 10**9),
    "steps": (0, 10**12),
    "minutes": (0, 10**7),
    "batch_sequences": (1, 10**6),
    "batch_tokens": (0, LONGEST),
    "accumulate": (1, 10**6),
    "context_parallel": (1, 10**6),
    "weight_decay": (0, 1e6),
    "words_decay": (0, 1e6),
    "evaluate_epochs": (1, 10**9),
    "checkpoint_minutes": (0, 10**7),
    "workers": (0, 256),
    "replicates": (0, 20),
}
"""The smallest and largest values of training settings."""


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings; none of them changes what a trained model computes."""

    epochs: int = 10
    """Passes over the training set."""
    steps: int = 0
    """Most steps of the run, by which the learning rate falls to zero. Default 0: no limit but `epochs`."""
    minutes: float = 0.0
    """Most minutes of training, without validation, by which the learning rate falls to zero. No two such runs are
    the same. Default 0: no limit but `epochs`."""
    batch_sequences: int = 64
    """Most sequences in a batch. Default 64. With several ranks they share each batch: the same records are in it for
    any number of ranks, and 4 ranks have about 16 of 64 each."""
    batch_tokens: int = 0
    """Most tokens in a batch, over all ranks. Default 0: twice `batch_sequences` average records, or the longest."""
    accumulate: int = 1
    """Batches whose gradients are accumulated for a step. Default 1."""
    context_parallel: int = 1
    """Ranks that split every sequence between them: 1, or the number of ranks of the run. Default 1: a sequence is
    the work of one rank. For sequences whose activations do not fit one GPU."""
    learning_rate: float = 1e-3
    """The highest learning rate of the run. Default 1e-3."""
    layer_decay: float = 1.0
    """Learning rate of a block as a share of that of the next one, from the head back to the embedding. Default 1:
    one learning rate."""
    warmup: float = 0.05
    """Share of the run in which the learning rate rises; it then falls to zero along a cosine. Default 0.05."""
    weight_decay: float = 0.01
    """Weight decay of AdamW. Default 0.01."""
    words_decay: float = 1.0
    """Weight decay of AdamW for the tables of words, which overfit first. Default 1."""
    beta2: float = 0.999
    """AdamW averages squared gradients over 1 / (1 - beta2) steps. Default 0.999; 0.98 suits short runs."""
    clip: float = 1.0
    """Largest norm of the gradient; larger gradients are scaled down. Default 1."""
    ema: float = 0.0
    """Evaluate and keep the exponential moving average of the weights over about this share of the run, such as
    0.05. Default 0: the weights themselves."""
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """Precision of the matrix products; weights, sums and optimiser are always float32. `auto` is bf16 on a GPU and,
    where a measured step is faster with it, on a CPU that multiplies bf16 numbers itself; the run stores which it
    was. With fp32 the output for a record is the same in every batch up to 1e-5. Default fp32."""
    patience: int = 0
    """Stop after this many evaluations without improvement, once the network beats a constant. Default 0: never."""
    evaluate_every: int = 0
    """Steps between evaluations on the validation set, in addition to those after epochs. Default 0: none."""
    evaluate_epochs: int = 1
    """Epochs between evaluations; the last epoch always ends with one. Default 1."""
    checkpoint_every: int = 0
    """Steps between checkpoints. Default 0: by `checkpoint_minutes` alone."""
    checkpoint_minutes: float = 5.0
    """Most minutes between checkpoints: the work that a crash may cost. Default 5."""
    trial: float = 0.0
    """Length of each trial run as a share of the run: with words, without, and the better of both with positions,
    where the model has these parts. The lowest validation loss decides. Default 0: no trials."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and dropout. Default 0."""
    replicates: int = 0
    """Members of an ensemble (`--replicates`), with the seeds `seed`, `seed` + 1 and so on: 2 to 20. Default 0: one
    network."""
    start: str | None = field(default=None, compare=False)
    """The run from which embedding and encoder start. Default none: random weights."""
    start_sha256: str | None = None
    """SHA-256 of that run's weights."""
    freeze: bool = False
    """Freeze embedding and encoder: only the head is trained. Default false."""
    cuda_graphs: bool = True
    """Record training steps on a GPU as CUDA graphs and replay them, where that is possible: short sequences then do
    not wait for the host. Default true."""
    workers: int = 0
    """Processes that build batches. Default 0: the training process itself."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; `auto`, the default, is a GPU if there is one."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the `tensorboard` extra)."""

    def __post_init__(self) -> None:
        check_numbers(self, **LIMITS)
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} is not above zero: give a positive number")
        if self.replicates == 1:
            raise ValueError("replicates=1 is one network, as without: give 2 to 20, or 0")
        for name in ("beta2", "ema", "trial", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is not a share: give 0 or more, and less than 1")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay={self.layer_decay} is not a share: give more than 0, and 1 or less")
        if self.steps and self.minutes:
            raise ValueError(
                f"steps={self.steps:,} and minutes={self.minutes:g} are both the end of a run: set one of them to 0"
            )
        if self.minutes and self.ema:
            raise ValueError(
                f"ema={self.ema} is a share of the steps, whose number minutes={self.minutes:g} leaves open: "
                "set training.ema=0 or training.minutes=0"
            )

    def tokens_for(self, lengths: Sequence[int]) -> int:
        """The token budget of a batch for data of these lengths."""
        return self.batch_tokens or max(max(lengths), 2 * self.batch_sequences * sum(lengths) // len(lengths))

    def sampler(self, lengths: Sequence[int], rank: int = 0, ranks: int = 1) -> TokenSampler:
        """The training batches of one rank, for records of these lengths."""
        tokens = self.tokens_for(lengths)
        return TokenSampler(lengths, tokens, self.batch_sequences, seed=self.seed, rank=rank, ranks=ranks)


@dataclass(frozen=True)
class Experiment:
    """Everything that a run depends on: task, data, model and training settings."""

    task: str
    """A name in `chordmixer.tasks.TASKS`."""
    data: Any
    """The config of the task."""
    model: ModelConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def build_task(self) -> Task:
        """Build the task, and refuse a model that does not fit it."""
        task: Task = task_class(self.task)(self.data)
        required = {"embedding": task.embedding, "inputs": task.inputs, "outputs": task.target.outputs}
        for key, value in required.items():
            if getattr(self.model, key) != value:
                raise ValueError(
                    f"model.{key}={getattr(self.model, key)!r} does not fit the task {self.task}, which needs "
                    f"{value!r}: set model.{key}={value}"
                )
        if self.model.head == "tokens" and not isinstance(task.target, TokenTarget):
            raise ValueError(
                f"model.head='tokens' answers for every token, and {self.task} asks once a sequence: "
                "set model.head=average"
            )
        if self.model.head != "tokens" and isinstance(task.target, TokenTarget):
            raise ValueError(
                f"model.head={self.model.head!r} answers once a sequence, and {self.task} asks about tokens: "
                "set model.head=tokens"
            )
        of_head, of_task = HEADS[self.model.head].sequences, getattr(task, "sequences", 1)  # 2 for pairs
        needed = getattr(task, "head", None)  # set by tasks that only one head fits
        if of_head != of_task or (needed or self.model.head) != self.model.head:
            names, cure = {1: "one sequence", 2: "two sequences"}, {1: "average", 2: "pair"}
            raise ValueError(
                f"model.head={self.model.head!r} answers for {names[of_head]} at a time, and {self.task} asks about "
                f"{names[of_task]}: set model.head={needed or cure[of_task]}"
            )
        return task

    def save(self, folder: Path) -> None:
        """Write config.json, which `Model.from_pretrained` reads too, without the cache folder."""
        config = {"format": FORMAT, "version": __version__, **to_dict(self)}
        config["data"].pop("cache", None)
        files.write_recorded(folder, {CONFIG: files.json_bytes(config)})

    def settings(self) -> dict[str, Any]:
        """All settings that define this run, as JSON values."""
        return {"task": self.task, **{name: compared(getattr(self, name)) for name in ("data", "model", "training")}}

    @staticmethod
    def load(folder: Path, *, cache: Path | str | None = None, unverified: bool = False) -> Experiment:
        """Read the experiment of a run folder. The cache folder is not stored in it, but passed as `cache`."""
        try:
            check(folder, [CONFIG], unverified)
        except ValueError as error:
            raise ValueError(f"{error}{_edited(folder)}") from None
        return _read(folder, cache)


def _read(folder: Path, cache: Path | str | None = None) -> Experiment:
    path, config = folder / CONFIG, read_config(folder)
    if unknown := set(config) - {"format", "version", "task", "data", "model", "training"}:
        raise ValueError(f"{path}: {min(unknown)} is not a setting: remove it, or use another copy")
    for key in ("task", "data", "training"):
        if key not in config:
            raise ValueError(f"{path} has no {key!r}: it is a model, not a training run; give a run folder")
    if config["task"] not in TASKS:
        raise ValueError(f"{path}: task {config['task']!r} is not known: choose one of {', '.join(TASKS)}")
    if isinstance(config["data"], dict):
        config["data"].pop("cache", None)  # files of earlier versions have it
    data = _part(task_class(config["task"]).Config, config, "data", path)
    return Experiment(
        config["task"],
        data if cache is None else override(data, {"cache": str(cache)}, "data"),
        _part(ModelConfig, config, "model", path),
        _part(TrainingConfig, config, "training", path),
    )


def _edited(folder: Path) -> str:
    """A note for an error message: the first setting in which config.json differs from the newest checkpoint."""
    for path in checkpoints.newest_first(folder)[:1] if (folder / files.MANIFEST).exists() else []:
        try:
            checkpoints.check_settings(path, _read(folder).settings(), unverified=True)
        except ValueError as error:
            return f" ({error})"
    return ""


def _part(cls: type, config: Mapping[str, Any], key: str, path: Path) -> Any:
    return from_dict(cls, config[key], f"{path}: {key}")


def trial_count(model: ModelConfig) -> int:
    """Number of trial runs that decide about parts of this model.

    >>> trial_count(ModelConfig(inputs=5, outputs=2, positions=41))
    2
    """
    if model.words.lengths:
        return 3 if model.positions else 2
    return 2 if model.positions else 0


def check_lengths(records: Records, max_length: int, config: TrainingConfig) -> None:
    """Refuse a record that is too long for the network or for a batch."""
    sequence_lengths, note = records.lengths, ""
    if isinstance(records, PairedRecords):
        sequence_lengths, note = records.longer, " in one of its two sequences"
    for setting, limit, lengths, where in (
        ("model.network.max_length", max_length, sequence_lengths, note),
        ("training.batch_tokens", config.tokens_for(records.lengths), records.lengths, ""),
    ):
        number, length = max(enumerate(lengths), key=lambda record: record[1])
        if length > limit:
            raise ValueError(
                f"record {records.name(number)} has {length:,} tokens{where}, above {setting}={limit:,}: no sequence "
                f"is ever cut unasked; set {setting}={length} or more"
            )


def check_context_parallel(experiment: Experiment) -> None:
    """Refuse context parallelism that does not fit the number of ranks, or of a model that does not support it."""
    wanted, ranks = experiment.training.context_parallel, rank_count()
    if wanted == 1:
        return
    if wanted != ranks:
        raise ValueError(
            f"training.context_parallel={wanted} is neither 1 nor the number of ranks, which is {ranks}: start "
            f"{wanted} ranks, as torchrun --nproc-per-node {wanted} does, or begin a run with "
            f"training.context_parallel={ranks}"
        )
    if experiment.model.head == "tokens":
        raise ValueError(
            f"training.context_parallel={wanted} does not split records whose tokens are predicted, as in "
            f"{experiment.task}: set training.context_parallel=1"
        )
    from chordmixer.models.context_parallel import check_module  # most runs do not need it

    with without_memory():
        check_module(Model(experiment.model))
