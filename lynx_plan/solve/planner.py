"""From a profile to a plan: solve, check independently, simulate, and fill the record."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from lynx_plan import files
from lynx_plan.analyze.classes import layer_classes, op_lines, structure_digest
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import compress_step
from lynx_plan.analyze.steps import StepOrder
from lynx_plan.check import check_step
from lynx_plan.errors import Infeasible, LynxError
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import OVER_BUDGET, GivenWindow, Outcome, Plan, PlannedClass, StagePlan
from lynx_plan.simulate.outcome import predict, predict_step
from lynx_plan.solve import none
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import DEFAULT_EFFORT, Effort, Problem, Solution
from lynx_plan.solve.budget import parse_budget
from lynx_plan.solve.diagnosis import diagnose
from lynx_plan.solve.registry import solver
from lynx_plan.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and what `none` would cost; the time that reading facts from the graph took (once per index, whatever the
    budget), and that of the search (from these to the order)."""

    plan: Plan
    analysis_ns: int
    search_ns: int
    baseline: Outcome
    notes: tuple[str, ...] = ()


def make_plan(
    graph: CostGraph,
    *,
    algo: str,
    budget: str = "auto",
    micro_batches: int = 1,
    enforce_budget: bool = True,
    windows: tuple[GivenWindow, ...] = (),
    interleave: bool = True,
    effort: Effort = DEFAULT_EFFORT,
    index: GraphIndex | None = None,
) -> Planned:
    """Plan a step of `micro_batches`. Raises LynxError for an unknown algorithm or budget, Infeasible if none fits.

    `interleave`: whether solvers that can may let microbatches overlap. With `enforce_budget` off, a plan over the
    budget is made all the same (status `over-budget`), to compare with.
    """
    solve = solver(algo)
    if micro_batches < 1:
        raise LynxError(f"{micro_batches} microbatches make no step", where="--micro-batches", hint="give 1 or more")
    index = index or GraphIndex(graph)
    started = time.perf_counter_ns()
    analysis_of(index).warm()
    analysis_ns = time.perf_counter_ns() - started
    budget_bytes = parse_budget(budget, graph, index)
    problem = Problem(
        graph=graph,
        index=index,
        budget_bytes=budget_bytes,
        micro_batches=micro_batches,
        windows=windows,
        interleave=interleave,
        effort=effort,
    )
    with _without_collection():
        started = time.perf_counter_ns()
        solution = solve(problem)
        search_ns = time.perf_counter_ns() - started
    check_step(graph, solution.order, budget_bytes=None, micro_batches=micro_batches)
    predicted = predict_step(graph, solution.order, micro_batches=micro_batches, idle_ns=problem.idle_ns)
    if enforce_budget and predicted.peak_bytes > budget_bytes:
        raise _infeasible(algo, problem, solution, predicted)
    plan = _plan(algo, budget, problem, solution, predicted)
    return Planned(
        plan=plan,
        analysis_ns=analysis_ns,
        search_ns=search_ns,
        baseline=_baseline(problem, algo, predicted),
        notes=solution.notes,
    )


@contextmanager
def _without_collection() -> Iterator[None]:
    """A graph is hundreds of thousands of objects, and a search makes no cycles: collecting would walk them in vain."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _plan(algo: str, budget: str, problem: Problem, solution: Solution, predicted: Outcome) -> Plan:
    """The record of a solution."""
    graph, fits = problem.graph, predicted.peak_bytes <= problem.budget_bytes
    return Plan(
        algo=algo,
        status=solution.status if fits else OVER_BUDGET,
        budget_text=budget,
        budget_bytes=problem.budget_bytes,
        micro_batches=problem.micro_batches,
        options=solution.facts,
        windows=problem.windows,
        profile_digest=files.digest(graph),
        structure_digest=structure_digest(graph),
        model=graph.model,
        mesh=graph.mesh,
        capture=graph.capture,
        device=graph.machine.device,
        link=graph.link,
        threads=graph.threads,
        torch_version=graph.torch_version,
        stages=(_stage(problem.index, solution.order),),
        predicted=predicted,
    )


def _baseline(problem: Problem, algo: str, predicted: Outcome) -> Outcome:
    """What `none` costs."""
    if algo == "none":
        return predicted
    items = none.solve(problem).items
    return predict(problem.graph, items, micro_batches=problem.micro_batches, idle_ns=problem.idle_ns)


def _stage(index: GraphIndex, order: StepOrder) -> StagePlan:
    classes = tuple(
        PlannedClass(digest=c.digest, name=c.name, layers=c.layers, ops=op_lines(index, c.layers[0]))
        for c in layer_classes(index, priced=True)
    )
    layers = tuple(layer.id for layer in index.graph.layers)
    return StagePlan(layers=layers, classes=classes, program=compress_step(order, index))


def _infeasible(algo: str, problem: Problem, solution: Solution, predicted: Outcome) -> Infeasible:
    """The smallest budget that works, and what fills it."""
    minimum = solution.minimum_budget_bytes or predicted.peak_bytes
    static = problem.graph.static
    held = (
        ("parameters", static.parameters_bytes),
        ("gradients", static.gradients_bytes),
        ("optimizer state", static.optimizer_bytes),
        ("buffers", static.buffers_bytes),
        ("inputs", static.inputs_bytes),
        ("activations", minimum - static.total_bytes),
    )
    filled = ", ".join(f"{what} {format_bytes(size)}" for what, size in held if size)
    least = "needs" if solution.minimum_budget_bytes is None else "needs at least"
    diagnosis = diagnose(problem.index, solution.items, problem.budget_bytes)
    return Infeasible(
        f"'{algo}' {least} {format_bytes(minimum)} ({filled}); the budget is {format_bytes(problem.budget_bytes)}; "
        f"{diagnosis}",
        minimum_budget_bytes=minimum,
        details=asdict(diagnosis),
        where="--budget",
        hint=f"give it that much: --budget {minimum}B; or lower the micro-batch size or raise --tp",
    )
