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
from typing import TYPE_CHECKING, Any, TextIO

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link
from lynx_plan.torch_rt.allocator import steady_allocator

if TYPE_CHECKING:
    from lynx_plan.torch_rt.operands import OperandPool

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
    results = _measure_items(job["items"], OperandPool(), groups, progress)
    dist.barrier()
    dist.destroy_process_group()
    return results


def _measure_items(
    items: list[dict[str, Any]], pool: OperandPool, groups: dict[int, str], progress: Callable[[int], None]
) -> list[dict[str, Any]]:
    """The results of all items: ops and launches in turns, then transfers and what is no op one by one."""
    from lynx_plan.torch_rt.measure_collective import TimedCollective
    from lynx_plan.torch_rt.measure_contention import measure_contention
    from lynx_plan.torch_rt.measure_op import TimedOp, time_ops
    from lynx_plan.torch_rt.measure_optimizer import measure_optimizer

    timed: dict[int, TimedOp | TimedCollective] = {}
    for number, item in enumerate(items):
        if item["what"] == "collective":
            timed[number] = TimedCollective(item, pool, groups)
        elif item["what"] not in ("optimizer", "contention"):
            timed[number] = TimedOp(item, pool)
    time_ops(list(timed.values()), progress)
    results = []
    for number, item in enumerate(items):
        if number in timed:
            results.append(timed[number].result())
        else:
            apart = item["what"] == "contention"
            results.append(measure_contention(item, groups) if apart else measure_optimizer(item))
    progress(len(items))
    return results


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
