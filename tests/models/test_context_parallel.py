"""Sequences over two and four gloo processes: outputs, gradients and running statistics are those of one rank."""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.forked import Forked
from torch import Tensor, nn

from chordmixer import ChordMixer, ChordMixerConfig, Model, ModelConfig, Packed
from chordmixer.models.context_parallel import ContextParallel, Shard, reduce_gradients, shard
from chordmixer.models.heads import StandardHead
from chordmixer.models.stem import StemConfig
from chordmixer.models.words import WordsConfig

LENGTHS = (1, 2, 3, 5, 17, 64, 100, 33)
"""Some are shorter than the number of ranks; their number is even, for the head of pairs."""
FEW = (2, 1)
"""On four ranks, two of them hold no token at all."""
NETWORK = ChordMixerConfig(max_length=150, track_size=3, hidden=8)
STEM, WORDS = StemConfig(layers=2, taps=7, width=6), WordsConfig(lengths=(2, 5), bits=6, width=4, dropout=0.0)
LETTERS = ModelConfig(inputs=5, outputs=3, network=NETWORK)
REAL = replace(LETTERS, embedding="real", inputs=2)
HEADS = ("average", "standard", "maximum", "mean_maximum", "attention", "mean_maximum_attention", "pair", "tokens")
ENCODERS = {
    "paper": NETWORK,
    "released": replace(NETWORK, order="released"),
    "layer": replace(NETWORK, prenorm="layer", norm="layer"),
    "batch": replace(NETWORK, prenorm="batch", norm="batch", order="released"),
    "group": replace(NETWORK, prenorm="group", norm="group"),
    "reversible": replace(NETWORK, prenorm="layer", reversible=True),
    "reversible-batch": replace(NETWORK, prenorm="batch", reversible=True, order="released"),
}
MODELS = {
    **{head: replace(LETTERS, head=head) for head in HEADS},
    "stem-words": replace(
        LETTERS, head="mean_maximum", stem=STEM, words=WORDS, length=True, mark_start=True, final_norm="layer"
    ),
    "tokens-stem-words": replace(LETTERS, head="tokens", positions=3, stem=STEM, words=WORDS, decoder="network"),
    "real-stem-reversible": replace(
        REAL, stem=STEM, length=True, within_record=True, network=ENCODERS["reversible"], head="attention"
    ),
}
CASES = {
    **{name: ENCODERS[name] for name in ENCODERS},
    **MODELS,
}


def build(config: ChordMixerConfig | ModelConfig) -> ChordMixer | Model:
    """A module in float64, except for the float32 parts of standardised heads; no weight keeps its initial value."""
    torch.manual_seed(0)
    module = ChordMixer(config) if isinstance(config, ChordMixerConfig) else Model(config)
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    module = module.double()
    if isinstance(module, Model) and isinstance(module.head, StandardHead):
        module.head.standard.float()
        module.head.linear.float()
    return module


def batch(config: ChordMixerConfig | ModelConfig, lengths: tuple[int, ...]) -> Packed:
    """Random sequences; of token ids the last sequence is constant, so that all its tokens share the maximum."""
    torch.manual_seed(1)
    if isinstance(config, ModelConfig) and config.embedding == "tokens":
        x = Packed.from_lengths(torch.randint(5, (sum(lengths),)), lengths)
        x[-1].fill_(2)
        return x
    width = config.width if isinstance(config, ChordMixerConfig) else config.inputs
    return Packed.from_lengths(torch.randn(sum(lengths), width, dtype=torch.float64), lengths)


def outputs_and_gradient(x: Packed | Shard, call: Callable[[Any], Any]) -> tuple[Tensor, Tensor | None]:
    """Outputs, and gradients of the inputs, for a loss that weighs every output differently."""
    values = x.values.requires_grad_() if x.values.is_floating_point() else x.values
    answers = call(x)
    torch.manual_seed(2)
    if isinstance(answers, Shard):
        weights = Packed.from_lengths(torch.randn(sum(x.lengths), answers.values.shape[1]), x.lengths)
        (answers.values * shard(weights).values).sum().mul(answers.sharding.ranks).backward()
        return answers.values, values.grad
    outputs = answers.values if isinstance(answers, Packed) else answers
    (outputs * torch.randn(outputs.shape)).sum().backward()
    return outputs, values.grad


def assert_near(actual: Tensor, expected: Tensor, name: str, tolerance: float) -> None:
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, atol=tolerance * scale, rtol=0, msg=lambda m: f"{name}: {m}")


def assert_same_gradients(replica: nn.Module, ref: nn.Module, tolerance: float) -> None:
    for (name, actual), expected in zip(replica.named_parameters(), ref.parameters(), strict=True):
        assert (actual.grad is None) == (expected.grad is None), name
        if actual.grad is not None and expected.grad is not None:
            assert_near(actual.grad, expected.grad, name, tolerance)


