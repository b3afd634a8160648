"""Where answers came from, on models whose answer is known to come from somewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chordmixer import Model, ModelConfig, Packed, ops
from chordmixer.data.alphabets import Dna, Kmers
from chordmixer.data.tokenizers import Bytes, Characters, Numbers
from chordmixer.models import ChordMixerConfig
from chordmixer.training.strands import averaged
from chordmixer.views import attribution
from chordmixer.views.attribution import bedgraph, gradients, heat_page, neutral_token, occlusion, to_letters


class Linear(nn.Module):
    """Two outputs, each a weighted mean of all numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))

    def forward(self, x: Packed) -> Tensor:
        return ops.segment_mean(x.values, x.offsets) @ self.weight.T


def still_model(head: str = "last", **settings: object) -> Model:
    """Blocks that are their residual: no token ever meets another."""
    torch.manual_seed(0)
    network = ChordMixerConfig(max_length=4096, track_size=2, hidden=4, init="identity")
    return Model(ModelConfig(inputs=5, outputs=3, head=head, network=network, **settings))  # type: ignore[arg-type]


def mixing_model(outputs: int = 2) -> Model:
    torch.manual_seed(0)
    network = ChordMixerConfig(max_length=64, track_size=4, hidden=8)
    return Model(ModelConfig(inputs=5, outputs=outputs, network=network))


@pytest.fixture
def series() -> Packed:
    return Packed.from_list([torch.randn(40, 2, generator=torch.Generator().manual_seed(1))])


IDS = Packed.from_list([torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 1, 0])])


class TestGradients:
    @pytest.mark.parametrize("output", [0, 1])
    def test_of_a_linear_model_add_up_to_its_answer(self, series: Packed, output: int) -> None:
        model = Linear()
        found = gradients(model, series, output)
        expected = (series.values * model.weight[output]).sum(1) / 40
        torch.testing.assert_close(torch.from_numpy(found.values), expected.detach())
        assert found.values.sum() == pytest.approx(found.answer, rel=1e-4) and found.output == output

    def test_only_the_last_token_is_felt_where_only_it_is_read(self) -> None:
        model = still_model()
        found = gradients(model, IDS, output=2)
        assert found.values[:-1].tolist() == [0] * 9
        assert found.values[-1] == pytest.approx(model.head.linear.weight[2].norm().item())

    def test_are_those_of_the_vectors(self) -> None:
        """The embedding's own gradient, where each id stands once."""
        model, x = mixing_model(), Packed.from_list([torch.tensor([3, 0, 4, 1])])
        found = gradients(model, x, output=1)
        answers = model(x)
        answers[0, 1].backward()
        expected = model.embedding.table.weight.grad[x.values].norm(dim=1)
        torch.testing.assert_close(torch.from_numpy(found.values), expected)
        assert found.answer == pytest.approx(answers[0, 1].item())

    def test_of_both_strands_come_from_both_ends(self) -> None:
        model = still_model()
        found = gradients(averaged(model, Dna().complement), IDS, output=0)
        half = model.head.linear.weight[0].norm().item() / 2
        assert found.values == pytest.approx([half, *[0] * 8, half])

    def test_explain_the_predicted_class(self) -> None:
        answers = mixing_model(outputs=7)(IDS)[0]
        found = gradients(mixing_model(outputs=7), IDS)
        assert found.output == answers.argmax() and found.answer == pytest.approx(answers.max().item())

    def test_leave_the_model_as_it_was(self) -> None:
        model = mixing_model().train()
        model.head.linear.bias.requires_grad_(False)
        gradients(model, IDS)
        assert model.training and not model.embedding._forward_hooks
        assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["head.linear.bias"]
        assert all(p.grad is None for p in model.parameters())


class TestOdds:
    """The model's two outputs are w0 . mean and w1 . mean; the log-odds of the first, their difference."""

    def test_leave_out_what_all_outputs_share(self, series: Packed) -> None:
        model = Linear()
        apart = model.weight[0] - model.weight[1]
        adds = ((series.values * apart).sum(1) / 40).detach().numpy()
        felt = gradients(model, series, 0, odds=True)
        np.testing.assert_allclose(felt.values, adds, atol=1e-6)
        np.testing.assert_allclose(occlusion(model, series, 0, odds=True).values, adds, atol=1e-6)
        assert felt.answer == pytest.approx(adds.sum(), abs=1e-6)

    def test_against_several_classes(self) -> None:
        model = mixing_model(outputs=4)
        shares = model(IDS)[0].softmax(0)
        found = gradients(model, IDS, output=1, odds=True)
        assert found.answer == pytest.approx(torch.logit(shares[1]).item(), abs=1e-5)

    def test_one_output_has_none(self) -> None:
        with pytest.raises(ValueError, match="odds=True of a model with one output: odds need two classes or more"):
            gradients(mixing_model(outputs=1), IDS, odds=True)


