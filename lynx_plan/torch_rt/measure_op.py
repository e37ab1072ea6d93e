"""Time ops on real operands, on this rank, beside the other ranks, in the order in which a step runs them.

A visit runs an op a few times, then the next op's turn comes: so an op meets caches, allocator and neighbours
as it does in a step, and a burst of other work does not fall on one op alone. Operands that the step has just
used are read again right before the call; all others are cold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lynx_plan.torch_rt import measure_call
from lynx_plan.torch_rt.measure_reuse import HOT_BYTES
from lynx_plan.torch_rt.operands import OperandPool

CALLS = 2  # per visit
SETS = 8  # of operands, in turns
TOTAL_NS = 5 * 10**9  # time spent on all visits, within the bounds below
_TRIED_INTEGERS = (None, 0, 1)  # where an op refuses random integers: offsets start at 0, pivots at 1
LEAST_ROUNDS, MOST_ROUNDS = 5, 60


def summary(samples: list[int]) -> dict[str, int]:
    """Median, half the interquartile range and lower quartile, in nanoseconds."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    quarter = [ordered[round(last * part)] for part in (0.25, 0.5, 0.75)]
    return {"median_ns": quarter[1], "spread_ns": (quarter[2] - quarter[0]) // 2, "low_ns": quarter[0]}


class TimedOp:
    """An op to visit again and again; `samples` in nanoseconds, `added` those of a later microbatch's addition."""

    def __init__(self, item: dict[str, Any], pool: OperandPool) -> None:
        self.samples: list[int] = []
        self.added: list[int] = []
        self._turn = 0
        self._kept: Any = None
        self._runs: list[tuple[Callable[[], Any], list[torch.Tensor]]] = []
        self._adds: list[Callable[[], Any]] = []
        if item["what"] == "op":
            self._prepare_call(item["call"], pool)
        else:
            self._prepare_accumulate(item, pool)

    def visit(self, *, count: bool) -> None:
        """Run a few times; `count`: keep the times."""
        for _ in range(CALLS):
            run, hot = self._runs[self._turn % SETS]
            samples = [self._once(run, hot)]
            added = [self._once(add, hot) for add in self._adds[self._turn % SETS : self._turn % SETS + 1]]
            self._turn += 1
            if count:
                self.samples += samples
                self.added += added

    def result(self) -> dict[str, int]:
        """Median and spread of the times."""
        found = summary(self.samples)
        return {**found, "add_ns": summary(self.added)["median_ns"]} if self.added else found

    def _once(self, run: Callable[[], Any], hot: list[torch.Tensor]) -> int:
        for tensor in hot:
            tensor.clone()
        self._kept = None  # freed before the call: its block can be the output's
        start = time.perf_counter_ns()
        self._kept = run()
        return time.perf_counter_ns() - start

    def _prepare_call(self, call: dict[str, Any], pool: OperandPool) -> None:
        target = measure_call.resolve(call["target"])
        tensors = measure_call.tensors_in([call["args"], list(call["kwargs"].values())])
        choosy = any(not getattr(torch, data["dtype"]).is_floating_point for data in tensors)
        for integers in _TRIED_INTEGERS if choosy else (None,):
            self._runs = [
                (lambda args=args, kwargs=kwargs: target(*args, **kwargs), hot)
                for args, kwargs, hot in operand_sets(call, pool, {}, integers=integers)
            ]
            if not choosy or all(_takes_operands(run) for run, _ in self._runs):
                return

    def _prepare_accumulate(self, item: dict[str, Any], pool: OperandPool) -> None:
        for _ in range(SETS):
            new, main = pool.tensor(item["new"]), pool.tensor(item["main"])
            hot = [new] if item["new"]["reuse"] <= HOT_BYTES else []
            self._runs.append((lambda new=new, main=main: main.copy_(new), hot))
            alpha = 1 if not main.is_floating_point() and not main.is_complex() else 1e-6
            self._adds.append(lambda new=new, main=main, alpha=alpha: main.add_(new, alpha=alpha))


class Visited(Protocol):
    """What is measured in turns with others."""

    def visit(self, *, count: bool) -> None: ...


def time_ops(ops: Sequence[Visited], progress: Callable[[int], None]) -> None:
    """Visit all ops in turn, round after round; the other ranks do the same, and each round starts together."""
    with torch.no_grad():
        started = time.perf_counter_ns()
        for op in ops:
            op.visit(count=False)
        once = max(1, time.perf_counter_ns() - started)
        rounds = agree(min(MOST_ROUNDS, max(LEAST_ROUNDS, TOTAL_NS // once)))
        for number in range(rounds):
            agree(0)
            for op in ops:
                op.visit(count=True)
            progress((number + 1) * len(ops) // rounds)


def operand_sets(
    call: dict[str, Any], pool: OperandPool, groups: dict[int, str], *, integers: int | None = None
) -> list[tuple[list[Any], dict[str, Any], list[torch.Tensor]]]:
    """Arguments for successive calls, and which of their tensors the step has just used.

    `integers`: the value of all integer operands; None: random ones.
    """
    tensors = measure_call.tensors_in([call["args"], list(call["kwargs"].values())])
    limit = _index_limit(call)
    sets = []
    for _ in range(SETS):
        made = [pool.tensor(data, limit, integers) for data in tensors]
        hot = [tensor for tensor, data in zip(made, tensors, strict=True) if data["reuse"] <= HOT_BYTES]
        turn = iter(made)
        args = measure_call.decode(call["args"], lambda _, turn=turn: next(turn), groups)
        kwargs = measure_call.decode(list(call["kwargs"].values()), lambda _, turn=turn: next(turn), groups)
        sets.append((args, dict(zip(call["kwargs"], kwargs, strict=True)), hot))
    return sets


def _takes_operands(call: Callable[[], Any]) -> bool:
    """Whether an op runs on its operands."""
    try:
        call()
    except RuntimeError:
        return False
    return True


def _index_limit(call: dict[str, Any]) -> int:
    """Values that integer operands may take: rows of a table, classes of a loss, else 0 and 1."""
    name, args = call["target"], call["args"]
    if name.startswith("aten.embedding_dense_backward"):
        return int(args[2])
    if name.startswith("aten.embedding"):
        return int(args[0]["tensor"]["shape"][0])
    if name.startswith("aten.nll_loss"):
        scores = args[1 if "backward" in name else 0]["tensor"]["shape"]
        return int(scores[1] if len(scores) > 1 else scores[0])
    return 2


def agree(value: int) -> int:
    """The largest of all ranks' values; also a barrier."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    shared = torch.tensor([value])
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return int(shared.item())
