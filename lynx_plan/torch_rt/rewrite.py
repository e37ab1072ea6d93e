"""Rewrite a captured joint graph into one FX graph that runs a program's items in the program's order.

Decide, then act: the plan decided; the passes here act. They share one signature and one runner, which times
them. Values die after their last use, since code that FX generates drops each name there; what is passed in
(parameters, buffers, main gradients, the microbatch's inputs) is static memory and outlives the call anyway.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from lynx_plan.analyze.flow import Flow
from lynx_plan.analyze.replay import replayed
from lynx_plan.model.graph import Op, Role
from lynx_plan.model.program import Item
from lynx_plan.torch_rt import kept_block, kept_runtime, program_ops
from lynx_plan.torch_rt.capture import Captured
from lynx_plan.torch_rt.work import outputs


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the rewritten graph's function.

    `kind` is parameter, buffer, input or tangent (as in `Captured.inputs`), or gradient (a main gradient, by
    parameter name), block (kept whole, by number), first (bool: the step's first microbatch) or clock (called between
    items).
    """

    kind: str
    name: str = ""


@dataclass(slots=True)
class Draft:
    """A graph being written. `begins[p]` is the first node of the item at position p."""

    captured: Captured
    items: tuple[Item, ...]
    flow: Flow
    graph: fx.Graph = field(default_factory=fx.Graph)
    arguments: dict[Argument, fx.Node] = field(default_factory=dict)
    values: dict[tuple[int, int], fx.Node] = field(default_factory=dict)  # (tensor, producing position)
    begins: list[fx.Node] = field(default_factory=list)
    named: set[tuple[int, int]] = field(default_factory=set)  # (tensor, position) that a pass wants beside what is read
    random_states: dict[tuple[int, int], fx.Node] = field(default_factory=dict)  # (replayed op, microbatch)


_KEPT = {kept_block.FORWARD: kept_runtime.forward, kept_block.BACKWARD: kept_runtime.backward}
Pass = Callable[[Draft], None]


def rewrite(
    captured: Captured, items: tuple[Item, ...], flow: Flow, passes: Sequence[Pass]
) -> tuple[Draft, tuple[tuple[str, int], ...]]:
    """Run the passes; gives the finished draft and the (name, nanoseconds) of each pass."""
    draft = Draft(captured, items, flow)
    times = []
    for act in passes:
        started = time.perf_counter_ns()
        act(draft)
        times.append((act.__name__, time.perf_counter_ns() - started))
    draft.graph.lint()
    return draft, tuple(times)


def declare_arguments(draft: Draft) -> None:
    """Placeholders: the joint graph's own in its order, then main gradients, then `first` and `clock`."""
    own = [Argument(ref.kind, ref.name) for ref in draft.captured.inputs]
    gradients = [Argument("gradient", op.parameter) for op in draft.captured.graph.ops if op.role is Role.ACCUMULATE]
    blocks = [Argument("block", str(number)) for number in range(len(draft.captured.kept))]
    for number, argument in enumerate([*own, *gradients, *blocks, Argument("first"), Argument("clock")]):
        if argument not in draft.arguments:
            draft.arguments[argument] = draft.graph.placeholder(f"{argument.kind}_{number}")


def place_items(draft: Draft) -> None:
    """Each item's nodes, in order, reading the copies that the flow says."""
    inputs = _input_values(draft)
    read = _read_values(draft)
    again = replayed(draft.captured.graph, draft.items)
    accumulated: set[str] = set()
    for position, item in enumerate(draft.items):
        op = draft.captured.graph.ops[item.op]
        before = next(iter(reversed(draft.graph.nodes)))
        sources = dict(zip(op.inputs, draft.flow.sources[position], strict=True))
        local = {tensor: inputs[tensor] if at < 0 else draft.values[tensor, at] for tensor, at in sources.items()}
        if op.role is Role.ACCUMULATE:
            _accumulate(draft, op, local[op.inputs[0]], accumulated)
        elif op.kind == "lynx.update_buffer":
            buffer = draft.arguments[Argument("buffer", op.parameter)]
            draft.graph.call_function(program_ops.update_buffer, (buffer, local[op.inputs[0]]))
        else:
            if item.replica == 0 and (item.op, item.microbatch) in again:
                state = draft.graph.call_function(program_ops.save_random_state, (_device(draft.captured, op),))
                draft.random_states[item.op, item.microbatch] = state
            _call(draft, position, op, local, read)
        draft.begins.append(before.next)


