"""The wrapper over HiGHS: answers, statuses, and the same answer every time."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from lynx_plan.errors import LynxError
from lynx_plan.solve.milp import Milp, MilpStatus


def knapsack(values: list[float], weights: list[float], capacity: float) -> Milp:
    milp = Milp()
    items = [milp.binary(f"take[{i}]", -value) for i, value in enumerate(values)]
    milp.row("capacity", list(zip(items, weights, strict=True)), upper=capacity)
    return milp


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
    rng = np.random.default_rng(0)
    weights = [float(w) for w in rng.integers(1000, 2000, 60)]
    milp = knapsack(weights, weights, sum(weights) / 2 + 0.5)
    for i in range(20):
        row = [(j, float(w)) for j, w in enumerate(rng.integers(1, 1000, 60))]
        milp.row(f"also[{i}]", row, upper=sum(w for _, w in row) / 2)
    result = milp.solve(gap=0.0, node_limit=1)
    assert result.status in (MilpStatus.FEASIBLE, MilpStatus.UNKNOWN)
    assert result.bound <= result.objective


def test_the_same_model_gives_the_same_answer() -> None:
    rng = np.random.default_rng(1)
    values = [float(v) for v in rng.integers(1, 50, 30)]
    results = [knapsack(values, values[::-1], 200).solve() for _ in range(2)]
    assert results[0].values.tolist() == results[1].values.tolist()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    knapsack([6, 10, 12], [1, 2, 3], 5).solve()
    assert capfd.readouterr() == ("", "")


def test_without_highspy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(LynxError, match="HiGHS cannot be imported") as caught:
        knapsack([1], [1], 1).solve()
    assert "pip install highspy" in caught.value.hint
