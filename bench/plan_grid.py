"""HEU on the grid of sample GPTs: search time, against OPT's proof, against every baseline at the same peak, the limit.

    python bench/plan_grid.py [-o bench/results/plan_grid.md] [--only TEXT] [--no-opt] [--budgets 30,50,70]

Per sample and budget (a share of the peak activations of `none`): HEU's search time (median of three; reading facts
from the graph apart), its step against OPT's with OPT's gap and time, and against each baseline, whose budget is
HEU's peak. Steps are of 8 microbatches, simulated. A baseline that does not fit that peak is left out of the row.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from statistics import mean, median

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import expand
from lynx_plan.errors import Infeasible
from lynx_plan.files import load
from lynx_plan.model.graph import CostGraph
from lynx_plan.simulate.limit import limit
from lynx_plan.simulate.streams import item_times
from lynx_plan.solve.base import Effort
from lynx_plan.solve.planner import Planned, make_plan

SAMPLES = Path(__file__).resolve().parent.parent / "sample_profiles"
SIZES, RANKS, LINKS = ("1.3b", "2.7b", "6.7b", "13b", "20b"), (2, 4, 8), ("nvlink", "pcie")
MEGATRON = (
    "full",
    "uniform",
    "block",
    "selective",
    "selective:layernorm",
    "selective:mlp",
    "selective:core_attn,layernorm",
    "selective:core_attn,mlp",
    "selective:layernorm,mlp",
    "selective:core_attn,layernorm,mlp",
)
RULES = ("overlap-collective", "overlap-p2p", "overlap-bubble")
OTHERS = ("checkmate", "ondemand", *RULES)
MICRO_BATCHES = 8
ROUNDS = 3
HEADINGS = (
    "sample | budget | search, ms | HEU step, ms | HEU / OPT | OPT gap | OPT, s | best of Megatron | / HEU "
    "| best of others | / HEU | limit / HEU"
)


@dataclass(slots=True)
class Row:
    """One sample under one budget. Ratios are steps relative to HEU's; below 1 the other is faster."""

    name: str
    budget: str
    searches_ms: list[float]
    heu: Planned
    limit_ratio: float
    opt: Planned | None = None
    opt_s: float = 0.0
    others: dict[str, float] = field(default_factory=dict)

    @property
    def opt_ratio(self) -> float | None:
        return None if self.opt is None else step(self.heu) / step(self.opt)

    @property
    def opt_gap(self) -> float:
        return float(dict(self.opt.plan.options).get("gap", "0")) if self.opt else 0.0

    def best(self, names: Sequence[str]) -> tuple[str, float]:
        found = [(ratio, name) for name, ratio in self.others.items() if name in names]
        return (min(found)[1], min(found)[0]) if found else ("none fits", float("inf"))

    def __str__(self) -> str:
        megatron, other = self.best(MEGATRON), self.best(OTHERS)
        opt = f"{self.opt_ratio:.4f} | {self.opt_gap:.2%} | {self.opt_s:.1f}" if self.opt_ratio else "- | - | -"
        search = f"{self.searches_ms[0]:.0f} then {median(self.searches_ms[1:]):.0f}"
        cells = (
            self.name,
            self.budget,
            search,
            f"{step(self.heu) / 1e6:.1f}",
            opt,
            megatron[0],
            f"{megatron[1]:.3f}",
            other[0],
            f"{other[1]:.3f}",
            f"{self.limit_ratio:.3f}",
        )
        return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="also write the table to this file")
    parser.add_argument("--only", default="", help="samples whose name contains this text")
    parser.add_argument("--budgets", default="30,50,70")
    parser.add_argument("--no-opt", action="store_true")
    parser.add_argument("--no-others", action="store_true")
    parser.add_argument("--gap", type=float, default=0.005)
    given = parser.parse_args()
    lines = [f"| {HEADINGS} |", "|---|" + "---:|" * HEADINGS.count("|")]
    print("\n".join(lines), flush=True)
    rows = []
    for row in all_rows(given):
        rows.append(row)
        print(row, flush=True)
    ends = summary(rows)
    print(f"\n{ends}")
    if given.output:
        heading = f"# Planning on the grid of sample GPTs\n\n{__doc__.split(chr(10) + chr(10))[2]}\n"
        Path(given.output).write_text("\n".join([heading, *lines, *map(str, rows), "", ends, ""]))


