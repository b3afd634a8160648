"""The encoder under `torch.compile`: one operator that the compiler does not look into, for batches of any lengths.

At run time the operator runs the eager network, with early exits and GPU kernels, and keeps what autograd recorded
until the gradients are needed. Traced, each batch would be a graph of its own: block i works on those sequences only
that are long enough for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from chordmixer import ops
from chordmixer.models.chordmixer import Block, ChordMixer, ChordMixerConfig
from chordmixer.models.norms import Norm
from chordmixer.ops import vectorised
from chordmixer.packed import Packed


def encode(encoder: ChordMixer, x: Packed) -> Packed:
    """What `encoder(x)` is while it is compiled or exported."""
    if ops.exporting():
        return _spelt_out(encoder, x)
    if not _opaque(encoder):
        return _apart(encoder, x)
    config, device = encoder.config, x.device.type
    weights = [w for part in _parts(encoder) for w in (part.weight, part.bias)]
    learned = [t.requires_grad for t in (x.values, *weights)] if torch.is_grad_enabled() else []
    dropout = config.dropout if encoder.training else 0.0
    values, _ = torch.ops.chordmixer.encode(
        x.values,
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
        weights,
        learned if any(learned) else [],
        x.offsets,
        x.host,
        torch.randint(1 << 62, (), device="cpu") if dropout else None,
        config.max_length,
        config.track_size,
        config.hidden,
        dropout,
        config.order,
        config.prenorm,
        config.norm,
    )
    return x.with_values(values)


def _spelt_out(encoder: ChordMixer, x: Packed) -> Packed:
    """The encoder as plain tensor operations, which other runtimes know too."""
    if encoder.training:
        raise ValueError(
            "a network in training mode cannot be exported: programs are for inference; call .eval() first"
        )
    config, blocks = encoder.config, _blocks(encoder)
    values = vectorised.blocks(
        x.values,
        x.offsets,
        config.track_size,
        [block.mlp() for block in blocks],
        order=config.order,
        prenorms=[block.prenorm.state() for block in blocks],
        norms=[block.norm.state() for block in blocks],
        reversible=config.reversible,
    )
    return x.with_values(values)


def _opaque(encoder: ChordMixer) -> bool:
    """Whether the encoder is a function of its tokens and weights: it changes no statistics and has no hooks."""
    config = encoder.config
    pure = not config.reversible and "batch" not in {config.prenorm, config.norm} and type(encoder) is ChordMixer
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return pure and not any(getattr(block, kind) for block in encoder.blocks for kind in hooks)


def _run(encoder: ChordMixer, x: Packed) -> Packed:
    return encoder.forward(x)


_apart: Callable[[ChordMixer, Packed], Packed] = torch.compiler.disable(
    _run, reason="a ChordMixer with hooks, batch norms or reversible=True runs outside the graph"
)


def _blocks(encoder: ChordMixer) -> list[Block]:
    return list(encoder.blocks)  # type: ignore[arg-type]  # all are


def _parts(encoder: ChordMixer) -> list[nn.Linear | Norm]:
    """The parts that have a weight and a bias."""
    every = [part for block in _blocks(encoder) for part in (block.fc1, block.fc2, block.prenorm, block.norm)]
    return [part for part in every if isinstance(part, nn.Linear) or part.kind is not None]


# --- The operator -------------------------------------------------------------------------------------------


@torch.library.custom_op("chordmixer::encode", mutates_args=())
def _encode(
    values: Tensor,
    kind: torch.dtype | None,
    weights: list[Tensor],
    learned: list[bool],
    offsets: Tensor,
    host: Tensor,
    seed: Tensor | None,
    max_length: int,
    track_size: int,
    hidden: int,
    dropout: float,
    order: str,
    prenorm: str | None,
    norm: str | None,
) -> tuple[Tensor, Tensor]:
    """The encoder's tokens, and the number under which the recorded gradients are kept.

    `kind`: autocast's type, None without. `learned`: which of the values and weights get a gradient; none if empty.
    """
    config = ChordMixerConfig(max_length, track_size, hidden, dropout, order, prenorm, norm)  # type: ignore[arg-type]
    leaves = [t.detach() for t in (values, *weights)]
    for leaf, own in zip(leaves, learned, strict=False):
        leaf.requires_grad_(own)
    with (
        _network(config, leaves[1:]) as network,
        _recorded(bool(learned)),
        _autocast(values, kind),
        _seeded(seed, values.device),
    ):
        x = network(Packed(leaves[0], offsets, host=host.cpu()))
        out = x.values.to(ops.activations(values)).contiguous()
        out = out.view_as(out)  # an edge from a node of ours, as the kernels make it, is more than torch 2.11 takes
    number = next(_NUMBERS)
    token = torch.tensor(number, device="cpu")
    if learned:
        _KEPT[number] = get_gradient_edge(out), [leaf for leaf in leaves if leaf.requires_grad]
        weakref.finalize(token, _KEPT.pop, number, None)
    return out.detach(), token


@_encode.register_fake
def _(values: Tensor, kind: torch.dtype | None, *others: Any) -> tuple[Tensor, Tensor]:
    with _autocast(values, kind):
        kept = ops.activations(values)
    return (
        torch.empty_like(values, dtype=kept, memory_format=torch.contiguous_format),
        torch.empty((), dtype=torch.int64, device="cpu"),
    )


_NUMBERS = count()
_KEPT: dict[int, tuple[GradientEdge, list[Tensor]]] = {}
"""What autograd recorded in each run, and the tensors that get a gradient; freed together with the run's number."""


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, _, weights, ctx.learned, *ctx.others = inputs
    ctx.save_for_backward(output[1], values, *weights)


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    number, *inputs = ctx.saved_tensors
    wanted = [t for t, own in zip(inputs, ctx.learned, strict=True) if own]
    made = iter(torch.ops.chordmixer.encode_backward(gradient, number, wanted))
    of_values, *of_weights = [next(made) if own else None for own in ctx.learned]
    return of_values, None, of_weights, *[None] * (1 + len(ctx.others))


