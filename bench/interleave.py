"""Interleaved microbatches on a real link, against `ondemand` and `none` at equal peak; all in the same processes.

    python bench/interleave.py --hosts 'hosts -n 2 -r 800mbit --' [--arg key=value ...]

`--hosts` is a command prefix that starts its command once per host with torchrun's variables set. The profile is
measured on those hosts. Every plan has the budget that is the peak of `heu` at `--budget`; weight gradients fill the
windows of each. `limit`: no order can be faster, by the profile's costs and the plan's kept set: the largest of all
compute, all communication and the critical path of one microbatch after the other's first.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from lynx_plan import files
from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.programs import expand_step
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import Plan
from lynx_plan.model.run import RunRow
from lynx_plan.simulate.limit import limit
from lynx_plan.simulate.streams import item_times
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.launch import RunOptions, run

ROOT = Path(__file__).resolve().parent.parent
SIZE = ("layers=6", "hidden=512", "heads=8", "sequence=512", "micro_batch=1", "vocab=512")
MICRO_BATCHES = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", help="command prefix that starts a command on every host")
    parser.add_argument("--arg", action="append", default=[], help="argument of examples/gpt.py; replaces the default")
    parser.add_argument("--budget", default="between:full,none,0.5")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profile", help="measure with this profile, as one of the ranks")
    given = parser.parse_args()
    if given.profile:
        return measure(given.profile, given.budget, given.steps)
    if not given.hosts:
        parser.error("--hosts is needed")
    size = {pair.partition("=")[0]: pair for pair in (*SIZE, *given.arg)}
    model = ["examples/gpt.py", "--tp", "2", *(word for pair in size.values() for word in ("--arg", pair))]
    with tempfile.TemporaryDirectory() as folder:
        profile = str(Path(folder) / "profile.json")
        on_hosts(given.hosts, ["-m", "lynx_plan", "profile", *model, "-o", profile, "--force"])
        rest = ["--profile", profile, "--budget", given.budget, "--steps", str(given.steps)]
        on_hosts(given.hosts, [str(Path(__file__).resolve()), *rest])
    return 0


def on_hosts(hosts: str, words: list[str]) -> None:
    """Run Python on every host, from the project's root; a failure ends the bench."""
    print(f"\n$ {hosts} python {shlex.join(words)}", flush=True)
    if code := subprocess.run([*shlex.split(hosts), sys.executable, *words], cwd=ROOT, check=False).returncode:
        sys.exit(code)


def measure(profile: str, budget: str, steps: int) -> int:
    """As one rank: make the plans, run them in turn; rank 0 prints."""
    graph = files.load(profile, CostGraph)
    plans = plans_of(graph, budget)
    rows = run(RunOptions(plans=plans, steps=steps, verify=True, folder=str(ROOT)))
    if rows:
        report(graph, dict(plans), rows)
    return 0


def plans_of(graph: CostGraph, budget: str) -> tuple[tuple[str, Plan], ...]:
    """`heu` at the budget, the others at its peak; `none` at its own."""
    heu = make_plan(graph, algo="heu", budget=budget, micro_batches=MICRO_BATCHES).plan
    peak = f"{heu.predicted.peak_bytes}B"
    made = [("heu", heu)]
    for name, algo, interleave in (
        ("ondemand", "ondemand", False),
        ("heu, plain", "heu", False),
        ("none", "none", False),
    ):
        plan = make_plan(
            graph, algo=algo, budget=peak, micro_batches=MICRO_BATCHES, interleave=interleave, enforce_budget=False
        ).plan
        made.append((name, plan))
    return tuple(made)


def report(graph: CostGraph, plans: dict[str, Plan], rows: tuple[RunRow, ...]) -> None:
    """The table and the ratios."""
    compute = sum(op.time_ns for op in graph.ops)
    comm = sum(op.comm_ns for op in graph.ops)
    print(f"communication share {comm / (comm + compute):.3f}, {MICRO_BATCHES} microbatches")
    print(f"{'plan':12} {'step ms':>9} {'spread':>7} {'meas/pred':>9} {'peak MiB':>9} {'meas/pred':>9} gradients")
    for row in rows:
        predicted = plans[row.name].predicted
        print(
            f"{row.name:12} {row.measured.step_ns / 1e6:9.1f} {row.step_spread_ns / 1e6:7.1f} "
            f"{row.measured.step_ns / predicted.step_ns:9.3f} {row.measured.peak_activation_bytes / 2**20:9.2f} "
            f"{row.measured.peak_activation_bytes / predicted.peak_activation_bytes:9.3f} {row.gradients_equal}"
        )
    step = {row.name: row.measured.step_ns for row in rows}
    least = limit_ns(graph, plans["heu"])
    closed = (step["ondemand"] - step["heu"]) / (step["ondemand"] - least)
    print(f"limit {least / 1e6:.1f} ms; ondemand / heu {step['ondemand'] / step['heu']:.3f}x; none / heu "
          f"{step['none'] / step['heu']:.3f}x; of the gap from ondemand to the limit {closed:.0%} closed")  # fmt: skip


def limit_ns(graph: CostGraph, plan: Plan) -> int:
    """Of a whole step: all compute, all communication, or the longest chain of one microbatch, and the optimizer."""
    items = expand_step(plan.stages[0].program, graph.layers).alone
    one = limit(graph, items, resolve(graph, items), item_times(graph, items))
    busiest = max(MICRO_BATCHES * max(one.compute_ns, one.comm_ns), one.path_ns)
    return busiest + graph.optimizer_ns


if __name__ == "__main__":
    sys.exit(main())
