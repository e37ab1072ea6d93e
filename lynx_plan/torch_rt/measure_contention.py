"""How much compute and a collective slow each other: each alone, then both at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from lynx_plan.torch_rt.measure_op import agree

REPEATS = 7
_PART = 0.6  # of the collective's time is filled with compute


def measure_contention(item: dict[str, Any], groups: dict[int, str]) -> dict[str, int]:
    """Medians in ns of a loop of matmuls alone (`median_ns`) and beside a collective (`compute_beside_ns`), and of the
    collective alone (`comm_ns`) and beside the loop (`comm_beside_ns`)."""
    matrix = torch.rand(item["width"], item["width"])
    payload = torch.rand(item["bytes"] // 4)
    launch = torch.ops._c10d_functional.all_reduce.default
    wait = torch.ops._c10d_functional.wait_tensor.default

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    comm_ns = _median(lambda: _timed(lambda: wait(launch(payload, "sum", groups[item["group"]]))))
    one_ns = _median(lambda: _timed(lambda: compute(1)))
    times = agree(max(1, round(_PART * comm_ns / one_ns)))
    alone_ns = _median(lambda: _timed(lambda: compute(times)))
    beside, whole = [], []
    for _ in range(REPEATS):
        agree(0)
        begun = time.perf_counter_ns()
        pending = launch(payload, "sum", groups[item["group"]])
        beside.append(_timed(lambda: compute(times)))
        wait(pending)
        whole.append(time.perf_counter_ns() - begun)
    found = {"median_ns": alone_ns, "spread_ns": 0, "comm_ns": comm_ns}
    return {**found, "compute_beside_ns": int(median(beside)), "comm_beside_ns": int(median(whole))}


def _timed(run: Callable[[], Any]) -> int:
    begun = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - begun


def _median(sample: Callable[[], int]) -> int:
    samples = []
    for _ in range(REPEATS):
        agree(0)
        samples.append(sample())
    return int(median(samples))
