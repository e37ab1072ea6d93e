"""Budgets as people write them, turned into bytes of device memory."""

from __future__ import annotations

import re
from decimal import Decimal

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph
from lynx_plan.simulate.memory import memory_curve
from lynx_plan.solve.base import Problem
from lynx_plan.solve.registry import SOLVERS, solver
from lynx_plan.units import parse_bytes

UNLIMITED = 1 << 62
FORMS = (
    "60GiB (all memory), 70% (static memory and 70 % of what `none` needs for activations), "
    "auto (the machine's memory less its margin), between:full,none,0.5 (that point between two algorithms' peaks)"
)
_PERCENT = re.compile(r"^(\d+(?:\.\d+)?)\s*%$")
_BETWEEN = re.compile(r"^between:([a-z_]+),([a-z_]+),(\d+(?:\.\d+)?)$")


def parse_budget(text: str, graph: CostGraph, index: GraphIndex | None = None) -> int:
    """Bytes of all memory that a plan may use, static included. Raises LynxError naming the forms."""
    text = text.strip()
    percent, between = _PERCENT.match(text), _BETWEEN.match(text)
    if text == "auto":
        budget = graph.machine.memory_bytes - graph.machine.margin_bytes
    elif percent:
        peak = peak_activation_bytes("none", graph, index)
        budget = graph.static.total_bytes + int(Decimal(percent[1]) * peak / 100)
    elif between:
        budget = _between(between[1], between[2], Decimal(between[3]), graph, index or GraphIndex(graph))
    else:
        budget = _size(text)
    if budget <= 0:
        raise LynxError(f"'{text}' leaves no memory", where="--budget", hint=f"write one of: {FORMS}")
    return budget


def peak_activation_bytes(algo: str, graph: CostGraph, index: GraphIndex | None = None) -> int:
    """Peak activation bytes of an algorithm that may use any amount of memory."""
    index = index or GraphIndex(graph)
    items = solver(algo)(Problem(graph=graph, index=index, budget_bytes=UNLIMITED)).items
    return memory_curve(graph, items, resolve(graph, items)).peak_bytes


def _between(low: str, high: str, share: Decimal, graph: CostGraph, index: GraphIndex) -> int:
    """peak(low) + share * (peak(high) - peak(low)), with static memory."""
    if share > 1:
        raise LynxError(f"{share} is not between 0 and 1", where="--budget", hint=f"write one of: {FORMS}")
    for algo in (low, high):
        if algo not in SOLVERS:
            hint = f"known: {', '.join(SOLVERS)}"
            raise LynxError(f"'between' names no algorithm '{algo}'", where="--budget", hint=hint)
    start = peak_activation_bytes(low, graph, index)
    distance = peak_activation_bytes(high, graph, index) - start
    return graph.static.total_bytes + start + int(share * distance)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except LynxError:
        raise LynxError(f"'{text}' is not a budget", where="--budget", hint=f"write one of: {FORMS}") from None
