"""Records cut at a length, where it was asked for: what a store looks like then, and the note that counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy import ndarray

from chordmixer.data.store import Store


class CutStore(Store):
    """A store whose records end after `most` tokens: lengths, tokens and account are those of the cut records.

    Nothing is written: the store on the disk is whole, and others may cut it elsewhere. `values` and `offsets` are
    those of the disk too, and `letters` those of the files.
    """

    def __init__(self, store: Store, most: int) -> None:
        vars(self).update(vars(store))
        self.most = most
        self.lengths = np.minimum(store.lengths, most)
        longer = Counter({cut_note(most): int(np.count_nonzero(store.lengths > most))})
        self.account = replace(store.account, notes=store.account.notes + longer)

    def tokens(self, index: int) -> ndarray:
        start = self.offsets[index]
        view: ndarray = self.values[start : start + self.lengths[index]]
        return view

    def __reduce__(self) -> tuple[Callable[[Path], Store], tuple[Path]]:
        return partial(_open_cut, self.most), (self.folder,)


def cut_note(most: int) -> str:
    """What an account says of them.

    >>> cut_note(131_072)
    'records cut at 131,072 tokens'
    """
    return f"records cut at {most:,} tokens"


def _open_cut(most: int, folder: Path) -> CutStore:
    return CutStore(Store.open(folder), most)
