"""How long planning takes, and what it gives: `python bench/plan_speed.py PROFILE... [--budgets 30%,50%,70%]`.

Per profile and budget: HEU's search time (best of three), and its step relative to `none`, `full` and `ondemand`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lynx_plan.errors import Infeasible
from lynx_plan.files import load
from lynx_plan.model.graph import CostGraph
from lynx_plan.solve.planner import Planned, make_plan
from lynx_plan.units import format_bytes

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profiles", nargs="+", help="profile files")
    parser.add_argument("--budgets", default="30%,50%,70%")
    options = parser.parse_args()
    for path in options.profiles:
        graph = load(path, CostGraph)
        print(f"{Path(path).name}: {len(graph.layers)} layers, {len(graph.ops)} ops")
        for budget in options.budgets.split(","):
            print(f"  {budget:>5}  {row(graph, budget)}")


def row(graph: CostGraph, budget: str) -> str:
    """One line of results."""
    full = plan(graph, "full", budget, enforce=False)
    try:
        heu = min((plan(graph, "heu", budget) for _ in range(ROUNDS)), key=lambda planned: planned.search_ns)
        ondemand = plan(graph, "ondemand", budget)
    except Infeasible as error:
        return f"infeasible; least {format_bytes(error.minimum_budget_bytes)}; full {step_ms(full)}"
    predicted = heu.plan.predicted
    total = predicted.recompute_hidden_ns + predicted.recompute_exposed_ns
    hidden = predicted.recompute_hidden_ns / total if total else 1.0
    others = {"none": heu.baseline, "full": full.plan.predicted, "ondemand": ondemand.plan.predicted}
    relative = "  ".join(f"{name} {other.step_ns / predicted.step_ns:.3f}x" for name, other in others.items())
    return (
        f"search {heu.search_ns / 1e6:6.1f} ms  step {step_ms(heu)}  "
        f"{relative}  hidden {hidden:4.0%}"
        f"  peak {format_bytes(predicted.peak_bytes)} of {format_bytes(heu.plan.budget_bytes)}  {heu.plan.status}"
    )


def plan(graph: CostGraph, algo: str, budget: str, *, enforce: bool = True) -> Planned:
    return make_plan(graph, algo=algo, budget=budget, enforce_budget=enforce)


def step_ms(planned: Planned) -> str:
    return f"{planned.plan.predicted.step_ns / 1e6:.1f} ms"


if __name__ == "__main__":
    main()
