"""A fitted baseline that answers new sequences, and the file that it is kept in: safetensors with a JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from chordmixer import config
from chordmixer.data.kmers import chunks
from chordmixer.data.series_features import MOST_CHANNELS, SeriesFeatures
from chordmixer.data.text_words import POINTS, TextWords
from chordmixer.tasks.targets import MultiLabel, Regression
from chordmixer.training.baselines import counting
from chordmixer.training.baselines.counting import Grams, TfIdf
from chordmixer.training.baselines.features import Features, Frequencies, SeriesRows
from chordmixer.training.baselines.kernel import Kernel
from chordmixer.training.baselines.linear import AnyTarget, Linear, as_outputs, unweighting
from chordmixer.training.baselines.neighbours import Neighbours

FORMAT = 1
RECORDS = 1024
"""Records whose features are held at a time."""

Arrays = dict[str, ndarray]


@dataclass(frozen=True)
class Member:
    """One model on one kind of features."""

    features: Features
    model: Linear | Kernel | Neighbours

    def scores(self, sequences: Sequence[ndarray], target: AnyTarget) -> ndarray:
        """One row per record, some records at a time."""
        rows = (self.model.scores(self.features(own), target) for own in chunks(sequences, counting.TOKENS, RECORDS))
        return np.concatenate([np.empty((0, target.outputs)), *rows])


@dataclass(frozen=True)
class FittedBaseline:
    """Answers new sequences: token ids, or series of shape (samples, channels), as a store gives them."""

    target: AnyTarget
    members: tuple[Member, ...]
    weights: tuple[float, ...] = (1.0,)
    """Of the log-odds, or numbers, of each member."""
    shift: float = 0.0
    """Added to a number."""

    def outputs(self, sequences: Sequence[ndarray]) -> ndarray:
        """One row per record, float32, in the model's layout; the same whatever other records are asked with it."""
        return self.combined([member.scores(sequences, self.target) for member in self.members])

    def combined(self, scores: Sequence[ndarray]) -> ndarray:
        """The outputs from the scores of each member."""
        if len(scores) == 1:
            return as_outputs(scores[0], self.target)
        extra = unweighting(self.target)
        outputs = [as_outputs(own, self.target).astype(np.float64) + extra for own in scores]
        total = sum(weight * own for weight, own in zip(self.weights, outputs, strict=True))
        total = np.asarray(total) + self.shift - extra
        first = self.members[0].model
        certain = first.certain if isinstance(first, Linear) else False
        return as_outputs(np.where(certain, scores[0], total), self.target)

    def packed(self) -> bytes:
        """The file's bytes; the same baseline gives the same bytes."""
        import torch
        from safetensors.torch import save

        described, arrays = zip(*(_described(member) for member in self.members), strict=True)
        document = _Document(FORMAT, self.target.outputs, list(described), list(self.weights), self.shift)
        tensors = {
            f"{i}.{name}": torch.from_numpy(np.array(array, order="C"))
            for i, own in enumerate(arrays)
            for name, array in own.items()
        }
        data: bytes = save(tensors, metadata={"baseline": json.dumps(asdict(document))})
        return data


