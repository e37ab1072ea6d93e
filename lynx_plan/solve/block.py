"""Baseline `block[:N]`: the first N repeated layers are fully recomputed, the others keep everything (Megatron-LM's
block method). Without N, the best N that fits."""

from __future__ import annotations

from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import Problem, Solution
from lynx_plan.solve.full import repeated_layers
from lynx_plan.solve.settings import best_setting, number_setting
from lynx_plan.solve.uniform import uniform_placements


def solve(problem: Problem) -> Solution:
    """The given N, or the one of the shortest step that fits."""
    analysis = analysis_of(problem.index)
    layers = repeated_layers(problem.index)
    given = number_setting(problem.setting, "block", "layers that are recomputed")
    counts = [given] if given else range(len(layers) + 1)
    return best_setting(
        problem, (uniform_placements(analysis, layers[:count], 1) for count in counts), "repeated layers"
    )
