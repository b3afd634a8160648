"""The inference engine: turns records into tokens, windows, batches, and outputs in the order of the records.

Predictions, embeddings, evaluations, explanations, variants and the Python API use it. Windows depend on the input
alone, and batches on their window, so that outputs do not depend on where an interrupted run was resumed.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from chordmixer.config import from_dict
from chordmixer.data import tokenizers
from chordmixer.data.entries import Account, Entry
from chordmixer.data.store import cut_note
from chordmixer.data.tokenizers import Numbers, Tokenizer
from chordmixer.models import Model, ModelConfig
from chordmixer.models.model import read_config
from chordmixer.packed import Packed
from chordmixer.tasks.targets import Regression
from chordmixer.training import combination, ensemble, labels, run_folder, speed
from chordmixer.training.combination import CombinedModel, Using
from chordmixer.training.devices import choose_device, native_bf16
from chordmixer.training.experiment import TrainingConfig
from chordmixer.training.labels import OutputLabels
from chordmixer.training.strands import both_strands

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnBad = Literal["error", "unknown", "reject"]
OverLength = Literal["error", "windows", "reject"]

BATCH_TOKENS = {"cpu": 1 << 16, "cuda": 1 << 19}
"""Default maximum number of tokens in a batch; a longer record is a batch of its own."""
BATCHES = 4
"""Batches per window. With more, lengths within a batch are more similar, but an interruption loses more work."""
MAX_RECORDS = 1 << 14
"""Maximum number of records in a window."""


class Item(NamedTuple):
    """A record of the input, and its tokens."""

    entry: Entry
    tokens: ndarray


class Piece(NamedTuple):
    """A record of a window, or a part of a record that is too long for the model."""

    record: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Engine:
    """A run folder, loaded for use: its network, baseline, tokenizer and labels."""

    def __init__(
        self,
        run: Path | str,
        device: str | None = None,
        batch_tokens: int | None = None,
        *,
        using: Using | None = None,
        unverified: bool = False,
    ) -> None:
        """`using` selects the network, the baseline or both instead of the run's own choice."""
        self.folder = Path(run)
        run_folder.check(self.folder, unverified=unverified)
        self._check_kind()
        if batch_tokens is not None and batch_tokens < 1:
            raise ValueError(f"--batch-tokens {batch_tokens} is too small: give 1 or more")
        check_choice("device", device, (None, "auto", "cpu", "cuda"))
        self.device = choose_device(TrainingConfig(device=device or "auto"))  # type: ignore[arg-type]  # checked
        self._labels = None if _is_pretrained(self.folder) else OutputLabels.load(self.folder)
        self.documents = [tokenizers.FILE] if self._labels is None else [labels.FILE, tokenizers.FILE]
        self.tokenizer = tokenizers.load_tokenizer(self.folder)
        self.config = read_config(self.folder)
        self.model_config = from_dict(ModelConfig, self.config["model"], f"{self.folder / 'config.json'}: model")
        self.max_length = self.model_config.network.max_length
        self.batch_tokens = batch_tokens or BATCH_TOKENS[self.device.type]
        data = self.config.get("data") or {}
        self.cut: int | None = data.get("cut")
        """Length in tokens to which records are cut, as in training; None: not cut."""
        self.separator = str(data.get("separator", ";")) or ";"
        """Separator between the labels of a record."""
        self.half = self.config.get("training", {}).get("precision") == "bf16"
        self.half &= self.device.type == "cuda" or native_bf16()
        self._check_parts()
        self.combined: CombinedModel | None = None
        self._load(using, unverified)

    def _check_kind(self) -> None:
        ensemble.refuse(self.folder, "this command")

    def _load(self, using: Using | None, unverified: bool) -> None:
        """Load the models now, so that errors are raised before a record is read."""
        if self._labels is not None:
            self.combined = combination.load_combination(self.folder, self._labels.target, self.complement, using)
        if self.network:
            self.model  # noqa: B018

    @cached_property
    def model(self) -> Model:
        """The network, which is not loaded if the baseline predicts alone."""
        model = Model.from_pretrained(str(self.folder), device=self.device.type)
        speed.choose_inference_threads(model)
        return model

    @property
    def network(self) -> bool:
        """Whether outputs depend on the network."""
        return self.combined is None or self.combined.network

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return int(self.model.encoder.width)  # type: ignore[arg-type]  # every encoder has one

    @property
    def members(self) -> Sequence[Engine]:
        """The members of an ensemble, or the run itself."""
        return [self]

    def _check_parts(self) -> None:
        """Refuse a folder with files of different runs."""
        config, size = self.model_config, self.tokenizer.size
        if self._labels is None:  # inputs have one more id, for masked tokens
            fits = (config.inputs, config.outputs) == (size + 1, size)
        else:
            actual = (config.inputs, config.outputs, self.tokenizer.name)
            fits = actual == (size, self.labels.target.outputs, self.labels.tokenizer) and config.head != "tokens"
        if not fits:
            raise ValueError(
                f"{self.folder}: the model, {' and '.join(reversed(self.documents))} do not fit each other: use the "
                "files of one run"
            )
        if self.cut is not None and (not isinstance(self.cut, int) or self.cut < 1):
            raise ValueError(f"{self.folder}: data.cut={self.cut!r} is not a number of tokens: use another copy")
        if self.both_strands and self.tokenizer.complement is None:
            raise ValueError(f"{self.folder / labels.FILE} asks for both strands, and {self.tokenizer.name} has one")

    @property
    def labels(self) -> OutputLabels:
        """The meaning of the outputs."""
        if self._labels is None:
            run = shlex.quote(str(self.folder))
            raise ValueError(
                f"{self.folder} was pre-trained: it finds masked tokens and has no answers about records; embed "
                f"takes it, or train it further: chordmixer train LABELLED_FILES --from {run} --out RUN"
            )
        return self._labels

    @property
    def pretrained(self) -> bool:
        """Whether the run was pre-trained: it embeds records, but predicts nothing for them."""
        return self._labels is None

    @property
    def both_strands(self) -> bool:
        """Whether outputs and embeddings are the mean over both strands."""
        return self._labels is not None and self._labels.both_strands

    @property
    def complement(self) -> ndarray | None:
        """The complement of each token where both strands are used."""
        return self.tokenizer.complement if self.both_strands else None

    @property
    def digest(self) -> str:
        """A hash of all files and settings that outputs depend on."""
        digest = hashlib.sha256()
        combined = [] if self.combined is None else [combination.FILE, combination.BASELINE]
        for name in ("config.json", "model.safetensors", *reversed(self.documents), *combined):
            digest.update(hashlib.sha256((self.folder / name).read_bytes()).digest())
        digest.update(b"" if self.combined is None else self.combined.using.encode())
        return digest.hexdigest()

    def windows(
        self,
        entries: Iterable[Entry],
        account: Account,
        on_bad: OnBad | None,
        over_length: OverLength = "error",
    ) -> Iterator[list[Item]]:
        """The records as tokens in windows of bounded size.

        A run that was trained on cut records cuts records in the same way, and counts them in the account. With
        `over_length="reject"` records longer than the model's max_length are left out; otherwise see `pieces`.
        """
        tokenizer = _lenient(self.tokenizer) if on_bad == "unknown" else self.tokenizer
        cut_to_fit = self.cut is not None and self.cut <= self.max_length
        max_tokens = self.max_length if over_length == "reject" and not cut_to_fit and self.network else None
        items = _items(entries, tokenizer, on_bad == "reject", max_tokens, self.cut, account)
        size = BATCHES * self.batch_tokens
        for window in batched(items, lambda item: len(item.tokens), size, MAX_RECORDS):
            account.notes.update(tokenizer.notes(tokenizer.census([item.entry.sequence for item in window])))
            yield window

    def pieces(self, window: Sequence[Item], over_length: OverLength) -> list[Piece]:
        """A piece for each record. A record that is too long is an error, or is cut into pieces of `max_length` that
        overlap by half."""
        pieces = []
        for number, (entry, tokens) in enumerate(window):
            length, limit = len(tokens), self.max_length if self.network else len(tokens)
            if length > limit and over_length == "error":
                raise ValueError(
                    f"{entry.place} ({entry.id}) has {length:,} tokens, above this model's max_length={limit:,}: no "
                    "record is cut unasked; add --over-length windows or --over-length reject, or train with a "
                    "larger max_length"
                )
            step = max(1, limit // 2)
            starts = range(0, length - limit + step, step) if length > limit else (0,)
            pieces += [Piece(number, start, min(start + limit, length)) for start in starts]
        return pieces

    def batches(self, window: Sequence[Item], pieces: Sequence[Piece]) -> Iterator[tuple[list[Piece], Packed]]:
        """Batches of pieces of similar length, under the token budget."""
        by_length = sorted(pieces, key=lambda piece: piece.length, reverse=True)
        for batch in batched(by_length, lambda piece: piece.length, self.batch_tokens):
            parts = [window[piece.record].tokens[piece.start : piece.stop] for piece in batch]
            yield batch, self.packed(parts)

    def packed(self, sequences: Sequence[ndarray]) -> Packed:
        """Sequences of tokens, packed on the device."""
        values = np.concatenate(sequences)
        values = values if values.dtype.kind == "f" else values.astype(np.int32)
        return Packed.from_lengths(torch.from_numpy(values), [len(sequence) for sequence in sequences]).to(
            self.device
        )

    def averages(
        self, window: Sequence[Item], pieces: Sequence[Piece], forward: Callable[[Packed], Tensor], width: int
    ) -> ndarray:
        """One row per record, (records, width): the mean over its pieces, weighted by length."""
        sums, weights = np.zeros((len(window), width)), np.zeros((len(window), 1))
        for batch, packed in self.batches(window, pieces):
            with self.computing(packed, window[batch[0].record].entry):
                rows = self._over_strands(forward, packed).double().cpu().numpy()
            records, lengths = [piece.record for piece in batch], np.array([[piece.length] for piece in batch])
            np.add.at(sums, records, rows * lengths)
            np.add.at(weights, records, lengths)
        return finite(sums / weights, [item.entry for item in window])

    def outputs(self, window: Sequence[Item], pieces: Sequence[Piece]) -> ndarray:
        """The delivered prediction for each record, in the format of the network's head outputs."""
        rows = self.averages(window, pieces, self.model, self.model_config.outputs) if self.network else None
        if self.combined is None:
            assert rows is not None, "without a baseline the network predicts"
            return rows
        return self.combined.outputs(rows, [item.tokens for item in window])

    def _over_strands(self, forward: Callable[[Packed], Tensor], packed: Packed) -> Tensor:
        if self.complement is None:
            return forward(packed)
        complement = torch.from_numpy(self.complement.astype(np.int32))
        return both_strands(forward, packed, complement.to(self.device))

    @contextmanager
    def computing(self, packed: Packed, longest: Entry) -> Iterator[None]:
        """Disable gradients and use the precision of the training. Out of memory becomes a ValueError of one line."""
        try:
            with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
                yield
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            raise ValueError(
                f"{packed.tokens:,} tokens at once do not fit into the memory of {self.device}, the longest record "
                f"is {longest.id} of {max(packed.lengths):,}: lower --batch-tokens, now {self.batch_tokens:,}, or "
                "use a device with more"
            ) from None


class EnsembleEngine(Engine):
    """The run folder of an ensemble, loaded for use: its outputs are the mean over its members."""

    def _check_kind(self) -> None:
        """Accept an ensemble; `_load` checks its members."""

    def _load(self, using: Using | None, unverified: bool) -> None:
        document = ensemble.finished(self.folder)
        assert document is not None, "the folder has an ensemble.json"
        self._members: list[Engine] = []
        for folder in (ensemble.folder_of(self.folder, k) for k in range(document.size)):
            member = Engine(folder, self.device.type, self.batch_tokens, using=using, unverified=unverified)
            if _shared_settings(member) != _shared_settings(self):
                raise ValueError(
                    f"{folder} and {self.folder} do not fit each other: they have other tokens, labels or lengths; "
                    "use the files of one run"
                )
            self._members.append(member)

    @property
    def members(self) -> Sequence[Engine]:
        return self._members

    @property
    def network(self) -> bool:
        return any(member.network for member in self.members)

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in (*reversed(self.documents), ensemble.FILE):
            digest.update(hashlib.sha256((self.folder / name).read_bytes()).digest())
        for member in self.members:
            digest.update(member.digest.encode())
        return digest.hexdigest()

    def outputs(self, window: Sequence[Item], pieces: Sequence[Piece]) -> ndarray:
        rows = [(member.labels.target, member.outputs(window, pieces)) for member in self.members]
        return ensemble.mean(self.labels.target, rows)


def _shared_settings(run: Engine) -> tuple[object, ...]:
    """The settings that all members of an ensemble must share."""
    target = run.labels.target
    names = None if isinstance(target, Regression) else target.labels
    return run.tokenizer.to_json(), type(target), names, run.both_strands, run.max_length, run.cut


def open_run(
    run: Path | str,
    device: str | None = None,
    batch_tokens: int | None = None,
    *,
    using: Using | None = None,
    unverified: bool = False,
) -> Engine:
    """Load the run folder of a single network or of an ensemble."""
    kind = EnsembleEngine if (Path(run) / ensemble.FILE).exists() else Engine
    return kind(run, device, batch_tokens, using=using, unverified=unverified)


def check_choice(name: str, value: Any, options: Sequence[Any]) -> None:
    """Refuse a value that is not one of the options; the message names the command-line option."""
    if value not in options:
        option = f"--{name.replace('_', '-')}"
        raise ValueError(f"{option} {value} is not a choice: give one of {', '.join(filter(None, options))}")


def finite(rows: ndarray, entries: Sequence[Entry]) -> ndarray:
    """Return the rows, or raise an error if one is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        entry = entries[bad[0]]
        raise ValueError(
            f"{entry.place} ({entry.id}): the model's answer is NaN or infinite: look for numbers of a size that "
            "training never saw, or train again"
        )
    return rows


def batched(values: Iterable[T], size: Callable[[T], int], limit: int, count: float = np.inf) -> Iterator[list[T]]:
    """Group values in order: at most `count` in a group, and the sum of their sizes at most `limit`.

    >>> list(batched([3, 4, 9, 1], lambda n: n, 7))
    [[3, 4], [9], [1]]
    """
    batch: list[T] = []
    total = 0
    for value in values:
        if batch and (total + size(value) > limit or len(batch) == count):
            yield batch
            batch, total = [], 0
        batch.append(value)
        total += size(value)
    if batch:
        yield batch


def _is_pretrained(folder: Path) -> bool:
    """Whether the model predicts tokens, and so has no labels for records."""
    if (folder / labels.FILE).exists() or not (folder / "config.json").exists():
        return False
    model: Mapping[str, Any] = read_config(folder)["model"]
    return model.get("head") == "tokens"


def _lenient(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with `on_bad="unknown"`, if it has this setting."""
    names = {field.name for field in fields(tokenizer)}  # type: ignore[arg-type]  # every tokenizer is a dataclass
    return replace(tokenizer, on_bad="unknown") if "on_bad" in names else tokenizer  # type: ignore[type-var]


def _items(
    entries: Iterable[Entry],
    tokenizer: Tokenizer,
    reject: bool,
    max_tokens: int | None,
    cut: int | None,
    account: Account,
) -> Iterator[Item]:
    """Records as tokens. Records above `max_tokens` are rejected, and with `reject` records with bad letters."""
    for entry in entries:
        try:
            if isinstance(tokenizer, Numbers):
                tokenizer.check_rate(entry.rate)
            tokens = tokenizer.encode(entry.sequence)
        except ValueError as error:
            if not reject:
                raise ValueError(f"{entry.place} ({entry.id}): {error}") from None
            logger.info(f"rejected {entry.place} ({entry.id}): {error}")
            account.reject(entry.id, f"refused by the {tokenizer.name} tokenizer")
            continue
        if max_tokens is not None and len(tokens) > max_tokens:
            account.reject(entry.id, f"longer than this model's max_length={max_tokens:,}")
            continue
        account.use()
        if cut is not None and len(tokens) > cut:
            account.notes[cut_note(cut)] += 1
        yield Item(entry, tokens[:cut])
