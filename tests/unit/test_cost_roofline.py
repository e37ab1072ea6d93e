"""Roofline prices against hand-worked times, on a machine with round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lynx_plan.cost.link import parse_link
from lynx_plan.cost.roofline import price
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, Op, Phase, Role, StorageKind
from lynx_plan.model.machine import Efficiency, Link, Machine, Peak
from tests.unit.builders import GraphBuilder, megatron_graph

# 1000 flops/ns, 100 bytes/ns; a link of 10 bytes/ns and 7 ns
MACHINE = Machine(
    name="round",
    device="cuda",
    memory_bytes=1 << 30,
    margin_bytes=1 << 20,
    peaks=(Peak(dtype="float32", flops_per_s=10**12, source="made up"),),
    memory_bytes_per_s=10**11,
    launch_ns=50,
    attention_share=0.5,
    link=Link(bytes_per_s=10**10, latency_ns=7),
    compute_slowdown=0.25,
)


def one_op(**fields: int | str) -> CostGraph:
    builder = GraphBuilder()
    builder.layer("only")
    source = builder.source("x", 40_000, StorageKind.INPUT)
    out = builder.op("op", (source,), (40_000,), **fields)  # type: ignore[arg-type]
    return builder.build(outputs=out)


def time_of(machine: Machine = MACHINE, **fields: int | str) -> int:
    return price(one_op(**fields), machine, None).ops[0].time_ns


def test_the_slower_of_flops_and_bytes_counts() -> None:
    assert time_of(flops=10**9, bytes=80_000) == 10**6
    assert time_of(flops=10**6, bytes=800_000) == 8_000


def test_no_op_is_faster_than_a_launch() -> None:
    assert time_of(flops=10, bytes=40) == 50
    assert time_of(flops=0, bytes=0) == 50


def test_one_flop_per_byte_is_bound_by_memory_whatever_the_dtype() -> None:
    strange = replace(MACHINE, peaks=())
    assert time_of(strange, flops=80_000, bytes=80_000) == 800


def test_efficiencies_divide_the_rates_at_their_size() -> None:
    half = replace(MACHINE, matmul_efficiency=(Efficiency(size=1, share=0.25), Efficiency(size=10**9, share=0.5)))
    assert time_of(half, flops=10**9, bytes=80) == 2 * 10**6
    slow = replace(MACHINE, memory_efficiency=(Efficiency(size=1000, share=0.1), Efficiency(size=10**6, share=0.8)))
    assert time_of(slow, bytes=1000) == 100
    assert time_of(slow, bytes=10**6) == 12_500


def test_attention_runs_at_its_share_and_causal_attention_does_half() -> None:
    assert time_of(kind="attention", flops=10**9, bytes=80) == 2 * 10**6
    assert time_of(kind="attention_backward", flops=10**9, bytes=80) == 2 * 10**6
    assert time_of(kind="attention", attributes="is_causal=True, scale=None", flops=10**9, bytes=80) == 10**6
    assert time_of(kind="attention", attributes="is_causal=False", flops=10**9, bytes=80) == 2 * 10**6


def test_views_and_waits_are_free_and_say_so() -> None:
    graph = price(megatron_graph(), MACHINE, None)
    for op in graph.ops:
        if op.role in (Role.VIEW, Role.WAIT):
            assert (op.time_ns, op.comm_ns, op.steal_ns, op.cost_source) == (0, 0, 0, "free")
        else:
            assert op.time_ns >= MACHINE.launch_ns
            assert op.cost_source.startswith(("roofline:round", "alpha-beta:round"))


def collective(link: str = "") -> Op:
    builder = GraphBuilder()
    builder.layer("only")
    source = builder.source("x", 40_000, StorageKind.INPUT)
    done = builder.all_reduce("reduce", source, 40_000, Phase.FORWARD, comm_ns=0)
    return price(builder.build(outputs=(done,)), MACHINE, parse_link(link) if link else None).ops[0]


def test_a_collective_costs_its_launch_with_a_copy_and_its_transfer() -> None:
    op = collective()
    assert op.time_ns == 50 + 800  # launch; read and write the input
    assert op.comm_ns == 2 * 7 + 4_000
    assert op.steal_ns == round((2 * 7 + 4_000) * 0.25)
    assert op.cost_source == "alpha-beta:round"


def test_a_given_link_replaces_the_machines_own() -> None:
    op = collective("20GB/s:3us")
    assert op.comm_ns == 2 * 3_000 + 2_000
    assert op.cost_source == "alpha-beta:20GB/s:3us"


def test_accumulation_reads_both_gradients_and_writes_one() -> None:
    builder = GraphBuilder()
    builder.layer("only")
    gradient = builder.source("g", 40_000, StorageKind.ACTIVATION)
    builder.accumulate("layer.weight", gradient)
    assert price(builder.build(), MACHINE, None).ops[0].time_ns == 3 * 40_000 // 100


def test_the_optimizer_moves_parameters_gradients_and_state() -> None:
    graph = one_op()
    static = replace(graph.static, parameters_bytes=1000, gradients_bytes=2000, optimizer_bytes=30_000)
    assert price(replace(graph, static=static), MACHINE, None).optimizer_ns == (2 * 31_000 + 2000) // 100


def test_a_dtype_without_a_peak_is_named() -> None:
    other = replace(MACHINE, peaks=(Peak(dtype="bfloat16", flops_per_s=1, source="made up"),))
    with pytest.raises(LynxError, match="no peak for dtype float32, which op 'op'") as caught:
        time_of(other, flops=10**9, bytes=80)
    assert "bfloat16" in caught.value.hint


def test_a_machine_without_a_memory_rate_cannot_price() -> None:
    with pytest.raises(LynxError, match="memory_bytes_per_s"):
        time_of(replace(MACHINE, memory_bytes_per_s=0), bytes=80)


def test_pricing_keeps_the_structure_and_repeats_itself() -> None:
    graph = megatron_graph()
    priced = price(graph, MACHINE, None)
    assert priced.machine == MACHINE
    assert (priced.tensors, priced.storages, priced.layers) == (graph.tensors, graph.storages, graph.layers)
    assert price(priced, MACHINE, None) == priced


@pytest.mark.parametrize("field", ["flops", "bytes"])
def test_more_work_never_takes_less_time(field: str) -> None:
    curves = (Efficiency(size=10**3, share=0.3), Efficiency(size=10**6, share=0.5), Efficiency(size=10**9, share=0.8))
    machine = replace(MACHINE, matmul_efficiency=curves, memory_efficiency=curves)
    times = [time_of(machine, **{field: 10**power}) for power in range(2, 13)]
    assert times == sorted(times)
    assert times[-1] > times[0]
