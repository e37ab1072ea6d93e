"""Find a recomputed op that did not make again what its original made: why gradients differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.steps import StepOrder
from lynx_plan.model.graph import Role
from lynx_plan.model.program import Item
from lynx_plan.torch_rt import program_ops
from lynx_plan.torch_rt.bind import Bound
from lynx_plan.torch_rt.executable import Executable
from lynx_plan.torch_rt.rewrite import Argument, Draft, declare_arguments, place_items, return_outputs


def wrong_copy(bound: Bound, model: nn.Module, gradients: Mapping[str, torch.Tensor], args: tuple[Any, ...]) -> str:
    """The first copy with other bits than its original, such as `blocks.2.native_dropout@r1`; empty if all are alike.

    Runs one microbatch with all originals kept, so it needs the memory of no recomputation; it overwrites
    `gradients` (the main gradients) and updates buffers. All ranks of the mesh call it.
    """
    if not any(item.replica for item in bound.items):
        return ""
    found: list[str] = []
    executable = Executable(bound, model, gradients, passes=COMPARED, order=StepOrder(steady=bound.items))
    dtype = getattr(torch, bound.captured.graph.tensors[bound.captured.graph.outputs[0]].dtype)
    executable([args], torch.zeros(1, dtype=dtype), clock=found.append)
    return found[0] if found else ""


def name_originals(draft: Draft) -> None:
    """Every output of an original that has a copy gets a name in the graph."""
    for original, copy in _pairs(draft):
        draft.named.update((tensor, at) for tensor in _outputs(draft, copy) for at in (original, copy))


def compare_copies(draft: Draft) -> None:
    """After each copy, a comparison with its original; what differs is told to the clock."""
    index = GraphIndex(draft.captured.graph)
    clock = draft.arguments[Argument("clock")]
    end = next(node for node in reversed(draft.graph.nodes) if node.op == "output")
    for original, copy in _pairs(draft):
        name = index.item_name(draft.items[copy])
        after = draft.begins[copy + 1] if copy + 1 < len(draft.begins) else end
        for tensor in _outputs(draft, copy):
            pair = [draft.values.get((tensor, at)) for at in (original, copy)]
            if None not in pair:
                with draft.graph.inserting_before(after):
                    draft.graph.call_function(program_ops.compare, (clock, name, *pair))


COMPARED = (declare_arguments, name_originals, place_items, return_outputs, compare_copies)


def _pairs(draft: Draft) -> list[tuple[int, int]]:
    """Positions of original and copy, for copies with a result: a transfer has one once waited for, `empty` none."""
    position = {item: at for at, item in enumerate(draft.items)}
    ops = draft.captured.graph.ops
    return [
        (position[Item(item.op, 0, item.microbatch)], at)
        for at, item in enumerate(draft.items)
        if item.replica and ops[item.op].role is not Role.COLLECTIVE and "empty" not in ops[item.op].kind
    ]


def _outputs(draft: Draft, position: int) -> tuple[int, ...]:
    return draft.captured.graph.ops[draft.items[position].op].outputs
