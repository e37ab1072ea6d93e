"""Is this order, or this plan, legal for this graph? Independent of every solver; every rule has a name.

An illegal order raises AnswerNo: the message begins with the rule's name, `where` is the item.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import NoReturn

from lynx_plan import files
from lynx_plan.analyze.classes import op_lines, structure_digest
from lynx_plan.analyze.effects import updated_buffers
from lynx_plan.analyze.flow import Flow, resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import expand_step
from lynx_plan.analyze.steps import StepOrder
from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import CostGraph, Op, Phase, Role
from lynx_plan.model.plan import OVER_BUDGET, Outcome, Plan, PlannedClass, StagePlan
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import memory_curve
from lynx_plan.simulate.outcome import predict_step
from lynx_plan.units import format_bytes

REPLAN = "plan again: lynx plan"
REPORTED = 10  # differences listed per message


SHOWN = 3  # microbatches of an interleaved step that are checked: every kind of neighbour occurs among them


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Items with absolute microbatches; the parts of the step begin at `starts`."""

    index: GraphIndex
    items: tuple[Item, ...]
    starts: tuple[int, ...] = (0,)
    microbatches: int = 1

    def op(self, item: Item) -> Op:
        return self.index.graph.ops[item.op]


Rule = Callable[[_Order], None]


def check_order(graph: CostGraph, items: Sequence[Item], *, budget_bytes: int | None) -> None:
    """Raise AnswerNo naming the first rule that the order breaks, and the item; without a budget, any peak is legal."""
    _checked_flow(_Order(index=GraphIndex(graph), items=tuple(items)), budget_bytes)


def check_step(graph: CostGraph, order: StepOrder, *, budget_bytes: int | None, micro_batches: int = SHOWN) -> None:
    """The same for the order of a step of `micro_batches`."""
    _checked_step(GraphIndex(graph), order, budget_bytes, micro_batches)


def check_plan(plan: Plan, graph: CostGraph) -> None:
    """Raise AnswerNo if the plan is not for this graph, is broken, illegal, or predicts what it should not.

    The prediction is derived again only if the plan was made from exactly this graph, costs included.
    """
    if plan.structure_digest != structure_digest(graph) or plan.mesh != graph.mesh:
        _stale(plan, graph)
    index = GraphIndex(graph)
    stage = _only_stage(plan, index)
    if plan.micro_batches < 1:
        raise AnswerNo(f"has {plan.micro_batches} microbatches", where="/micro_batches", hint=REPLAN)
    order = expand_step(stage.program, graph.layers)
    budget = None if plan.status == OVER_BUDGET else plan.budget_bytes
    if order.interleaved and plan.windows:
        message = (
            "has given windows, but interleaves microbatches: nothing lies between a forward and its backward pass"
        )
        raise AnswerNo(message, where="/windows", hint=REPLAN)
    _checked_step(index, order, budget, plan.micro_batches)
    if plan.profile_digest == files.digest(graph):
        idle_ns = sum(window.room_ns for window in plan.windows)
        _check_prediction(plan.predicted, predict_step(graph, order, micro_batches=plan.micro_batches, idle_ns=idle_ns))


def differences(plan: Plan, graph: CostGraph) -> tuple[str, ...]:
    """What differs between the graph that a plan was made for and this one, a line each; empty if nothing does."""
    if plan.structure_digest == structure_digest(graph) and plan.mesh == graph.mesh:
        return ()
    index = GraphIndex(graph)
    found = []
    if plan.mesh != graph.mesh:
        found.append(f"parallelism: planned {_mesh_text(plan.mesh)}, now {_mesh_text(graph.mesh)}")
    classes = [planned for stage in plan.stages for planned in stage.classes]
    planned_layers = {layer for planned in classes for layer in planned.layers}
    if planned_layers != set(range(len(graph.layers))):
        found.append(f"layers: planned {len(planned_layers)}, now {len(graph.layers)}")
    for planned in classes:
        found += _class_difference(planned, index)
    return tuple(found) or ("same ops, but wired differently between layers, or other parameters",)


def _class_difference(planned: PlannedClass, index: GraphIndex) -> list[str]:
    """The first op that differs in the first member that does."""
    for layer in planned.layers:
        if not 0 <= layer < len(index.graph.layers):
            continue
        lines = op_lines(index, layer)
        if lines == planned.ops:
            continue
        name = index.graph.layers[layer].name
        for slot, (old, new) in enumerate(zip(planned.ops, lines, strict=False)):
            if old != new:
                return [f"{name} op {slot}: planned {old}; now {new}"]
        return [f"{name}: planned {len(planned.ops)} ops, now {len(lines)}"]
    return []


