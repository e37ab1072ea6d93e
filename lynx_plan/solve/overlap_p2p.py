"""Baseline `overlap-p2p`: the next layer's recomputation runs in an exposed point-to-point window, as in PaddlePaddle.

Whole layers are recomputed. A layer whose backward follows a point-to-point transfer runs again in that window, and
the first ones in backward in the given windows of the next microbatch's forward; the others in blocks on demand. It
gets its best setting: how many layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from lynx_plan.model.graph import Phase, Role
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.full import repeated_layers
from lynx_plan.solve.order import Placement
from lynx_plan.solve.settings import best_setting

POINT_TO_POINT = ("send", "recv", "permute")


def solve(problem: Problem) -> Solution:
    """The best number of layers that fits."""
    facts = analysis_of(problem.index).whole
    room_ns = sum(window.room_ns for window in problem.windows if window.kind == "forward")
    return best_setting(problem, _settings(facts, repeated_layers(problem.index), room_ns), "repeated layers")


def _settings(facts: Candidates, layers: tuple[int, ...], room_ns: int) -> Iterator[list[Placement]]:
    for count in range(len(layers) + 1):
        early = early_layers(facts, layers[:count], room_ns)
        yield [p for layer in layers[:count] for p in layer_copies(facts, layer, _window(facts, layer), layer in early)]


def early_layers(facts: Candidates, layers: tuple[int, ...], room_ns: int) -> frozenset[int]:
    """The last of these layers whose recomputation fits the room together."""
    found = []
    for layer in reversed(layers):
        room_ns -= sum(facts.index.graph.ops[p.op].time_ns for p in layer_copies(facts, layer, -1, False))
        if room_ns < 0:
            break
        found.append(layer)
    return frozenset(found)


def layer_copies(facts: Candidates, layer: int, window: int, early: bool) -> list[Placement]:
    """All of the layer: before the backward pass, in a window (op id of its collective), or in a block."""
    drop = [op for op in facts.index.graph.layers[layer].ops if facts.droppable(op)]
    ops = facts.closure(drop)
    if early:
        return [Placement(op=op, early=True) for op in ops]
    return [Placement(op=op, window=window, block=layer if window < 0 else -1) for op in ops]


def _window(facts: Candidates, layer: int) -> int:
    """The last point-to-point transfer in the backward of the layer after it; -1 without one."""
    graph = facts.index.graph
    after = graph.layers[layer + 1].ops if layer + 1 < len(graph.layers) else ()
    ops = (graph.ops[op] for op in after if graph.ops[op].phase is not Phase.FORWARD)
    found = [op.id for op in ops if op.role is Role.COLLECTIVE and any(name in op.kind for name in POINT_TO_POINT)]
    return found[-1] if found else -1
