"""Baseline `uniform[:N]`: chunks of N repeated layers keep only the chunk's input (Megatron-LM's uniform method).

A chunk's forward runs again as one block when backward reaches its last layer. Without N, the best N that fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from lynx_plan.solve.analysis import Analysis, analysis_of
from lynx_plan.solve.base import Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.full import repeated_layers
from lynx_plan.solve.order import Placement
from lynx_plan.solve.settings import best_setting, number_setting


def solve(problem: Problem) -> Solution:
    """The given N, or the one of the shortest step that fits."""
    analysis = analysis_of(problem.index)
    layers = repeated_layers(problem.index)
    given = number_setting(problem.setting, "uniform", "layers of a chunk")
    sizes = [given] if given else range(1, len(layers) + 1)
    return best_setting(problem, (uniform_placements(analysis, layers, size) for size in sizes), "repeated layers")


def uniform_placements(analysis: Analysis, layers: Sequence[int], size: int) -> list[Placement]:
    """What chunks of `size` layers recompute, in a block that opens the backward of their last layer."""
    placements = []
    for start in range(0, len(layers), size):
        chunk = layers[start : start + size]
        drop = droppable_in(analysis.whole, chunk)
        placements += [Placement(op=op, block=chunk[-1]) for op in analysis.whole.closure(drop)]
    return placements


def droppable_in(facts: Candidates, layers: Sequence[int]) -> list[int]:
    """Forward ops of these layers that may run again from what enters the layers: nothing outside reads them."""
    index, inside = facts.index, frozenset(layers)
    graph = index.graph
    outputs = {graph.tensors[t].storage for t in graph.outputs}

    def leaves(op: int) -> bool:
        readers = (r for s in facts.pieces[op] for t in index.storage_tensors[s] for r in index.consumers[t])
        outside = (index.op_layer[r] not in inside and facts.is_forward(r) for r in readers)
        return any(s in outputs for s in facts.pieces[op]) or any(outside)

    ops = (op for layer in layers for op in graph.layers[layer].ops)
    return [op for op in ops if facts.recomputable[op] and not leaves(op)]
