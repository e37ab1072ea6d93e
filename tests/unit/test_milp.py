"""The wrapper over HiGHS: answers, statuses, and the same answer every time."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from lynx_plan.errors import LynxError
from lynx_plan.solve import milp as milp_module
from lynx_plan.solve.milp import INFINITY, Milp, MilpProgress, MilpResult, MilpStatus
from tests.unit.milps import hard_knapsack, knapsack


def test_a_knapsack_is_solved_exactly() -> None:
    result = knapsack([6, 10, 12], [1, 2, 3], 5).solve(gap=0.0)
    assert result.status is MilpStatus.OPTIMAL
    assert result.solved
    assert result.objective == pytest.approx(-22)
    assert result.bound == pytest.approx(-22)
    assert result.values.round().tolist() == [0, 1, 1]


def test_continuous_columns_rows_with_lower_bounds_and_changes() -> None:
    milp = Milp()
    x, y = milp.continuous("x", 2.0), milp.continuous("y", 3.0, upper=4.0)
    row = milp.row("sum", {x: 1.0, y: 1.0}, lower=10.0)
    assert milp.solve().objective == pytest.approx(20)
    milp.set_cost(x, 5.0)
    assert milp.solve().objective == pytest.approx(4 * 3 + 6 * 5)
    milp.set_upper(x, 5.0)
    assert milp.solve().status is MilpStatus.INFEASIBLE
    milp.row("only", {x: 1.0}, upper=1.0)
    milp.set_row_upper(row, 20.0)
    assert (milp.rows, milp.columns) == (["sum", "only"], ["x", "y"])


def test_infeasible_has_no_values() -> None:
    milp = knapsack([1], [1], 1)
    milp.row("no", [(0, 1.0)], lower=2.0)
    result = milp.solve()
    assert result.status is MilpStatus.INFEASIBLE
    assert not result.solved
    assert len(result.values) == 0


def test_a_stopped_search_is_not_called_optimal() -> None:
    result = hard_knapsack().solve(gap=0.0, node_limit=1)
    assert result.status in (MilpStatus.FEASIBLE, MilpStatus.UNKNOWN)
    assert result.bound <= result.objective


def test_the_same_model_gives_the_same_answer() -> None:
    rng = np.random.default_rng(1)
    values = [float(v) for v in rng.integers(1, 50, 30)]
    results = [knapsack(values, values[::-1], 200).solve() for _ in range(2)]
    assert results[0].values.tolist() == results[1].values.tolist()


def test_a_search_gives_the_same_answer_twice() -> None:
    first, second = (hard_knapsack().solve(gap=0.0, node_limit=50) for _ in range(2))
    assert first.nodes > 1
    assert first.values.tolist() == second.values.tolist()
    assert (first.nodes, first.objective, first.bound) == (second.nodes, second.objective, second.bound)


def test_the_start_is_the_first_answer() -> None:
    milp = hard_knapsack()
    start = milp.solve(gap=0.0, node_limit=50).values
    told: list[MilpProgress] = []
    result = milp.solve(gap=0.0, node_limit=1, start=start, watch=told.append)
    value = float(milp.arrays()["costs"] @ start)
    assert result.objective <= value + 1e-6
    assert told[0].objective == pytest.approx(value), "HiGHS was told of the start, and took it"
    assert told[0].values.round().tolist() == start.round().tolist()


def test_watchers_are_told_of_bounds_between_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milp_module, "WATCH_INTERVAL_S", 0.0)
    told: list[MilpProgress] = []
    result = hard_knapsack().solve(gap=0.0, node_limit=100, watch=told.append)
    sizes = {len(progress.values) for progress in told}
    assert sizes == {0, 200}
    assert told[-1].bound == pytest.approx(result.bound, rel=1e-4)
    assert told[-1].nodes > 0
    assert all(np.isfinite(progress.objective) for progress in told)


def test_being_watched_changes_no_answer() -> None:
    alone, watched = (hard_knapsack().solve(gap=0.0, node_limit=50, watch=w) for w in (None, lambda _progress: None))
    assert alone.values.tolist() == watched.values.tolist()
    assert (alone.nodes, alone.objective, alone.bound) == (watched.nodes, watched.objective, watched.bound)


def test_a_start_survives_a_search_without_an_answer() -> None:
    milp = hard_knapsack(items=300)
    start = np.zeros(len(milp.columns))
    start[0] = 1.0
    result = milp.solve(gap=0.0, time_limit_s=0.0, start=start)
    assert result.status is MilpStatus.FEASIBLE
    assert result.objective <= float(milp.arrays()["costs"] @ start)
    assert milp.satisfied(result.values)


def test_no_time_and_no_start_is_no_answer() -> None:
    result = hard_knapsack().solve(gap=0.0, time_limit_s=0.0)
    assert (result.status, result.solved, len(result.values)) == (MilpStatus.UNKNOWN, False, 0)


def test_a_start_that_breaks_a_row_changes_nothing() -> None:
    milp = knapsack([6, 10, 12], [1, 2, 3], 5)
    assert milp.solve(gap=0.0, start=np.ones(3)).values.round().tolist() == [0, 1, 1]


def lying_presolve(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let presolve call every model infeasible; the list is told of each run whether it presolved."""
    runs: list[bool] = []
    real = Milp._run

    def run(self: Milp, *arguments: Any, presolve: bool) -> MilpResult:
        runs.append(presolve)
        if not presolve:
            return real(self, *arguments, presolve=False)
        nothing = np.zeros(0)
        return MilpResult(status=MilpStatus.INFEASIBLE, objective=INFINITY, bound=INFINITY, values=nothing, nodes=0)

    monkeypatch.setattr(Milp, "_run", run)
    return runs


