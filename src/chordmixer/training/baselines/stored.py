"""A fitted baseline that predicts new sequences, and its file: safetensors with a JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from chordmixer import config
from chordmixer.data.features import CODE_POINTS, MAX_CHANNELS, SeriesFeatures, TextWords, chunks
from chordmixer.tasks.targets import MultiLabel, Regression
from chordmixer.training.baselines.features import SMALLEST, TOKENS, Features, Frequencies, Grams, SeriesRows, TfIdf
from chordmixer.training.baselines.linear import Linear, as_outputs, unweighting
from chordmixer.training.baselines.nonlinear import Kernel, Neighbours, Trees
from chordmixer.training.baselines.positions import ALIGNED, MOST_LETTERS, Positions
from chordmixer.training.labels import RecordTarget

RECORDS = 1024
"""Records whose features are held at a time."""

Arrays = dict[str, ndarray]
SPARSE = ("tfidf", "positions")
"""Features of which trees and kernels make nothing."""
TREES = ("feature", "threshold", "left", "right", "value", "roots", "base", "known")


@dataclass(frozen=True)
class Member:
    """One model on one kind of features."""

    features: Features
    model: Linear | Kernel | Trees | Neighbours

    def scores(self, sequences: Sequence[ndarray], target: RecordTarget) -> ndarray:
        """One row per record, some records at a time."""
        rows = (self.model.scores(self.features(own), target) for own in chunks(sequences, TOKENS, RECORDS))
        return np.concatenate([np.empty((0, target.outputs)), *rows])


@dataclass(frozen=True)
class MemberDocument:
    """What a member's arrays are."""

    features: Literal["frequencies", "tfidf", "positions", "series"]
    model: Literal["linear", "kernel", "trees", "neighbours"]
    k: list[int] = field(default_factory=list)
    letters: int | None = None
    length: bool = False
    words: bool = False
    bits: int = 18
    reach: int = 1
    ends: bool = False
    scale: float = 1.0
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
        if not 1 <= self.reach <= ALIGNED or not 0 < self.scale <= 1:
            raise ValueError(f"reach={self.reach} or scale={self.scale} is out of range")
        if not all(1 <= own <= 1 << 20 for own in self.dilations):
            raise ValueError(f"dilations={self.dilations[:9]} are out of range")


def described(member: Member) -> tuple[MemberDocument, Arrays]:
    """The document and the arrays."""
    features, model, arrays = member.features, member.model, Arrays()
    said: dict[str, Any] = {}
    if isinstance(features, Frequencies | TfIdf):
        said |= {"k": [own.k for own in features.grams], "letters": features.grams[0].letters}
    if isinstance(features, TfIdf):
        said |= {"features": "tfidf", "bits": features.bits, "words": features.words is not None}
        arrays |= {"kept": features.kept, "rarity": features.rarity}
        if features.words is not None and features.words.points is not None:
            arrays["points"] = features.words.points
    if isinstance(features, Positions):
        said |= {"features": "positions", "letters": features.letters, "reach": features.reach}
        said |= {"ends": features.ends, "scale": features.scale}
        arrays["kept"] = features.kept
    if isinstance(features, Frequencies | SeriesRows):
        arrays |= {"mean": features.mean, "spread": features.spread}
    if isinstance(features, Frequencies):
        said |= {"features": "frequencies", "length": features.length}
    if isinstance(features, SeriesRows):
        said |= {"features": "series", "dilations": list(features.raw.dilations), "channels": features.channels}
        arrays["thresholds"] = features.raw.thresholds
        if features.raw.moments is not None:
            arrays["moments"] = features.raw.moments
    if isinstance(model, Linear):
        said["model"] = "linear"
        arrays |= {"weights": model.weights, "offset": model.offset}
    elif isinstance(model, Kernel):
        said |= {"model": "kernel", "width": model.width}
        arrays |= {"centres": model.centres, "heights": model.heights}
    elif isinstance(model, Trees):
        said |= {"model": "trees", "temperature": model.temperature}
        arrays |= {name: getattr(model, name) for name in TREES}
    else:
        said |= {"model": "neighbours", "sharpness": model.sharpness, "temperature": model.temperature}
        arrays |= {"values": model.values, "columns": model.columns, "offsets": model.offsets}
        arrays |= {"answers": model.answers}
    return MemberDocument(**said), arrays


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


