"""Measure this machine: matmuls and memory traffic by size, a launch, collectives, contention; a machine file of it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from lynx_plan.cost.fit import Point, all_reduce_link, curve, slowdown
from lynx_plan.model.machine import Link, Machine, Peak
from lynx_plan.torch_rt.conditions import conditions
from lynx_plan.torch_rt.measure import Progress, this_machine
from lynx_plan.torch_rt.measure_call import tensor_data
from lynx_plan.torch_rt.measure_ranks import measure_on_ranks, started_outside
from lynx_plan.torch_rt.measure_reuse import COLD_BYTES

DTYPES = ("float32", "bfloat16")
WIDTHS = (64, 128, 256, 512, 1024, 2048)
QUICK_WIDTHS = (64, 256, 512)
TRAFFIC = tuple(2**power for power in range(14, 27, 2))  # bytes of each of three operands
QUICK_TRAFFIC = (2**14, 2**20, 2**24)
PAYLOADS = (2**12, 2**16, 2**20, 2**23)
CONTENTION = {"what": "contention", "width": 256, "bytes": 2**23}
Item = dict[str, Any]


def measure_machine(*, name: str, ranks: int, threads: int, quick: bool, progress: Progress | None = None) -> Machine:
    """The machine as `ranks` concurrent processes of `threads` compute threads each find it.

    Under an outer torchrun its ranks are taken. A link, and contention, need at least two ranks.
    """
    if started_outside():
        ranks = int(os.environ["WORLD_SIZE"])
    widths, traffic = (QUICK_WIDTHS, QUICK_TRAFFIC) if quick else (WIDTHS, TRAFFIC)
    items = [*[_matmul(dtype, width) for dtype in DTYPES for width in widths], *map(_add, traffic), _add(4)]
    if ranks > 1:
        items += [*[_all_reduce(size, ranks) for size in PAYLOADS], {**CONTENTION, "group": ranks}]
    results = measure_on_ranks(
        items,
        ranks=ranks,
        threads=threads,
        group_sizes=[ranks] if ranks > 1 else [],
        emulated=False,
        progress=lambda done: progress("measuring", done, len(items)) if progress else None,
    )
    slowest = [max(same, key=lambda result: result["median_ns"]) for same in zip(*results, strict=True)]
    found = _compute(this_machine(ranks), slowest, widths, traffic)
    if ranks > 1:
        found = _communication(found, slowest[-len(PAYLOADS) - 1 :], ranks)
    setting = f"conditions: {ranks} concurrent rank(s) of {threads} compute thread(s); {'; '.join(conditions())}"
    return replace(found, name=name, sources=(*found.sources, setting))


def _compute(machine: Machine, results: list[Item], widths: tuple[int, ...], traffic: tuple[int, ...]) -> Machine:
    turn = iter(results)
    peaks, curves = [], {}
    for dtype in DTYPES:
        points = [Point(size=2 * width**3, time_ns=next(turn)["median_ns"]) for width in widths]
        best, curves[dtype] = curve(points)
        source = f"measured: the best of square {dtype} matmuls of widths {widths[0]} to {widths[-1]}, dense"
        peaks.append(Peak(dtype=dtype, flops_per_s=best, source=source))
    rate, shares = curve([Point(size=3 * size, time_ns=next(turn)["median_ns"]) for size in traffic])
    return replace(
        machine,
        peaks=tuple(peaks),
        memory_bytes_per_s=rate,
        matmul_efficiency=curves[DTYPES[0]],
        memory_efficiency=shares,
        launch_ns=next(turn)["median_ns"],
        sources=(
            *(source for source in machine.sources if source.startswith(("memory_bytes", "margin_bytes"))),
            "matmul_efficiency: measured, square float32 matmuls; shares of the best; used for every dtype",
            f"memory_bytes_per_s: measured, the best of c = a + b over {traffic[0]} to {traffic[-1]} bytes each",
            "memory_efficiency: measured, the same by bytes moved",
            "launch_ns: measured, an addition of one element",
            "attention_share: assumption: attention runs at a matmul's rate",
        ),
    )


def _communication(machine: Machine, results: list[Item], ranks: int) -> Machine:
    *transfers, contention = results
    points = [
        Point(size=size, time_ns=result["median_ns"] + result["comm_ns"])
        for size, result in zip(PAYLOADS, transfers, strict=True)
    ]
    link, worst = all_reduce_link(points, ranks)
    return replace(
        machine,
        link=Link(bytes_per_s=link.bytes_per_s, latency_ns=link.latency_ns),
        compute_slowdown=slowdown(contention["median_ns"], contention["compute_beside_ns"]),
        comm_slowdown=slowdown(contention["comm_ns"], contention["comm_beside_ns"]),
        sources=(
            *machine.sources,
            f"link: measured, ring formula fitted to all-reduces of {PAYLOADS[0]} to {PAYLOADS[-1]} bytes among "
            f"{ranks} ranks; at most {worst:.0%} off at a size",
            "compute_slowdown, comm_slowdown: measured, a loop of matmuls beside an all-reduce of "
            f"{CONTENTION['bytes']} bytes against each alone",
        ),
    )


def _tensor(shape: list[int], dtype: str) -> Item:
    stride = [shape[1], 1] if len(shape) == 2 else [1]
    return {"tensor": {**tensor_data(shape, stride, dtype), "reuse": COLD_BYTES}}


def _matmul(dtype: str, width: int) -> Item:
    operands = [_tensor([width, width], dtype), _tensor([width, width], dtype)]
    return {"what": "op", "call": {"target": "aten.mm.default", "args": operands, "kwargs": {}}}


def _add(size: int) -> Item:
    operands = [_tensor([size // 4], "float32"), _tensor([size // 4], "float32")]
    return {"what": "op", "call": {"target": "aten.add.Tensor", "args": operands, "kwargs": {}}}


def _all_reduce(size: int, ranks: int) -> Item:
    args = [_tensor([size // torch.float32.itemsize], "float32"), "sum", {"group": ranks}]
    return {"what": "collective", "call": {"target": "_c10d_functional.all_reduce.default", "args": args, "kwargs": {}}}
