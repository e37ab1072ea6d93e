"""HEU's search beside PyTorch's own partitioner under an activation memory budget, on the same traced graph.

    python bench/partitioner.py [--layers 24,48] [--budget 0.5]

A tensor-parallel GPT is traced without a device; PyTorch's partitioner splits its joint graph, HEU plans its cost graph
priced for an A100. Both times are of one process; tracing and pricing belong to neither.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.cost.roofline import price
from lynx_plan.files import load_machine
from lynx_plan.model.graph import ModelSpec
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.capture import capture_file

ROOT = Path(__file__).resolve().parent.parent
SHAPE = (("hidden", "2048"), ("heads", "16"), ("sequence", "2048"), ("micro_batch", "4"), ("dtype", "bfloat16"))
RANKS = 2
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="24,48")
    parser.add_argument("--budget", type=float, default=0.5)
    given = parser.parse_args()
    print("| layers | PyTorch's partitioner, s | HEU's analysis, s | HEU's search, new, s | known, s |")
    print("|---:|---:|---:|---:|---:|")
    for layers in given.layers.split(","):
        print(row(int(layers), given.budget), flush=True)


def row(layers: int, budget: float) -> str:
    machine = load_machine("a100-80g-nvlink")
    spec = ModelSpec(
        path=str(ROOT / "examples/gpt.py"), builder="build_model", arguments=(*SHAPE, ("layers", str(layers)))
    )
    captured = capture_file(spec, (("tp", RANKS),), machine)
    graph = price(captured.graph, machine, None)
    index = GraphIndex(graph)
    plans = [make_plan(graph, algo="heu", budget=f"{budget:.0%}", index=index) for _ in range(1 + ROUNDS)]
    known = sorted(plan.search_ns for plan in plans[1:])[ROUNDS // 2]
    with functorch_config.patch(activation_memory_budget=budget):
        began = time.perf_counter()
        min_cut_rematerialization_partition(captured.joint, None, num_fwd_outputs=1)
        took = time.perf_counter() - began
    cells = (took, plans[0].analysis_ns / 1e9, plans[0].search_ns / 1e9, known / 1e9)
    return f"| {layers} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |"


if __name__ == "__main__":
    main()
