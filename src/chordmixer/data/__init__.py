"""A file, or a rule, becomes a batch: records, splits, sampling, loading."""

from chordmixer.data.loading import Batch, Loader, Record, Records, TokenSampler
from chordmixer.data.splits import stratified

__all__ = ["Batch", "Loader", "Record", "Records", "TokenSampler", "stratified"]
