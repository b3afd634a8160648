"""A trained run at work on files: records become tokens, windows, batches, and answers in the records' order.

Windows are a function of the input alone, and batches of their window, so that a record's answer does not depend on
where an interrupted run was taken up again.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from chordmixer.training import answers, delivery, ensemble, run_folder, speed
from chordmixer.training.answers import Answers
from chordmixer.training.combination import Using
from chordmixer.training.delivery import Delivery
from chordmixer.training.strands import both_strands

OnBad = Literal["error", "unknown", "reject"]
OverLength = Literal["error", "windows", "reject"]

BATCH_TOKENS = {"cpu": 1 << 16, "cuda": 1 << 19}
"""Of a batch where none were asked for; a longer record is a batch of its own."""
BATCHES = 4
"""In a window: the more, the more alike the lengths in a batch, and the more work a kill may cost."""
MOST_RECORDS = 1 << 14
"""In a window."""


class Item(NamedTuple):
    """A record of the input and its tokens."""

    entry: Entry
    tokens: ndarray


class Piece(NamedTuple):
    """All of a record of a window, or a part of one that is too long for the model."""

    record: int
    start: int
    stop: int


class Trained:
    """A run folder, loaded for use: its model, tokenizer and labels."""

    def __init__(
        self,
        run: Path | str,
        device: str | None = None,
        batch_tokens: int | None = None,
        *,
        using: Using | None = None,
        unverified: bool = False,
    ) -> None:
        """`using` asks for other answers than the run delivers: those of its network, its baseline, or both."""
        self.folder = Path(run)
        run_folder.check(self.folder, unverified=unverified)
        self._check_kind()
        if batch_tokens is not None and batch_tokens < 1:
            raise ValueError(f"--batch-tokens {batch_tokens} is too small: give 1 or more")
        self.device = _device(device)
        self._answers = None if _is_pretrained(self.folder) else Answers.load(self.folder)
        self.documents = [tokenizers.FILE] if self._answers is None else [answers.FILE, tokenizers.FILE]
        self.tokenizer = tokenizers.load_tokenizer(self.folder)
        self.config = read_config(self.folder)
        self.model_config = from_dict(ModelConfig, self.config["model"], f"{self.folder / 'config.json'}: model")
        self.max_length = self.model_config.network.max_length
        self.batch_tokens = batch_tokens or BATCH_TOKENS[self.device.type]
        self.cut: int | None = (self.config.get("data") or {}).get("cut")
        """Tokens at which records are cut, as they were in training; None: never."""
        self.separator = str((self.config.get("data") or {}).get("separator", ";")) or ";"
        """What stands between the labels of a record that has several."""
        self.half = self.config.get("training", {}).get("precision") == "bf16"
        self._check_parts()
        self.delivery: Delivery | None = None
        self._load(using, unverified)

    def _check_kind(self) -> None:
        ensemble.refuse(self.folder, "this command")

    def _load(self, using: Using | None, unverified: bool) -> None:
        """What answers: anything wrong with it is said before a record is read."""
        if self._answers is not None:
            complement = self.tokenizer.complement if self.both_strands else None
            self.delivery = delivery.load(self.folder, self._answers.target, complement, using)
        if self.network:
            self.model  # noqa: B018

    @cached_property
    def model(self) -> Model:
        """The network; a baseline that answers alone needs none."""
        model = Model.from_pretrained(str(self.folder), device=self.device.type)
        speed.choose_inference_threads(model)
        return model

    @property
    def network(self) -> bool:
        """Whether answers need the network."""
        return self.delivery is None or self.delivery.network

    def _check_parts(self) -> None:
        """The files of a folder may be of different runs."""
        config, size = self.model_config, self.tokenizer.size
        if self._answers is None:  # one id more than letters, for those that are masked
            fits = (config.inputs, config.outputs) == (size + 1, size)
        else:
            found = (config.inputs, config.outputs, self.tokenizer.name)
            fits = found == (size, self.answers.target.outputs, self.answers.tokenizer) and config.head != "tokens"
        if not fits:
            raise ValueError(
                f"{self.folder}: the model, {' and '.join(reversed(self.documents))} do not fit each other: use the "
                "files of one run"
            )
        if self.cut is not None and (not isinstance(self.cut, int) or self.cut < 1):
            raise ValueError(f"{self.folder}: data.cut={self.cut!r} is not a number of tokens: use another copy")
        if self.both_strands and self.tokenizer.complement is None:
            raise ValueError(f"{self.folder / answers.FILE} asks for both strands, and {self.tokenizer.name} has one")

    @property
    def answers(self) -> Answers:
        """What the outputs mean."""
        if self._answers is None:
            run = shlex.quote(str(self.folder))
            raise ValueError(
                f"{self.folder} was pre-trained: it finds masked tokens and has no answers about records; embed "
                f"takes it, or train it further: chordmixer train LABELLED_FILES --from {run} --out RUN"
            )
        return self._answers

    @property
    def pretrained(self) -> bool:
        """Whether it has vectors for records, and no answers about them."""
        return self._answers is None

    @property
    def both_strands(self) -> bool:
        """Whether an answer, or an embedding, is the mean over both."""
        return self._answers is not None and self._answers.both_strands

    @property
    def digest(self) -> str:
        """Of all that its answers depend on."""
        whole = hashlib.sha256()
        delivered = [] if self.delivery is None else [delivery.FILE, delivery.BASELINE]
        for name in ("config.json", "model.safetensors", *reversed(self.documents), *delivered):
            whole.update(hashlib.sha256((self.folder / name).read_bytes()).digest())
        whole.update(b"" if self.delivery is None else self.delivery.using.encode())
        return whole.hexdigest()

    def windows(
        self,
        entries: Iterable[Entry],
        account: Account,
        on_bad: OnBad | None,
        say: Callable[[str], None],
        over_length: OverLength = "error",
    ) -> Iterator[list[Item]]:
        """The records as tokens, so many at a time that the memory they take has a bound.

        Those of a run that was trained on cut records are cut in the same way, and counted in the account. With
        `over_length="reject"` records above the model's max_length are left out; else see `pieces`.
        """
        tokenizer = _lenient(self.tokenizer) if on_bad == "unknown" else self.tokenizer
        window: list[Item] = []
        total = 0
        cut_to_fit = self.cut is not None and self.cut <= self.max_length
        most = self.max_length if over_length == "reject" and not cut_to_fit and self.network else None
        items = _items(entries, tokenizer, on_bad == "reject", most, account, say)
        for item in items if self.cut is None else _cut(items, self.cut, account):
            if window and (total + len(item.tokens) > BATCHES * self.batch_tokens or len(window) == MOST_RECORDS):
                yield _noted(window, tokenizer, account)
                window, total = [], 0
            window.append(item)
            total += len(item.tokens)
        if window:
            yield _noted(window, tokenizer, account)

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
        for batch in _batched(sorted(pieces, key=_length, reverse=True), self.batch_tokens):
            parts = [window[piece.record].tokens[piece.start : piece.stop] for piece in batch]
            values = np.concatenate(parts)
            values = values if values.dtype.kind == "f" else values.astype(np.int32)
            packed = Packed.from_lengths(torch.from_numpy(values), [len(part) for part in parts])
            yield batch, packed.to(self.device)

    def averages(
        self, window: Sequence[Item], pieces: Sequence[Piece], answer: Callable[[Packed], Tensor], width: int
    ) -> ndarray:
        """A row a record, (records, width): of several pieces the mean of theirs, weighted by their lengths."""
        sums, weights = np.zeros((len(window), width)), np.zeros((len(window), 1))
        for batch, packed in self.batches(window, pieces):
            with self.computing(packed, window[batch[0].record].entry):
                rows = self._of_strands(answer, packed).double().cpu().numpy()
            records, lengths = [piece.record for piece in batch], np.array([[_length(piece)] for piece in batch])
            np.add.at(sums, records, rows * lengths)
            np.add.at(weights, records, lengths)
        rows = sums / weights
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            entry = window[bad[0]].entry
            raise ValueError(
                f"{entry.place} ({entry.id}): the model's answer is NaN or infinite: look for numbers of a size that "
                "training never saw, or train again"
            )
        return rows

    def outputs(self, window: Sequence[Item], pieces: Sequence[Piece]) -> ndarray:
        """Of each record what the run delivers, in the layout of the network's head."""
        rows = self.averages(window, pieces, self.model, self.model_config.outputs) if self.network else None
        if self.delivery is None:
            assert rows is not None, "without a baseline the network answers"
            return rows
        return self.delivery.outputs(rows, [item.tokens for item in window])

    def _of_strands(self, answer: Callable[[Packed], Tensor], packed: Packed) -> Tensor:
        if not self.both_strands:
            return answer(packed)
        assert self.tokenizer.complement is not None
        complement = torch.from_numpy(self.tokenizer.complement.astype(np.int32))
        return both_strands(answer, packed, complement.to(self.device))

    @contextmanager
    def computing(self, packed: Packed, longest: Entry) -> Iterator[None]:
        """Without gradients; on a GPU in the precision of the training. What does not fit is one line."""
        half = self.half and self.device.type == "cuda"
        try:
            with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                yield
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            raise ValueError(
                f"{packed.tokens:,} tokens at once do not fit into the memory of {self.device}, the longest record "
                f"is {longest.id} of {max(packed.lengths):,}: lower --batch-tokens, now {self.batch_tokens:,}, or "
                "use a device with more"
            ) from None


