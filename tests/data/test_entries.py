"""Entries and the account of what became of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from chordmixer.data.entries import Account, Entry


@pytest.mark.parametrize(("sequence", "length"), [(b"ACGT", 4), ("naïve", 5), (np.zeros((7, 2)), 7), (b"", 0)])
def test_length(sequence: object, length: int) -> None:
    assert Entry("a", sequence, place="a.fa, record 1").length == length


def test_records_in_are_used_or_rejected() -> None:
    account = Account()
    for i in range(20):
        if i % 3:
            account.use()
        else:
            account.reject(f"r{i}", "empty")
    assert account.read == 20 == account.used + account.rejected.total()


def test_a_person_sees_the_first_few_and_that_there_are_more() -> None:
    account = Account(notes=Counter({"letters in lower case": 12_000}))
    for i in range(7):
        account.reject(f"r{i}", "empty")
    assert list(account.lines()) == [
        "7 records read: 0 used, 7 rejected",
        "7 rejected, empty: r0, r1, r2, r3, r4, ...",
        "12,000 letters in lower case",
    ]