class TestOcclusion:
    @pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
    def test_of_a_linear_model_is_what_each_block_adds(self, series: Packed, batch_tokens: int) -> None:
        model = Linear()
        found = occlusion(model, series, 0, blocks=7, batch_tokens=batch_tokens)
        adds = (series.values * model.weight[0]).sum(1).detach().numpy() / 40
        edges = [40 * i // 7 for i in range(8)]
        expected = np.repeat(np.add.reduceat(adds, edges[:-1]), np.diff(edges))
        np.testing.assert_allclose(found.values, expected, atol=1e-6)
        assert found.values.dtype == np.float32

    def test_finds_the_one_token_that_is_read(self) -> None:
        model = still_model()
        found = occlusion(model, IDS, output=1, neutral=4, blocks=100)
        table, weight = model.embedding.table.weight, model.head.linear.weight[1]
        assert found.values[:-1] == pytest.approx([0] * 9, abs=1e-5)
        assert found.values[-1] == pytest.approx(((table[0] - table[4]) @ weight).item(), abs=1e-5)

    def test_of_both_strands(self) -> None:
        found = occlusion(averaged(still_model(), Dna().complement), IDS, output=1, neutral=4)
        assert (abs(found.values) > 1e-3).nonzero()[0].tolist() == [0, 9]

    def test_a_bounded_number_of_passes(self) -> None:
        passes: list[int] = []
        model = still_model()
        model.register_forward_hook(lambda module, inputs, output: passes.append(len(inputs[0])))
        long = Packed.from_list([torch.zeros(4096, dtype=torch.long)])
        found = occlusion(model, long, neutral=4, blocks=16, batch_tokens=4 * 4096)
        assert passes == [1, 4, 4, 4, 4] and found.values.shape == (4096,)

    def test_needs_something_to_hide(self, series: Packed) -> None:
        with pytest.raises(ValueError, match="blocks=0 is too small: something must be hidden; give 1 or more"):
            occlusion(Linear(), series, blocks=0)

    def test_ids_need_a_neutral_one(self) -> None:
        with pytest.raises(ValueError, match=r"neutral=None hides no token: ids need one; give neutral_token"):
            occlusion(still_model(), IDS)


def test_several_sequences_have_no_one_answer(series: Packed) -> None:
    with pytest.raises(ValueError, match="2 sequences at once have no one answer: give them one by one"):
        gradients(Linear(), Packed.from_list(series.to_list() * 2))


@pytest.mark.parametrize("output", [-1, 2])
def test_an_output_must_be_there(series: Packed, output: int) -> None:
    with pytest.raises(ValueError, match=f"output={output} is not there: the model has 2; give 0 to 1"):
        gradients(Linear(), series, output)


def test_an_answer_a_token_has_no_origin() -> None:
    with pytest.raises(ValueError, match="this model answers for every token: one answer a sequence is needed; use"):
        gradients(still_model("tokens"), IDS)


def test_neutral_tokens() -> None:
    assert neutral_token(Characters.of(["a b"])) == 0
    assert neutral_token(Kmers(k=2)) == 16
    assert neutral_token(Numbers()) is None


class TestToLetters:
    @pytest.mark.parametrize(("k", "stride"), [(1, 1), (3, 1), (3, 3)])
    @pytest.mark.parametrize("length", [1, 2, 3, 7, 9])
    def test_words_give_their_letters_the_mean(self, k: int, stride: int, length: int) -> None:
        tokenizer = Kmers(k=k, stride=stride)
        values = np.arange(len(tokenizer.encode(b"A" * length)), dtype=np.float32) ** 2
        holding: list[list[float]] = [[] for _ in range(length)]
        for word, value in enumerate(values):
            for at in range(word * stride, min(word * stride + k, length)):
                holding[at].append(float(value))
        found = to_letters(values, tokenizer, b"A" * length)
        assert found == pytest.approx([np.mean(h) for h in holding])

    def test_letters_stay(self) -> None:
        values = np.array([1.0, 2.0])
        assert to_letters(values, Dna(), b"AC") is values

    def test_numbers_must_fit(self) -> None:
        with pytest.raises(ValueError, match="2 numbers do not fit 3 tokens: give those of this sequence"):
            to_letters(np.zeros(2), Dna(), b"ACG")


class TestBedgraph:
    @settings(max_examples=40, deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from(["chr1", "chr10", "chr2", "X|y"]),
            st.tuples(st.integers(0, 99), st.lists(st.sampled_from([0.0, 0.25, -3.5]), max_size=9)),
        )
    )
    def test_is_sorted_and_says_each_number_once(self, given: dict[str, tuple[int, list[float]]]) -> None:
        text = bedgraph([(name, start, np.array(values)) for name, (start, values) in given.items()])
        rows = [line.split("\t") for line in text.splitlines()]
        places = [(name, int(start), int(end)) for name, start, end, _ in rows]
        assert places == sorted(places) and all(start < end for _, start, end in places)
        read = {
            (name, at): float(row[3]) for row, (name, a, b) in zip(rows, places, strict=True) for at in range(a, b)
        }
        assert read == {(name, start + i): v for name, (start, vs) in given.items() for i, v in enumerate(vs)}
        assert sum(b - a for _, a, b in places) == len(read)

    def test_pieces_of_one_chromosome_follow_each_other(self) -> None:
        text = bedgraph([("c", 5, np.ones(2)), ("c", 0, np.ones(5))])
        assert text == "c\t0\t5\t1\nc\t5\t7\t1\n"

    @pytest.mark.parametrize("starts", [(0, 1), (-1, 5)])
    def test_refuses_overlaps(self, starts: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="overlaps another record or starts before 0: give places apart"):
            bedgraph([("c", start, np.ones(2)) for start in starts])

    @pytest.mark.parametrize("name", ["", "a b", "a\tb", "a\n"])
    def test_refuses_names_of_several_words(self, name: str) -> None:
        with pytest.raises(ValueError, match="cannot stand in a bedGraph: it needs one word; give the record's id"):
            bedgraph([(name, 0, np.ones(1))])

    def test_refuses_what_is_not_finite(self) -> None:
        with pytest.raises(ValueError, match="c has numbers that are NaN or infinite: a bedGraph has none; look at"):
            bedgraph([("c", 0, np.array([1, np.nan]))])


