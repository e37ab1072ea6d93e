"""Checkmate's MILP of a small graph: what is computed and what is kept at every stage of execution.

Jain et al., "Checkmate: Breaking the memory wall with optimal tensor rematerialization" (2020), in its form that
advances one node per stage: stage t computes node t for the first time. Columns: R[t,i] = 1 if node i is computed in
stage t, S[t,i] = 1 if its value is kept into stage t, U[t,k], memory once node k of stage t is done, FREE[t,i,k] = 1 if
the value of i is freed after k. Rows: needs, keeps, memory, hazard_low, hazard_high, named as the quantities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.milp import Milp

MIB = float(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node in execution order: the nodes it reads (all earlier), its time, the bytes of its value."""

    reads: tuple[int, ...]
    time_ns: int
    bytes: int
    movable: bool  # it may be computed again


class RematMilp:
    """The MILP over `nodes`, of which the first `forward` ones are forward: those stages recompute nothing."""

    def __init__(self, nodes: Sequence[Node], forward: int) -> None:
        self.nodes, self.forward = nodes, forward
        self.milp = Milp()
        count = len(nodes)
        self.users = [[j for j in range(i + 1, count) if i in nodes[j].reads] for i in range(count)]
        self.time_unit = max(1.0, sum(node.time_ns for node in nodes) / 1e3)
        self.r: dict[tuple[int, int], int] = {}
        self.s: dict[tuple[int, int], int] = {}
        self.u: dict[tuple[int, int], int] = {}
        self.free: dict[tuple[int, int, int], int] = {}
        self._columns()
        for stage in range(count):
            self._dependencies(stage)
            self._memory(stage)
        kept = [(self.s[forward, i], nodes[i].bytes / MIB) for i in range(forward)] if forward < count else []
        self.saved = self.milp.row("saved", kept)

    def set_budget(self, budget_bytes: float) -> None:
        """Bytes that no moment may exceed."""
        for column in self.u.values():
            self.milp.set_upper(column, budget_bytes / MIB)

    def set_saved(self, saved_bytes: float) -> None:
        """Bytes of forward values that may be kept into the backward pass."""
        self.milp.set_row_upper(self.saved, saved_bytes / MIB)

    def saved_bytes(self, values: NDArray[np.float64]) -> float:
        """Bytes of forward values kept into the backward pass."""
        if self.forward == len(self.nodes):
            return 0.0
        return float(sum(self.nodes[i].bytes * values[self.s[self.forward, i]] for i in range(self.forward)))

    def peak_bytes(self, values: NDArray[np.float64]) -> float:
        """Bytes at the highest moment of the backward pass."""
        return max((float(values[column]) * MIB for (t, _), column in self.u.items() if t >= self.forward), default=0.0)

    def recomputed(self, values: NDArray[np.float64]) -> dict[int, list[int]]:
        """Stage -> nodes computed again in it, in order."""
        found: dict[int, list[int]] = {}
        for (stage, node), column in self.r.items():
            if node < stage and values[column] > 0.5:
                found.setdefault(stage, []).append(node)
        return {stage: sorted(nodes) for stage, nodes in found.items()}

    def keeping_all(self) -> NDArray[np.float64]:
        """The columns' values where nothing is computed again and nothing freed that is used later."""
        values = np.zeros(len(self.milp.columns))
        last = [max([i, *users]) for i, users in enumerate(self.users)]
        for (stage, node), column in self.r.items():
            values[column] = float(stage == node)
        for (stage, node), column in self.s.items():
            values[column] = float(last[node] >= stage)
        for (stage, i, k), column in self.free.items():
            values[column] = float(k == stage and last[i] <= k)
        self._set_memory(values)
        return values

    def _set_memory(self, values: NDArray[np.float64]) -> None:
        for (stage, k), column in self.u.items():
            own = self.nodes[k].bytes / MIB * values[self.r[stage, k]]
            if k == 0:
                kept = sum(self.nodes[i].bytes / MIB * values[self.s[stage, i]] for i in range(stage))
                values[column] = kept + own
                continue
            gone = sum(self.nodes[i].bytes / MIB * values[self.free[stage, i, k - 1]] for i in self._ends(k - 1))
            values[column] = values[self.u[stage, k - 1]] + own - gone

    def _ends(self, k: int) -> tuple[int, ...]:
        """Nodes whose value may be freed after k."""
        return (*self.nodes[k].reads, k)

    def _columns(self) -> None:
        for stage in range(len(self.nodes)):
            for i in range(stage + 1):
                node = self.nodes[i]
                again = i < stage and node.movable and stage >= self.forward
                low = 1.0 if i == stage else 0.0
                cost = node.time_ns / self.time_unit
                self.r[stage, i] = self.milp.binary(f"R[{stage},{i}]", cost)
                self.milp.set_bounds(self.r[stage, i], low, 1.0 if again or i == stage else 0.0)
                if i < stage:
                    self.s[stage, i] = self.milp.binary(f"S[{stage},{i}]")
            for k in range(stage + 1):
                self.u[stage, k] = self.milp.continuous(f"U[{stage},{k}]")
                for i in self._ends(k):
                    self.free[stage, i, k] = self.milp.binary(f"FREE[{stage},{i},{k}]")

    def _dependencies(self, stage: int) -> None:
        for i in range(stage + 1):
            for j in self.nodes[i].reads:
                terms = [(self.r[stage, i], 1.0), (self.r[stage, j], -1.0)]
                self.milp.row(f"needs[{stage},{i},{j}]", [*terms, (self.s[stage, j], -1.0)], upper=0.0)
        for i in range(stage):
            terms = [(self.s[stage, i], 1.0), (self.r[stage - 1, i], -1.0)]
            before = [(self.s[stage - 1, i], -1.0)] if i < stage - 1 else []
            self.milp.row(f"keeps[{stage},{i}]", [*terms, *before], upper=0.0)

    def _memory(self, stage: int) -> None:
        size = [node.bytes / MIB for node in self.nodes]
        kept = [(self.s[stage, i], -size[i]) for i in range(stage) if size[i]]
        first = [(self.u[stage, 0], 1.0), (self.r[stage, 0], -size[0])]
        self.milp.row(f"memory[{stage},0]", [*first, *kept], lower=0.0, upper=0.0)
        for k in range(stage + 1):
            if k:
                terms = [(self.u[stage, k], 1.0), (self.u[stage, k - 1], -1.0), (self.r[stage, k], -size[k])]
                gone = [(self.free[stage, i, k - 1], size[i]) for i in self._ends(k - 1) if size[i]]
                self.milp.row(f"memory[{stage},{k}]", [*terms, *gone], lower=0.0, upper=0.0)
            for i in self._ends(k):
                self._hazards(stage, i, k)

    def _hazards(self, stage: int, i: int, k: int) -> None:
        """FREE[t,i,k] is 1 exactly if k is computed and nothing later in the stage, nor the next, needs i."""
        free = self.free[stage, i, k]
        later = [(self.r[stage, j], 1.0) for j in self.users[i] if k < j <= stage]
        kept = [(self.s[stage + 1, i], 1.0)] if (stage + 1, i) in self.s else []
        hazards = [(self.r[stage, k], -1.0), *kept, *later]
        most = 1.0 + len(kept) + len(later)
        self.milp.row(f"hazard_low[{stage},{i},{k}]", [(free, 1.0), *hazards], lower=0.0)
        self.milp.row(f"hazard_high[{stage},{i},{k}]", [(free, most), *hazards], upper=most - 1.0)
