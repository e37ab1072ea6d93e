"""Windows of an order: what runs between each collective's launch and its wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lynx_plan.analyze.flow import Flow
from lynx_plan.model.graph import CostGraph, Phase, Role
from lynx_plan.model.program import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One collective of an order. `launch` and `wait` are positions (no wait: the last position).

    `layer` and `slot` place its op. `name`: `fw`, `bw`, or `rc` for a recomputed collective, and its number in
    order of launch. `capacity_ns` is the transfer's time; the other times are compute between launch and wait.
    """

    id: int
    layer: int
    slot: int
    name: str
    phase: Phase
    launch: int
    wait: int
    capacity_ns: int
    weight_gradient_ns: int
    recompute_ns: int
    other_ns: int


def windows(graph: CostGraph, items: Sequence[Item], flow: Flow) -> tuple[Window, ...]:
    """The windows of an order, by launch. Windows may overlap: what runs in both counts in both."""
    waits = _first_waits(graph, items, flow)
    weight_gradient, recompute, other = _running_totals(graph, items)
    places = _places(graph)
    numbers = {"fw": 0, "bw": 0, "rc": 0}
    found: list[Window] = []
    for launch, item in enumerate(items):
        op = graph.ops[item.op]
        if op.role is not Role.COLLECTIVE:
            continue
        sort = "rc" if item.replica else "fw" if op.phase is Phase.FORWARD else "bw"
        wait = waits.get(launch, len(items) - 1)
        found.append(
            Window(
                id=len(found),
                layer=places[item.op][0],
                slot=places[item.op][1],
                name=f"{sort}{numbers[sort]}",
                phase=op.phase,
                launch=launch,
                wait=wait,
                capacity_ns=op.comm_ns,
                weight_gradient_ns=weight_gradient[wait] - weight_gradient[launch],
                recompute_ns=recompute[wait] - recompute[launch],
                other_ns=other[wait] - other[launch],
            )
        )
        numbers[sort] += 1
    return tuple(found)


def _first_waits(graph: CostGraph, items: Sequence[Item], flow: Flow) -> dict[int, int]:
    """Launch position -> position of the first wait that reads it."""
    waits: dict[int, int] = {}
    for position, item in enumerate(items):
        if graph.ops[item.op].role is Role.WAIT:
            waits.setdefault(flow.sources[position][0], position)
    return waits


def _running_totals(graph: CostGraph, items: Sequence[Item]) -> tuple[list[int], list[int], list[int]]:
    """Compute time up to and including each position: of weight gradients, of recomputations, of all else."""
    kinds: tuple[list[int], list[int], list[int]] = ([], [], [])
    for item in items:
        op = graph.ops[item.op]
        kind = 1 if item.replica else 0 if op.phase is Phase.WEIGHT_GRADIENT else 2
        time_ns = 0 if op.role in (Role.VIEW, Role.WAIT) else op.time_ns
        for number, times in enumerate(kinds):
            times.append(time_ns if number == kind else 0)
    return list(accumulate(kinds[0])), list(accumulate(kinds[1])), list(accumulate(kinds[2]))


def _places(graph: CostGraph) -> dict[int, tuple[int, int]]:
    """Layer and slot of each op."""
    return {op: (layer.id, slot) for layer in graph.layers for slot, op in enumerate(layer.ops)}