def read_member(document: MemberDocument, given: Mapping[str, ndarray], target: RecordTarget) -> Member:
    """From its document and arrays, all of which are checked."""
    arrays = _Checked(given)
    readers = {"tfidf": _tfidf, "frequencies": _frequencies, "positions": _positions, "series": _series}
    features = readers[document.features](document, arrays)
    if document.model == "linear":
        shape = features.width, target.outputs
        return Member(features, Linear(arrays("weights", np.float32, *shape), arrays("offset", np.float32, shape[1])))
    if document.model == "kernel":
        return Member(features, _kernel(document, arrays, features.width, target))
    if document.model == "trees":
        return Member(features, _trees(document, arrays, features.width, target))
    if not isinstance(features, TfIdf):
        raise ValueError(f"neighbours are not found by {document.features}")
    return Member(features, _neighbours(document, arrays, features.width, target))


def _grams(document: MemberDocument) -> tuple[Grams, ...]:
    if not 1 <= len(document.k) <= 8:
        raise ValueError(f"k has {len(document.k)} lengths")
    return tuple(Grams(k, document.letters) for k in document.k)


def _tfidf(document: MemberDocument, arrays: _Checked) -> Features:
    grams, kept = _grams(document), arrays("kept", np.int32, None)
    if len(kept) and (kept.min() < 0 or kept.max() >= len(grams) << document.bits or (np.diff(kept) < 1).any()):
        raise ValueError("kept has numbers out of range")
    rarity, words = arrays("rarity", np.float32, len(kept)), _words(arrays) if document.words else None
    if len(rarity) and not 0 < rarity.min() <= rarity.max() < 100:
        raise ValueError("rarity has numbers out of range")
    return TfIdf(grams, kept, rarity, words, document.bits)


def _words(arrays: _Checked) -> TextWords:
    """Of bytes, unless the file has the code points of characters."""
    if "points" not in arrays.arrays:
        return TextWords()
    points = arrays("points", np.uint32, None)
    if not len(points) or points.max() >= CODE_POINTS:
        raise ValueError("points has numbers out of range")
    return TextWords(points)


def _frequencies(document: MemberDocument, arrays: _Checked) -> Features:
    grams = _grams(document)
    if document.letters is None or any(own.k * np.log2(document.letters) > 24 for own in grams):
        raise ValueError("k or letters are out of range")
    width = sum(document.letters**own.k for own in grams) + document.length
    return Frequencies(grams, document.length, *_moments(arrays, width))


def _positions(document: MemberDocument, arrays: _Checked) -> Features:
    letters, kept = document.letters or MOST_LETTERS, arrays("kept", np.int32, None)
    size = (1 + document.ends) * document.reach * letters
    if len(kept) and (kept.min() < 0 or kept.max() >= size or (np.diff(kept) < 1).any()):
        raise ValueError("kept has numbers out of range")
    return Positions(letters, document.reach, document.ends, kept, document.scale)


def _series(document: MemberDocument, arrays: _Checked) -> Features:
    thresholds = arrays("thresholds", np.float32, None, len(document.dilations), 84, None)
    channels, moments = document.channels, None
    if "moments" in arrays.arrays:
        moments = arrays("moments", np.float32, 2, channels)
        if not (moments[1] > 0).all():
            raise ValueError("moments has numbers out of range")
    views = min(channels, MAX_CHANNELS) * (1 if moments is None else 2)
    if not 1 <= channels <= 1 << 16 or len(thresholds) != views:
        raise ValueError(f"{channels} channels have thresholds of {len(thresholds)}")
    raw = SeriesFeatures(document.dilations, thresholds, moments)
    width = len(raw(np.zeros((1, document.channels))))
    return SeriesRows(raw, document.channels, *_moments(arrays, width))


def _moments(arrays: _Checked, width: int | None) -> tuple[ndarray, ndarray]:
    mean = arrays("mean", np.float32, width)
    spread = arrays("spread", np.float32, len(mean))
    if not (spread > SMALLEST / 2).all():
        raise ValueError("spread has numbers out of range")
    return mean, spread


def _kernel(document: MemberDocument, arrays: _Checked, width: int, target: RecordTarget) -> Kernel:
    if not isinstance(target, Regression) or document.features in SPARSE:
        raise ValueError(f"kernel regression has no {document.features} of {target.outputs} outputs")
    centres = arrays("centres", np.float32, None, width)
    return Kernel(centres, arrays("heights", np.float32, len(centres)), document.width)


