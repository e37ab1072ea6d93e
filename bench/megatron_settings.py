"""HEU against Megatron-LM's recompute settings as Megatron-LM runs them, on the grid of sample GPTs.

    python bench/megatron_settings.py [-o FILE] [--only TEXT] [--budgets 30,50,70]

`bench/plan_grid.py` gives every baseline an early stop: what backward does not need does not run again. Megatron-LM's
checkpoint function has none (megatron/core/tensor_parallel/random.py: backward runs the whole function again), so a
recomputed layer, or MLP, also repeats its last matmul and all-reduce. Here those copies are put into the plan's order
and simulated; core attention and norms are left as they are. Budgets and steps are those of `plan_grid.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import exp, log
from pathlib import Path

from plan_grid import LINKS, MEGATRON, MICRO_BATCHES, RANKS, SAMPLES, SIZES

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import expand
from lynx_plan.errors import Infeasible
from lynx_plan.files import load
from lynx_plan.model.graph import CostGraph, Phase, Role
from lynx_plan.model.program import Item
from lynx_plan.simulate.outcome import predict
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.modules import mlp
from lynx_plan.solve.planner import make_plan

WHOLE_LAYERS = ("full", "uniform", "block")
LAZY = (Role.VIEW, Role.WAIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="also write the table to this file")
    parser.add_argument("--only", default="", help="samples whose name contains this text")
    parser.add_argument("--budgets", default="30,50,70")
    given = parser.parse_args()
    lines = ["| sample | budget | best setting | step / HEU | with early stop |", "|---|---:|---:|---:|---:|"]
    print("\n".join(lines), flush=True)
    ratios: list[float] = []
    for name in names(given.only):
        for line, ratio in rows(name, given.budgets.split(",")):
            lines.append(line)
            ratios.append(ratio)
            print(line, flush=True)
    mean = exp(sum(map(log, ratios)) / len(ratios))
    end = (
        f"{len(ratios)} rows: HEU against the best of Megatron's settings as Megatron-LM runs them: {mean:.3f}x in the "
    )
    end += f"geometric mean, {min(ratios):.3f}x at worst, {max(ratios):.3f}x at best."
    print(f"\n{end}")
    if given.output:
        text = (__doc__ or "").split("\n\n")
        heading = f"# Megatron-LM's settings as Megatron-LM runs them\n\n{text[1].strip()}\n\n{text[2].strip()}\n"
        Path(given.output).write_text("\n".join([heading, *lines, "", end, ""]))


def names(only: str) -> list[str]:
    found = [f"gpt-{size}-tp{ranks}-a100-80g-{link}" for size in SIZES for ranks in RANKS for link in LINKS]
    return [name for name in found if only in name]


def rows(name: str, budgets: Sequence[str]) -> Iterator[tuple[str, float]]:
    graph = load(SAMPLES / f"{name}.profile.json.gz", CostGraph)
    index = GraphIndex(graph)
    for share in budgets:
        try:
            heu = make_plan(graph, algo="heu", budget=f"{share}%", micro_batches=MICRO_BATCHES, index=index).plan
        except Infeasible:
            continue
        found = []
        for algo in MEGATRON:
            budget = f"{heu.predicted.peak_bytes}B"
            try:
                plan = make_plan(graph, algo=algo, budget=budget, micro_batches=MICRO_BATCHES, index=index).plan
            except Infeasible:
                continue
            items = whole(index, expand(plan.stages[0].program, graph.layers), algo)
            step = predict(graph, items, micro_batches=MICRO_BATCHES).step_ns
            found.append((step / heu.predicted.step_ns, plan.predicted.step_ns / heu.predicted.step_ns, algo))
        if found:
            ratio, _, algo = min(found)
            early = min(row[1] for row in found)
            yield f"| {name} | {share}% | {algo} | {ratio:.3f} | {early:.3f} |", ratio


def whole(index: GraphIndex, items: Sequence[Item], algo: str) -> tuple[Item, ...]:
    """The order with the copies that a checkpoint function without early stop runs too."""
    if algo.partition(":")[0] not in WHOLE_LAYERS and "mlp" not in algo:
        return tuple(items)
    facts = analysis_of(index).whole
    found: list[Item] = []
    run_already: set[Item] = set()  # a block may be in several runs of copies: its rest comes with the first
    for copied, group in groupby(items, key=lambda item: item.replica > 0):
        run = list(group)
        if copied:
            run = sorted({*run, *rest(facts, run, algo)} - run_already)
            run_already.update(run)
        found += run
    return tuple(found)


def rest(facts: Candidates, run: Sequence[Item], algo: str) -> list[Item]:
    """The other ops of the layers, or MLPs, of which this run of copies is a part."""
    index, ops = facts.index, {item.op for item in run}
    found: list[Item] = []
    for layer in sorted({index.op_layer[op] for op in ops}):
        part = whole_part(facts, layer, algo)
        if algo.partition(":")[0] in WHOLE_LAYERS or not ops.isdisjoint(part):
            found += [Item(op, 1) for op in part]
    return found


def whole_part(facts: Candidates, layer: int, algo: str) -> list[int]:
    """Forward ops of the layer, or of its MLP with the collective that ends it; only what may run again."""
    graph = facts.index.graph
    forward = [op for op in graph.layers[layer].ops if graph.ops[op].phase is Phase.FORWARD]
    if algo.partition(":")[0] not in WHOLE_LAYERS:
        own = mlp(facts, layer)
        last = next((op for op in forward if op > max(own) and graph.ops[op].role is Role.WAIT), max(own))
        forward = [op for op in forward if min(own) <= op <= last]
    return [op for op in forward if facts.recomputable[op] or graph.ops[op].role in LAZY]


if __name__ == "__main__":
    main()
