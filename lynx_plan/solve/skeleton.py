"""What ordering needs to know of a graph, whatever is recomputed: who triggers what, and what fills windows."""

from __future__ import annotations

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import Op, Phase, Role


class Skeleton:
    """Facts of a graph for `order.build_order`, built once. Ops are ids; "lazy" ops (views, waits) run at first use.

    An op's bases are the ops behind its inputs, looked at through views (a wait is a base, a view is not).
    """

    __slots__ = (
        "accumulates",
        "collectives",
        "critical",
        "fillers",
        "filling_waits",
        "forward",
        "forward_order",
        "index",
        "inputs",
        "is_wait",
        "launch_bases",
        "launch_of",
        "lazy",
        "needs",
        "triggers",
        "wait_needs",
    )

    def __init__(self, index: GraphIndex) -> None:
        graph = index.graph
        ops = graph.ops
        producer = [tensor.producer for tensor in graph.tensors]
        self.index = index
        self.inputs = [tuple(dict.fromkeys(p for t in op.inputs if (p := producer[t]) >= 0)) for op in ops]
        self.lazy = [op.role in (Role.VIEW, Role.WAIT) for op in ops]
        self.is_wait = [op.role is Role.WAIT for op in ops]
        self.forward = [op.phase is Phase.FORWARD for op in ops]
        self.launch_of = {op.id: self.inputs[op.id][0] for op in ops if self.is_wait[op.id] and self.inputs[op.id]}
        self.forward_order = [op.id for op in ops if self.forward[op.id]]
        self.collectives = {op.id for op in ops if op.role is Role.COLLECTIVE and not self.forward[op.id]}
        self._backward([op for op in ops if not self.forward[op.id]])

    def _bases(self, op: int) -> list[int]:
        """Backward ops behind the inputs of `op`, through backward views."""
        found: dict[int, None] = {}
        stack = list(reversed(self.inputs[op]))
        while stack:
            source = stack.pop()
            if self.forward[source]:
                continue
            if self.lazy[source] and not self.is_wait[source]:
                stack.extend(reversed(self.inputs[source]))
            else:
                found[source] = None
        return list(found)

    def _backward(self, ops: list[Op]) -> None:
        """Sort the backward ops into critical ones, fillers, accumulates, and what triggers what."""
        self.critical: list[int] = []  # in graph order; collectives included
        self.fillers: list[int] = []  # weight-gradient ops that run in windows, in graph order
        self.accumulates: dict[int, list[int]] = {}  # base -> accumulates that run directly after it
        self.triggers: dict[int, list[int]] = {}  # op -> fillers and launches of which it is a base
        self.launch_bases: dict[int, int] = {}  # backward collective with backward bases -> how many
        self.needs: dict[int, int] = {}  # filler -> how many bases it has (a wait counts as its launch)
        self.wait_needs: dict[int, tuple[int, ...]] = {}  # filler -> waits among its bases
        self.filling_waits: set[int] = set()  # waits that a critical op waits for: their windows get filled
        for op in ops:
            if self.lazy[op.id]:
                continue
            bases = self._bases(op.id)
            if op.role is Role.ACCUMULATE and len(bases) == 1:
                self.accumulates.setdefault(bases[0], []).append(op.id)
            elif op.phase is Phase.WEIGHT_GRADIENT and op.role is not Role.COLLECTIVE:
                self._add_filler(op.id, bases)
            else:
                self._add_critical(op, bases)

    def _add_filler(self, op: int, bases: list[int]) -> None:
        self.fillers.append(op)
        waits = tuple(base for base in bases if self.is_wait[base])
        sources = list(dict.fromkeys(self.launch_of.get(base, base) for base in bases))
        self.wait_needs[op] = waits
        self.needs[op] = len(sources)
        for source in sources:
            self.triggers.setdefault(source, []).append(op)

    def _add_critical(self, op: Op, bases: list[int]) -> None:
        self.critical.append(op.id)
        self.filling_waits.update(base for base in bases if self.is_wait[base])
        if op.role is Role.COLLECTIVE and bases:
            self.launch_bases[op.id] = len(bases)
            for base in bases:
                self.triggers.setdefault(base, []).append(op.id)