def return_outputs(draft: Draft) -> None:
    """The graph's outputs (the loss), from their latest copies."""
    graph = draft.captured.graph
    latest = {item.op: position for position, item in enumerate(draft.items)}
    tensors = [graph.tensors[tensor] for tensor in graph.outputs]
    draft.graph.output(tuple(draft.values[tensor.id, latest[tensor.producer]] for tensor in tensors))


def mark_items(draft: Draft) -> None:
    """A clock mark before each item and one after the last: an item's time is from its mark to the next."""
    clock = draft.arguments[Argument("clock")]
    end = next(node for node in reversed(draft.graph.nodes) if node.op == "output")
    for node in [*draft.begins, end]:
        with draft.graph.inserting_before(node):
            draft.graph.call_function(program_ops.mark, (clock,))


PLAIN: tuple[Pass, ...] = (declare_arguments, place_items, return_outputs)
MARKED: tuple[Pass, ...] = (*PLAIN, mark_items)


def _input_values(draft: Draft) -> dict[int, fx.Node]:
    """Tensor id of each graph input -> its placeholder, or a copy of its constant."""
    by_node = draft.captured.input_nodes()
    found: dict[int, fx.Node] = {}
    for tensor in draft.captured.graph.tensors:
        node = draft.captured.values[tensor.id] if tensor.producer < 0 else None
        if node is not None:
            ref = by_node.get(node)
            found[tensor.id] = (
                draft.arguments[Argument(ref.kind, ref.name)] if ref else draft.graph.node_copy(node, lambda n: n)
            )
    return found


def _read_values(draft: Draft) -> set[tuple[int, int]]:
    """(tensor, producing position) that some item reads or the graph returns: only these get a name."""
    graph = draft.captured.graph
    read = {
        (tensor, at)
        for item, sources in zip(draft.items, draft.flow.sources, strict=True)
        for tensor, at in zip(graph.ops[item.op].inputs, sources, strict=True)
    }
    latest = {item.op: position for position, item in enumerate(draft.items)}
    return read | draft.named | {(tensor, latest[graph.tensors[tensor].producer]) for tensor in graph.outputs}


def _accumulate(draft: Draft, op: Op, gradient: fx.Node, accumulated: set[str]) -> None:
    main = draft.arguments[Argument("gradient", op.parameter)]
    first = draft.arguments[Argument("first")] if op.parameter not in accumulated else False
    accumulated.add(op.parameter)
    draft.graph.call_function(program_ops.accumulate, (main, gradient, first))


def _call(draft: Draft, position: int, op: Op, local: dict[int, fx.Node], read: set[tuple[int, int]]) -> None:
    """Copy an op's node with its inputs renamed; its several outputs are taken apart at once."""
    captured, item = draft.captured, draft.items[position]
    original = captured.nodes[op.id]
    assert original is not None, f"op {op} has no node"
    renamed = {captured.values[tensor]: node for tensor, node in local.items()}
    args, kwargs = (fx.node.map_arg(each, renamed.__getitem__) for each in (original.args, original.kwargs))
    name = f"{original.name}_r{item.replica}" if item.replica else original.name
    target = program_ops.view if original.target is torch.ops.aten.view.default else original.target
    if item.replica and op.rng:
        state = draft.random_states[item.op, item.microbatch]
        args, target = (state, _device(captured, op), target, *args), program_ops.replay_random
    if target in _KEPT:
        args, target = (draft.arguments[Argument("block", str(args[0]))], *args[1:]), _KEPT[target]
    copy = draft.graph.create_node(original.op, target, args, kwargs, name=name)
    for tensor in op.outputs:
        value = captured.values[tensor]
        if (tensor, position) not in read or value is None:
            continue
        taken = copy if value is original else draft.graph.call_function(operator.getitem, (copy, value.args[1]))
        draft.values[tensor, position] = taken


def _device(captured: Captured, op: Op) -> str:
    """The device of the generator that a random op draws from: the one that it writes to."""
    node = captured.nodes[op.id]
    assert node is not None, op
    return str(next(value for value in outputs(node) if value is not None).device)
