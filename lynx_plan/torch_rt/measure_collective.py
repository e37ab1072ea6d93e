"""Time a collective on this rank: its launch, its duration, and the compute time that it steals."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from lynx_plan.torch_rt import measure_call
from lynx_plan.torch_rt.measure_op import agree, operand_sets, summary
from lynx_plan.torch_rt.operands import OperandPool, span_bytes

REPEATS = 9
LEAST_LOOP_NS = 2 * 10**6
MOST_LOOP_NS = 200 * 10**6


def measure_collective(call: dict[str, Any], pool: OperandPool, groups: dict[int, str]) -> dict[str, int]:
    """`launch_ns` (median_ns, spread_ns), `comm_ns` from launch to completion, `steal_ns` beside compute."""
    target = measure_call.resolve(call["target"])
    total = sum(span_bytes(tensor) for tensor in measure_call.tensors_in([call["args"]]))
    sets = [args for args, _ in operand_sets(call, total, pool, groups)]
    launches, durations = [], []
    for index in range(REPEATS + 2):
        agree(0)
        start = time.perf_counter_ns()
        result = target(*sets[index % len(sets)])
        launched = time.perf_counter_ns()
        _wait(result)
        launches.append(launched - start)
        durations.append(time.perf_counter_ns() - launched)
    comm_ns = int(median(durations[2:]))
    steal_ns = _steal(lambda index: target(*sets[index % len(sets)]), agree(comm_ns))
    return {**summary(launches[2:]), "comm_ns": comm_ns, "steal_ns": steal_ns}


def _wait(result: Any) -> None:
    for tensor in result if isinstance(result, (list, tuple)) else [result]:
        torch.ops._c10d_functional.wait_tensor.default(tensor)


def _steal(launch: Any, comm_ns: int) -> int:
    """How much longer a compute loop takes while the collective is in flight: median of paired differences."""
    loop = _ComputeLoop()
    turns = max(1, agree(round(min(max(1.5 * comm_ns, LEAST_LOOP_NS), MOST_LOOP_NS) / loop.turn_ns)))
    differences = []
    for index in range(REPEATS):
        agree(0)
        alone = loop.run(turns)
        agree(0)
        result = launch(index)
        beside = loop.run(turns)
        _wait(result)
        differences.append(beside - alone)
    return max(0, int(median(differences)))


class _ComputeLoop:
    """Half matmuls, half additions beyond the cache: what a training step's compute stream does."""

    def __init__(self) -> None:
        self._left, self._right = torch.rand(256, 256), torch.rand(256, 256)
        self._large = torch.rand(512 * 1024)
        self.run(3)
        self.turn_ns = agree(min(self.run(1) for _ in range(10)))

    def run(self, turns: int) -> int:
        """Time of so many turns."""
        start = time.perf_counter_ns()
        with torch.no_grad():
            for _ in range(turns):
                torch.mm(self._left, self._right)
                torch.add(self._large, 1.0)
        return time.perf_counter_ns() - start
