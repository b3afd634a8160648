"""An experiment is data: which task, which model, how to train. A run folder can be rerun from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chordmixer import files
from chordmixer.config import LONGEST, check_numbers, compared, from_dict, override, to_dict
from chordmixer.data.loading import PairedRecords, Records, TokenSampler
from chordmixer.models.heads import HEADS
from chordmixer.models.model import FORMAT, ModelConfig, read_config
from chordmixer.tasks import TASKS, Task, task_class
from chordmixer.tasks.targets import TokenTarget
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
    "weight_decay": (0, 1e6),
    "words_decay": (0, 1e6),
    "evaluate_epochs": (1, 10**9),
    "checkpoint_minutes": (0, 10**7),
    "workers": (0, 256),
    "replicates": (0, 20),
}
"""The least and the most of settings of a training."""


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; none of these changes what the trained model computes."""

    epochs: int = 10
    """Passes over the training set."""
    steps: int = 0
    """Or fewer passes: the run ends after so many steps, and its learning rate falls to zero by then. 0: no limit."""
    minutes: float = 0.0
    """Or fewer passes: the run ends after so many minutes of training, validation not counted, and its learning
    rate falls to zero by then. No two such runs are the same. 0: no limit."""
    batch_sequences: int = 64
    """Most sequences in a batch of one rank."""
    batch_tokens: int = 0
    """Most tokens in a batch of one rank; 0: twice `batch_sequences` average ones, or the longest."""
    accumulate: int = 1
    """Batches whose gradients are added up before a step."""
    learning_rate: float = 1e-3
    """The highest of the run. Default 1e-3."""
    layer_decay: float = 1.0
    """Learning rate of a block as a share of that of the block behind it, from the head back to the embedding.
    Default 1: all alike."""
    warmup: float = 0.05
    """Share of the run in which the learning rate rises; it then falls along a cosine to zero."""
    weight_decay: float = 0.01
    """AdamW's."""
    words_decay: float = 1.0
    """AdamW's for the tables of words, which overfit soonest. Default 1."""
    beta2: float = 0.999
    """AdamW's memory of squared gradients: 1 / (1 - beta2) steps. Default 0.999; 0.98 for short runs."""
    clip: float = 1.0
    """Gradients of a larger norm are scaled down to it."""
    ema: float = 0.0
    """Weights are evaluated and kept as their exponential moving average over about this share of the run, such as
    0.05. Default 0: as they are."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the matrix products; weights and optimiser are always float32."""
    patience: int = 0
    """Stop after this many evaluations without a better validation loss, once something was learned; 0: never."""
    evaluate_every: int = 0
    """Steps between evaluations on the validation set, beside those at the ends of epochs; 0: only these."""
    evaluate_epochs: int = 1
    """Epochs from one evaluation to the next; the last epoch ends with one in any case."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: by `checkpoint_minutes` alone."""
    checkpoint_minutes: float = 5.0
    """Most minutes of work that a crash may cost."""
    trial: float = 0.0
    """Share of the run's length that each of two short runs has which come before it: one with the model's words, one
    without. The validation loss decides, and the run's config then says with which words it goes on. 0: none."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and the dropout."""
    replicates: int = 0
    """Members of an ensemble on files, trained alike from seeds `seed`, `seed` + 1 and so on (`--replicates`): 2 to
    20. Default 0: one network."""
    start: str | None = field(default=None, compare=False)
    """The run whose embedding and encoder are the initial weights; None: random ones."""
    start_sha256: str | None = None
    """SHA-256 of that run's weights."""
    freeze: bool = False
    """Keep embedding and encoder fixed; only the head is trained."""
    workers: int = 0
    """Processes that build batches; 0: this one does."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; `auto`: a GPU if there is one."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the `tensorboard` extra)."""

    def __post_init__(self) -> None:
        check_numbers(self, **LIMITS)
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} is not above zero: give a positive number")
        if self.replicates == 1:
            raise ValueError("replicates=1 is one network, as without: give 2 to 20, or 0")
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"beta2={self.beta2} is not a share: give 0 or more, and less than 1")
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
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema={self.ema} is not a share of the run: give 0 or more, and less than 1")
        if not 0 <= self.trial < 1:
            raise ValueError(f"trial={self.trial} is not a share of the run: give 0 or more, and less than 1")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup={self.warmup} is not a share of the run: give 0 or more, and less than 1")

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
    """The task's own config."""
    model: ModelConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def build_task(self) -> Task:
        """The task, after a check that the model fits it."""
        task: Task = task_class(self.task)(self.data)
        wanted = {"embedding": task.embedding, "inputs": task.inputs, "outputs": task.target.outputs}
        for key, value in wanted.items():
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
        own, asked = HEADS[self.model.head].sequences, getattr(task, "sequences", 1)  # tasks of pairs say 2
        needed = getattr(task, "head", None)  # and those for which a single head will do say which
        if own != asked or (needed or self.model.head) != self.model.head:
            many, cure = {1: "one sequence", 2: "two sequences"}, {1: "average", 2: "pair"}
            raise ValueError(
                f"model.head={self.model.head!r} answers for {many[own]} at a time, and {self.task} asks about "
                f"{many[asked]}: set model.head={needed or cure[asked]}"
            )
        return task

    def save(self, folder: Path) -> None:
        """Write config.json, which `Model.from_pretrained` reads too; the cache folder is not in it."""
        config = {"format": FORMAT, "version": __version__, **to_dict(self)}
        config["data"].pop("cache", None)
        files.write_recorded(folder, {CONFIG: files.json_bytes(config)})

    def settings(self) -> dict[str, Any]:
        """All settings that define this run, as plain values."""
        return {"task": self.task, **{name: compared(getattr(self, name)) for name in ("data", "model", "training")}}

    @staticmethod
    def load(folder: Path, *, cache: Path | str | None = None, unverified: bool = False) -> Experiment:
        """The experiment of a run folder; the cache folder is never read from it, but given as `cache`."""
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
        config["data"].pop("cache", None)  # of earlier versions, or of somebody else
    data = _part(task_class(config["task"]).Config, config, "data", path)
    return Experiment(
        config["task"],
        data if cache is None else override(data, {"cache": str(cache)}, "data"),
        _part(ModelConfig, config, "model", path),
        _part(TrainingConfig, config, "training", path),
    )


def _edited(folder: Path) -> str:
    """What a checkpoint tells of a config.json that is not the run's own."""
    for path in checkpoints.found(folder)[:1] if (folder / files.MANIFEST).exists() else []:
        try:
            checkpoints.check_settings(path, _read(folder).settings(), unverified=True)
        except ValueError as error:
            return f" ({error})"
    return ""


def _part(cls: type, config: Mapping[str, Any], key: str, path: Path) -> Any:
    return from_dict(cls, config[key], f"{path}: {key}")


def check_lengths(records: Records, max_length: int, config: TrainingConfig) -> None:
    """Refuse a record that the network, or a batch, cannot hold."""
    longest, which = records.lengths, ""
    if isinstance(records, PairedRecords):
        longest, which = records.longer, " in one of its two sequences"
    for setting, limit, lengths, of in (
        ("model.network.max_length", max_length, longest, which),
        ("training.batch_tokens", config.tokens_for(records.lengths), records.lengths, ""),
    ):
        where, length = max(enumerate(lengths), key=lambda record: record[1])
        if length > limit:
            raise ValueError(
                f"record {records.name(where)} has {length:,} tokens{of}, above {setting}={limit:,}: no sequence is "
                f"ever cut unasked; set {setting}={length} or more"
            )
