"""Serial quality, no communication: what recomputation costs at less memory, beside PyTorch's own tools, in one run.

    python bench/serial.py [-o bench/results/serial.md]

A GPT of 6 layers (hidden 256, 8 heads, sequence 256, batch 4, vocabulary 1000, fp32), profiled by measuring on this
machine. Plans at 70, 50 and 30 % of the peak without recomputation: added op time, as a share of all op times of the
profile. Then at the measured peak of per-layer `torch.utils.checkpoint`: FLOPs, counted by torch's counter as each
runs, and peaks by one counter of live bytes, also of PyTorch's activation memory budget over a fine sweep.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from lynx_plan import Step
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import expand
from lynx_plan.errors import Infeasible
from lynx_plan.files import load
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.model.plan import Plan
from lynx_plan.solve.base import Effort
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.live_bytes import LiveBytes
from lynx_plan.torch_rt.model_file import ModelFile, load_model_file

ROOT = Path(__file__).resolve().parent.parent
MODEL = "examples/gpt.py"
ARGUMENTS = {"layers": 6, "hidden": 256, "heads": 8, "sequence": 256, "micro_batch": 4, "vocab": 1000}
SHARES = (70, 50, 30)
ALGOS = ("heu", "opt", "checkmate", "rotor", "knapsack", "knapsack:greedy")
TARGETS = {70: 2.7, 50: 8.5, 30: 17.8}  # percent of added op time: the best existing serial planner's own estimates
SWEEP = 40
MIB, GIGA = 1 << 20, 1e9


@dataclass(frozen=True, slots=True)
class Run:
    """What one step did: peak of live activation bytes, FLOPs."""

    peak_bytes: int
    flops: int

    def __str__(self) -> str:
        return f"{self.peak_bytes / MIB:.2f} | {self.flops / GIGA:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="also write the tables to this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # compiled functions that are not boxed: it is their memory that is measured
    graph = profile()
    lines = [*added_time(graph), "", *against_checkpoint(graph)]
    if given.output:
        heading = "# Serial quality\n\n" + "\n\n".join((__doc__ or "").split("\n\n")[2:]).strip() + "\n"
        Path(given.output).write_text("\n".join([heading, "`python bench/serial.py`", "", *lines, ""]))


def profile() -> CostGraph:
    """The measured cost graph."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "profile.json")
        words = [word for key, value in ARGUMENTS.items() for word in ("--arg", f"{key}={value}")]
        command = [sys.executable, "-m", "lynx_plan", "-q", "profile", MODEL, *words, "-o", path]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return load(path, CostGraph)


def say(lines: list[str], text: str) -> None:
    print(text, flush=True)
    lines.append(text)


def plan(graph: CostGraph, algo: str, budget: str, index: GraphIndex) -> Plan:
    effort = Effort(gap=0.001, time_limit_s=60.0)
    return make_plan(graph, algo=algo, budget=budget, index=index, effort=effort).plan


def added_time(graph: CostGraph) -> list[str]:
    """Per budget and algorithm: added op time, and the peak that is predicted (measured runs equal it to the byte)."""
    lines: list[str] = []
    say(lines, "| budget | at most | " + " | ".join(ALGOS) + " |")
    say(lines, "|---|---:|" + "---:|" * len(ALGOS))
    index, total = GraphIndex(graph), sum(op.time_ns for op in graph.ops)
    for share in SHARES:
        cells = []
        for algo in ALGOS:
            try:
                made = plan(graph, algo, f"{share}%", index)
            except Infeasible:
                cells.append("infeasible")
                continue
            copies = [item for item in expand(made.stages[0].program, graph.layers) if item.replica]
            cells.append(f"{sum(graph.ops[item.op].time_ns for item in copies) / total:.2%}")
        say(lines, f"| {share}% | {TARGETS[share]}% | " + " | ".join(cells) + " |")
    return lines