def all_rows(given: argparse.Namespace) -> Iterator[Row]:
    for size in SIZES:
        for ranks in RANKS:
            for link in LINKS:
                name = f"gpt-{size}-tp{ranks}-a100-80g-{link}"
                if given.only in name:
                    graph = load(SAMPLES / f"{name}.profile.json.gz", CostGraph)
                    yield from rows_of(name, graph, given)


def rows_of(name: str, graph: CostGraph, given: argparse.Namespace) -> Iterator[Row]:
    index = GraphIndex(graph)

    def plan(algo: str, budget: str, effort: Effort = Effort()) -> Planned:  # noqa: B008
        return make_plan(graph, algo=algo, budget=budget, micro_batches=MICRO_BATCHES, index=index, effort=effort)

    for budget in (f"{share}%" for share in given.budgets.split(",")):
        try:
            heus = [make_plan(graph, algo="heu", budget=budget, micro_batches=MICRO_BATCHES, index=GraphIndex(graph))]
            plan("heu", budget)  # facts and frontiers are there
            heus += [plan("heu", budget) for _ in range(ROUNDS)]
        except Infeasible:
            print(f"| {name} | {budget} | infeasible |" + " |" * (HEADINGS.count("|") - 2), flush=True)
            continue
        searches = [planned.search_ns / 1e6 for planned in heus]
        row = Row(name, budget, searches, heus[0], limit_of(graph, heus[0]))
        if not given.no_opt:
            row.opt = plan("opt", budget, Effort(gap=given.gap, time_limit_s=60.0))
            row.opt_s = row.opt.search_ns / 1e9
        if not given.no_others:
            row.others = others(row.heu, plan)
        yield row


def others(heu: Planned, plan: Callable[[str, str], Planned]) -> dict[str, float]:
    """Baseline -> its step relative to HEU's, at HEU's peak; only those that fit."""
    found = {}
    for algo in (*MEGATRON, *OTHERS):
        try:
            planned = plan(algo, f"{heu.plan.predicted.peak_bytes}B")
        except Infeasible:
            continue
        found[algo] = step(planned) / step(heu)
    return found


def limit_of(graph: CostGraph, planned: Planned) -> float:
    """The limit of a microbatch at the plan's kept set, relative to what it takes."""
    items = expand(planned.plan.stages[0].program, graph.layers)
    end_ns = (step(planned) - graph.optimizer_ns) / planned.plan.micro_batches
    return limit(graph, items, resolve(graph, items), item_times(graph, items)).end_ns / end_ns


def step(planned: Planned) -> int:
    return planned.plan.predicted.step_ns


def summary(rows: Sequence[Row]) -> str:
    """Averages, worst rows, and the best row of each machine."""
    first = [row.searches_ms[0] for row in rows]
    again = [median(row.searches_ms[1:]) for row in rows]
    lines = [
        f"{len(rows)} rows. HEU's search {mean(first):.0f} ms on average and {max(first):.0f} ms at worst where the "
        f"frontiers are new, {mean(again):.0f} and {max(again):.0f} ms where they are known."
    ]
    closed = [row.opt_ratio for row in rows if row.opt_ratio and row.opt_gap <= 0.01]
    if closed:
        gaps = [row.opt_gap for row in rows if row.opt]
        slowest = max(row.opt_s for row in rows)
        lines.append(
            f"OPT closes to 1 % in {len(closed)} of {len(gaps)} rows (gap at worst {max(gaps):.2%}, {slowest:.0f} s at "
            f"most); there HEU is {mean(closed) - 1:.2%} slower on average, {max(closed) - 1:.2%} at worst."
        )
    for what, names in (("Megatron's settings", MEGATRON), ("all baselines", (*MEGATRON, *OTHERS))):
        ratios = [row.best(names)[1] for row in rows if row.best(names)[1] < float("inf")]
        if ratios:
            mid = exp(mean(map(log, ratios)))
            lines.append(
                f"HEU against the best of {what}: {mid:.3f}x in the geometric mean, {min(ratios):.3f}x at worst."
            )
    for link in LINKS:
        best = max(
            (row for row in rows if row.name.endswith(link)),
            key=lambda row: row.best(MEGATRON)[1] if row.others else 0,
            default=None,
        )
        if best is not None and best.others:
            lines.append(
                f"Best row on {link}: {best.name} at {best.budget}, {best.best(MEGATRON)[1]:.3f}x of Megatron's best."
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