def check_choice(name: str, value: Any, options: Sequence[Any]) -> None:
    """Refuse what is not one of several words; the message names the option of the command line."""
    if value not in options:
        option = f"--{name.replace('_', '-')}"
        raise ValueError(f"{option} {value} is not a choice: give one of {', '.join(filter(None, options))}")


def _device(name: str | None) -> torch.device:
    check_choice("device", name, (None, "auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no GPU: use --device auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _is_pretrained(folder: Path) -> bool:
    """A model that answers for tokens has no labels for its outputs."""
    if (folder / answers.FILE).exists() or not (folder / "config.json").exists():
        return False
    model: Mapping[str, Any] = read_config(folder)["model"]
    return model.get("head") == "tokens"


def _lenient(tokenizer: Tokenizer) -> Tokenizer:
    """With bad characters taken as unknown; some tokenizers know no bad ones."""
    names = {field.name for field in fields(tokenizer)}  # type: ignore[arg-type]  # every tokenizer is a dataclass
    return replace(tokenizer, on_bad="unknown") if "on_bad" in names else tokenizer  # type: ignore[type-var]


def _items(
    entries: Iterable[Entry],
    tokenizer: Tokenizer,
    reject: bool,
    most: int | None,
    account: Account,
    say: Callable[[str], None],
) -> Iterator[Item]:
    """Records as tokens; those of more than `most` tokens are rejected, and with `reject` those without tokens."""
    for entry in entries:
        try:
            tokens = tokenizer.encode(entry.sequence)
        except ValueError as error:
            if not reject:
                raise ValueError(f"{entry.place} ({entry.id}): {error}") from None
            say(f"rejected {entry.place} ({entry.id}): {error}")
            account.reject(entry.id, f"refused by the {tokenizer.name} tokenizer")
            continue
        if most is not None and len(tokens) > most:
            account.reject(entry.id, f"longer than this model's max_length={most:,}")
            continue
        account.use()
        yield Item(entry, tokens)


def _cut(items: Iterable[Item], most: int, account: Account) -> Iterator[Item]:
    for item in items:
        if len(item.tokens) > most:
            account.notes[cut_note(most)] += 1
        yield Item(item.entry, item.tokens[:most])


def _noted(window: list[Item], tokenizer: Tokenizer, account: Account) -> list[Item]:
    """The same, once what is unusual in it stands in the account."""
    account.notes.update(tokenizer.notes(tokenizer.census([item.entry.sequence for item in window])))
    return window


def _length(piece: Piece) -> int:
    return piece.stop - piece.start


def _batched(pieces: Iterable[Piece], tokens: int) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    total = 0
    for piece in pieces:
        if batch and total + _length(piece) > tokens:
            yield batch
            batch, total = [], 0
        batch.append(piece)
        total += _length(piece)
    if batch:
        yield batch
