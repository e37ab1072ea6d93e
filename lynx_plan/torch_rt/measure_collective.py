"""Time a collective on this rank: its launch, its duration, and the compute time that it steals."""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from lynx_plan.torch_rt import measure_call
from lynx_plan.torch_rt.measure_op import agree, operand_sets, summary
from lynx_plan.torch_rt.operands import OperandPool, span_bytes

REPEATS = 15


def measure_collective(call: dict[str, Any], pool: OperandPool, groups: dict[int, str]) -> dict[str, int]:
    """`launch_ns` (median_ns, spread_ns), `comm_ns` from launch to completion, `steal_ns` of compute beside it.

    A collective steals the CPU time of its own threads, as far as they must share cores with compute.
    """
    target = measure_call.resolve(call["target"])
    total = sum(span_bytes(tensor) for tensor in measure_call.tensors_in([call["args"]]))
    sets = [args for args, _ in operand_sets(call, total, pool, groups)]
    launches, durations, helpers = [], [], []
    for index in range(REPEATS + 2):
        agree(0)
        helped = _helpers_ns()
        start = time.perf_counter_ns()
        result = target(*sets[index % len(sets)])
        launched = time.perf_counter_ns()
        _wait(result)
        launches.append(launched - start)
        durations.append(time.perf_counter_ns() - launched)
        helpers.append(_helpers_ns() - helped)
    steal_ns = round(median(helpers[2:]) * _shared_part())
    return {**summary(launches[2:]), "comm_ns": int(median(durations[2:])), "steal_ns": steal_ns}


def _wait(result: Any) -> None:
    for tensor in result if isinstance(result, (list, tuple)) else [result]:
        torch.ops._c10d_functional.wait_tensor.default(tensor)


def _helpers_ns() -> int:
    """CPU time that this process's other threads have used so far."""
    return time.process_time_ns() - time.thread_time_ns()


def _shared_part() -> float:
    """The part of the helpers' time that they take from compute: each rank has one beside its compute threads."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    lacking = ranks * (torch.get_num_threads() + 1) - cores
    return min(1.0, max(0.0, lacking / ranks))
