"""The algorithms by name, and which of them take a setting after a colon."""

from __future__ import annotations

from dataclasses import replace

from lynx_plan.errors import LynxError
from lynx_plan.solve import (
    block,
    checkmate,
    full,
    heu,
    heu_uniform,
    knapsack,
    none,
    ondemand,
    opt,
    overlap_bubble,
    overlap_collective,
    overlap_p2p,
    rotor,
    selective,
    uniform,
)
from lynx_plan.solve.base import Solver

SOLVERS: dict[str, Solver] = {
    "none": none.solve,
    "full": full.solve,
    "uniform": uniform.solve,
    "block": block.solve,
    "selective": selective.solve,
    "ondemand": ondemand.solve,
    "knapsack": knapsack.solve,
    "checkmate": checkmate.solve,
    "rotor": rotor.solve,
    "overlap-collective": overlap_collective.solve,
    "overlap-p2p": overlap_p2p.solve,
    "overlap-bubble": overlap_bubble.solve,
    "heu": heu.solve,
    "heu-uniform": heu_uniform.solve,
    "opt": opt.solve,
}
SETTINGS = {"uniform": "N", "block": "N", "selective": "core_attn,layernorm,...", "knapsack": "dp or greedy"}


def solver(name: str) -> Solver:
    """The algorithm `name` or `name:setting`; LynxError lists the known ones."""
    base, colon, setting = name.partition(":")
    if base not in SOLVERS:
        raise LynxError(f"no algorithm '{base}'", where="--algo", hint=f"known: {', '.join(SOLVERS)}")
    if colon and (base not in SETTINGS or not setting):
        with_settings = ", ".join(f"{algo}:{what}" for algo, what in SETTINGS.items())
        raise LynxError(f"'{base}' takes no setting '{setting}'", where="--algo", hint=f"these do: {with_settings}")
    return lambda problem: SOLVERS[base](replace(problem, setting=setting))
