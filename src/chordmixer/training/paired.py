"""A model and baselines on the same test records: the baselines' answers, and how much better the model is.

What the baselines answered lies in baselines.parquet, a row a baseline and record, as predictions.parquet has the
model's. So any run on the same data can be compared with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chordmixer.tasks.targets import Target
from chordmixer.training.evaluation import Predictions, parquet_bytes, read_table
from chordmixer.training.intervals import Difference

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = "baselines.parquet"
MODEL = "predictions.parquet"


def packed(baselines: Mapping[str, Predictions]) -> bytes:
    """The bytes of baselines.parquet: the columns of the predictions behind the baseline's name."""
    tables = [own.columns() for own in baselines.values()]
    names = [[name] * len(own.names) for name, own in baselines.items()]
    columns = {key: list(chain(*(table[key] for table in tables))) for key in tables[0]}
    return parquet_bytes({"baseline": list(chain(*names)), **columns})


def read(folder: Path) -> dict[str, Predictions]:
    """The answers of each baseline; none where the run has no such file."""
    return read_table(folder / ROWS, _by_baseline) if (folder / ROWS).exists() else {}


def _by_baseline(rows: pa.Table) -> dict[str, Predictions]:
    names = np.array(rows.column("baseline").to_pylist(), dtype=object)
    return {name: Predictions.of_table(rows.filter(names == name)) for name in dict.fromkeys(names.tolist())}


def differences(runs: Sequence[Path], target: Target, metric: str) -> dict[str, Difference]:
    """By baseline, the score of a model less the baseline's, with a paired interval.

    `runs` are those of one model with several seeds, whose scores are averaged. A baseline that answered other
    records has no difference.
    """
    if not runs or not all((run / MODEL).exists() for run in runs):
        return {}
    models, known = [Predictions.read(run / MODEL) for run in runs], read(runs[0])
    sample = models[0].sample(target)
    return {
        name: sample.difference(metric, [model.outputs for model in models], baseline.outputs)
        for name, baseline in known.items()
        if all(baseline.same_records(model) for model in models)
    }