def _mesh_text(mesh: tuple[tuple[str, int], ...]) -> str:
    return " ".join(f"{name} {size}" for name, size in mesh) or "one rank"


def _stale(plan: Plan, graph: CostGraph) -> NoReturn:
    found = differences(plan, graph)
    more = f"; and {len(found) - REPORTED} more" if len(found) > REPORTED else ""
    raise AnswerNo(
        "stale: the plan was made for another model or parallelism: " + "; ".join(found[:REPORTED]) + more,
        where="/structure_digest",
        hint="profile and plan again: lynx profile, lynx plan",
    )


def _only_stage(plan: Plan, index: GraphIndex) -> StagePlan:
    """The plan's one stage, if its layers and classes are the graph's."""
    if len(plan.stages) != 1:
        raise AnswerNo(f"has {len(plan.stages)} stages; a profile holds one", where="/stages", hint=REPLAN)
    stage, layers = plan.stages[0], index.graph.layers
    if stage.layers != tuple(range(len(layers))):
        message = f"its layers are not the model's {len(layers)} in order"
        raise AnswerNo(message, where="/stages/0/layers", hint=REPLAN)
    members = sorted(layer for planned in stage.classes for layer in planned.layers)
    if members != list(stage.layers):
        message = "its classes do not hold every layer once"
        raise AnswerNo(message, where="/stages/0/classes", hint=REPLAN)
    for number, planned in enumerate(stage.classes):
        for difference in _class_difference(planned, index):
            raise AnswerNo(f"matches no layers: {difference}", where=f"/stages/0/classes/{number}", hint=REPLAN)
    return stage


def _check_prediction(stored: Outcome, derived: Outcome) -> None:
    old, new = asdict(stored), asdict(derived)
    wrong = [f"{name} is {old[name]}, simulated {new[name]}" for name in old if old[name] != new[name]]
    if wrong:
        raise AnswerNo(f"prediction: {'; '.join(wrong)}", where="/predicted", hint=REPLAN)


def _checked_step(index: GraphIndex, order: StepOrder, budget_bytes: int | None, micro_batches: int) -> Flow:
    """All rules of a step's order: of one microbatch, or of some interleaved ones."""
    if not order.interleaved:
        return _checked_flow(_Order(index=index, items=order.steady), budget_bytes)
    count = min(micro_batches, SHOWN)
    unrolled = order.unrolled(count)
    checked = _Order(index=index, items=unrolled.items, starts=unrolled.starts, microbatches=count)
    if updated := updated_buffers(index.graph):
        _refuse(checked, "buffer", Item(updated[0]), "updates a buffer, so that microbatches cannot overlap")
    return _checked_flow(checked, budget_bytes)


def _checked_flow(order: _Order, budget_bytes: int | None) -> Flow:
    """All rules of an order, the cheap and local ones first; its flow."""
    for rule in (_known, _microbatch, _once, _replica, _random_state, _graph_order, _effect_order):
        rule(order)
    try:
        flow = resolve(order.index.graph, order.items, order.starts)
    except AnswerNo as error:
        raise AnswerNo(f"produced: {error.message}", where=error.where, hint=error.hint) from None
    _collective(order, flow)
    _in_one_part(order, flow)
    _version(order, flow)
    _dead(order, flow)
    if budget_bytes is not None:
        _budget(order, flow, budget_bytes)
    return flow


def _refuse(order: _Order, rule: str, item: Item, message: str, hint: str = REPLAN) -> NoReturn:
    raise AnswerNo(f"{rule}: {message}", where=order.index.item_name(item), hint=hint)


def _known(order: _Order) -> None:
    """Every item names an op and a copy of it."""
    count = len(order.index.graph.ops)
    for position, item in enumerate(order.items):
        if not 0 <= item.op < count or item.replica < 0:
            message = f"known: item '{item}' at position {position} is no op of this graph, which has {count}"
            raise AnswerNo(message, where=str(item), hint=REPLAN)


def _microbatch(order: _Order) -> None:
    """All items are of the step's microbatches."""
    for item in order.items:
        if not 0 <= item.microbatch < order.microbatches:
            _refuse(order, "microbatch", item, f"belongs to none of the {order.microbatches} microbatches checked")


def _once(order: _Order) -> None:
    """Every op runs exactly once as the original of each microbatch, and every copy at most once."""
    seen: set[Item] = set()
    for item in order.items:
        if item in seen:
            _refuse(order, "once", item, "runs twice")
        seen.add(item)
    for microbatch in range(order.microbatches):
        for op in order.index.graph.ops:
            item = Item(op.id, 0, microbatch)
            if item not in seen:
                _refuse(order, "once", item, "never runs")


