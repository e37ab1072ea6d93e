"""The algorithms by name."""

from __future__ import annotations

from dataclasses import replace

from lynx_plan.errors import LynxError
from lynx_plan.solve import full, heu, heu_uniform, none, ondemand, opt, selective
from lynx_plan.solve.base import Solver

SOLVERS: dict[str, Solver] = {
    "none": none.solve,
    "full": full.solve,
    "selective": selective.solve,
    "ondemand": ondemand.solve,
    "heu": heu.solve,
    "heu-uniform": heu_uniform.solve,
    "opt": opt.solve,
}


def solver(name: str) -> Solver:
    """The algorithm `name` or `name:setting`; LynxError lists the known ones."""
    base, _, setting = name.partition(":")
    if base not in SOLVERS:
        raise LynxError(f"no algorithm '{base}'", where="--algo", hint=f"known: {', '.join(SOLVERS)}")
    return lambda problem: SOLVERS[base](replace(problem, setting=setting)) if setting else SOLVERS[base](problem)
