"""One measuring rank: `python -m lynx_plan.torch_rt.measure_rank`, started by `measure_ranks`, or this process.

As a process of its own it reads its job (JSON) from standard input, and writes one JSON line per item to standard
output: `{"done": n}` as it goes, then `{"results": [...]}`, or `{"error": ..., "hint": ...}` for a user's mistake.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link
from lynx_plan.torch_rt.allocator import steady_allocator

ROUNDS = 3  # all items, then all again: the middle one of an item's counts, so that no burst of other work decides
_INSTANT = Link(bytes_per_s=10**15, latency_ns=0)  # only the launch and Gloo's own work are measured


def main() -> None:
    """Measure every item of the job, in the same order as the other ranks."""
    job = json.load(sys.stdin)
    lines = _own_output()
    meeting = f"file://{job['folder']}/store"
    try:
        results = measure_all(job, lambda done: _write(lines, {"done": done}), init_method=meeting)
    except LynxError as error:
        _write(lines, {"error": str(error), "hint": error.hint})
        raise SystemExit(error.exit_code) from None
    _write(lines, {"results": results})


def measure_all(job: dict[str, Any], progress: Callable[[int], None], **where: Any) -> list[dict[str, Any]]:
    """Join the other ranks (`where`: how to meet them), measure every item beside them, and leave."""
    steady_allocator()
    import torch
    import torch.distributed as dist

    from lynx_plan.torch_rt.operands import OperandPool

    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["rank"])
    timeout = timedelta(seconds=job["timeout_s"])
    dist.init_process_group(_backend(job), rank=job["rank"], world_size=job["ranks"], timeout=timeout, **where)
    groups = _groups(job["group_sizes"], job["ranks"], job["rank"])
    pool, rounds = OperandPool(), []
    for turn in range(ROUNDS):
        rounds.append([])
        for number, item in enumerate(job["items"]):
            rounds[-1].append(_measure(item, pool, groups))
            progress(turn * len(job["items"]) + number + 1)
    results = [sorted(same, key=_whole_ns)[ROUNDS // 2] for same in zip(*rounds, strict=True)]
    dist.barrier()
    dist.destroy_process_group()
    return results


def _whole_ns(result: dict[str, Any]) -> int:
    return int(result["median_ns"] + result.get("comm_ns", 0))


def _measure(item: dict[str, Any], pool: Any, groups: dict[int, str]) -> dict[str, Any]:
    from lynx_plan.torch_rt import measure_collective, measure_op, measure_optimizer

    match item["what"]:
        case "op":
            return measure_op.measure_call_ns(item["call"], item["traffic_bytes"], pool)
        case "collective":
            return measure_collective.measure_collective(item["call"], pool, groups)
        case "accumulate":
            return measure_op.measure_accumulate(item, pool)
        case _:
            return measure_optimizer.measure_optimizer(item)


def _groups(sizes: list[int], ranks: int, rank: int) -> dict[int, str]:
    """Group size -> name of this rank's group of so many neighbouring ranks."""
    import torch.distributed as dist

    names = {}
    for size in sizes:
        for start in range(0, ranks, size):
            members = list(range(start, start + size))
            group = dist.new_group(members)
            if rank in members:
                names[size] = group.group_name
    return names


def _backend(job: dict[str, Any]) -> str:
    """The run's own process group, so that a launch costs here what it costs there."""
    from lynx_plan.torch_rt.link_clock import LinkClock
    from lynx_plan.torch_rt.paced_group import Pace, Recorder, register

    if not job["emulated"]:
        return register(Pace(link=None, clock=None, recorder=Recorder()))
    return register(Pace(link=_INSTANT, clock=LinkClock(Path(job["folder"]), job["ranks"]), recorder=Recorder()))


def _own_output() -> TextIO:
    """Standard output for our lines alone; what a model file prints goes to standard error."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lines


def _write(lines: TextIO, data: dict[str, Any]) -> None:
    lines.write(json.dumps(data) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
