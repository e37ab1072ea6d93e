"""Baseline `full`: each repeated layer keeps only its input and runs its forward again as backward reaches it.

As Megatron-LM's full recomputation and `torch.utils.checkpoint` with early stop do: what the layer's backward does
not need (its last all-reduce, for instance) does not run again. Layers that are not repeated keep everything.
"""

from __future__ import annotations

import re

from lynx_plan.analyze.classes import layer_classes
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.order import Decisions, Placement, build_order

NO_LAYERS = "the model has no repeated layers, so full recomputation has nothing to recompute"


def solve(problem: Problem) -> Solution:
    """Recompute every repeated layer in a block at the start of its backward."""
    decisions = full_decisions(problem.index)
    items = build_order(problem.index, decisions)
    if not decisions.placements:
        return Solution(items=items, status=NOT_NEEDED, notes=(NO_LAYERS,))
    return Solution(items=items, status=FEASIBLE)


def full_decisions(index: GraphIndex, candidates: Candidates | None = None) -> Decisions:
    """What full recomputation drops, and where it runs again."""
    facts = candidates or Candidates(index)
    placements = []
    for layer in repeated_layers(index):
        drop = [op for op in index.graph.layers[layer].ops if facts.droppable(op)]
        placements += [Placement(op=op, block=layer) for op in facts.closure(drop)]
    return Decisions(placements=tuple(placements))


def repeated_layers(index: GraphIndex) -> tuple[int, ...]:
    """Layers with a number for a name (`layers.3`), or of a class with several members."""
    several = {layer for group in layer_classes(index, priced=False) if len(group.layers) > 1 for layer in group.layers}
    numbered = re.compile(r"(^|\.)\d+$")
    return tuple(layer.id for layer in index.graph.layers if layer.id in several or numbered.search(layer.name))
