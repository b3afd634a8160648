"""A sequence and its reverse complement get the same answer, whatever the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from chordmixer.data.alphabets import Dna, Kmers
from chordmixer.data.tokenizers import Tokenizer
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.training.strands import averaged, other_strand

Network = Callable[[int], Model]


@pytest.fixture
def network() -> Network:
    def build(inputs: int) -> Model:
        torch.manual_seed(0)
        return Model(ModelConfig(inputs, 3, network=ChordMixerConfig(max_length=64, track_size=3, hidden=5))).eval()

    return build


@pytest.fixture(params=[Dna(), Dna(others="own"), Kmers(3)], ids=["dna", "all letters", "3-mers"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.param


def sequences(tokenizer: Tokenizer) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [tokenizer.encode("".join(rng.choice([*"ACGTNR"], n))) for n in (5, 64, 9, 33)]


def packed(tokens: list[np.ndarray]) -> Packed:
    return Packed.from_list([torch.from_numpy(sequence.astype(np.int32)) for sequence in tokens])


def test_both_strands_get_the_same_answer(tokenizer: Tokenizer, network: Network) -> None:
    tokens = sequences(tokenizer)
    complements = [tokenizer.reverse_complement(sequence) for sequence in tokens]
    plain = network(tokenizer.size)
    symmetric = averaged(plain, tokenizer.complement)
    with torch.inference_mode():
        assert (plain(packed(tokens)) - plain(packed(complements))).abs().max() > 1e-3
        torch.testing.assert_close(symmetric(packed(tokens)), symmetric(packed(complements)), atol=1e-6, rtol=0)
        mean = (plain(packed(tokens)) + plain(packed(complements))) / 2
        torch.testing.assert_close(symmetric(packed(tokens)), mean, atol=1e-6, rtol=0)
        reordered = symmetric(packed([complements[3], tokens[0]]))
        torch.testing.assert_close(reordered, symmetric(packed(tokens))[[3, 0]], atol=1e-6, rtol=0)


def test_the_other_strand_is_the_tokenizers(tokenizer: Tokenizer) -> None:
    tokens = sequences(tokenizer)
    assert tokenizer.complement is not None
    strands = other_strand(packed(tokens), torch.from_numpy(tokenizer.complement.astype(np.int32)))
    for strand, sequence in zip(strands.to_list(), tokens, strict=True):
        assert strand.tolist() == tokenizer.reverse_complement(sequence).tolist()


def test_bytes_from_a_store_are_as_good(network: Network) -> None:
    tokens = sequences(Dna())
    symmetric = averaged(network(5), Dna().complement)
    small = Packed.from_list([torch.from_numpy(sequence.copy()) for sequence in tokens])
    torch.testing.assert_close(symmetric(small), symmetric(packed(tokens)))


def test_without_a_complement_nothing_changes(network: Network) -> None:
    model = network(5)
    assert averaged(model, None) is model
    assert set(averaged(model, Dna().complement).state_dict()) == {f"model.{name}" for name in model.state_dict()}
