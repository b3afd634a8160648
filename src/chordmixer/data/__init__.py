"""A file, or a rule, becomes a batch: records, splits, sampling, loading."""

from chordmixer.data.loading import Batch, Loader, Record, Records, TokenSampler

__all__ = ["Batch", "Loader", "Record", "Records", "TokenSampler"]
