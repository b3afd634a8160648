"""A fitted baseline that answers new sequences, and the file that it is kept in: safetensors with a JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from chordmixer import config
from chordmixer.training.baselines.linear import AnyTarget, Linear, as_outputs, unweighting
from chordmixer.training.baselines.member_document import Arrays, Member, MemberDocument, described, read_member

FORMAT = 1


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

        documents, arrays = zip(*(described(member) for member in self.members), strict=True)
        document = _Document(FORMAT, self.target.outputs, list(documents), list(self.weights), self.shift)
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
class _Document:
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
