"""The paper's propositions and the numbers of its appendix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from chordmixer import ChordMixer, ChordMixerConfig, Packed, ops
from chordmixer.models.chordmixer import depth


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def reached(length: int, hops: int) -> set[int]:
    """Distances covered by hops that each go 0, 1, 2, 4, ... positions on, around the circle."""
    steps = [0] + [2**k for k in range((length - 1).bit_length())]
    positions = {0}
    for _ in range(hops):
        positions = {(position + step) % length for position in positions for step in steps}
    return positions


def positive_network(length: int) -> ChordMixer:
    """Every weight above zero, and so every derivative along a path: paths add up and never cancel."""
    encoder = ChordMixer(ChordMixerConfig(max_length=length, track_size=1, hidden=4)).double()
    for parameter in encoder.parameters():
        torch.nn.init.uniform_(parameter, 0.1, 0.3)
    return encoder


def receptive_fields(encoder: ChordMixer, length: int, watched: list[int]) -> Iterator[Tensor]:
    """For each block, the inputs on which its output at each watched position depends: a row for each position.

    Each position is watched in a copy of its own, so that one backward pass a block is enough.
    """
    values = torch.rand(length, encoder.width, dtype=torch.float64).repeat(len(watched), 1).requires_grad_()
    x, starts = Packed.from_lengths(values, [length] * len(watched)), torch.arange(len(watched)) * length
    out = values
    for block in encoder.blocks:
        out = block(out, x.offsets)
        (gradient,) = torch.autograd.grad(out[starts + torch.tensor(watched)].sum(), values, retain_graph=True)
        yield gradient.ne(0).any(dim=1).view(len(watched), length)
    torch.testing.assert_close(encoder(x).values, out)


class TestReceptiveField:
    """Proposition 3.1: the receptive field becomes full for every output number after log2 N blocks."""

    @pytest.mark.parametrize("length", [*range(2, 71), 1000])
    def test_grows_as_the_hops_of_chord(self, length: int) -> None:
        watched = list(range(length)) if length < 100 else [0, 1, 499, 511, 512, 999]
        fields = list(receptive_fields(positive_network(length), length, watched))
        assert len(fields) == depth(length) and fields[-1].all()
        for hops, field in enumerate(fields, start=1):
            expected = torch.zeros(length, dtype=torch.bool)
            expected[list(reached(length, hops))] = True
            assert torch.equal(field, torch.stack([expected.roll(position) for position in watched]))

    @pytest.mark.parametrize("length", [2, 5, 13])
    def test_every_output_depends_on_every_token(self, length: int) -> None:
        """Each channel of each output depends on each token."""
        encoder = positive_network(length)

        def run(values: Tensor) -> Tensor:
            return encoder(Packed.from_list([values])).values

        slopes = jacobian(run, torch.rand(length, encoder.width, dtype=torch.float64))
        assert (slopes > 0).any(dim=3).all()

    def test_log2_hops_are_enough_and_one_is_not(self) -> None:
        needed = {n: next(k for k in range(20) if len(reached(n, k)) == n) for n in range(2, 200)}
        assert all(needed[n] <= depth(n) for n in needed)
        assert all(needed[n] > 1 for n in range(4, 200))


def rotation_matrix(lengths: list[int], tracks: int, size: int, reverse: bool = False) -> Tensor:
    """Rotate as a matrix on the flattened tokens."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    numbers = sum(lengths) * tracks * size
    columns = torch.eye(numbers).view(numbers, sum(lengths), tracks * size)
    return torch.stack([ops.rotate(column, offsets, size, reverse).flatten() for column in columns], dim=1)


