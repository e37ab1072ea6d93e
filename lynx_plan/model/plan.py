"""The plan: budget, programs per stage, prediction and provenance (`plan.json`). Records only."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.model.capture import PLAIN, CaptureSpec
from lynx_plan.model.graph import ModelSpec
from lynx_plan.model.machine import Link
from lynx_plan.model.program import Program
from lynx_plan.model.strict import SCHEMA_VERSION, STRICT

OVER_BUDGET = "over-budget"  # status of a plan made to compare with, although its peak exceeds the budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step costs, predicted or measured, by the same definitions (DESIGN: words).

    `peak_bytes` is all memory (static and activations); exposed recompute is the step minus the step
    with recompute durations zero; hidden is the recompute total minus exposed; exposed communication is
    time blocked in waits. One step: all microbatches and the optimizer.
    """

    __pydantic_config__ = STRICT

    step_ns: int
    peak_bytes: int
    peak_activation_bytes: int
    recompute_hidden_ns: int
    recompute_exposed_ns: int
    comm_exposed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenWindow:
    """Idle time of the compute stream between a microbatch's forward and its backward pass, given as data.

    `kind`: "bubble" (of a pipeline schedule) or "forward" (windows of the next microbatch's forward pass).
    """

    __pydantic_config__ = STRICT

    kind: str
    room_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClass:
    """A layer class as the plan knows it: digest, members (layer ids) and one line per op, to bind and to diff."""

    __pydantic_config__ = STRICT

    digest: str
    name: str
    layers: tuple[int, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One pipeline stage: its layers, their classes, its program."""

    __pydantic_config__ = STRICT

    layers: tuple[int, ...]
    classes: tuple[PlannedClass, ...]
    program: Program
    in_flight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`plan.json`. Byte-identical for the same inputs: no timestamps, hosts or absolute paths."""

    __pydantic_config__ = STRICT

    schema_version: str = SCHEMA_VERSION
    kind: str = "lynx.plan"
    algo: str
    options: tuple[tuple[str, str], ...] = ()
    status: str  # "optimal" (within its gap), "feasible", "not-needed" (nothing needs recomputing), OVER_BUDGET
    budget_text: str
    budget_bytes: int
    micro_batches: int = 1
    windows: tuple[GivenWindow, ...] = ()
    profile_digest: str  # of the priced cost graph
    structure_digest: str  # of the unpriced graph: shapes, dtypes, op sequence; what a run binds to
    model: ModelSpec
    mesh: tuple[tuple[str, int], ...]
    capture: CaptureSpec = PLAIN
    device: str = "cpu"  # what the plan was made for: "cpu" or "cuda"
    link: Link | None = None
    threads: int = 1
    torch_version: str = ""
    stages: tuple[StagePlan, ...]
    predicted: Outcome
