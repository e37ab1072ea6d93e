"""Baseline `overlap-bubble`: recomputation in the pipeline bubble, as MindSpeed does.

Whole layers are recomputed: as many of the last ones as the given bubbles hold run before the backward pass begins, the
others in blocks on demand. It gets its best setting: how many layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.full import repeated_layers
from lynx_plan.solve.order import Placement
from lynx_plan.solve.overlap_p2p import early_layers, layer_copies
from lynx_plan.solve.settings import best_setting


def solve(problem: Problem) -> Solution:
    """The best number of layers that fits."""
    facts = analysis_of(problem.index).whole
    room_ns = sum(window.room_ns for window in problem.windows if window.kind == "bubble")
    return best_setting(problem, _settings(facts, repeated_layers(problem.index), room_ns), "repeated layers")


def _settings(facts: Candidates, layers: tuple[int, ...], room_ns: int) -> Iterator[list[Placement]]:
    for count in range(len(layers) + 1):
        early = early_layers(facts, layers[:count], room_ns)
        yield [p for layer in layers[:count] for p in layer_copies(facts, layer, -1, layer in early)]
