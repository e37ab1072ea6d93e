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

from lynx_plan.model.graph import Op, Role
from lynx_plan.model.program import Item
from lynx_plan.torch_rt import kept_block, kept_runtime, program_ops
from lynx_plan.torch_rt.capture import Captured
from lynx_plan.torch_rt.parts import CARRIED, Part
from lynx_plan.torch_rt.work import outputs


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the rewritten graph's function.

    `kind` is parameter, buffer, input (of `microbatch`, counted from the part's own) or tangent (as in
    `Captured.inputs`), or gradient (a main gradient, by parameter name), block (kept whole, by number), carried (the
    list of values from earlier parts), first (bool: the step's first microbatch) or clock (called between items).
    """

    kind: str
    name: str = ""
    microbatch: int = 0


@dataclass(slots=True)
class Draft:
    """A part's graph being written. `begins[p]` is the first node of the item at position p."""

    captured: Captured
    part: Part
    graph: fx.Graph = field(default_factory=fx.Graph)
    arguments: dict[Argument, fx.Node] = field(default_factory=dict)
    values: dict[tuple[int, int], fx.Node] = field(default_factory=dict)  # (tensor, producing position)
    begins: list[fx.Node] = field(default_factory=list)
    named: set[tuple[int, int]] = field(default_factory=set)  # (tensor, position) that a pass wants beside what is read
    random_states: dict[tuple[int, int], fx.Node] = field(default_factory=dict)  # (replayed op, microbatch)

    @property
    def items(self) -> tuple[Item, ...]:
        return self.part.items


_KEPT = {kept_block.FORWARD: kept_runtime.forward, kept_block.BACKWARD: kept_runtime.backward}
Pass = Callable[[Draft], None]


def rewrite(captured: Captured, part: Part, passes: Sequence[Pass]) -> tuple[Draft, tuple[tuple[str, int], ...]]:
    """Run the passes; gives the finished draft and the (name, nanoseconds) of each pass."""
    draft = Draft(captured, part)
    times = []
    for act in passes:
        started = time.perf_counter_ns()
        act(draft)
        times.append((act.__name__, time.perf_counter_ns() - started))
    draft.graph.lint()
    return draft, tuple(times)


def declare_arguments(draft: Draft) -> None:
    """Placeholders: the joint graph's own in its order, the next microbatch's inputs, main gradients, and so on."""
    own = [Argument(ref.kind, ref.name) for ref in draft.captured.inputs]
    if any(item.microbatch for item in draft.items):
        own += [Argument(each.kind, each.name, 1) for each in own if each.kind == "input"]
    gradients = [Argument("gradient", op.parameter) for op in draft.captured.graph.ops if op.role is Role.ACCUMULATE]
    blocks = [Argument("block", str(number)) for number in range(len(draft.captured.kept))]
    rest = [Argument("carried"), Argument("first"), Argument("clock")]
    for number, argument in enumerate([*own, *gradients, *blocks, *rest]):
        if argument not in draft.arguments:
            draft.arguments[argument] = draft.graph.placeholder(f"{argument.kind}_{number}")


def place_items(draft: Draft) -> None:
    """Each item's nodes, in order, reading the copies that the flow says."""
    inputs = _Inputs(draft)
    read = _read_values(draft)
    accumulated: set[str] = set()
    for position, item in enumerate(draft.items):
        op = draft.captured.graph.ops[item.op]
        before = next(iter(reversed(draft.graph.nodes)))
        local = {
            tensor: _value(draft, inputs, tensor, at, item.microbatch)
            for tensor, at in zip(op.inputs, draft.part.sources[position], strict=True)
        }
        if op.role is Role.ACCUMULATE:
            _accumulate(draft, op, local[op.inputs[0]], accumulated)
        elif op.kind == "lynx.update_buffer":
            buffer = draft.arguments[Argument("buffer", op.parameter)]
            draft.graph.call_function(program_ops.update_buffer, (buffer, local[op.inputs[0]]))
        else:
            if item.replica == 0 and (item.op, item.microbatch) in draft.part.replayed:
                state = draft.graph.call_function(program_ops.save_random_state, (_device(draft.captured, op),))
                draft.random_states[item.op, item.microbatch] = state
            _call(draft, position, op, local, read)
        draft.begins.append(before.next)


def return_outputs(draft: Draft) -> None:
    """The losses of the part's forward passes, from their latest copies, and what later parts read."""
    outputs = tuple(draft.values[key] for key in draft.part.outputs)
    carried = [draft.values[key] for key in draft.part.carried_out]
    carried += [draft.random_states[key] for key in draft.part.states_out]
    draft.graph.output((outputs, carried))


def mark_items(draft: Draft) -> None:
    """A clock mark before each item and one after the last: an item's time is from its mark to the next."""
    clock = draft.arguments[Argument("clock")]
    end = next(node for node in reversed(draft.graph.nodes) if node.op == "output")
    for node in [*draft.begins, end]:
        with draft.graph.inserting_before(node):
            draft.graph.call_function(program_ops.mark, (clock,))


PLAIN: tuple[Pass, ...] = (declare_arguments, place_items, return_outputs)
MARKED: tuple[Pass, ...] = (*PLAIN, mark_items)


class _Inputs:
    """Nodes of what no item of the part makes: placeholders, constants, and values carried from earlier parts."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.refs = draft.captured.input_nodes()
        self.constants: dict[int, fx.Node] = {}
        for tensor in draft.captured.graph.tensors:
            node = draft.captured.values[tensor.id] if tensor.producer < 0 else None
            if node is not None and node not in self.refs:
                self.constants[tensor.id] = draft.graph.node_copy(node, lambda n: n)

    def of(self, tensor: int, microbatch: int) -> fx.Node:
        """The placeholder of a graph input, or a copy of its constant."""
        if tensor in self.constants:
            return self.constants[tensor]
        node = self.draft.captured.values[tensor]
        assert node is not None, tensor
        ref = self.refs[node]
        number = microbatch if ref.kind == "input" else 0
        return self.draft.arguments[Argument(ref.kind, ref.name, number)]

    def take(self, index: int) -> fx.Node:
        """A carried value, which leaves the list."""
        carried = self.draft.arguments[Argument("carried")]
        return self.draft.graph.call_function(program_ops.take, (carried, index))


def _value(draft: Draft, inputs: _Inputs, tensor: int, at: int, microbatch: int) -> fx.Node:
    """The node that holds a tensor for its reader; a carried one is taken out of the list when it is first read."""
    if at == CARRIED:
        key = (tensor, CARRIED)
        if key not in draft.values:
            draft.values[key] = inputs.take(draft.part.carried_in.index(tensor))
        return draft.values[key]
    return inputs.of(tensor, microbatch) if at < 0 else draft.values[tensor, at]


def _random_state(draft: Draft, key: tuple[int, int]) -> fx.Node:
    """The generator's state that a copy starts from: saved in this part or carried."""
    if key not in draft.random_states:
        index = len(draft.part.carried_in) + draft.part.states_in.index(key[0])
        carried = draft.arguments[Argument("carried")]
        draft.random_states[key] = draft.graph.call_function(program_ops.take, (carried, index))
    return draft.random_states[key]


def _read_values(draft: Draft) -> set[tuple[int, int]]:
    """(tensor, producing position) that some item reads or the graph returns: only these get a name."""
    graph = draft.captured.graph
    read = {
        (tensor, at)
        for item, sources in zip(draft.items, draft.part.sources, strict=True)
        for tensor, at in zip(graph.ops[item.op].inputs, sources, strict=True)
    }
    return read | draft.named | set(draft.part.outputs) | set(draft.part.carried_out)


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
        state = _random_state(draft, (item.op, item.microbatch))
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
