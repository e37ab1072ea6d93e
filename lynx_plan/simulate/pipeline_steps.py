"""A pipeline schedule as steps: per rank what each action waits for, how long it takes and what it hands on.

A value that an action waits for has a slot: the input of a stage's microbatch, or its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lynx_plan.errors import LynxError
from lynx_plan.model.schedule import Act, Schedule
from lynx_plan.simulate.pipeline_records import Costs, StageCost, per_microbatch

WHERE = "--schedule"
NONE = -1
_BACKWARD = (Act.BACKWARD, Act.BACKWARD_INPUT)


class Step(NamedTuple):
    """An action: it waits for slot `read`, fills slot `write` by `link` or, without one, on its rank (NONE: none)."""

    read: int
    write: int
    link: int
    send_ns: int
    early_ns: int
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """`of_rank`: the steps in order. `links`: sender and receiver of each link. Slots are numbered below `slots`."""

    of_rank: tuple[tuple[Step, ...], ...]
    links: tuple[tuple[int, int], ...]
    slots: int


def steps_of(schedule: Schedule, costs: Costs) -> Steps:
    """The steps of a schedule. Raises LynxError where actions are missing, double, or in an order that cannot run."""
    assert len(costs) == schedule.stages, (len(costs), schedule.stages)
    for rank in range(schedule.ranks):
        _check_order(schedule, rank)
    links: dict[tuple[int, int], int] = {}
    acts = dict.fromkeys((action.stage, action.act) for order in schedule.orders for action in order)
    table = {(stage, act): _row(schedule, stage, act, costs[stage], links) for stage, act in acts}
    return Steps(
        of_rank=tuple(tuple([table[a.stage, a.act][a.microbatch] for a in order]) for order in schedule.orders),
        links=tuple(links),
        slots=2 * schedule.stages * schedule.micro_batches,
    )


def _row(
    schedule: Schedule, stage: int, act: Act, cost: StageCost | Sequence[StageCost], links: dict[tuple[int, int], int]
) -> list[Step]:
    """The step of each microbatch. The first stage's input and the last one's gradient are on their rank already."""
    count, home = schedule.micro_batches, schedule.rank_of_stage
    forward = act is Act.FORWARD
    gradients = 0 if forward else schedule.stages * count
    read = write = link = NONE
    to = stage + 1 if forward else stage - 1
    if act is not Act.BACKWARD_WEIGHT:
        if 0 <= (stage - 1 if forward else stage + 1) < schedule.stages:
            read = gradients + stage * count
        if 0 <= to < schedule.stages:
            write = gradients + to * count
            if home[to] != home[stage]:
                link = links.setdefault((home[stage], home[to]), len(links))
    return [
        Step(
            read=NONE if read == NONE else read + number,
            write=NONE if write == NONE else write + number,
            link=link,
            send_ns=0 if link == NONE else mine.send_ns if forward else mine.send_back_ns,
            early_ns=mine.early_ns if act in _BACKWARD else 0,
            time_ns=_time_ns(act, mine),
        )
        for number, mine in enumerate(per_microbatch(cost, count))
    ]


def _time_ns(act: Act, cost: StageCost) -> int:
    if act is Act.FORWARD:
        return cost.forward_ns
    if act is Act.BACKWARD:
        return cost.backward_ns
    return cost.input_ns if act is Act.BACKWARD_INPUT else cost.weight_ns


def _check_order(schedule: Schedule, rank: int) -> None:
    """Each microbatch goes once through F and B, or F, I and W, of each stage of the rank."""
    order = schedule.orders[rank]
    passes: dict[tuple[int, int], str] = {}
    for action in order:
        key = action.stage, action.microbatch
        passes[key] = passes.get(key, "") + action.act
    mine = [stage for stage, home in enumerate(schedule.rank_of_stage) if home == rank]
    wanted = {(stage, number) for stage in mine for number in range(schedule.micro_batches)}
    wrong = [key for key in sorted(wanted | set(passes)) if key not in wanted or passes.get(key) not in ("FB", "FIW")]
    if wrong:
        stage, number = wrong[0]
        what = " ".join(f"{stage}{act}{number}" for act in passes.get((stage, number), "")) or "nothing"
        raise LynxError(
            f"schedule '{schedule.name}': rank {rank} runs {what} for microbatch {number} of stage {stage}",
            where=WHERE,
            hint="every microbatch runs F, then B or I and W, once in each stage, on the stage's rank",
        )