_encode.register_autograd(_backward, setup_context=_context)


@torch.library.custom_op("chordmixer::encode_backward", mutates_args=())
def _encode_backward(gradient: Tensor, number: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    """Gradients of the wanted values and weights: zeros for a block that no sequence was long enough to reach."""
    edge, leaves = _KEPT[int(number)]
    with _recorded(True):
        made = torch.autograd.grad(
            edge, leaves, gradient, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    return [_alone(g.contiguous(), gradient) for g in made]


def _alone(made: Tensor, given: Tensor) -> Tensor:
    """A result with memory of its own, as the compiler expects: the kernels make one tensor for all blocks."""
    memory = made.untyped_storage()
    shared = memory.nbytes() > made.nbytes or memory.data_ptr() == given.untyped_storage().data_ptr()
    return made.clone() if shared else made


@_encode_backward.register_fake
def _(gradient: Tensor, number: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in wanted]


# --- Where it runs ------------------------------------------------------------------------------------------

_RESTING: dict[ChordMixerConfig, list[ChordMixer]] = {}
"""Networks without weights, which take milliseconds to build; a thread that needs one takes it out."""


@contextmanager
def _recorded(learned: bool) -> Iterator[None]:
    """Autograd records, for which its key is taken off those that an operator excludes."""
    if not learned:
        with torch.no_grad():
            yield
        return
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    usual = excluded.remove(torch._C.DispatchKey.AutogradFunctionality)
    with torch._C._ForceDispatchKeyGuard(included, usual), torch.enable_grad():
        yield


def _autocast(values: Tensor, kind: torch.dtype | None) -> torch.autocast:
    return torch.autocast(values.device.type, dtype=kind, enabled=kind is not None)


@contextmanager
def _seeded(seed: Tensor | None, device: torch.device) -> Iterator[None]:
    """Dropout draws from generators that start at `seed`."""
    if seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(int(seed))
        for own in devices:
            with torch.cuda.device(own):
                torch.cuda.manual_seed(int(seed))
        yield


@contextmanager
def _network(config: ChordMixerConfig, weights: Sequence[Tensor]) -> Iterator[ChordMixer]:
    """A network with these weights, for the time of one run."""
    resting = _RESTING.setdefault(config, [])
    network = resting.pop() if resting else _without_weights(config)
    owned = [part._parameters for part in _parts(network)]
    for i, own in enumerate(owned):
        own["weight"], own["bias"] = weights[2 * i : 2 * i + 2]  # type: ignore[assignment]  # a tensor will do
    try:
        yield network
    finally:
        for own in owned:
            own["weight"] = own["bias"] = None
        resting.append(network)


def _without_weights(config: ChordMixerConfig) -> ChordMixer:
    with torch.device("meta"), torch.random.fork_rng([]):  # first values are drawn from torch's generator even there
        return ChordMixer(config).train(config.dropout > 0)
