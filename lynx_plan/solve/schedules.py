"""Any schedule by name: our own where there is a generator, else PyTorch's, asked for in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from typing import Any

from lynx_plan.analyze.schedules import OWN, TWO, WHERE, check_counts, own_schedule
from lynx_plan.errors import LynxError
from lynx_plan.model.schedule import Action, Schedule

WORKER = "lynx_plan.torch_rt.pipeline_orders"
TIME_LIMIT_S = 120.0
NO_TORCH = "install torch here, or use gpipe, 1f1b or interleaved-1f1b, which need none"


def pipeline_schedule(name: str, ranks: int, micro_batches: int, per_rank: int | None = None) -> Schedule:
    """The schedule of these numbers; `per_rank` stages on each rank, by default as few as the schedule has.

    Raises LynxError where there is none, and where it needs PyTorch, which is not there.
    """
    if per_rank is None:
        per_rank = 2 if name in (*TWO, "interleaved-1f1b") else 1
    check_counts(name, ranks, micro_batches, per_rank)
    if name in OWN:
        return own_schedule(name, ranks, micro_batches, per_rank)
    return _from_torch(name, ranks, micro_batches, per_rank)


@lru_cache(maxsize=8)
def _from_torch(name: str, ranks: int, micro_batches: int, per_rank: int) -> Schedule:
    answer = _ask(name, ranks, micro_batches, per_rank)
    if "refused" in answer:
        raise LynxError(
            f"PyTorch has no '{name}' of {ranks} ranks and {micro_batches} microbatches: {answer['refused']}",
            where=WHERE,
            hint="give other numbers of microbatches or ranks",
        )
    return Schedule(
        name=name,
        micro_batches=micro_batches,
        rank_of_stage=tuple(answer["rank_of_stage"]),
        orders=tuple(tuple(map(Action.parse, order)) for order in answer["orders"]),
    )


def _ask(name: str, ranks: int, micro_batches: int, per_rank: int) -> dict[str, Any]:
    """What the child process prints."""
    # -P: modules of the working folder (a user's json.py) must not stand in for others
    command = [sys.executable, "-P", "-m", WORKER, name, str(ranks), str(micro_batches), str(per_rank)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S)
        answer: dict[str, Any] = json.loads(ended.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        raise LynxError(
            f"PyTorch did not make schedule '{name}' in {TIME_LIMIT_S:g} s", where=WHERE, hint="use another schedule"
        ) from None
    except json.JSONDecodeError:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        why = lines[-1] if lines else f"it ended with exit code {ended.returncode}"
        raise LynxError(f"schedule '{name}' is made by PyTorch: {why}", where=WHERE, hint=NO_TORCH) from None
    return answer