def compare(config: ChordMixerConfig | ModelConfig, lengths: tuple[int, ...]) -> None:
    """Compare all results of one rank and of several; the weights are those of the first rank."""
    x, ref = batch(config, lengths), build(config)
    tolerance = 1e-5 if isinstance(ref, Model) and isinstance(ref.head, StandardHead) else 1e-11  # float32, float64
    replica = copy.deepcopy(ref)
    for value in replica.parameters() if dist.get_rank() else ():
        nn.init.normal_(value)
    parallel = ContextParallel(replica)
    expected, expected_grad = outputs_and_gradient(x, ref)
    outputs, grad = outputs_and_gradient(shard(x.with_values(x.values.detach())), parallel)
    reduce_gradients(parallel)
    per_token = len(expected) == x.tokens and len(outputs) != len(expected)
    assert_near(outputs, shard(x.with_values(expected)).values if per_token else expected, "outputs", tolerance)
    if expected_grad is not None and grad is not None:
        assert_near(grad / dist.get_world_size(), shard(x.with_values(expected_grad)).values, "inputs", tolerance)
    assert_same_gradients(replica, ref, tolerance)
    for (name, buffer), expected_buffer in zip(replica.named_buffers(), ref.buffers(), strict=True):
        assert_near(buffer, expected_buffer, name, tolerance)
    with torch.no_grad():
        expected, outputs = ref.eval()(x), parallel.eval()(shard(x))
        if isinstance(outputs, Shard):
            expected, outputs = shard(expected), outputs.values
        assert_near(outputs, expected if isinstance(expected, Tensor) else expected.values, "evaluation", tolerance)


def two_groups() -> None:
    """Ranks are in two groups with a batch each; gradients are those of the mean loss of both batches."""
    ranks = range(dist.get_world_size())
    groups = [dist.new_group([rank for rank in ranks if rank % 2 == part]) for part in (0, 1)]
    part = dist.get_rank() % 2
    config = MODELS["stem-words"]
    batches = [batch(config, lengths) for lengths in (LENGTHS, FEW)]
    ref = build(config)
    replica = copy.deepcopy(ref)
    sum(ref(x).square().mean() / 2 for x in batches).backward()
    ContextParallel(replica, groups[part])(shard(batches[part], groups[part])).square().mean().backward()
    reduce_gradients(replica)
    assert_same_gradients(replica, ref, 1e-5)


def bfloat16() -> None:
    """Under autocast, tokens are exchanged in the type of the matrix products; one rank keeps sums in float32."""
    config = replace(ENCODERS["layer"], norm=None)
    x, encoder = batch(config, LENGTHS).to(dtype=torch.float32), build(config).float()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = shard(encoder.train()(x))
        assert_near(ContextParallel(encoder)(shard(x)).values, expected.values, "outputs", 0.03)


def rank(folder: str) -> None:
    """Run all cases on this rank and save the traceback of each; it is empty for those that passed."""
    dist.init_process_group("gloo")
    calls: dict[str, Callable[[], None]] = {"two groups": two_groups, "bfloat16": bfloat16}
    for name, config in CASES.items():
        calls[name] = lambda config=config: compare(config, LENGTHS)
        calls[f"{name}, few tokens"] = lambda config=config: compare(config, FEW)
    faults = dict.fromkeys(calls, "not reached")
    for name, call in calls.items():
        try:
            call()
            faults[name] = ""
        except Exception:
            faults[name] = traceback.format_exc()
            break  # the ranks are no longer at the same place
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(faults))
    dist.destroy_process_group()


def on_ranks(ranks: int, code: str, *arguments: str) -> None:
    """Run a program in that many processes, as torchrun would start them."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(sock.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-c", code, *arguments]
    processes = [Forked(command, os.environ | env | {"RANK": str(number)}) for number in range(ranks)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs


@pytest.fixture(scope="module", params=[2, 4])
def faults(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The tracebacks of each rank, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    code = "import sys; from tests.models.test_context_parallel import rank; rank(sys.argv[1])"
    on_ranks(request.param, code, str(folder))
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(request.param)]


@pytest.mark.parametrize("case", [*CASES, "two groups", "bfloat16"])
def test_several_ranks_compute_as_one(faults: list[dict[str, str]], case: str) -> None:
    names = (case, f"{case}, few tokens") if case in CASES else (case,)
    tracebacks = [rank_faults[name] for rank_faults in faults for name in names]
    assert not any(tracebacks), "\n".join(tracebacks)


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    on_ranks(2, "".join(re.findall(r"```python\n(.*?)```", page, flags=re.S)))


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2), "a Linear cannot be split over ranks by tokens: give a ChordMixer, or a Model"),
        (Model(LETTERS.with_encoder("pointwise")), "encoder='pointwise' cannot be split over ranks"),
        (Model(replace(LETTERS, strategy="segment")), "strategy='segment' makes other sequences .* set strategy="),
        (Model(replace(LETTERS, head="last")), "head='last' reads tokens by their place, .* such as 'average'"),
    ],
    ids=["module", "encoder", "strategy", "head"],
)
def test_what_cannot_be_shared_is_refused(module: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContextParallel(module)


@pytest.mark.usefixtures("process_group")
def test_bad_inputs_are_refused() -> None:
    parallel = ContextParallel(ChordMixer(NETWORK))
    with pytest.raises(ValueError, match=r"a Packed is not a Shard, .*: give shard\(packed, group\)"):
        parallel(batch(NETWORK, LENGTHS))
    with pytest.raises(ValueError, match="has 151 tokens, above this network's max_length=150"):
        parallel(shard(batch(NETWORK, (3, 151))))