class TestRotate:
    """Equations 1 and 2: z is a re-ordering of x, and its gradient the reverse rotation."""

    @pytest.mark.parametrize("lengths", [[1], [2], [5], [8], [3, 1, 6]], ids=str)
    def test_is_a_permutation_matrix(self, lengths: list[int]) -> None:
        matrix = rotation_matrix(lengths, tracks=4, size=2)
        assert set(matrix.unique().tolist()) == {0.0, 1.0}
        assert (matrix.sum(0) == 1).all() and (matrix.sum(1) == 1).all()

    @pytest.mark.parametrize("lengths", [[1], [2], [5], [8], [3, 1, 6]], ids=str)
    def test_its_gradient_is_the_transposed_one(self, lengths: list[int]) -> None:
        offsets, matrix = torch.tensor([0, *lengths]).cumsum(0), rotation_matrix(lengths, tracks=4, size=2)
        assert torch.equal(rotation_matrix(lengths, tracks=4, size=2, reverse=True), matrix.T)
        values = torch.randn(sum(lengths), 8, requires_grad=True)
        incoming = torch.randn(sum(lengths), 8)
        ops.rotate(values, offsets, track_size=2).backward(incoming)
        torch.testing.assert_close(values.grad.flatten(), matrix.T @ incoming.flatten())


class TestFullRank:
    """Proposition 3.3, with the matrices of its proof."""

    lengths, tracks, size = (5, 2), 4, 2

    def block(self, hidden: int) -> tuple[ops.Mlp, Tensor, Tensor]:
        """An MLP, and the matrices that its two linear maps are on all tokens, the first behind Rotate."""
        width, tokens = self.tracks * self.size, sum(self.lengths)
        shapes = ((hidden, width), (hidden,), (width, hidden), (width,))
        mlp = ops.Mlp(*(torch.randn(shape, dtype=torch.float64) for shape in shapes))
        rotation = rotation_matrix(list(self.lengths), self.tracks, self.size).double()
        identity = torch.eye(tokens, dtype=torch.float64)
        return mlp, torch.kron(identity, mlp.fc1_weight) @ rotation, torch.kron(identity, mlp.fc2_weight)

    def test_the_matrices_are_the_block(self) -> None:
        mlp, first, second = self.block(hidden=12)
        values = torch.randn(7, 8, dtype=torch.float64)
        hidden = torch.nn.functional.gelu(first @ values.flatten() + mlp.fc1_bias.repeat(7))
        expected = values.flatten() + second @ hidden + mlp.fc2_bias.repeat(7)
        offsets = torch.tensor([0, *self.lengths]).cumsum(0)
        output = ops.block(values, offsets, self.size, mlp, order="paper")
        torch.testing.assert_close(output.flatten(), expected)

    @pytest.mark.parametrize(("hidden", "full"), [(8, True), (12, True), (7, False)])
    def test_rank(self, hidden: int, full: bool) -> None:
        """Full if f is full-rank, and only then: a hidden layer narrower than a token loses numbers."""
        _, first, second = self.block(hidden)
        numbers = sum(self.lengths) * 8
        assert (torch.linalg.matrix_rank(first) == numbers) == full
        assert (torch.linalg.matrix_rank(second) == numbers) == full

    def test_rank_at_the_start(self) -> None:
        encoder = ChordMixer(ChordMixerConfig(max_length=16, track_size=2, hidden=16))
        for block in encoder.blocks:
            assert torch.linalg.matrix_rank(block.fc1.weight) == torch.linalg.matrix_rank(block.fc2.weight) == 10


def test_reaching_probabilities() -> None:
    """Appendix: at N = 5000 all nodes are about as likely after 14 hops (mean 2e-4, deviation 3e-5)."""
    length = 5000
    steps = [0] + [2**k for k in range((length - 1).bit_length())]
    probability = torch.zeros(length, dtype=torch.float64)
    probability[0] = 1
    for _ in range(14):
        probability = torch.stack([probability.roll(step) for step in steps]).mean(0)
    assert probability.sum().item() == pytest.approx(1)
    assert probability.mean().item() == pytest.approx(2e-4)
    assert f"{probability.std():.0e}" == "3e-05"
    assert probability.min() > 1e-4
