from __future__ import annotations

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.words import Words, WordsConfig, hashed


def test_equal_words_have_equal_rows_wherever_they_are() -> None:
    text = torch.randint(4, (500,))
    rows, present = hashed(Packed.from_lengths(text, [200, 1, 299]), (1, 3, 8), bits=20)
    for column, k in enumerate((1, 3, 8)):
        assert present[:, column].tolist() == [n >= k for length in (200, 1, 299) for n in range(length, 0, -1)]
        row_of = dict[tuple[int, ...], int]()
        for n in torch.nonzero(present[:, column])[:, 0].tolist():
            word, row = tuple(text[n : n + k].tolist()), int(rows[n, column])
            assert row_of.setdefault(word, row) == row and column << 20 <= row < (column + 1) << 20
        assert len(set(row_of.values())) >= 0.99 * len(row_of), "hardly any two words share a row"


def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    words = Words(WordsConfig(lengths=(2, 5), bits=8, width=3), width=6).double().eval()
    x = Packed.from_lengths(torch.randint(4, (60,)), [1, 4, 50, 5])
    batched = words(x)
    unbatched = [words(Packed.from_list([sequence])) for sequence in x.to_list()]
    for k, actual in enumerate(batched):
        torch.testing.assert_close(actual, torch.cat([features[k] for features in unbatched]))
    actual, _ = batched
    assert not actual[:1].any() and actual[1:4].any(dim=1).all(), "a record shorter than every word has no words"


def test_gradient_reaches_the_rows_of_words_that_are_there() -> None:
    words = Words(WordsConfig(lengths=(2,), bits=6, width=3, dropout=0), width=4)
    x = Packed.from_list([torch.tensor([0, 1, 0, 1])])
    words(x)[1].sum().backward()
    rows, present = hashed(x, (2,), 6)
    assert words.table.grad is not None
    assert torch.nonzero(words.table.grad.any(dim=1))[:, 0].tolist() == sorted({*rows[present].tolist()})


def test_a_share_is_hidden_in_training_alone() -> None:
    words = Words(WordsConfig(lengths=(1,), bits=6, dropout=0.5), width=4)
    x = Packed.from_list([torch.zeros(4000, dtype=torch.long)])
    shares = [float(words.train(mode)(x)[0].any(dim=1).float().mean()) for mode in (True, False)]
    assert 0.45 < shares[0] < 0.55 and shares[1] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": (0,)}, r"^lengths=\[0\] of words are not different lengths from 1 to 64"),
        ({"lengths": (3, 3)}, r"^lengths=\[3, 3\] of words are not different"),
        ({"bits": 40}, r"^bits=40 is too large: give 24 or less"),
        ({"width": 0}, r"^width=0 is too small: give 1 or more"),
        ({"dropout": 1.0}, r"^dropout=1.0 of words is not a share"),
    ],
)
def test_settings_that_make_no_words(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WordsConfig(**settings)  # type: ignore[arg-type]
