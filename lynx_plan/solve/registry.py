"""The algorithms by name."""

from __future__ import annotations

from lynx_plan.errors import LynxError
from lynx_plan.solve import full, heu, none, ondemand, selective
from lynx_plan.solve.base import Solver

SOLVERS: dict[str, Solver] = {
    "none": none.solve,
    "full": full.solve,
    "selective": selective.solve,
    "ondemand": ondemand.solve,
    "heu": heu.solve,
}


def solver(name: str) -> Solver:
    """The algorithm of that name; LynxError lists the known ones."""
    if name not in SOLVERS:
        raise LynxError(f"no algorithm '{name}'", where="--algo", hint=f"known: {', '.join(SOLVERS)}")
    return SOLVERS[name]