def test_a_wrongly_infeasible_presolve_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = lying_presolve(monkeypatch)
    result = knapsack([6, 10, 12], [1, 2, 3], 5).solve(gap=0.0, start=np.array([1.0, 0.0, 0.0]))
    assert runs == [True, False]
    assert result.status is MilpStatus.OPTIMAL
    assert result.values.round().tolist() == [0, 1, 1]
    assert "without presolve" in result.note


def test_infeasible_stands_where_the_start_breaks_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = lying_presolve(monkeypatch)
    result = knapsack([6, 10, 12], [1, 2, 3], 5).solve(gap=0.0, start=np.ones(3))
    assert (runs, result.status, result.note) == ([True], MilpStatus.INFEASIBLE, "")


@pytest.mark.parametrize(
    ("values", "fine"),
    [
        ([0.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0], False),
        ([0.5, 0.0, 0.0], False),
        ([-1.0, 0.0, 0.0], False),
        ([2.0, 0.0, 0.0], False),
        ([0.0, 1.0, 1.0 + 1e-9], True),
    ],
)
def test_values_are_checked_against_rows_bounds_and_wholeness(values: list[float], fine: bool) -> None:
    assert knapsack([6, 10, 12], [1, 2, 3], 5).satisfied(np.array(values)) is fine


def test_rows_with_lower_bounds_and_without_terms_are_checked() -> None:
    milp = Milp()
    x = milp.continuous("x")
    milp.row("empty", [], upper=0.0)
    milp.row("least", {x: 2.0}, lower=4.0)
    assert milp.satisfied(np.array([2.0]))
    assert not milp.satisfied(np.array([1.9]))
    milp.row("never", [], lower=1.0)
    assert not milp.satisfied(np.array([2.0]))


def test_arrays_are_the_model() -> None:
    milp = hard_knapsack()
    arrays = milp.arrays()
    again = Milp.of_arrays(arrays)
    assert again.arrays().keys() == arrays.keys()
    for name, array in again.arrays().items():
        assert array.dtype == arrays[name].dtype
        assert array.tolist() == arrays[name].tolist(), name


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    milp = knapsack([6, 10, 12], [1, 2, 3], 5)
    milp.solve()
    milp.solve(start=np.zeros(3), watch=lambda _progress: None)
    hard_knapsack().solve(node_limit=1, watch=lambda _progress: None)
    assert capfd.readouterr() == ("", "")


def test_without_highspy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(LynxError, match="HiGHS cannot be imported") as caught:
        knapsack([1], [1], 1).solve()
    assert "pip install highspy" in caught.value.hint
