from __future__ import annotations

import numpy as np
import torch

from chordmixer.data import Loader, Record, Records, TokenSampler
from chordmixer.data.records import MadeRecords, cropped
from chordmixer.paper.adding import AddingConfig, AddingRecords


def test_adding_records_are_records() -> None:
    """What the protocol promises is all that a loader asks for."""
    records: Records = AddingRecords(AddingConfig(validation=5), "validation")
    record = records[3]
    assert isinstance(record, Record) and isinstance(records.name(3), str)
    assert record.values.shape == (records.lengths[3], 2) and record.target.shape == ()
    (batch,) = Loader(records, TokenSampler(records.lengths, tokens=10**6, sequences=5)).epoch()
    assert torch.equal(batch.inputs.to_list()[batch.indices.index(3)], record.values)


def test_made_at_once_or_one_by_one() -> None:
    records = AddingRecords(AddingConfig(validation=5), "validation")
    assert isinstance(records, MadeRecords)
    inputs, targets = records.batch([4, 0, 4, 2], torch.device("cpu"))
    for index, values, target in zip([4, 0, 4, 2], inputs.to_list(), targets, strict=True):
        assert torch.equal(values, records[index].values) and torch.equal(target, records[index].target)


def test_crops_are_a_function_of_their_key() -> None:
    """Every stretch and every factor occurs; a short series is kept whole; the file's numbers stay as they are."""
    series = np.arange(200, dtype=np.float32)[:, None] + 1
    seen = [cropped(series, key) for key in range(400)]
    factors = np.array([part[1, 0] - part[0, 0] for part in seen])
    lengths = np.array([len(part) for part in seen])
    starts = np.array([round(part[0, 0] / factor) for part, factor in zip(seen, factors, strict=True)])
    assert lengths.min() < 130 and lengths.max() > 190 and 120 <= lengths.min() <= lengths.max() <= 200
    assert starts.min() == 1 and starts.max() > 60 and (starts + lengths <= 201).all()
    assert factors.min() < 0.82 and factors.max() > 1.22
    assert np.array_equal(seen[7], cropped(series, 7)) and series[0, 0] == 1
    assert len(cropped(series[:9], 0)) == 9 and len(cropped(series[:1], 0)) == 1
