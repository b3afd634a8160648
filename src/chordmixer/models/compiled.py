"""The encoder under `torch.compile`: one operator that is opaque to the compiler, for batches of any lengths.

At run time the operator runs the eager network, with early exits and GPU kernels, and keeps the autograd graph until
the gradients are needed. Without it every batch would be traced to a graph of its own, because block i works only on
the sequences that are long enough for it.
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
    """`encoder(x)` while it is compiled or exported."""
    if ops.exporting():
        return _traced(encoder, x)
    if not _is_pure(encoder):
        return _outside_graph(encoder, x)
    config, device = encoder.config, x.device.type
    weights = [w for layer in _layers_with_bias(encoder) for w in (layer.weight, layer.bias)]
    needs_grad = [t.requires_grad for t in (x.values, *weights)] if torch.is_grad_enabled() else []
    dropout = config.dropout if encoder.training else 0.0
    values, _ = torch.ops.chordmixer.encode(
        x.values,
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
        weights,
        needs_grad if any(needs_grad) else [],
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


def _traced(encoder: ChordMixer, x: Packed) -> Packed:
    """The encoder as plain tensor operations, which other runtimes support."""
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


def _is_pure(encoder: ChordMixer) -> bool:
    """Whether the output depends on tokens and weights only: no running statistics and no hooks."""
    config = encoder.config
    pure = not config.reversible and "batch" not in {config.prenorm, config.norm} and type(encoder) is ChordMixer
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return pure and not any(getattr(block, name) for block in encoder.blocks for name in hooks)


def _run(encoder: ChordMixer, x: Packed) -> Packed:
    return encoder.forward(x)


_outside_graph: Callable[[ChordMixer, Packed], Packed] = torch.compiler.disable(
    _run, reason="a ChordMixer with hooks, batch norms or reversible=True runs outside the graph"
)


def _blocks(encoder: ChordMixer) -> list[Block]:
    return list(encoder.blocks)  # type: ignore[arg-type]  # all are


def _layers_with_bias(encoder: ChordMixer) -> list[nn.Linear | Norm]:
    """All layers that have a weight and a bias."""
    layers = [layer for block in _blocks(encoder) for layer in (block.fc1, block.fc2, block.prenorm, block.norm)]
    return [layer for layer in layers if isinstance(layer, nn.Linear) or layer.kind is not None]


# --- The operator -------------------------------------------------------------------------------------------


@torch.library.custom_op("chordmixer::encode", mutates_args=())
def _encode(
    values: Tensor,
    dtype: torch.dtype | None,
    weights: list[Tensor],
    needs_grad: list[bool],
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
    """The encoder's tokens, and the key of the saved autograd graph.

    `dtype` is that of autocast, or None. `needs_grad` has a flag for the values and each weight; empty means none.
    """
    config = ChordMixerConfig(max_length, track_size, hidden, dropout, order, prenorm, norm)  # type: ignore[arg-type]
    leaves = [t.detach() for t in (values, *weights)]
    for leaf, needed in zip(leaves, needs_grad, strict=False):
        leaf.requires_grad_(needed)
    with (
        _network(config, leaves[1:]) as network,
        _grad_recording(bool(needs_grad)),
        _autocast(values, dtype),
        _seeded(seed, values.device),
    ):
        x = network(Packed(leaves[0], offsets, host=host.cpu()))
        out = x.values.to(ops.activations(values)).contiguous()
        out = out.view_as(out)  # torch 2.11 rejects an edge from a custom autograd node, as of the kernels
    key = next(_KEYS)
    token = torch.tensor(key, device="cpu")
    if needs_grad:
        _SAVED_GRAPHS[key] = get_gradient_edge(out), [leaf for leaf in leaves if leaf.requires_grad]
        weakref.finalize(token, _SAVED_GRAPHS.pop, key, None)
    return out.detach(), token


@_encode.register_fake
def _(values: Tensor, dtype: torch.dtype | None, *others: Any) -> tuple[Tensor, Tensor]:
    with _autocast(values, dtype):
        out_dtype = ops.activations(values)
    return (
        torch.empty_like(values, dtype=out_dtype, memory_format=torch.contiguous_format),
        torch.empty((), dtype=torch.int64, device="cpu"),
    )


_KEYS = count()
_SAVED_GRAPHS: dict[int, tuple[GradientEdge, list[Tensor]]] = {}
"""The autograd graph of each run, and the tensors that get a gradient; freed together with the run's key."""


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, _, weights, ctx.needs_grad, *ctx.others = inputs
    ctx.save_for_backward(output[1], values, *weights)


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    key, *inputs = ctx.saved_tensors
    wanted = [t for t, needed in zip(inputs, ctx.needs_grad, strict=True) if needed]
    gradients = iter(torch.ops.chordmixer.encode_backward(gradient, key, wanted))
    values_gradient, *weight_gradients = [next(gradients) if needed else None for needed in ctx.needs_grad]
    return values_gradient, None, weight_gradients, *[None] * (1 + len(ctx.others))


