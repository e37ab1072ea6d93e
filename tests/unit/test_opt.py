"""OPT from start to end: whatever happens to the search, a legal plan no slower than HEU's, or a clear message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.check import check_order
from lynx_plan.errors import LynxError
from lynx_plan.solve import apart, heu, opt
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, OPTIMAL, Effort, Problem, Progress, Solution
from lynx_plan.solve.score import score
from tests.unit.builders import Sizes, megatron_graph


def problem_of(percent: int, *, layers: int = 3, dropout: bool = False, effort: Effort | None = None) -> Problem:
    """A stack whose windows hold some of what is dropped, under a share of the peak of `none`."""
    graph = megatron_graph(layers, Sizes(dropout=dropout, comm_ns=2_500_000))
    index = GraphIndex(graph)
    budget = graph.static.total_bytes + analysis_of(index).none.peak_bytes * percent // 100
    return Problem(graph=graph, index=index, budget_bytes=budget, effort=effort or Effort(gap=1e-4))


def assert_good(problem: Problem, solution: Solution) -> int:
    """Legal, within the budget, and no slower than HEU; the time of a microbatch."""
    check_order(problem.graph, solution.items, budget_bytes=problem.budget_bytes)
    end_ns = score(problem.graph, solution.items).end_ns
    assert solution.minimum_budget_bytes is None
    assert end_ns <= score(problem.graph, heu.solve(problem).items).end_ns
    return end_ns


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("percent", [70, 80, 90])
def test_the_bound_is_below_the_step_and_the_gap_is_kept(percent: int, dropout: bool) -> None:
    problem = problem_of(percent, dropout=dropout)
    solution = opt.solve(problem)
    assert_good(problem, solution)
    facts = dict(solution.facts)
    assert list(facts) == ["look-ahead", "bound_ns", "gap", "nodes"]
    assert solution.status == (OPTIMAL if float(facts["gap"]) <= 1e-4 else FEASIBLE)
    assert int(facts["bound_ns"]) >= analysis_of(problem.index).none.end_ns * (1 - 1e-4)


def test_nothing_to_do_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opt, "solve_apart", None)
    problem = problem_of(100)
    solution = opt.solve(problem)
    assert (solution.status, solution.items) == (NOT_NEEDED, analysis_of(problem.index).none.items)


@pytest.mark.parametrize("percent", [70, 80, 90])
def test_heu_s_answer_is_a_start(percent: int) -> None:
    problem = problem_of(percent)
    search = opt._Opt(problem, analysis_of(problem.index))
    search.milp.set_budget(search.budget)
    start = search._start()
    assert start is not None
    assert start.any()
    assert search.milp.milp.satisfied(start)


def test_five_runs_are_equal() -> None:
    found = set()
    for _ in range(5):
        solution = opt.solve(problem_of(75))
        found.add((solution.items, solution.facts, solution.status))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"), ("raise SystemExit(3)", "exit code 3")],
)
def test_a_broken_solver_leaves_heu_s_plan(monkeypatch: pytest.MonkeyPatch, body: str, said: str) -> None:
    popen = subprocess.Popen

    def other(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-c", body, command[-1]], **options)

    monkeypatch.setattr(apart.subprocess, "Popen", other)
    problem = problem_of(75)
    solution = opt.solve(problem)
    assert_good(problem, solution)
    assert solution.status == FEASIBLE, "nothing is proven"
    assert any(said in note for note in solution.notes)


def test_ctrl_c_leaves_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(apart._Search, "_follow", interrupted)
    problem = problem_of(75)
    solution = opt.solve(problem)
    assert_good(problem, solution)
    assert solution.status == FEASIBLE
    assert f"opt: {apart.BY_HAND}" in solution.notes


def test_ctrl_c_while_progress_is_shown() -> None:
    told: list[Progress] = []

    def report(progress: Progress) -> None:
        told.append(progress)
        raise KeyboardInterrupt

    problem = problem_of(75, effort=Effort(gap=0.0, report=report))
    assert_good(problem, opt.solve(problem))
    assert told


def test_without_highspy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "highspy.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LynxError, match="HiGHS cannot be imported") as caught:
        opt.solve(problem_of(75))
    assert "pip install highspy" in caught.value.hint


def test_a_budget_that_nothing_meets_says_which_would() -> None:
    problem = problem_of(5)
    solution = opt.solve(problem)
    least = solution.minimum_budget_bytes
    assert least is not None
    assert least > problem.budget_bytes
    check_order(problem.graph, solution.items, budget_bytes=least)
