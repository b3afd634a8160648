"""Mean and spread of pooled channels over training records, for the weights as they are now."""

from __future__ import annotations

import torch
from torch import nn

from chordmixer.data import Loader, TokenSampler, draws
from chordmixer.models.norms import Standard

RECORDS = 256
"""Training records that are looked at: a mean is then known to a sixteenth of the spread."""


def standardise(model: nn.Module, loader: Loader, epoch: int, half: bool) -> None:
    """Set what heads centre and scale by to what some records of this epoch give; they are the same on every rank."""
    standards = [module for module in model.modules() if isinstance(module, Standard)]
    if not standards:
        return
    sampler = loader.sampler
    order: list[int] = draws.permutation(draws.key(sampler.seed, "standard"), len(sampler.lengths)).tolist()
    chosen = order[:RECORDS]
    batches = TokenSampler([sampler.lengths[i] for i in chosen], sampler.tokens, sampler.sequences, shuffle=False)
    model.eval()
    for standard in standards:
        standard.collect()
    device = loader.device.type
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=half):
        for batch in batches:
            model(loader.batch([chosen[i] for i in batch], epoch).inputs)
    for standard in standards:
        standard.settle()