_encode.register_autograd(_backward, setup_context=_context)


@torch.library.custom_op("chordmixer::encode_backward", mutates_args=())
def _encode_backward(gradient: Tensor, key: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    """Gradients of the wanted values and weights; zeros for a block that no sequence of the batch reached."""
    edge, leaves = _SAVED_GRAPHS[int(key)]
    with _grad_recording(True):
        gradients = torch.autograd.grad(
            edge, leaves, gradient, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    return [_with_own_memory(g.contiguous(), gradient) for g in gradients]


def _with_own_memory(result: Tensor, source: Tensor) -> Tensor:
    """Copy a result that shares memory: the kernels make one tensor for all blocks, the compiler expects several."""
    memory = result.untyped_storage()
    shared = memory.nbytes() > result.nbytes or memory.data_ptr() == source.untyped_storage().data_ptr()
    return result.clone() if shared else result


@_encode_backward.register_fake
def _(gradient: Tensor, number: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in wanted]


# --- Where it runs ------------------------------------------------------------------------------------------

_IDLE_NETWORKS: dict[ChordMixerConfig, list[ChordMixer]] = {}
"""Networks without weights, kept because building one takes milliseconds; a thread removes one while using it."""


@contextmanager
def _grad_recording(needs_grad: bool) -> Iterator[None]:
    """Context in which autograd records, by removing its key from those that a custom operator excludes."""
    if not needs_grad:
        with torch.no_grad():
            yield
        return
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    usual = excluded.remove(torch._C.DispatchKey.AutogradFunctionality)
    with torch._C._ForceDispatchKeyGuard(included, usual), torch.enable_grad():
        yield


def _autocast(values: Tensor, dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast(values.device.type, dtype=dtype, enabled=dtype is not None)


@contextmanager
def _seeded(seed: Tensor | None, device: torch.device) -> Iterator[None]:
    """Context in which dropout draws from generators that are seeded with `seed`."""
    if seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(int(seed))
        for each in devices:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(int(seed))
        yield


@contextmanager
def _network(config: ChordMixerConfig, weights: Sequence[Tensor]) -> Iterator[ChordMixer]:
    """Context that lends a network with these weights for one run."""
    idle = _IDLE_NETWORKS.setdefault(config, [])
    network = idle.pop() if idle else _without_weights(config)
    parameters_by_layer = [layer._parameters for layer in _layers_with_bias(network)]
    for i, parameters in enumerate(parameters_by_layer):
        parameters["weight"], parameters["bias"] = weights[2 * i : 2 * i + 2]  # type: ignore[assignment]  # a tensor will do
    try:
        yield network
    finally:
        for parameters in parameters_by_layer:
            parameters["weight"] = parameters["bias"] = None
        idle.append(network)


def _without_weights(config: ChordMixerConfig) -> ChordMixer:
    with torch.device("meta"), torch.random.fork_rng([]):  # initial values advance torch's generator even on meta
        return ChordMixer(config).train(config.dropout > 0)
