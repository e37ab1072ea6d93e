"""Why a plan keeps a value or makes it again: its bytes, what recomputing costs, the windows that had room, what binds.

The opposite decision is made in the plan's order and simulated: what it would do to the step and to the peak is the
answer, not a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.windows import Window, windows
from lynx_plan.check import check_order
from lynx_plan.errors import AnswerNo, LynxError
from lynx_plan.model.graph import CostGraph, Op, Phase, Role
from lynx_plan.model.program import Item
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.remat_order import with_copies, without_copies
from lynx_plan.solve.score import Scored, score
from lynx_plan.units import format_bytes, format_ms

SHOWN = 6  # names in a hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A window that closes before the value's first backward use, and what is in it."""

    name: str
    layer: str
    capacity_ns: int
    weight_gradient_ns: int
    recompute_ns: int

    @property
    def left_ns(self) -> int:
        return max(0, self.capacity_ns - self.weight_gradient_ns - self.recompute_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """One op's values in a plan. Steps and peaks are of one microbatch; `other_*`: with the opposite decision, 0 where
    that is not legal. `reason` is a sentence, `binding` a short name of what decides."""

    op: int
    name: str
    layer: str
    bytes: int
    recomputed: bool
    where: str
    again_ns: int
    again: tuple[str, ...]
    rooms: tuple[Room, ...]
    step_ns: int
    peak_bytes: int
    other_step_ns: int
    other_peak_bytes: int
    budget_bytes: int
    binding: str
    reason: str


def explain(graph: CostGraph, items: Sequence[Item], text: str, *, budget_bytes: int, idle_ns: int = 0) -> Why:
    """Why this order does what it does with the value called `text`. LynxError if there is no such one."""
    index = GraphIndex(graph)
    return _Question(index, tuple(items), find_op(index, text), budget_bytes, idle_ns).answer()


def find_op(index: GraphIndex, text: str) -> int:
    """The forward op that makes a value: by tensor or op name, `LAYER.OP`, or `L12.OP` with the layer's number.

    A name within a layer may be the module's and the kind's, as `lynx inspect` prints it (`mlp.gelu`).
    """
    names: dict[str, list[int]] = {}
    graph = index.graph
    for op in graph.ops:
        if op.phase is Phase.FORWARD and op.role is not Role.VIEW and op.outputs:
            for name in _names(index, op):
                names.setdefault(name, []).append(op.id)
    found = sorted(set(names.get(text, [])))
    if len(found) == 1:
        return found[0]
    if found:
        layers = [f"{graph.layers[index.op_layer[op]].name}.{graph.ops[op].name}" for op in found[:SHOWN]]
        raise LynxError(f"'{text}' names {len(found)} values", where="--why", hint=f"one of: {', '.join(layers)}, ...")
    close = get_close_matches(text, names, n=SHOWN, cutoff=0.4)
    hint = f"like it: {', '.join(close)}" if close else "lynx inspect shows the names, such as layers.3.gelu_3"
    raise LynxError(f"no value '{text}' in the forward pass", where="--why", hint=hint)


def _names(index: GraphIndex, op: Op) -> list[str]:
    layer = index.graph.layers[index.op_layer[op.id]]
    kind = op.kind.split(".")[1] if "." in op.kind else op.kind
    module = op.module.removeprefix(layer.name).strip(".")
    within = dict.fromkeys((op.name, kind, f"{module}.{kind}" if module else kind))
    tensors = [index.graph.tensors[t].name for t in op.outputs]
    full = [f"{prefix}.{name}" for prefix in (layer.name, f"L{layer.id}") for name in within]
    return list(dict.fromkeys([op.name, *tensors, *full]))


class _Question:
    """One op in one order."""

    def __init__(self, index: GraphIndex, items: tuple[Item, ...], op: int, budget_bytes: int, idle_ns: int) -> None:
        self.index, self.items, self.op = index, items, op
        self.graph = index.graph
        self.facts = Candidates(index)
        self.idle_ns = idle_ns
        self.budget = budget_bytes
        self.now = score(self.graph, items, idle_ns=idle_ns)
        self.windows = windows(self.graph, items, self.now.flow)
        self.copies = [i for i, item in enumerate(items) if item.op == op and item.replica]

    def answer(self) -> Why:
        again = self._again()
        other = self._opposite(again)
        binding, reason = self._reason(other)
        record = self.graph.ops[self.op]
        static = self.graph.static.total_bytes
        return Why(
            op=self.op,
            name=record.name,
            layer=self.graph.layers[self.index.op_layer[self.op]].name,
            bytes=sum(self.graph.storages[s].bytes for s in self.facts.pieces[self.op]),
            recomputed=bool(self.copies),
            where=", ".join(dict.fromkeys(self._place(i) for i in self.copies)) or "kept",
            again_ns=sum(self.graph.ops[op].time_ns + self.graph.ops[op].comm_ns for op in again),
            again=tuple(self.graph.ops[op].name for op in again),
            rooms=self._rooms(),
            step_ns=self.now.end_ns,
            peak_bytes=static + self.now.peak_bytes,
            other_step_ns=other.end_ns if other else 0,
            other_peak_bytes=static + other.peak_bytes if other else 0,
            budget_bytes=self.budget,
            binding=binding,
            reason=reason,
        )

    def _again(self) -> tuple[int, ...]:
        """The ops that run again to make the value, if it is dropped: it, and those of its sources that are."""
        copied = {item.op for item in self.items if item.replica}
        return self.facts.closure_of(self.op, copied)

    def _first_use(self) -> int:
        """Position of the first backward item that reads the value; the end without one."""
        tensors = {t for s in self.facts.pieces[self.op] for t in self.index.storage_tensors[s]}
        for position, item in enumerate(self.items):
            op = self.graph.ops[item.op]
            if op.phase is not Phase.FORWARD and not tensors.isdisjoint(op.inputs):
                return position
        return len(self.items)

    def _place(self, position: int) -> str:
        """The window that a copy runs in, or on demand."""
        inside = [w for w in self.windows if w.phase is not Phase.FORWARD and w.launch < position < w.wait]
        return f"in {inside[0].name}" if inside else "on demand"

    def _rooms(self) -> tuple[Room, ...]:
        """The last three backward windows that close before the first use."""
        use = self._first_use()
        found = [w for w in self.windows if w.phase is not Phase.FORWARD and w.wait <= use and w.name[:2] == "bw"]
        return tuple(self._room(window) for window in found[-3:])

    def _room(self, window: Window) -> Room:
        return Room(
            name=window.name,
            layer=self.graph.layers[window.layer].name,
            capacity_ns=window.capacity_ns,
            weight_gradient_ns=window.weight_gradient_ns,
            recompute_ns=window.recompute_ns,
        )

    def _opposite(self, again: tuple[int, ...]) -> Scored | None:
        """The order with the opposite decision, simulated; None where that is not legal."""
        use = self._first_use()
        if self.copies:
            items = without_copies(self.index, self.items, self.op)
        elif self.facts.recomputable[self.op] and use < len(self.items):
            items = with_copies(self.index, self.items, {self.items[use].op: again})
        else:
            return None
        try:
            check_order(self.graph, items, budget_bytes=None)
        except AnswerNo:
            return None
        return score(self.graph, items, idle_ns=self.idle_ns)

    def _reason(self, other: Scored | None) -> tuple[str, str]:
        if not self.copies and not self.facts.read[self.op]:
            return "not needed", "backward does not read it, so it dies in the forward pass"
        if other is None:
            return "not allowed", self._forbidden()
        change = other.end_ns - self.now.end_ns
        room = self.budget - self.graph.static.total_bytes - other.peak_bytes
        if self.copies and room < 0:
            return "budget", f"keeping it would pass the budget by {format_bytes(-room)} at {self._peak_of(other)}"
        if self.copies and change >= 0:
            return "window", "it is made again where the step has room: keeping it would not be faster"
        if self.copies:
            return "policy", f"keeping it alone would save {format_ms(-change)}, but layers are given whole policies"
        if change > 0:
            return "time", f"making it again on demand would add {format_ms(change)}, and memory is not short"
        return "policy", "making it again would cost no time, but memory is not short: less work is better"

    def _peak_of(self, scored: Scored) -> str:
        return self.index.item_name(scored.items[scored.memory.peak_position])

    def _forbidden(self) -> str:
        record = self.graph.ops[self.op]
        if record.effect:
            return "it changes state, depends on data or routes it: it runs once"
        if self.facts.crossing[self.op]:
            return "the next layer reads it: a layer is made again from what enters it"
        return "it may not run again: it draws or decides, or is written in place"
