"""The parts of a step as the runtime needs them: where each value comes from, and what passes from part to part."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.analyze.flow import Flow, resolve
from lynx_plan.analyze.replay import replayed
from lynx_plan.analyze.steps import StepOrder, Unrolled
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item

CARRIED = -2  # a source: the value was made in an earlier part (-1: a graph input)
ENOUGH = 3  # microbatches, so that a steady part has steady ones before and after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part: its items, and per position and input the position of the copy read.

    `carried_in`: tensors of microbatch 0 from earlier parts; `carried_out`: (tensor, position) that later ones read,
    which they know by the same index. `states_in`: ops whose random state was saved earlier, by the same rule
    `states_out` as (op, microbatch). `outputs`: (tensor, position) of the graph's outputs made here. `replayed`: random
    ops (op, microbatch) that run again, here or later.
    """

    items: tuple[Item, ...]
    sources: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, int], ...]
    carried_in: tuple[int, ...] = ()
    carried_out: tuple[tuple[int, int], ...] = ()
    states_in: tuple[int, ...] = ()
    states_out: tuple[tuple[int, int], ...] = ()
    replayed: frozenset[tuple[int, int]] = frozenset()


def parts_of(graph: CostGraph, order: StepOrder) -> tuple[Part, ...]:
    """Each distinct part of a step's order, in the order of `StepOrder.parts`."""
    unrolled = order.unrolled(ENOUGH if order.interleaved else 1)
    reader = _Reader(graph, unrolled, resolve(graph, unrolled.items, unrolled.starts))
    runs = (0, ENOUGH - 1, ENOUGH) if order.interleaved else (0,)
    parts = tuple(reader.part(run, order.parts[unrolled.parts[run]]) for run in runs)
    for before, after in ((0, 1), (1, 1), (1, 2), (0, 2)) if order.interleaved else ():
        assert tuple(tensor for tensor, _ in parts[before].carried_out) == parts[after].carried_in, (before, after)
        assert tuple(op for op, _ in parts[before].states_out) == parts[after].states_in, (before, after)
    return parts


class _Reader:
    """Reads parts from an unrolled step."""

    def __init__(self, graph: CostGraph, unrolled: Unrolled, flow: Flow) -> None:
        self.graph, self.unrolled, self.flow = graph, unrolled, flow
        self.again = replayed(graph, unrolled.items)
        self.last_read: dict[tuple[int, int], int] = {}  # (tensor, position of its copy) -> last position that reads it
        for position, sources in enumerate(flow.sources):
            for tensor, source in zip(graph.ops[unrolled.items[position].op].inputs, sources, strict=True):
                self.last_read[tensor, source] = position
        self.last_copy = {
            (item.op, item.microbatch): position
            for position, item in enumerate(unrolled.items)
            if item.replica and (item.op, item.microbatch) in self.again
        }

    def part(self, run: int, items: tuple[Item, ...]) -> Part:
        """The part that runs here; its items count microbatches from its own."""
        span = self.unrolled.span(run)
        first = self.unrolled.items[span.start].microbatch - items[0].microbatch if items else 0
        return Part(
            items=items,
            sources=tuple(
                tuple(s - span.start if s >= span.start else CARRIED if s >= 0 else -1 for s in self.flow.sources[p])
                for p in span
            ),
            outputs=self._outputs(span),
            carried_in=self._carried_in(span),
            carried_out=tuple((tensor, position - span.start) for tensor, position in self._carried_out(span)),
            states_in=self._states_in(span),
            states_out=tuple((op, microbatch - first) for op, microbatch in self._states_out(span)),
            replayed=frozenset((op, microbatch - first) for op, microbatch in self.again),
        )

    def _carried_out(self, span: range) -> list[tuple[int, int]]:
        """(tensor, position) made in the span and read after it, by tensor."""
        return sorted((t, p) for (t, p), last in self.last_read.items() if p in span and last >= span.stop)

    def _carried_in(self, span: range) -> tuple[int, ...]:
        """Tensors made before the span and read in it, by tensor: what the run before carried out."""
        read = {
            tensor
            for position in span
            for tensor, source in zip(
                self.graph.ops[self.unrolled.items[position].op].inputs, self.flow.sources[position], strict=True
            )
            if 0 <= source < span.start
        }
        return tuple(sorted(read))

    def _states_out(self, span: range) -> list[tuple[int, int]]:
        """Random ops of the span whose last copy comes after it."""
        return sorted(
            (item.op, item.microbatch)
            for item in (self.unrolled.items[p] for p in span)
            if not item.replica and self.last_copy.get((item.op, item.microbatch), -1) >= span.stop
        )

    def _states_in(self, span: range) -> tuple[int, ...]:
        here = {(i.op, i.microbatch) for i in (self.unrolled.items[p] for p in span) if not i.replica}
        copies = {
            (i.op, i.microbatch)
            for i in (self.unrolled.items[p] for p in span)
            if i.replica and (i.op, i.microbatch) in self.again
        }
        return tuple(sorted(op for op, _ in copies - here))

    def _outputs(self, span: range) -> tuple[tuple[int, int], ...]:
        """The graph's outputs whose producer runs here, from its latest copy in the span."""
        items = self.unrolled.items
        latest = {(items[p].op, items[p].microbatch): p - span.start for p in span}
        makers = {items[p].op: (items[p].op, items[p].microbatch) for p in span if not items[p].replica}
        producers = [(tensor, self.graph.tensors[tensor].producer) for tensor in self.graph.outputs]
        return tuple((tensor, latest[makers[producer]]) for tensor, producer in producers if producer in makers)