def load(path: Path | str, target: AnyTarget) -> FittedBaseline:
    """The baseline that a file holds, checked; anything wrong with it is one line."""
    tensors, metadata = _read(Path(path))
    try:
        document = config.from_dict(_Document, json.loads(metadata.get("baseline", "null")), "baseline")
        if document.outputs != target.outputs:
            raise ValueError(f"it has {document.outputs} outputs, where {target.outputs} are asked for")
        members = []
        for i, own in enumerate(document.members):
            prefix = f"{i}."
            arrays = {name.removeprefix(prefix): a for name, a in tensors.items() if name.startswith(prefix)}
            members.append(_member(own, _Checked(arrays), target))
        return FittedBaseline(target, tuple(members), tuple(document.weights), document.shift)
    except (ValueError, RecursionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is no baseline that can be used ({reason}): use another copy") from None


def _read(path: Path) -> tuple[Arrays, dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is not a safetensors file ({reason}): use another copy") from None


# --- The document ---


@dataclass(frozen=True)
class _MemberDocument:
    features: Literal["frequencies", "tfidf", "series"]
    model: Literal["linear", "kernel", "neighbours"]
    k: list[int] = field(default_factory=list)
    letters: int | None = None
    length: bool = False
    words: bool = False
    bits: int = 18
    dilations: list[int] = field(default_factory=list)
    channels: int = 0
    width: float = 0.0
    sharpness: float = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.width <= 1000 or not 0 <= self.sharpness <= 1000 or not 1e-9 < self.temperature < 1e9:
            raise ValueError("width, sharpness or temperature is out of range")
        if not 1 <= self.bits <= 24:
            raise ValueError(f"bits={self.bits} is out of range")
        if self.letters is not None and not 1 <= self.letters <= 1 << 16:
            raise ValueError(f"letters={self.letters} is out of range")
        if not all(1 <= own <= 1 << 20 for own in self.dilations):
            raise ValueError(f"dilations={self.dilations[:9]} are out of range")


@dataclass(frozen=True)
class _Document:
    format: int
    outputs: int
    members: list[_MemberDocument]
    weights: list[float]
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not {FORMAT}")
        if not self.members or len(self.members) != len(self.weights):
            raise ValueError(f"{len(self.members)} members have {len(self.weights)} weights")


def _described(member: Member) -> tuple[_MemberDocument, Arrays]:
    features, model, arrays = member.features, member.model, Arrays()
    said: dict[str, Any] = {}
    if isinstance(features, Frequencies | TfIdf):
        said |= {"k": [own.k for own in features.grams], "letters": features.grams[0].letters}
    if isinstance(features, TfIdf):
        said |= {"features": "tfidf", "bits": features.bits, "words": features.words is not None}
        arrays |= {"kept": features.kept, "rarity": features.rarity}
        if features.words is not None and features.words.points is not None:
            arrays["points"] = features.words.points
    if isinstance(features, Frequencies | SeriesRows):
        arrays |= {"mean": features.mean, "spread": features.spread}
    if isinstance(features, Frequencies):
        said |= {"features": "frequencies", "length": features.length}
    if isinstance(features, SeriesRows):
        said |= {"features": "series", "dilations": list(features.raw.dilations), "channels": features.channels}
        arrays["thresholds"] = features.raw.thresholds
    if isinstance(model, Linear):
        said["model"] = "linear"
        arrays |= {"weights": model.weights, "offset": model.offset}
    elif isinstance(model, Kernel):
        said |= {"model": "kernel", "width": model.width}
        arrays |= {"centres": model.centres, "heights": model.heights}
    else:
        said |= {"model": "neighbours", "sharpness": model.sharpness, "temperature": model.temperature}
        arrays |= {"values": model.values, "columns": model.columns, "offsets": model.offsets}
        arrays |= {"answers": model.answers}
    return _MemberDocument(**said), arrays


# --- Reading it ---


class _Checked:
    """Arrays of a file, each of the shape and type that it has to have."""

    def __init__(self, arrays: Mapping[str, ndarray]) -> None:
        self.arrays = arrays

    def __call__(self, name: str, kind: Any, *shape: int | None) -> ndarray:
        if name not in self.arrays:
            raise ValueError(f"{name} is missing")
        own = self.arrays[name]
        fits = own.ndim == len(shape) and all(b in (None, a) for a, b in zip(own.shape, shape, strict=True))
        if own.dtype != kind or not fits:
            raise ValueError(f"{name} has type {own.dtype} and shape {own.shape}")
        if own.dtype.kind == "f" and not np.isfinite(own).all():
            raise ValueError(f"{name} has numbers that are not finite")
        return own


def _member(document: _MemberDocument, arrays: _Checked, target: AnyTarget) -> Member:
    features = {"tfidf": _tfidf, "frequencies": _frequencies, "series": _series}[document.features](document, arrays)
    if document.model == "linear":
        shape = features.width, target.outputs
        return Member(features, Linear(arrays("weights", np.float32, *shape), arrays("offset", np.float32, shape[1])))
    if document.model == "kernel":
        return Member(features, _kernel(document, arrays, features.width, target))
    if not isinstance(features, TfIdf):
        raise ValueError(f"neighbours are not found by {document.features}")
    return Member(features, _neighbours(document, arrays, features.width, target))


def _grams(document: _MemberDocument) -> tuple[Grams, ...]:
    if not 1 <= len(document.k) <= 8:
        raise ValueError(f"k has {len(document.k)} lengths")
    return tuple(Grams(k, document.letters) for k in document.k)


def _tfidf(document: _MemberDocument, arrays: _Checked) -> Features:
    grams, kept = _grams(document), arrays("kept", np.int32, None)
    if len(kept) and (kept.min() < 0 or kept.max() >= len(grams) << document.bits or (np.diff(kept) < 1).any()):
        raise ValueError("kept has numbers out of range")
    words = _words(arrays) if document.words else None
    return TfIdf(grams, kept, arrays("rarity", np.float32, len(kept)), words, document.bits)


def _words(arrays: _Checked) -> TextWords:
    """Of bytes, unless the file has the code points of characters."""
    if "points" not in arrays.arrays:
        return TextWords()
    points = arrays("points", np.uint32, None)
    if not len(points) or points.max() >= POINTS:
        raise ValueError("points has numbers out of range")
    return TextWords(points)


def _frequencies(document: _MemberDocument, arrays: _Checked) -> Features:
    grams = _grams(document)
    if document.letters is None or any(own.k * np.log2(document.letters) > 24 for own in grams):
        raise ValueError("k or letters are out of range")
    width = sum(document.letters**own.k for own in grams) + document.length
    return Frequencies(grams, document.length, *_moments(arrays, width))


def _series(document: _MemberDocument, arrays: _Checked) -> Features:
    thresholds = arrays("thresholds", np.float32, None, len(document.dilations), 84, None)
    if not 1 <= document.channels <= 1 << 16 or len(thresholds) != min(document.channels, MOST_CHANNELS):
        raise ValueError(f"{document.channels} channels have thresholds of {len(thresholds)}")
    raw = SeriesFeatures(document.dilations, thresholds)
    width = len(raw(np.zeros((1, document.channels))))
    return SeriesRows(raw, document.channels, *_moments(arrays, width))


def _moments(arrays: _Checked, width: int | None) -> tuple[ndarray, ndarray]:
    mean = arrays("mean", np.float32, width)
    spread = arrays("spread", np.float32, len(mean))
    if not (spread > 0).all():
        raise ValueError("spread has numbers that are not above 0")
    return mean, spread


def _kernel(document: _MemberDocument, arrays: _Checked, width: int, target: AnyTarget) -> Kernel:
    if not isinstance(target, Regression) or document.features == "tfidf":
        raise ValueError(f"kernel regression has no {document.features} of {target.outputs} outputs")
    centres = arrays("centres", np.float32, None, width)
    return Kernel(centres, arrays("heights", np.float32, len(centres)), document.width)


def _neighbours(document: _MemberDocument, arrays: _Checked, width: int, target: AnyTarget) -> Neighbours:
    values, offsets = arrays("values", np.float16, None), arrays("offsets", np.int64, None)
    columns = arrays("columns", np.int32, len(values))
    ends = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == len(values) and (np.diff(offsets) >= 0).all()
    if not ends or (len(columns) and (columns.min() < 0 or columns.max() >= width)):
        raise ValueError("offsets or columns have numbers out of range")
    answers = _answers(arrays, len(offsets) - 1, target)
    return Neighbours(values, columns, offsets, answers, width, document.sharpness, document.temperature)


def _answers(arrays: _Checked, records: int, target: AnyTarget) -> ndarray:
    if isinstance(target, Regression):
        return arrays("answers", np.float32, records)
    if isinstance(target, MultiLabel):
        answers, limit = arrays("answers", np.uint8, records, target.outputs), 2
    else:
        answers, limit = arrays("answers", np.int64, records), target.outputs
    if answers.min() < 0 or answers.max() >= limit:
        raise ValueError("answers has numbers out of range")
    return answers
