"""Step time against peak memory: what each algorithm gives over a range of budgets, and where more memory pays less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import Infeasible
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import GivenWindow
from lynx_plan.solve.base import DEFAULT_EFFORT, Effort
from lynx_plan.solve.planner import make_plan

FAST = ("none", "full", "selective", "ondemand", "heu")
FIXED = ("none", "full", "selective")  # one answer, whatever the budget
KNEE_OF = "heu"
UNLIMITED = f"{1 << 62}B"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """A plan: what it was given, and the peak of all memory and the step that are predicted of it."""

    algo: str
    budget_bytes: int
    peak_bytes: int
    step_ns: int


def frontier(
    graph: CostGraph,
    *,
    algos: Sequence[str] = FAST,
    points: int = 12,
    micro_batches: int = 1,
    windows: tuple[GivenWindow, ...] = (),
    interleave: bool = True,
    effort: Effort = DEFAULT_EFFORT,
    told: Callable[[str], None] | None = None,
) -> tuple[FrontierPoint, ...]:
    """The undominated points of each algorithm, by algorithm and rising peak.

    Budgets are `points` equal steps from the least peak that HEU reaches to that of `none`. `told`: of what is planned.
    """
    index = GraphIndex(graph)

    def plan(algo: str, budget: str, *, enforce: bool = True) -> FrontierPoint:
        planned = make_plan(
            graph, algo=algo, budget=budget, micro_batches=micro_batches, windows=windows, interleave=interleave,
            effort=effort, index=index, enforce_budget=enforce,
        ).plan  # fmt: skip
        predicted = planned.predicted
        return FrontierPoint(
            algo=algo,
            budget_bytes=planned.budget_bytes,
            peak_bytes=predicted.peak_bytes,
            step_ns=predicted.step_ns,
        )

    highest = plan("none", UNLIMITED).peak_bytes
    budgets = _budgets(least_budget(plan), highest, points)
    found: list[FrontierPoint] = []
    for algo in algos:
        if told is not None:
            told(algo)
        if algo.partition(":")[0] in FIXED:
            found.append(plan(algo, f"{highest}B", enforce=False))
            continue
        reached = []
        for budget in budgets:
            try:
                reached.append(plan(algo, f"{budget}B"))
            except Infeasible:
                continue
        found += undominated(reached)
    return tuple(found)


def least_budget(plan: Callable[[str, str], FrontierPoint]) -> int:
    """The smallest budget that HEU says it needs."""
    try:
        return plan(KNEE_OF, "1B").peak_bytes
    except Infeasible as error:
        return error.minimum_budget_bytes


def _budgets(low: int, high: int, points: int) -> list[int]:
    steps = max(1, points - 1)
    return sorted({low + (high - low) * step // steps for step in range(steps + 1)})


def undominated(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Those that no other one beats in both peak and step, by rising peak."""
    kept: list[FrontierPoint] = []
    for point in sorted(points, key=lambda p: (p.peak_bytes, p.step_ns)):
        if not kept or point.step_ns < kept[-1].step_ns:
            kept.append(point)
    return kept


def knee(points: Sequence[FrontierPoint]) -> FrontierPoint | None:
    """Where more memory stops paying: the point farthest below the line between the ends, both axes scaled to 1.

    None with fewer than three points, or where no point lies below the line.
    """
    ordered = sorted(points, key=lambda p: p.peak_bytes)
    if len(ordered) < 3:
        return None
    first, last = ordered[0], ordered[-1]
    wide, high = last.peak_bytes - first.peak_bytes, first.step_ns - last.step_ns
    if wide <= 0 or high <= 0:
        return None

    def below(point: FrontierPoint) -> float:
        return 1 - (point.peak_bytes - first.peak_bytes) / wide - (point.step_ns - last.step_ns) / high

    best = max(ordered[1:-1], key=below)
    return best if below(best) > 0 else None
