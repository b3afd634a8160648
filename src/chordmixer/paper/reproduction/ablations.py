"""The paper's ablations (section 4.4, and its appendices on more results and on padding).

They separate the effect of the encoder from that of the parts around it. Each encoder is trained in several versions,
which differ in the head and in how sequences are padded or cut. An example of a version's name is `poolformer-flat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from chordmixer.models import ChordMixerConfig
from chordmixer.models.strategies import STRATEGIES
from chordmixer.paper.fragments import FragmentsConfig
from chordmixer.paper.recipes import documents, fragments, taxonomy
from chordmixer.paper.reproduction.entries import Figure, RunEntry
from chordmixer.recipes.batches import BATCH_TOKENS
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import Experiment, TrainingConfig


@dataclass(frozen=True)
class Study:
    """Versions of encoders that are trained on the same data."""

    versions: Mapping[str, Mapping[str, Any]]  # settings of the model; the version without a name is the recipe's
    in_paper: Mapping[str, tuple[str, ...]]  # versions in the paper, by encoder
    others: tuple[str, ...]  # versions of all other encoders
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # sizes in the paper, if not the defaults

    def experiments(self, experiment: Experiment, version: str = "") -> dict[str, Experiment]:
        """The versions in the paper of an experiment's encoder, or the given version, by full name."""
        encoder = experiment.model.encoder
        if version and version not in self.versions:
            raise ValueError(
                f"--models {encoder}-{version} is no version of {encoder}: choose {encoder} for what the paper has, "
                f"or {encoder}- with one of {', '.join(filter(None, self.versions))} behind it"
            )
        names = (version,) if version else self.in_paper.get(encoder, self.others)
        network = replace(experiment.model.network, **self.sizes.get(encoder, {}))
        sized = replace(experiment, model=replace(experiment.model, network=network))
        return {f"{encoder}-{name}" if name else encoder: _version(sized, self.versions[name]) for name in names}


READOUTS = ("average", "class_token", "flat")
PIECES, PADDINGS = ("truncate", "segment"), ("overall_max", "batch_max")
POOLING = Study(
    versions={
        **{head: {"head": head} for head in READOUTS},
        "padded": {"head": "flat", "strategy": "overall_max"},
        **{strategy: {"head": "flat", "strategy": strategy} for strategy in PIECES},
    },
    in_paper={
        "chordmixer": ("average", "class_token"),
        **dict.fromkeys(("poolformer", "cosformer", "nystromformer"), READOUTS),
        **dict.fromkeys(("transformer", "linformer", "reformer"), PIECES),
    },
    others=("average",),
    sizes={"transformer": {"layers": 1, "heads": 2, "width": 128}, "reformer": {"layers": 1}},
)
"""AVG, CLS and FLAT on packed sequences; `padded`, FLAT on sequences padded to the longest, as in the paper; TRUNC
and SEGM. The paper uses FLAT with TRUNC, and does not state the readout of SEGM. Sizes are those of its table 1 for
Carassius against Labeo. It does not state which versions figure 9 has: here models that can process the longest
sequence have the three readouts, and those that, according to the paper, cannot have TRUNC and SEGM."""
PADDING = Study(
    versions={
        "average": {"head": "average"},
        "flat": {"head": "flat"},
        **{strategy: {"head": "flat", "strategy": strategy} for strategy in PADDINGS},
    },
    in_paper={"chordmixer": ("average",)},
    others=PADDINGS,
    sizes={"cosformer": {"layers": 1, "width": 64}, "poolformer": {"layers": 1, "width": 64}},
)
"""The paper's table 3, with FLAT and the sizes of its table 1, which has none for Longformer. ChordMixer, which needs
no padding, is added for comparison."""

READING = Study(
    versions={"": {}, "average": {"head": "average"}, "flat": {"head": "flat"}},
    in_paper={"chordmixer": ("",)},
    others=("flat",),
)
"""The Adding problem: ChordMixer uses the average and all other encoders FLAT, as in the paper's table 1."""


def ablation(data: FilesConfig) -> Experiment:
    """The recipe `taxonomy`, for the versions of `POOLING`."""
    return _fit_max_length(taxonomy(data))


def ablation_of_fragments(data: FragmentsConfig) -> Experiment:
    """The recipe `fragments`, whose genomes are public, for the versions of `POOLING`."""
    return _fit_max_length(fragments(data))


def padding(data: FilesConfig) -> Experiment:
    """The recipe `documents`, for the versions of `PADDING`."""
    return _fit_max_length(documents(data))


