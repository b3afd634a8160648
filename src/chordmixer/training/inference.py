"""The inference engine: records become tokens, windows, batches, and outputs in the records' order.

Predictions, embeddings, evaluations, explanations, variants and Python all use it. Windows depend on the input alone,
and batches on their window, so that a record's outputs do not depend on where an interrupted run was resumed.
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
from chordmixer.data.tokenizers import Tokenizer
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
"""Most tokens of a batch by default; a longer record is a batch of its own."""
BATCHES = 4
"""Batches of a window: more of them make lengths in a batch more alike, and cost more work after a kill."""
MOST_RECORDS = 1 << 14
"""Most records of a window."""


class Item(NamedTuple):
    """A record of the input and its tokens."""

    entry: Entry
    tokens: ndarray


class Piece(NamedTuple):
    """A whole record of a window, or a part of one that is too long for the model."""

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
        """`using` selects the network, the baseline or both in place of the run's own choice."""
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
        """Tokens at which records are cut, as in training; None: never."""
        self.separator = str(data.get("separator", ";")) or ";"
        """Between the labels of a record that has several."""
        self.half = self.config.get("training", {}).get("precision") == "bf16"
        self.half &= self.device.type == "cuda" or native_bf16()
        self._check_parts()
        self.combined: CombinedModel | None = None
        self._load(using, unverified)

    def _check_kind(self) -> None:
        ensemble.refuse(self.folder, "this command")

    def _load(self, using: Using | None, unverified: bool) -> None:
        """Load the models, so that errors come before a record is read."""
        if self._labels is not None:
            self.combined = combination.load_combination(self.folder, self._labels.target, self.complement, using)
        if self.network:
            self.model  # noqa: B018

    @cached_property
    def model(self) -> Model:
        """The network; not loaded where the baseline predicts alone."""
        model = Model.from_pretrained(str(self.folder), device=self.device.type)
        speed.choose_inference_threads(model)
        return model

    @property
    def network(self) -> bool:
        """Whether outputs need the network."""
        return self.combined is None or self.combined.network

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        return int(self.model.encoder.width)  # type: ignore[arg-type]  # every encoder has one

    @property
    def members(self) -> Sequence[Engine]:
        """The members of an ensemble, or the run itself."""
        return [self]

    def _check_parts(self) -> None:
        """Refuse a folder whose files are of different runs."""
        config, size = self.model_config, self.tokenizer.size
        if self._labels is None:  # one id more than letters, for those that are masked
            fits = (config.inputs, config.outputs) == (size + 1, size)
        else:
            found = (config.inputs, config.outputs, self.tokenizer.name)
            fits = found == (size, self.labels.target.outputs, self.labels.tokenizer) and config.head != "tokens"
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
        """What the outputs mean."""
        if self._labels is None:
            run = shlex.quote(str(self.folder))
            raise ValueError(
                f"{self.folder} was pre-trained: it finds masked tokens and has no answers about records; embed "
                f"takes it, or train it further: chordmixer train LABELLED_FILES --from {run} --out RUN"
            )
        return self._labels

    @property
    def pretrained(self) -> bool:
        """Whether it embeds records, but does not predict anything of them."""
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
        """A hash of all that outputs depend on."""
        whole = hashlib.sha256()
        combined = [] if self.combined is None else [combination.FILE, combination.BASELINE]
        for name in ("config.json", "model.safetensors", *reversed(self.documents), *combined):
            whole.update(hashlib.sha256((self.folder / name).read_bytes()).digest())
        whole.update(b"" if self.combined is None else self.combined.using.encode())
        return whole.hexdigest()

    def windows(
        self,
        entries: Iterable[Entry],
        account: Account,
        on_bad: OnBad | None,
        over_length: OverLength = "error",
    ) -> Iterator[list[Item]]:
        """The records as tokens, some at a time, so that memory is bounded.

        A run that was trained on cut records cuts them in the same way, and counts them in the account. With
        `over_length="reject"` records above the model's max_length are left out; else see `pieces`.
        """
        tokenizer = _lenient(self.tokenizer) if on_bad == "unknown" else self.tokenizer
        cut_to_fit = self.cut is not None and self.cut <= self.max_length
        most = self.max_length if over_length == "reject" and not cut_to_fit and self.network else None
        items = _items(entries, tokenizer, on_bad == "reject", most, self.cut, account)
        size = BATCHES * self.batch_tokens
        for window in batched(items, lambda item: len(item.tokens), size, MOST_RECORDS):
            account.notes.update(tokenizer.notes(tokenizer.census([item.entry.sequence for item in window])))
            yield window

    def pieces(self, window: Sequence[Item], over_length: OverLength) -> list[Piece]:
        """Each record whole; one that is too long is an error, or parts of `max_length` that overlap by half."""
        found = []
        for number, (entry, tokens) in enumerate(window):
            whole, most = len(tokens), self.max_length if self.network else len(tokens)
            if whole > most and over_length == "error":
                raise ValueError(
                    f"{entry.place} ({entry.id}) has {whole:,} tokens, above this model's max_length={most:,}: no "
                    "record is cut unasked; add --over-length windows or --over-length reject, or train with a "
                    "larger max_length"
                )
            step = max(1, most // 2)
            starts = range(0, whole - most + step, step) if whole > most else (0,)
            found += [Piece(number, start, min(start + most, whole)) for start in starts]
        return found

    def batches(self, window: Sequence[Item], pieces: Sequence[Piece]) -> Iterator[tuple[list[Piece], Packed]]:
        """Pieces of about the same length together, under the token budget."""
        by_length = sorted(pieces, key=lambda piece: piece.length, reverse=True)
        for batch in batched(by_length, lambda piece: piece.length, self.batch_tokens):
            parts = [window[piece.record].tokens[piece.start : piece.stop] for piece in batch]
            yield batch, self.packed(parts)

    def packed(self, sequences: Sequence[ndarray]) -> Packed:
        """Sequences of tokens on the device."""
        values = np.concatenate(sequences)
        values = values if values.dtype.kind == "f" else values.astype(np.int32)
        return Packed.from_lengths(torch.from_numpy(values), [len(own) for own in sequences]).to(self.device)

    def averages(
        self, window: Sequence[Item], pieces: Sequence[Piece], forward: Callable[[Packed], Tensor], width: int
    ) -> ndarray:
        """One row per record, (records, width): of several pieces their mean, weighted by length."""
        sums, weights = np.zeros((len(window), width)), np.zeros((len(window), 1))
        for batch, packed in self.batches(window, pieces):
            with self.computing(packed, window[batch[0].record].entry):
                rows = self._over_strands(forward, packed).double().cpu().numpy()
            records, lengths = [piece.record for piece in batch], np.array([[piece.length] for piece in batch])
            np.add.at(sums, records, rows * lengths)
            np.add.at(weights, records, lengths)
        return finite(sums / weights, [item.entry for item in window])

    def outputs(self, window: Sequence[Item], pieces: Sequence[Piece]) -> ndarray:
        """What the run delivers for each record, in the layout of the network's head."""
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
        """Without gradients, in the precision of the training. Too little memory is an error of one line."""
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
        """Members are loaded later."""

    def _load(self, using: Using | None, unverified: bool) -> None:
        known = ensemble.finished(self.folder)
        assert known is not None, "the folder has an ensemble.json"
        self._members: list[Engine] = []
        for folder in (ensemble.folder_of(self.folder, k) for k in range(known.size)):
            member = Engine(folder, self.device.type, self.batch_tokens, using=using, unverified=unverified)
            if _meaning(member) != _meaning(self):
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
        whole = hashlib.sha256()
        for name in (*reversed(self.documents), ensemble.FILE):
            whole.update(hashlib.sha256((self.folder / name).read_bytes()).digest())
        for member in self.members:
            whole.update(member.digest.encode())
        return whole.hexdigest()

    def outputs(self, window: Sequence[Item], pieces: Sequence[Piece]) -> ndarray:
        rows = [(member.labels.target, member.outputs(window, pieces)) for member in self.members]
        return ensemble.mean(self.labels.target, rows)


def _meaning(run: Engine) -> tuple[object, ...]:
    """What the members of an ensemble share."""
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
    """Load a run folder, of one network or of an ensemble."""
    kind = EnsembleEngine if (Path(run) / ensemble.FILE).exists() else Engine
    return kind(run, device, batch_tokens, using=using, unverified=unverified)


def check_choice(name: str, value: Any, options: Sequence[Any]) -> None:
    """Refuse a value that is not an option; the message names the option of the command line."""
    if value not in options:
        option = f"--{name.replace('_', '-')}"
        raise ValueError(f"{option} {value} is not a choice: give one of {', '.join(filter(None, options))}")


def finite(rows: ndarray, entries: Sequence[Entry]) -> ndarray:
    """The rows, unless one is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        entry = entries[bad[0]]
        raise ValueError(
            f"{entry.place} ({entry.id}): the model's answer is NaN or infinite: look for numbers of a size that "
            "training never saw, or train again"
        )
    return rows


def batched(things: Iterable[T], size: Callable[[T], int], most: int, count: float = np.inf) -> Iterator[list[T]]:
    """Things in their order, up to `count` together while the sum of their sizes is at most `most`.

    >>> list(batched([3, 4, 9, 1], lambda n: n, 7))
    [[3, 4], [9], [1]]
    """
    batch: list[T] = []
    total = 0
    for thing in things:
        if batch and (total + size(thing) > most or len(batch) == count):
            yield batch
            batch, total = [], 0
        batch.append(thing)
        total += size(thing)
    if batch:
        yield batch


def _is_pretrained(folder: Path) -> bool:
    """Whether the model predicts tokens: it has no labels for records."""
    if (folder / labels.FILE).exists() or not (folder / "config.json").exists():
        return False
    model: Mapping[str, Any] = read_config(folder)["model"]
    return model.get("head") == "tokens"


def _lenient(tokenizer: Tokenizer) -> Tokenizer:
    """With bad characters read as unknown; some tokenizers know no bad ones."""
    names = {field.name for field in fields(tokenizer)}  # type: ignore[arg-type]  # every tokenizer is a dataclass
    return replace(tokenizer, on_bad="unknown") if "on_bad" in names else tokenizer  # type: ignore[type-var]


def _items(
    entries: Iterable[Entry],
    tokenizer: Tokenizer,
    reject: bool,
    most: int | None,
    cut: int | None,
    account: Account,
) -> Iterator[Item]:
    """Records as tokens; those of more than `most` tokens are rejected, and with `reject` those with bad letters."""
    for entry in entries:
        try:
            tokens = tokenizer.encode(entry.sequence)
        except ValueError as error:
            if not reject:
                raise ValueError(f"{entry.place} ({entry.id}): {error}") from None
            logger.info(f"rejected {entry.place} ({entry.id}): {error}")
            account.reject(entry.id, f"refused by the {tokenizer.name} tokenizer")
            continue
        if most is not None and len(tokens) > most:
            account.reject(entry.id, f"longer than this model's max_length={most:,}")
            continue
        account.use()
        if cut is not None and len(tokens) > cut:
            account.notes[cut_note(cut)] += 1
        yield Item(entry, tokens[:cut])
