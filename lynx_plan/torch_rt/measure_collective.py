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
from lynx_plan.torch_rt.operands import OperandPool

REPEATS = 15  # of the transfer itself


class TimedCollective:
    """A collective to visit among the ops: launched there, it costs what it costs in a step."""

    def __init__(self, item: dict[str, Any], pool: OperandPool, groups: dict[int, str]) -> None:
        self._target = measure_call.resolve(item["call"]["target"])
        self._sets = [args for args, _, _ in operand_sets(item["call"], pool, groups)]
        self._launches: list[int] = []
        self._turn = 0

    def visit(self, *, count: bool) -> None:
        """Launch once, and wait."""
        launch_ns, _ = self._run()
        if count:
            self._launches.append(launch_ns)

    def result(self) -> dict[str, int]:
        """`median_ns` and `spread_ns` of the visits' launches; `comm_ns` from launch to completion and `steal_ns` of
        compute beside it, measured now, with all ranks there.

        A collective steals the CPU time of its own threads, as far as they must share cores with compute.
        """
        durations, helpers = [], []
        for _ in range(REPEATS):
            agree(0)
            helped = _helpers_ns()
            durations.append(self._run()[1])
            helpers.append(_helpers_ns() - helped)
        steal_ns = round(median(helpers) * _shared_part())
        return {**summary(self._launches), "comm_ns": int(median(durations)), "steal_ns": steal_ns}

    def _run(self) -> tuple[int, int]:
        """Time of the launch, and from its end to completion."""
        args = self._sets[self._turn % len(self._sets)]
        self._turn += 1
        start = time.perf_counter_ns()
        result = self._target(*args)
        launched = time.perf_counter_ns()
        _wait(result)
        return launched - start, time.perf_counter_ns() - launched


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
