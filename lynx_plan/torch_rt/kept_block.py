"""A block that cannot be traced, as two opaque ops: its forward and its backward, with measured facts.

While tracing, the block's forward is replaced by ops that know only what a real run on random tensors has shown:
shapes of the results, bytes that autograd saves, bytes of scratch, floating-point operations, times. When a program
runs, the real block runs in their place (`kept_runtime`). What the block saves lives from its forward to its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from lynx_plan.torch_rt.call_shape import shape_of
from lynx_plan.torch_rt.kept_facts import KeptFacts, in_a_thread, run_really

KINDS = ("lynx.kept_forward", "lynx.kept_backward")
_library = torch.library.Library("lynx", "DEF")
_library.define("kept_forward(int block, Tensor[] inputs, Tensor[] parameters) -> Tensor[]")
_library.define("kept_backward(int block, Tensor state, Tensor[] held, Tensor[] gradients) -> Tensor[]")
FORWARD = torch.ops.lynx.kept_forward.default
BACKWARD = torch.ops.lynx.kept_backward.default
_facts: dict[int, KeptFacts] = {}  # of the capture that is going on, by the block's number


@contextmanager
def kept_whole(model: nn.Module, paths: Sequence[str]) -> Iterator[dict[int, KeptFacts]]:
    """Inside, these blocks of the model are traced as opaque ops; gives their facts by number, as they are found."""
    blocks = [model.get_submodule(path) for path in paths]
    _facts.clear()
    for number, block in enumerate(blocks):
        block.forward = _forward_of(number, block, type(block).forward)
    try:
        yield _facts
    finally:
        for block in blocks:
            del block.forward


def facts_of(node: fx.Node) -> KeptFacts:
    """The facts behind an opaque node of the capture that is going on."""
    return _facts[node.args[0]]


def is_kept(node: fx.Node) -> bool:
    """Whether a node is one of the two ops."""
    return node.target in (FORWARD, BACKWARD)


def held_nodes(node: fx.Node) -> tuple[fx.Node, ...]:
    """Of a backward: inputs and outputs of the block that autograd holds. It would not read another copy of them."""
    return tuple(node.args[2]) if node.target is BACKWARD else ()


def _forward_of(number: int, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def kept_forward(*args: Any, **kwargs: Any) -> Any:
        shape, tensors = shape_of((args, kwargs))
        if number not in _facts:
            _facts[number] = in_a_thread(lambda: run_really(block, forward, shape, tensors))
        facts = _facts[number]
        parameters = [parameter for _, parameter in block.named_parameters() if parameter.requires_grad]
        return facts.result.rebuild_output(_Kept.apply(number, len(tensors), *tensors, *parameters))

    return kept_forward


class _Kept(torch.autograd.Function):
    """Ties the two ops together for autograd."""

    @staticmethod
    def forward(ctx: Any, number: int, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        facts = _facts[number]
        inputs, parameters = tensors[:count], tensors[count:]
        *outputs, state, _scratch = FORWARD(number, list(inputs), list(parameters))
        ctx.number = number
        held = [*(inputs[i] for i in facts.held), *(outputs[i] for i in facts.held_outputs)]
        ctx.save_for_backward(state, *held)
        ctx.mark_non_differentiable(*(t for t in outputs if not t.is_floating_point()))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        facts = _facts[ctx.number]
        state, *held = ctx.saved_tensors
        wanted = [gradients[i].contiguous() for i in facts.differentiable_outputs]
        *made, _scratch = BACKWARD(ctx.number, state, held, wanted)
        turn = iter(made)
        return None, None, *(next(turn) if takes else None for takes in facts.takes_gradient)


@torch.library.register_fake("lynx::kept_forward", lib=_library)
def _fake_forward(block: int, inputs: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    facts = _facts[block]
    like = (inputs or parameters)[0]
    outputs = [like.new_empty_strided(o.shape, o.stride, dtype=o.dtype) for o in facts.outputs]
    return [*outputs, _bytes(like, facts.saved_bytes), _bytes(like, facts.forward_scratch_bytes)]


@torch.library.register_fake("lynx::kept_backward", lib=_library)
def _fake_backward(block: int, state: Tensor, held: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    facts = _facts[block]
    made = [state.new_empty(shape, dtype=dtype) for shape, dtype in facts.gradients]
    return [*made, _bytes(state, facts.backward_scratch_bytes)]


def _bytes(like: Tensor, count: int) -> Tensor:
    return like.new_empty((count,), dtype=torch.uint8)
