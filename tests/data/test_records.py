from __future__ import annotations

import torch

from chordmixer.data import Loader, Record, Records, TokenSampler
from chordmixer.data.records import MadeRecords
from chordmixer.tasks.adding import AddingConfig, AddingRecords


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
