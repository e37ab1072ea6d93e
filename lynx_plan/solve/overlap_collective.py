"""Baseline `overlap-collective`: the k-th recomputed layer runs beside the k-th gradient collective, as MindSpore does.

Whole layers are recomputed, each in a backward window of the layer whose backward comes just before; a rule without
cost model or budget. It gets its best setting: how many layers, and which of that layer's windows.
"""

from __future__ import annotations

from collections.abc import Iterator

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import Phase, Role
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.full import repeated_layers
from lynx_plan.solve.order import Placement
from lynx_plan.solve.settings import best_setting


def solve(problem: Problem) -> Solution:
    """The best number of layers that fits."""
    facts = analysis_of(problem.index).whole
    return best_setting(problem, _settings(facts, repeated_layers(problem.index)), "repeated layers")


def _settings(facts: Candidates, layers: tuple[int, ...]) -> Iterator[list[Placement]]:
    for which in (-1, 0):
        beside = [_window(facts.index, layer + 1, which) for layer in layers]
        for count in range(len(layers) + 1):
            yield [
                p for layer, launch in zip(layers[:count], beside, strict=False) for p in _copies(facts, layer, launch)
            ]


def _window(index: GraphIndex, layer: int, which: int) -> int:
    """The op id of a backward collective of the layer: its last (-1) or first (0) launched; -1 without one."""
    if layer >= len(index.graph.layers):
        return -1
    ops = (index.graph.ops[op] for op in index.graph.layers[layer].ops)
    launches = [op.id for op in ops if op.role is Role.COLLECTIVE and op.phase is not Phase.FORWARD]
    return launches[which] if launches else -1


def _copies(facts: Candidates, layer: int, launch: int) -> list[Placement]:
    """All of the layer in that window; in a block where there is none."""
    drop = [op for op in facts.index.graph.layers[layer].ops if facts.droppable(op)]
    block = layer if launch < 0 else -1
    return [Placement(op=op, window=launch, block=block) for op in facts.closure(drop)]
