"""A thin wrapper over HiGHS: models from arrays, named columns and rows, and every status checked.

Callers scale bytes and nanoseconds to numbers near one, and re-check answers exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynx_plan.errors import LynxError

INFINITY = float("inf")
GAP = 1e-4  # relative: an answer within it counts as optimal
TIME_LIMIT_S = 60.0  # a safety net; the node limit is what stops a hard model, at the same node every time
NODE_LIMIT = 20_000
WATCH_INTERVAL_S = 1.0  # between what a watcher is told of bounds
TOLERANCE = 1e-6  # of rows and whole numbers, as HiGHS has it


class MilpStatus(StrEnum):
    OPTIMAL = "optimal"  # within the gap
    FEASIBLE = "feasible"  # a limit stopped the search; the values are the best found
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"  # a limit stopped the search before any answer


@dataclass(frozen=True, slots=True, kw_only=True)
class MilpProgress:
    """Where a search stands: the best answer's objective, the bound, nodes so far; `values` by column where that
    answer is new, else empty."""

    objective: float
    bound: float
    nodes: int
    values: NDArray[np.float64]


Watch = Callable[[MilpProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MilpResult:
    """`values` by column, empty without an answer; `bound` is the proven lower bound of the objective; `note`: what
    went otherwise than planned."""

    status: MilpStatus
    objective: float
    bound: float
    values: NDArray[np.float64]
    nodes: int
    note: str = ""

    @property
    def solved(self) -> bool:
        return self.status in (MilpStatus.OPTIMAL, MilpStatus.FEASIBLE)


class Milp:
    """A minimisation over named columns under named rows `lower <= sum of coefficient * column <= upper`."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.rows: list[str] = []
        self._costs: list[float] = []
        self._bounds: list[tuple[float, float]] = []
        self._integer: list[bool] = []
        self._row_bounds: list[tuple[float, float]] = []
        self._starts: list[int] = [0]
        self._indices: list[int] = []
        self._coefficients: list[float] = []

    def binary(self, name: str, cost: float = 0.0) -> int:
        """A new 0/1 column."""
        return self._column(name, cost, (0.0, 1.0), True)

    def continuous(self, name: str, cost: float = 0.0, *, lower: float = 0.0, upper: float = INFINITY) -> int:
        """A new column from `lower` to `upper`."""
        return self._column(name, cost, (lower, upper), False)

    def _column(self, name: str, cost: float, bounds: tuple[float, float], integer: bool) -> int:
        self.columns.append(name)
        self._costs.append(cost)
        self._bounds.append(bounds)
        self._integer.append(integer)
        return len(self.columns) - 1

    def row(
        self,
        name: str,
        terms: Mapping[int, float] | Iterable[tuple[int, float]],
        *,
        lower: float = -INFINITY,
        upper: float = INFINITY,
    ) -> int:
        """A new row; a column may appear once in it."""
        pairs = terms.items() if isinstance(terms, Mapping) else terms
        for column, coefficient in pairs:
            self._indices.append(column)
            self._coefficients.append(coefficient)
        self._starts.append(len(self._indices))
        self.rows.append(name)
        self._row_bounds.append((lower, upper))
        return len(self.rows) - 1

    def set_row_upper(self, row: int, upper: float) -> None:
        self._row_bounds[row] = (self._row_bounds[row][0], upper)

    def set_cost(self, column: int, cost: float) -> None:
        self._costs[column] = cost

    def set_bounds(self, column: int, lower: float, upper: float) -> None:
        self._bounds[column] = (lower, upper)

    def set_upper(self, column: int, upper: float) -> None:
        self._bounds[column] = (self._bounds[column][0], upper)

    def solve(
        self,
        *,
        gap: float = GAP,
        node_limit: int = NODE_LIMIT,
        time_limit_s: float = TIME_LIMIT_S,
        start: NDArray[np.float64] | None = None,
        watch: Watch | None = None,
    ) -> MilpResult:
        """Solve with one thread and a fixed seed: the same model always gives the same answer.

        `start`: values to begin with; an answer is never worse. `watch` is told of every better answer, and
        now and then of the bound. A model that presolve calls infeasible although the start satisfies it is solved
        again without presolve; and so is one of which it gives an objective that its answer does not have (seen with
        HiGHS 1.16 and a start: the bound that goes with it proves nothing).
        """
        result = self._run(gap, node_limit, time_limit_s, start, watch, presolve=True)
        if result.solved and not self._consistent(result):
            result = self._run(gap, node_limit, time_limit_s, start, watch, presolve=False)
            assert not result.solved or self._consistent(result), "HiGHS gave an objective that is not its answer's"
        if result.solved or start is None or not self.satisfied(start):
            return result
        if result.status is MilpStatus.INFEASIBLE:
            again = self._run(gap, node_limit, time_limit_s, start, watch, presolve=False)
            note = "presolve called the model infeasible, which it is not: solved without presolve"
            if again.solved:
                return replace(again, note=note)
        return self.answer_of(start, note="the search ended without an answer: the start stands")

    def _consistent(self, result: MilpResult) -> bool:
        """Whether the objective is that of the values."""
        own = float(np.array(self._costs) @ result.values)
        return abs(own - result.objective) <= 1e-5 * max(1.0, abs(own))

    def satisfied(self, values: NDArray[np.float64]) -> bool:
        """Whether these values are within every bound and row, and whole where they must be."""
        bounds = np.array(self._bounds, dtype=np.float64).reshape(-1, 2)
        rows = np.array(self._row_bounds, dtype=np.float64).reshape(-1, 2)
        products = np.array(self._coefficients) * values[np.array(self._indices, dtype=np.int64)]
        sums = np.concatenate([[0.0], products.cumsum()])[np.array(self._starts)]
        activity = np.diff(sums)
        slack = TOLERANCE * np.maximum(1.0, np.abs(np.where(np.isfinite(rows), rows, 0.0)))
        whole = np.array(self._integer, dtype=bool)
        return bool(
            (values >= bounds[:, 0] - TOLERANCE).all()
            and (values <= bounds[:, 1] + TOLERANCE).all()
            and (activity >= rows[:, 0] - slack[:, 0]).all()
            and (activity <= rows[:, 1] + slack[:, 1]).all()
            and (np.abs(values - values.round())[whole] <= TOLERANCE).all()
        )

    def answer_of(
        self, values: NDArray[np.float64], *, note: str, bound: float = -INFINITY, nodes: int = 0
    ) -> MilpResult:
        """These values as a feasible answer."""
        objective = float(np.array(self._costs) @ values)
        return MilpResult(
            status=MilpStatus.FEASIBLE, objective=objective, bound=bound, values=values, nodes=nodes, note=note
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The model as arrays, without names."""
        return {
            "costs": np.array(self._costs, dtype=np.float64),
            "bounds": np.array(self._bounds, dtype=np.float64).reshape(-1, 2),
            "integer": np.array(self._integer, dtype=bool),
            "row_bounds": np.array(self._row_bounds, dtype=np.float64).reshape(-1, 2),
            "starts": np.array(self._starts, dtype=np.int64),
            "indices": np.array(self._indices, dtype=np.int64),
            "coefficients": np.array(self._coefficients, dtype=np.float64),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Milp:
        """The inverse of `arrays`; columns and rows are named by their numbers."""
        milp = cls()
        milp._costs, milp._integer = arrays["costs"].tolist(), arrays["integer"].tolist()
        milp._bounds = [(low, high) for low, high in arrays["bounds"].tolist()]
        milp._row_bounds = [(low, high) for low, high in arrays["row_bounds"].tolist()]
        milp._starts, milp._indices = arrays["starts"].tolist(), arrays["indices"].tolist()
        milp._coefficients = arrays["coefficients"].tolist()
        milp.columns = [f"c{number}" for number in range(len(milp._costs))]
        milp.rows = [f"r{number}" for number in range(len(milp._row_bounds))]
        return milp

    def _run(
        self,
        gap: float,
        node_limit: int,
        time_limit_s: float,
        start: NDArray[np.float64] | None,
        watch: Watch | None,
        *,
        presolve: bool,
    ) -> MilpResult:
        highspy = _highspy()
        # The class below highspy.Highs: that one's callbacks print a banner on standard output when it is made.
        solver = highspy.Highs.__mro__[1]()
        options = {
            "output_flag": watch is not None,  # without it, watchers are not told of bounds
            "log_to_console": False,
            "mip_min_logging_interval": WATCH_INTERVAL_S,
            "threads": 1,
            "random_seed": 0,
            "mip_rel_gap": gap,
            "mip_max_nodes": node_limit,
            "time_limit": time_limit_s,
            "presolve": "choose" if presolve else "off",
        }
        for option, value in options.items():
            _expect_ok(highspy, solver.setOptionValue(option, value), f"set {option}")
        _expect_ok(highspy, solver.passModel(self._lp(highspy)), "read the model")
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = np.asarray(start, dtype=np.float64)
            _expect_ok(highspy, solver.setSolution(solution), "take the start")
        if watch is not None:
            _watch(highspy, solver, watch)
        _expect_ok(highspy, solver.run(), "run")
        return _result(highspy, solver)

    def _lp(self, highspy: Any) -> Any:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.columns), len(self.rows)
        lp.col_cost_ = np.array(self._costs, dtype=np.float64)
        bounds = np.array(self._bounds, dtype=np.float64).reshape(-1, 2)
        lp.col_lower_, lp.col_upper_ = bounds[:, 0].copy(), bounds[:, 1].copy()
        row_bounds = np.array(self._row_bounds, dtype=np.float64).reshape(-1, 2)
        lp.row_lower_, lp.row_upper_ = row_bounds[:, 0].copy(), row_bounds[:, 1].copy()
        lp.col_names_, lp.row_names_ = self.columns, self.rows
        matrix = lp.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.num_col_, matrix.num_row_ = lp.num_col_, lp.num_row_
        matrix.start_ = np.array(self._starts, dtype=np.int32)
        matrix.index_ = np.array(self._indices, dtype=np.int32)
        matrix.value_ = np.array(self._coefficients, dtype=np.float64)
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if integer else kinds.kContinuous for integer in self._integer]
        return lp


def _highspy() -> Any:
    try:
        import highspy
    except ImportError as error:
        raise LynxError(
            f"the solver HiGHS cannot be imported: {error}", hint="install it with: pip install highspy"
        ) from None
    return highspy


def _watch(highspy: Any, solver: Any, watch: Watch) -> None:
    """Have `watch` told of every better answer, and of bounds once there is an answer."""

    def told(_kind: Any, _message: str, out: Any, _answer: Any, _data: Any) -> None:
        if not np.isfinite(out.objective_function_value):
            return
        watch(
            MilpProgress(
                objective=float(out.objective_function_value),
                bound=float(out.mip_dual_bound),
                nodes=int(out.mip_node_count),
                values=np.array(out.mip_solution, dtype=np.float64),
            )
        )

    _expect_ok(highspy, solver.setCallback(told, None), "be watched")
    kinds = highspy._core.cb.HighsCallbackType
    for kind in (kinds.kCallbackMipImprovingSolution, kinds.kCallbackMipLogging):
        _expect_ok(highspy, solver.startCallback(kind), "be watched")


def _expect_ok(highspy: Any, status: Any, what: str) -> None:
    """A warning is fine (an unknown limit hit, for instance); an error means that the answer is not to be trusted."""
    if status == highspy.HighsStatus.kError:
        raise LynxError(f"the solver HiGHS failed to {what}", hint="report this with the profile and the command")


def _result(highspy: Any, solver: Any) -> MilpResult:
    """Read the answer, believing only a model status with a primal status that agrees."""
    model, statuses = solver.getModelStatus(), highspy.HighsModelStatus
    info = solver.getInfo()
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    limits = (statuses.kSolutionLimit, statuses.kTimeLimit, statuses.kIterationLimit, statuses.kInterrupt)
    if model == statuses.kOptimal and feasible:
        status = MilpStatus.OPTIMAL
    elif model in (statuses.kInfeasible, statuses.kUnboundedOrInfeasible):
        status = MilpStatus.INFEASIBLE  # no model here is unbounded: every cost and column is at least 0
    elif model in limits:
        status = MilpStatus.FEASIBLE if feasible else MilpStatus.UNKNOWN
    else:
        raise LynxError(f"the solver HiGHS ended with '{solver.modelStatusToString(model)}'")
    solved = status in (MilpStatus.OPTIMAL, MilpStatus.FEASIBLE)
    values = np.array(solver.getSolution().col_value if solved else [], dtype=np.float64)
    return MilpResult(
        status=status,
        objective=float(info.objective_function_value) if solved else INFINITY,
        bound=float(info.mip_dual_bound) if solved else INFINITY,
        values=values,
        nodes=int(info.mip_node_count),
    )