def _fit_max_length(experiment: Experiment) -> Experiment:
    """Set the maximum length to the longest sequence; rounded up to a power of two, padding would cost even more."""
    task = experiment.build_task()
    longest = max(max(task.records(part).lengths) for part in ("training", "validation", "test"))
    network = replace(experiment.model.network, max_length=longest)
    return replace(experiment, model=replace(experiment.model, network=network))


def _version(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """Change settings of the model, and adapt the batch size to padded sequences."""
    model = replace(experiment.model, **settings)
    if model.head == "class_token" and isinstance(model.network, ChordMixerConfig):
        # With identity blocks the class token gets no information from other tokens at first, and learns slowly.
        model = replace(model, network=replace(model.network, init="xavier"))
    if model.strategy == "packed":
        return replace(experiment, model=model)
    length = STRATEGIES[model.strategy](model.network.max_length, model.piece_length).longest
    return replace(experiment, model=model, training=with_padded_batches(experiment.training, length))


def with_padded_batches(training: TrainingConfig, length: int) -> TrainingConfig:
    """Reduce the batch size for records of `length` tokens, and accumulate to keep the number of records per step.

    >>> padded = with_padded_batches(TrainingConfig(batch_sequences=128, batch_tokens=1 << 18), 16_000)
    >>> padded.batch_sequences, padded.accumulate
    (16, 8)
    """
    budget = training.batch_tokens or BATCH_TOKENS["cuda" if torch.cuda.is_available() else "cpu"]
    sequences = max(1, min(training.batch_sequences, budget // length))
    accumulate = max(training.accumulate, -(-training.batch_sequences // sequences))
    return replace(training, batch_sequences=sequences, accumulate=accumulate)


PADDED = {
    "longformer": (75.3, 75.7),
    "nystromformer": (73.1, 73.0),
    "poolformer": (67.0, 68.1),
    "cosformer": (72.3, 72.6),
}
"""The paper's table 3: accuracies in per cent, padded to the longest of all records and of the batch."""
BATCHES = "Of padded sequences a batch holds fewer, and a step as many."
POOLING_DIFFERENCES = (
    "average, class_token and flat read packed sequences, in which nothing is padded. The paper pads those of all "
    "models but ChordMixer with zeros to the longest; a model with -padded is that, read by flat.",
    "chordmixer-class_token starts at random, as in the paper, chordmixer-average with blocks that do nothing yet.",
    BATCHES,
    "The paper does not say by what segments were read: here by flat, as truncated sequences are. It does not say "
    "either which versions of each model its figure 9 has.",
)
PADDING_DIFFERENCES = (
    "The zeros count as tokens, and the networks mix them with the others: with batch_max the answer to a document "
    "changes with its neighbours in the batch, which no model of ours allows. It is here because the paper has it.",
    BATCHES,
)


def ablations(entries: Mapping[str, RunEntry | Figure]) -> dict[str, RunEntry | Figure]:
    """Entries of the ablations, on the data of other entries of the catalogue."""
    taxa, fragments, texts = (entries[name] for name in ("carassius-labeo", "mitogenomes", "documents"))
    assert isinstance(taxa, RunEntry) and isinstance(fragments, RunEntry) and isinstance(texts, RunEntry)
    accuracies = {
        f"{model}-{strategy}": accuracy
        for model, both in PADDED.items()
        for strategy, accuracy in zip(PADDINGS, both, strict=True)
    }
    title = "Ablation: readouts and inputs of several models"
    return {
        "ablation": replace(
            _versions_of(taxa, "ablation", "POOLING", POOLING_DIFFERENCES),
            title=f"{title}, Carassius against Labeo",
            where="section 4.4, figure 6; appendix, figure 9",
            claim="ChordMixer, read by average or class token, wins at all length percentiles but 20 and 95. Flat "
            "sometimes improves the other encoders, which stay behind at most percentiles with all strategies.",
        ),
        "ablation-mitogenomes": replace(
            _versions_of(fragments, "ablation_of_fragments", "POOLING", POOLING_DIFFERENCES),
            title=f"{title}, fragments of fish mitochondria",
        ),
        "padding": replace(
            _versions_of(texts, "padding", "PADDING", PADDING_DIFFERENCES),
            title="Long documents, padded to the longest of all or of the batch",
            where="appendix, table 3",
            paper=accuracies,
            claim="No significant change between the two: 67 to 76 % for four models. Reformer runs out of memory; "
            "ChordMixer, which pads nothing, is not in the table.",
        ),
    }


def _versions_of(entry: RunEntry, recipe: str, study: str, differences: tuple[str, ...]) -> RunEntry:
    path, versions = f"{__name__}:{recipe}", f"{__name__}:{study}"
    return replace(entry, recipe=path, versions=versions, differences=(*entry.differences, *differences))
