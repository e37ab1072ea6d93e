"""What every solver takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.steps import StepOrder
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import GivenWindow
from lynx_plan.model.program import Item

OPTIMAL = "optimal"  # within the solver's stated gap, by its own model of windows and memory
FEASIBLE = "feasible"
NOT_NEEDED = "not-needed"  # nothing needs recomputing


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a search stands: the best step found and the proven bound (ns), their relative gap, nodes so far."""

    incumbent_ns: int
    bound_ns: int
    gap: float
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """When a proving solver stops: at a relative gap of the step, or at a time limit; and whom it tells meanwhile."""

    gap: float = 0.01
    time_limit_s: float = 60.0
    report: Callable[[Progress], None] | None = None


DEFAULT_EFFORT = Effort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A graph to plan under a budget (bytes of all memory, static included)."""

    graph: CostGraph
    index: GraphIndex
    budget_bytes: int
    micro_batches: int = 1
    setting: str = ""  # what follows the colon of `--algo uniform:4`; each solver reads its own
    windows: tuple[GivenWindow, ...] = ()
    interleave: bool = True  # whether a solver may merge a backward pass with the next microbatch's forward pass
    effort: Effort = DEFAULT_EFFORT

    @property
    def idle_ns(self) -> int:
        """Idle compute time before the backward pass, of all given windows."""
        return sum(window.room_ns for window in self.windows)

    @property
    def activation_budget_bytes(self) -> int:
        """What the budget leaves for activations; may be negative."""
        return self.budget_bytes - self.graph.static.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """An order, how good the solver knows it to be, and what the user should know.

    `items` are one microbatch by itself; `step` says how microbatches overlap, None if they do not.
    `minimum_budget_bytes` is set where no plan of this solver fits the budget: the smallest peak it found, of `items`.
    """

    items: tuple[Item, ...]
    status: str
    notes: tuple[str, ...] = ()
    minimum_budget_bytes: int | None = None
    step: StepOrder | None = None
    facts: tuple[tuple[str, str], ...] = ()  # what the plan states of the search: look-ahead, bound, gap, nodes

    @property
    def order(self) -> StepOrder:
        """The order of the step."""
        return self.step or StepOrder(steady=self.items)


Solver = Callable[[Problem], Solution]
