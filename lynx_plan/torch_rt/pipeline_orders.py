"""PyTorch's pipeline schedules as data.

`python -m lynx_plan.torch_rt.pipeline_orders NAME RANKS MICROBATCHES [PER_RANK]` prints one as JSON: a planner that
never imports torch gets the schedules without generator of its own this way, from a child process. The classes are
made for stand-ins of stages, without process group. Those with one stage per rank are let run, and what they call is
noted: the order that they give for display numbers the last rank's microbatches from 1 (torch 2.13).
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from torch import nn

from lynx_plan.analyze.schedules import SINGLE, TWO
from lynx_plan.model.schedule import Act, Action, Schedule
from lynx_plan.torch_rt import compat

_CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}


def torch_schedule(name: str, ranks: int, micro_batches: int, per_rank: int = 1) -> Schedule:
    """The order of actions of PyTorch's class; overlapped pairs one after the other, as its runtime runs them.

    Raises ValueError (PyTorch's) where the class refuses the numbers.
    """
    if name in SINGLE:
        orders = tuple(_recorded(name, rank, ranks, micro_batches) for rank in range(ranks))
    else:
        order = compat.pipeline_order(schedule_of_rank(name, 0, ranks, micro_batches, per_rank))
        orders = tuple(tuple(_actions(order[rank])) for rank in range(ranks))
    return Schedule(
        name=name,
        micro_batches=micro_batches,
        rank_of_stage=tuple(rank_of(name, stage, ranks) for stage in range(ranks * per_rank)),
        orders=orders,
    )


def schedule_of_rank(name: str, rank: int, ranks: int, micro_batches: int, per_rank: int = 1) -> Any:
    """An instance of PyTorch's class as on this rank, for stand-ins of its stages."""
    count = ranks * per_rank
    stages = [_stand_in(name, each, ranks, count) for each in range(count) if rank_of(name, each, ranks) == rank]
    return schedule_object(name, stages, micro_batches)


def schedule_object(name: str, stages: list[Any], micro_batches: int) -> Any:
    """An instance of PyTorch's class for these local stages."""
    return compat.schedule_class(_CLASSES[name])(
        stages[0] if name in SINGLE else stages, micro_batches, scale_grads=False
    )


def rank_of(name: str, stage: int, ranks: int) -> int:
    """Stages go round the ranks, or there and back in a V."""
    turn, place = divmod(stage, ranks)
    return ranks - 1 - place if name in TWO and turn % 2 else place


def _stand_in(name: str, stage: int, ranks: int, count: int) -> SimpleNamespace:
    """What the constructors read of a stage."""
    return SimpleNamespace(
        stage_index=stage,
        num_stages=count,
        group_size=ranks,
        group_rank=rank_of(name, stage, ranks),
        group=None,
        has_backward=True,
        submod=nn.Module(),
        is_first=stage == 0,
        is_last=stage == count - 1,
        device="cpu",
        stage_index_to_group_rank={each: rank_of(name, each, ranks) for each in range(count)},
    )


def _recorded(name: str, rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    """What a schedule of one stage per rank calls of its stage."""
    order: list[Action] = []
    schedule = schedule_of_rank(name, rank, ranks, micro_batches)
    stage = _stand_in(name, rank, ranks, ranks)
    for transfer in ("fwd_recv", "fwd_send", "bwd_recv", "bwd_send"):
        setattr(stage, f"get_{transfer}_ops", lambda _: [])
    stage.forward_one_chunk = lambda number, *_, **__: order.append(Action(rank, Act.FORWARD, number))
    stage.backward_one_chunk = lambda number, **_: order.append(Action(rank, Act.BACKWARD, number))
    stage.perform_reduce_grad = lambda _: None
    schedule._stage = stage
    compat.run_single_stage(schedule)
    return tuple(order)


def _actions(order: list[Any]) -> list[Action]:
    single = [each for action in order if action is not None for each in action.sub_actions or (action,)]
    known = {act.value for act in Act}  # the reduction of gradients is none of them
    return [
        Action(each.stage_index, Act(each.computation_type.value), each.microbatch_index)
        for each in single
        if each.computation_type.value in known
    ]


def main(words: list[str]) -> int:
    """Print the schedule, or why PyTorch refuses it, as JSON."""
    name, ranks, micro_batches, per_rank = words[0], *map(int, [*words[1:], "1"][:3])
    try:
        schedule = torch_schedule(name, ranks, micro_batches, per_rank)
    except ValueError as error:
        print(json.dumps({"refused": str(error)}))
        return 1
    orders = [[str(action) for action in order] for order in schedule.orders]
    print(json.dumps({"rank_of_stage": schedule.rank_of_stage, "orders": orders}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