def against_checkpoint(graph: CostGraph) -> list[str]:
    """Peak and FLOPs of checkpointing every layer, of plans at that peak, and of PyTorch's memory budget."""
    spec = ModelSpec(path=str(ROOT / MODEL), builder="build_model", arguments=graph.model.arguments)
    file = load_model_file(spec)
    lines: list[str] = []
    say(lines, "| what | peak, MiB | GFLOP |")
    say(lines, "|---|---:|---:|")
    say(lines, f"| nothing recomputed, eager | {counted(file, lambda model: eager_step(model, file))} |")
    limit = counted(file, lambda model: eager_step(checkpointed(model), file))
    say(lines, f"| torch.utils.checkpoint of each layer | {limit} |")
    index = GraphIndex(graph)
    budget = f"{graph.static.total_bytes + limit.peak_bytes}B"
    for algo in ("none", "full", *ALGOS):
        try:
            made = plan(graph, algo, budget if algo not in ("none",) else "100%", index)
        except Infeasible as error:
            say(lines, f"| {algo}, at that peak | infeasible: {error.minimum_budget_bytes} B | - |")
            continue
        at = "unlimited" if algo == "none" else "at that peak"
        run = counted(file, lambda model, made=made: planned_step(model, made, file))
        say(lines, f"| {algo}, {at} | {run} |")
    runs = [(share / SWEEP, counted(file, lambda model, b=share / SWEEP: budget_step(model, file, b)))
            for share in range(SWEEP + 1)]  # fmt: skip
    lowest = min(runs, key=lambda run: run[1].peak_bytes)
    fitting = [run for run in runs if run[1].peak_bytes <= limit.peak_bytes]
    say(lines, f"| PyTorch's memory budget, lowest peak of {SWEEP + 1} budgets ({lowest[0]:.3f}) | {lowest[1]} |")
    if fitting:
        best = min(fitting, key=lambda run: run[1].flops)
        say(lines, f"| PyTorch's memory budget, best at that peak ({best[0]:.3f}) | {best[1]} |")
    else:
        say(lines, "| PyTorch's memory budget, best at that peak | none reaches it | - |")
    return lines


def counted(file: ModelFile, prepare: Callable[[nn.Module], Callable[[], Any]]) -> Run:
    """Run a step twice: its peak by the counter of live bytes, its FLOPs by torch's counter."""
    torch.manual_seed(0)
    model = file.build(None)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step = prepare(model)
    step()
    static = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    with LiveBytes([*static, *file.batch(0, 0, 0)]) as live:
        step()
    with FlopCounterMode(display=False) as flops:
        step()
    return Run(peak_bytes=live.peak_bytes, flops=flops.get_total_flops())


def eager_step(model: nn.Module, file: ModelFile) -> Callable[[], Any]:
    inputs = file.batch(0, 0, 0)
    return lambda: file.loss(model(*inputs)).backward()


def checkpointed(model: nn.Module) -> nn.Module:
    """The same model, each layer under `torch.utils.checkpoint`."""
    for layer in model.layers:  # type: ignore[union-attr]
        run = layer.forward
        layer.forward = lambda x, run=run: checkpoint(run, x, use_reentrant=False)
    return model


def planned_step(model: nn.Module, made: Plan, file: ModelFile) -> Callable[[], Any]:
    inputs = file.batch(0, 0, 0)
    step = Step(model, made, file.loss, example_inputs=inputs)
    return lambda: step([inputs])


def budget_step(model: nn.Module, file: ModelFile, budget: float) -> Callable[[], Any]:
    """The model split by PyTorch's own partitioner under an activation memory budget, and run op by op."""
    inputs = file.batch(0, 0, 0)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def loss(*values: torch.Tensor) -> torch.Tensor:
        named = dict(zip(state, values[: len(state)], strict=True))
        return file.loss(torch.func.functional_call(model, named, values[len(state) :]))

    with functorch_config.patch(activation_memory_budget=budget):
        compiled = aot_function(
            loss,
            fw_compiler=lambda graph, _: graph.forward,
            bw_compiler=lambda graph, _: graph.forward,
            partition_fn=min_cut_rematerialization_partition,
        )
        compiled(*state.values(), *inputs).backward()
    return lambda: compiled(*state.values(), *inputs).backward()


if __name__ == "__main__":
    main()