def _replica(order: _Order) -> None:
    """Only forward ops without side effects are recomputed."""
    for item in order.items:
        op = order.op(item)
        if not item.replica:
            continue
        if op.phase is not Phase.FORWARD:
            _refuse(order, "replica", item, "recompute of an op that is not a forward op")
        if op.effect:
            _refuse(order, "replica", item, "recompute of an op that changes state outside the graph")


def _random_state(order: _Order) -> None:
    """A random op runs again only after its original, which saves the generator's state for its copies."""
    drawn: set[tuple[int, int]] = set()
    for item in order.items:
        if not order.op(item).rng:
            continue
        if not item.replica:
            drawn.add((item.op, item.microbatch))
        elif (item.op, item.microbatch) not in drawn:
            _refuse(order, "random-state", item, "draws again before its original has saved the generator's state")


def _graph_order(order: _Order) -> None:
    """The forward pass runs in graph order; among interleaved microbatches, its views and waits may run later."""
    for microbatch in range(order.microbatches):
        forward = [
            item
            for item in order.items
            if item.microbatch == microbatch and not item.replica and order.op(item).phase is Phase.FORWARD
        ]
        if order.microbatches > 1:
            forward = [item for item in forward if order.op(item).role not in (Role.VIEW, Role.WAIT)]
        _ascending(order, "graph-order", forward)


def _effect_order(order: _Order) -> None:
    """Random numbers, side effects, and the accumulations of one parameter keep the order of microbatches and graph."""
    originals = [item for item in order.items if not item.replica]
    _ascending(order, "effect-order", [i for i in originals if order.op(i).rng])
    effects = [i for i in originals if order.op(i).effect]
    _ascending(order, "effect-order", [i for i in effects if order.op(i).role is not Role.ACCUMULATE])
    parameters: dict[str, list[Item]] = {}
    for item in effects:
        if order.op(item).role is Role.ACCUMULATE:
            parameters.setdefault(order.op(item).parameter, []).append(item)
    for accumulations in parameters.values():
        _ascending(order, "effect-order", accumulations)


def _ascending(order: _Order, rule: str, items: Sequence[Item]) -> None:
    for before, after in pairwise(items):
        if (after.microbatch, after.op) < (before.microbatch, before.op):
            _refuse(order, rule, after, f"runs after {order.index.item_name(before)}, which the graph has later")


def _collective(order: _Order, flow: Flow) -> None:
    """A wait reads a launch; nothing else reads a transfer's result before it was waited for."""
    launched = [False] * len(order.items)  # the item's outputs are the result of a transfer not waited for
    for position, item in enumerate(order.items):
        role = order.op(item).role
        unwaited = any(launched[source] for source in flow.sources[position] if source >= 0)
        if role is Role.WAIT and not unwaited:
            _refuse(order, "collective", item, "waits for something that no collective made")
        if unwaited and role not in (Role.WAIT, Role.VIEW):
            _refuse(order, "collective", item, "reads a collective's result that was not waited for")
        launched[position] = role is Role.COLLECTIVE or (role is Role.VIEW and unwaited)


def _in_one_part(order: _Order, flow: Flow) -> None:
    """A transfer is waited for in the part that launched it."""
    for position, item in enumerate(order.items):
        if order.op(item).role is Role.WAIT:
            part = [bisect_right(order.starts, p) for p in (position, flow.sources[position][0])]
            if part[0] != part[1]:
                _refuse(order, "part", item, "waits for a transfer that another part of the step launched")


def _version(order: _Order, flow: Flow) -> None:
    """The forward pass reads originals only: a copy made before its reader ran would be read in its place."""
    for position, item in enumerate(order.items):
        if item.replica or order.op(item).phase is not Phase.FORWARD:
            continue
        for source in flow.sources[position]:
            if source >= 0 and order.items[source].replica:
                copy = order.index.item_name(order.items[source])
                _refuse(order, "version", item, f"reads {copy}, but the forward pass reads originals only")


def _dead(order: _Order, flow: Flow) -> None:
    """Every recomputed copy is read."""
    read = {source for sources in flow.sources for source in sources}
    for position, item in enumerate(order.items):
        if item.replica and position not in read:
            _refuse(order, "dead", item, "nothing reads this recomputed copy")


def _budget(order: _Order, flow: Flow, budget_bytes: int) -> None:
    """Static memory and the peak of activations fit the budget."""
    graph = order.index.graph
    curve = memory_curve(graph, order.items, flow)
    peak = graph.static.total_bytes + curve.peak_bytes
    if peak > budget_bytes:
        item = order.items[curve.peak_position]
        message = f"peak memory {format_bytes(peak)} is over the budget of {format_bytes(budget_bytes)}"
        _refuse(order, "budget", item, message, "plan with a larger --budget, or for a smaller model")