class Reader(HTMLParser):
    """The text of a page's <pre>, and each coloured piece of it with its style."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.inside, self.style, self.text, self.pieces, self.tags = False, "", "", [], set[str]()  # type: ignore[var-annotated]
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.inside |= tag == "pre"
        self.style = dict(attrs).get("style") or "" if tag == "span" else self.style

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "pre"
        self.style = "" if tag == "span" else self.style

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.text += data
            if self.style:
                self.pieces.append((data, self.style))


class TestHeatPage:
    def test_colours_what_matters(self) -> None:
        values = np.zeros(20)
        values[3:5], values[9] = 1.0, -0.5
        found = Reader(heat_page("Why", "abcdefghijklmnopqrst", values, "class A"))
        assert found.text == "abcdefghijklmnopqrst"
        assert found.pieces == [("de", "background:rgba(184,74,0,0.60)"), ("j", "background:rgba(0,87,168,0.30)")]

    def test_escapes_everything(self) -> None:
        evil = "<script>alert('1')</script>&amp; \r\n<b>\r"
        markup = heat_page(evil, evil, np.linspace(-1, 1, len(evil)), evil)
        found = Reader(markup)
        assert found.text == evil.replace("\r\n", " \n").replace("\r", "\n")
        assert "b" not in found.tags and markup.count("<script>") == 1  # the page's own

    def test_loads_nothing(self) -> None:
        markup = heat_page("Why", "abc", np.ones(3), "A")
        assert not re.search(r"https?://|src=|@import|url\(", markup.replace("http://www.w3.org/2000/svg", ""))

    @pytest.mark.parametrize("values", [np.zeros(3), np.full(3, -2.0), np.array([1e-30, 0, 0])])
    def test_numbers_of_any_kind(self, values: np.ndarray) -> None:
        assert Reader(heat_page("Why", "abc", values, "A")).text == "abc"

    def test_a_long_text_has_a_bounded_number_of_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attribution, "SPANS", 50)
        values = np.random.default_rng(0).normal(size=1_001)
        markup = heat_page("Why", "x" * 1_001, values, "A")
        found = Reader(markup)
        assert found.text == "x" * 1_001 and 10 < len(found.pieces) <= 50
        assert "Each piece of 21 letters has the colour of its strongest." in markup

    @pytest.mark.parametrize(("text", "numbers"), [("ab", 3), ("", 0)])
    def test_a_number_a_letter(self, text: str, numbers: int) -> None:
        with pytest.raises(ValueError, match=f"{numbers} numbers do not fit {len(text)} letters: give one each, and"):
            heat_page("Why", text, np.ones(numbers), "A")


def test_text_by_bytes_from_end_to_end() -> None:
    text = "grün & <b>"
    x = Packed.from_list([torch.from_numpy(Bytes().encode(text).astype(np.int32))])
    model = Model(ModelConfig(inputs=256, outputs=2, network=ChordMixerConfig(max_length=64, track_size=2, hidden=4)))
    found = occlusion(model, x, neutral=neutral_token(Bytes()))
    letters = to_letters(found.values, Bytes(), text)
    assert Reader(heat_page("Why", text, letters, "A")).text == text
