"""Time one op on real operands, on this rank, beside the other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from lynx_plan.torch_rt import measure_call
from lynx_plan.torch_rt.operands import SPAN_BYTES, OperandPool, rotation, span_bytes

TARGET_NS = 40 * 10**6  # time spent on an op in a round, within the bounds below
MIN_REPEATS, MAX_REPEATS = 5, 200
SLOW_NS = 400 * 10**6  # an op slower than this is repeated MIN_SLOW times
MIN_SLOW = 3
OUTPUT_REUSE_BYTES = 16 * 2**20  # an output's block was freed about so many bytes of traffic ago


def summary(samples: list[int]) -> dict[str, int]:
    """Median and half the interquartile range, in nanoseconds."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    quarter = [ordered[round(last * part)] for part in (0.25, 0.5, 0.75)]
    return {"median_ns": quarter[1], "spread_ns": (quarter[2] - quarter[0]) // 2, "low_ns": quarter[0]}


def measure_call_ns(call: dict[str, Any], traffic_bytes: int, pool: OperandPool) -> dict[str, int]:
    """Median time of an encoded compute call (`measure_call`), with its output's allocation."""
    target = measure_call.resolve(call["target"])
    sets = operand_sets(call, traffic_bytes, pool, {})
    with torch.no_grad():
        return _time(lambda index: target(*sets[index][0], **sets[index][1]), len(sets), traffic_bytes)


def measure_accumulate(item: dict[str, Any], pool: OperandPool) -> dict[str, Any]:
    """Time of the first microbatch's copy into the main gradient, and of a later one's addition."""
    new, main = item["new"], item["main"]
    traffic = span_bytes(new) + span_bytes(main)
    count = rotation(SPAN_BYTES, traffic)
    mains = [pool.tensor(main) for _ in range(count)]
    news = [pool.tensor(new) for _ in range(rotation(new["reuse"], traffic))]
    with torch.no_grad():
        copied = _time(lambda index: mains[index].copy_(news[index % len(news)]), count, traffic)
        added = _time(lambda index: mains[index].add_(news[index % len(news)], alpha=1e-6), count, traffic)
    return {**copied, "add_ns": added["median_ns"]}


def operand_sets(
    call: dict[str, Any], traffic_bytes: int, pool: OperandPool, groups: dict[int, str]
) -> list[tuple[list[Any], dict[str, Any]]]:
    """Arguments for successive calls: each operand rotates at its own reuse distance."""
    tensors = measure_call.tensors_in([call["args"], list(call["kwargs"].values())])
    limit = _index_limit(call)
    instances = [[pool.tensor(data, limit) for _ in range(rotation(data["reuse"], traffic_bytes))] for data in tensors]
    sets = []
    for index in range(max(map(len, instances), default=1)):
        turn = iter([mine[index % len(mine)] for mine in instances])
        args = measure_call.decode(call["args"], lambda _, turn=turn: next(turn), groups)
        kwargs = measure_call.decode(list(call["kwargs"].values()), lambda _, turn=turn: next(turn), groups)
        sets.append((args, dict(zip(call["kwargs"], kwargs, strict=True))))
    return sets


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


def _time(run: Callable[[int], Any], sets: int, traffic_bytes: int) -> dict[str, int]:
    """Warm up, agree with the other ranks on a count, start together, time each call."""
    kept: list[Any] = [None] * rotation(OUTPUT_REUSE_BYTES, traffic_bytes)
    once = min(_once(run, index % sets, kept) for index in range(2))
    least = MIN_SLOW if once > SLOW_NS else MIN_REPEATS
    repeats = agree(max(least, min(MAX_REPEATS, TARGET_NS // max(once, 1))))
    return summary([_once(run, index % sets, kept, index % len(kept)) for index in range(repeats)])


def _once(run: Callable[[int], Any], index: int, kept: list[Any], slot: int = 0) -> int:
    kept[slot] = None  # freed before the call: its block can be the output's
    start = time.perf_counter_ns()
    kept[slot] = run(index)
    return time.perf_counter_ns() - start


def agree(value: int) -> int:
    """The largest of all ranks' values; also a barrier."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    shared = torch.tensor([value])
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return int(shared.item())
