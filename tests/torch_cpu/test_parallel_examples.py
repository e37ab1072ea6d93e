"""The examples of parallelism beside tensor parallelism: what their graphs hold; plans of them run bit for bit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.analyze.programs import expand
from lynx_plan.cost.data_parallel import final_average
from lynx_plan.cost.roofline import price
from lynx_plan.model.graph import CostGraph, ModelSpec, Phase, Role
from lynx_plan.model.machine import Link
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.capture import capture_file
from lynx_plan.torch_rt.launch import RunOptions, run
from tests.torch_cpu.plans import keep_all, plan_of, recompute_all

EXAMPLES = Path(__file__).parents[2] / "examples"
LINK = Link(bytes_per_s=10**9, latency_ns=50_000, text="1GB/s:50us")
SMALL = {
    "fsdp": {"layers": 2, "hidden": 64, "sequence": 32, "vocab": 64},
    "context_parallel": {"layers": 2, "hidden": 64, "sequence": 32, "vocab": 64},
    "moe": {"layers": 2, "hidden": 32, "sequence": 16, "vocab": 64},
    "gpt": {"layers": 2, "hidden": 64, "sequence": 32, "vocab": 64},
}
OF_LAYER_1 = {
    "fsdp": {("all_gather", "dp", Phase.FORWARD): 1, ("reduce_scatter", "dp", Phase.BACKWARD): 1},
    "context_parallel": {
        ("all_gather", "cp", Phase.FORWARD): 1,
        ("reduce_scatter", "cp", Phase.BACKWARD): 1,
        ("all_reduce", "cp", Phase.BACKWARD): 1,
    },
    "moe": {
        ("all_to_all", "ep", Phase.FORWARD): 2,
        ("all_to_all", "ep", Phase.BACKWARD): 2,
        ("all_reduce", "ep", Phase.BACKWARD): 2,
    },
}


def graph_of(name: str, mesh: tuple[tuple[str, int], ...], **arguments: object) -> CostGraph:
    """Priced by formula."""
    pairs = {**SMALL[name], **arguments}
    spec = ModelSpec(
        path=str(EXAMPLES / f"{name}.py"),
        arguments=tuple(sorted((key, str(value).lower()) for key, value in pairs.items())),
    )
    machine = files.load_machine("cpu-demo")
    return replace(price(capture_file(spec, mesh, machine).graph, machine, LINK), link=LINK)


def collectives(graph: CostGraph, layer: int) -> Counter[tuple[str, str, Phase]]:
    ops = [graph.ops[op] for op in graph.layers[layer].ops]
    return Counter((op.kind, op.group, op.phase) for op in ops if op.role is Role.COLLECTIVE)


@pytest.mark.parametrize(("name", "dimension"), [("fsdp", "dp"), ("context_parallel", "cp"), ("moe", "ep")])
def test_a_block_has_these_collectives(name, dimension):
    graph = graph_of(name, ((dimension, 2),))
    assert collectives(graph, 2) == OF_LAYER_1[name]
    assert all((op.group_size, op.group_stride) == (2, 1) for op in graph.ops if op.role is Role.COLLECTIVE)
    assert all(op.comm_ns > 0 for op in graph.ops if op.role is Role.COLLECTIVE)


@pytest.mark.parametrize("name", ["fsdp", "context_parallel", "moe"])
def test_one_rank_communicates_nothing(name):
    assert not [op for op in graph_of(name, ()).ops if op.role in (Role.COLLECTIVE, Role.WAIT)]


def test_a_collective_of_several_tensors_is_one_op_with_a_wait_each():
    graph = graph_of("context_parallel", (("cp", 2),))
    (reduce,) = [op for op in graph.ops if op.kind == "all_reduce" and op.id in graph.layers[2].ops]
    parameters = [op for op in graph.ops if op.role is Role.ACCUMULATE and op.parameter.startswith("layers.1.")]
    assert len(reduce.outputs) == len(reduce.inputs) == len(parameters) == 12
    waits = [op for op in graph.ops if op.role is Role.WAIT and op.inputs[0] in reduce.outputs]
    assert len(waits) == 12
    sizes = [graph.storages[graph.tensors[tensor].storage].bytes for tensor in reduce.outputs]
    assert reduce.comm_bytes == sum(sizes)


def test_gathered_parameters_are_kept_or_gathered_again():
    graph = graph_of("fsdp", (("dp", 2),))
    gathers = [op.id for op in graph.ops if op.kind == "all_gather"]
    assert len(gathers) == 4  # embedding, two blocks, head
    tight = make_plan(graph, algo="heu", budget="between:full,none,0.0")
    again = [item.op for item in expand(tight.plan.stages[0].program, graph.layers) if item.replica]
    assert set(again) & set(gathers)
    full = make_plan(graph, algo="full", budget="1TiB").plan.predicted
    none = make_plan(graph, algo="none", budget="1TiB").plan.predicted
    gathered = sum(graph.ops[op].comm_bytes for op in gathers)
    assert none.peak_activation_bytes - full.peak_activation_bytes > gathered // 2
    assert full.comm_exposed_ns > none.comm_exposed_ns


def test_what_is_left_to_average():
    replicated = graph_of("gpt", (("dp", 2),))
    average = final_average(replicated)
    parameters = [op.parameter for op in replicated.ops if op.role is Role.ACCUMULATE]
    assert sorted(average.parameters) == sorted(parameters)
    assert dict(average.bytes) == {"float32": replicated.static.gradients_bytes}
    assert not final_average(graph_of("fsdp", (("dp", 2),))).parameters  # the model's reduce-scatters do it
    assert not final_average(graph_of("gpt", (("tp", 2),))).parameters
    alone = graph_of("gpt", ())
    assert replicated.optimizer_ns > alone.optimizer_ns + LINK.latency_ns


@pytest.mark.parametrize(
    ("name", "mesh", "arguments"),
    [
        ("fsdp", ("dp", 2), {}),
        ("context_parallel", ("cp", 2), {}),
        ("moe", ("ep", 2), {}),
        ("gpt", ("dp", 2), {}),
    ],
    ids=["fsdp", "context_parallel", "moe", "data_parallel"],
)
def test_two_ranks_run_plans_bit_for_bit(name, mesh, arguments):
    graph = graph_of(name, (mesh,), **arguments)
    plans = [
        ("none", plan_of(graph, keep_all(graph), micro_batches=2, algo="none")),
        ("full", plan_of(graph, recompute_all(graph), micro_batches=2, algo="full")),
        ("heu", make_plan(graph, algo="heu", budget="between:full,none,0.3", micro_batches=2).plan),
    ]
    rows = run(RunOptions(plans=tuple(plans), steps=1, verify=True))
    for row, (_, plan) in zip(rows, plans, strict=True):
        assert row.gradients_equal is True, (row.name, row.first_difference)
        assert row.measured.peak_activation_bytes == plan.predicted.peak_activation_bytes, row.name