def _trees(document: MemberDocument, arrays: _Checked, width: int, target: RecordTarget) -> Trees:
    if isinstance(target, MultiLabel) or document.features in SPARSE:
        raise ValueError(f"trees have no {document.features} of {target.outputs} outputs")
    feature, roots, known = (
        arrays("feature", np.int32, None),
        arrays("roots", np.int32, None, None),
        arrays("known", np.int64, None),
    )
    nodes, number = len(feature), isinstance(target, Regression)
    children = arrays("left", np.int32, nodes), arrays("right", np.int32, nodes)
    own = np.arange(nodes)
    # children behind their parents: no walk is without end
    forward = all((side < nodes).all() and (side >= own).all() for side in children)
    if not forward or ((children[0] == own) != (children[1] == own)).any():
        raise ValueError("left or right has numbers out of range")
    within = (
        nodes
        and roots.size
        and min(feature.min(), roots.min()) >= 0
        and feature.max() < width
        and roots.max() < nodes
    )
    columns = len(known) if len(known) != 2 else 1
    classes = len(known) == 1 if number else len(known) > 1 and known[0] >= 0 and known[-1] < target.outputs
    if not within or not classes or roots.shape[1] != columns or (np.diff(known) < 1).any():
        raise ValueError("feature, roots or known has numbers out of range")
    threshold, value = arrays("threshold", np.float64, nodes), arrays("value", np.float32, nodes)
    base = arrays("base", np.float32, columns)
    return Trees(feature, threshold, *children, value, roots, base, known, document.temperature)


def _neighbours(document: MemberDocument, arrays: _Checked, width: int, target: RecordTarget) -> Neighbours:
    values, offsets = arrays("values", np.float16, None), arrays("offsets", np.int64, None)
    columns = arrays("columns", np.int32, len(values))
    ends = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == len(values) and (np.diff(offsets) >= 0).all()
    if not ends or (len(columns) and (columns.min() < 0 or columns.max() >= width)):
        raise ValueError("offsets or columns have numbers out of range")
    if len(values) and np.abs(values).max() > 1.01:  # rows have length one
        raise ValueError("values has numbers out of range")
    answers = _answers(arrays, len(offsets) - 1, target)
    return Neighbours(values, columns, offsets, answers, width, document.sharpness, document.temperature)


def _answers(arrays: _Checked, records: int, target: RecordTarget) -> ndarray:
    if isinstance(target, Regression):
        return arrays("answers", np.float32, records)
    if isinstance(target, MultiLabel):
        answers, limit = arrays("answers", np.uint8, records, target.outputs), 2
    else:
        answers, limit = arrays("answers", np.int64, records), target.outputs
    if answers.min() < 0 or answers.max() >= limit:
        raise ValueError("answers has numbers out of range")
    return answers


FORMAT = 2


@dataclass(frozen=True)
class FittedBaseline:
    """Answers new sequences: token ids, or series of shape (samples, channels), as a store gives them."""

    target: RecordTarget
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

        documents, arrays = zip(*(described(member) for member in self.members), strict=True)
        document = _BaselineDocument(FORMAT, self.target.outputs, list(documents), list(self.weights), self.shift)
        tensors = {
            f"{i}.{name}": torch.from_numpy(np.array(array, order="C"))
            for i, own in enumerate(arrays)
            for name, array in own.items()
        }
        data: bytes = save(tensors, metadata={"baseline": json.dumps(asdict(document))})
        return data


def load_baseline(path: Path | str, target: RecordTarget) -> FittedBaseline:
    """The baseline that a file holds, checked; anything wrong with it is one line."""
    tensors, metadata = _read(Path(path))
    try:
        document = config.from_dict(_BaselineDocument, json.loads(metadata.get("baseline", "null")), "baseline")
        if document.outputs != target.outputs:
            raise ValueError(f"it has {document.outputs} outputs, where {target.outputs} are asked for")
        members = []
        for i, own in enumerate(document.members):
            prefix = f"{i}."
            arrays = {name.removeprefix(prefix): a for name, a in tensors.items() if name.startswith(prefix)}
            members.append(read_member(own, arrays, target))
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


@dataclass(frozen=True)
class _BaselineDocument:
    format: int
    outputs: int
    members: list[MemberDocument]
    weights: list[float]
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not {FORMAT}")
        if not self.members or len(self.members) != len(self.weights):
            raise ValueError(f"{len(self.members)} members have {len(self.weights)} weights")
