"""Memory of a pipeline's ranks over the step, and how many microbatches each stage holds: the order decides it."""

from __future__ import annotations

from collections.abc import Sequence

from lynx_plan.model.schedule import Act, Schedule
from lynx_plan.simulate.pipeline_records import Costs, RankMemory, StageCost, per_microbatch


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Per stage how many microbatches it holds at most between their forward and the end of their backward pass."""
    return tuple(max(levels, default=0) for levels in in_flight_levels(schedule))


def in_flight_levels(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Per stage how many microbatches it holds after each of its own actions."""
    levels: list[list[int]] = [[0] for _ in range(schedule.stages)]
    for order in schedule.orders:
        for action in order:
            mine = levels[action.stage]
            mine.append(mine[-1] + _CHANGE[action.act])
    return tuple(tuple(each[1:]) for each in levels)


_CHANGE = {Act.FORWARD: 1, Act.BACKWARD: -1, Act.BACKWARD_INPUT: 0, Act.BACKWARD_WEIGHT: -1}


def rank_chunks(schedule: Schedule) -> tuple[int, ...]:
    """Per rank how many microbatches all its stages together hold at most."""
    most = []
    for order in schedule.orders:
        now = high = 0
        for action in order:
            now += _CHANGE[action.act]
            high = max(high, now)
        most.append(high)
    return tuple(most)


def rank_memory(schedule: Schedule, costs: Costs) -> tuple[RankMemory, ...]:
    """Per rank: static bytes of its stages, what microbatches in flight hold, and the pass that runs."""
    each = [per_microbatch(cost, schedule.micro_batches) for cost in costs]
    return tuple(_of_rank(schedule, rank, each) for rank in range(schedule.ranks))


def _of_rank(schedule: Schedule, rank: int, costs: Sequence[Sequence[StageCost]]) -> RankMemory:
    held = sum(mine[0].static_bytes for mine, home in zip(costs, schedule.rank_of_stage, strict=True) if home == rank)
    peak, at, levels = held, None, []
    for action in schedule.orders[rank]:
        before, transient, after = _bytes(action.act, costs[action.stage][action.microbatch])
        high = held - before + max(before, transient)
        held += after - before
        if high > peak or held > peak:
            peak, at = max(high, held), action
        levels.append(held)
    return RankMemory(peak_bytes=peak, at=at, levels=tuple(levels))


def _bytes(act: Act, cost: StageCost) -> tuple[int, int, int]:
    """What the action's microbatch holds before it, at its peak, and after it."""
    if act is Act.FORWARD:
        return 0, cost.forward_peak_bytes, cost.saved_bytes
    if act is Act.BACKWARD:
        return cost.saved_bytes, cost.backward_peak_bytes, 0
    if act is Act.BACKWARD_INPUT:
        return cost.saved_bytes, cost.backward_peak_bytes, cost.kept_bytes
    return cost.kept_bytes, cost.weight_peak_bytes, 0
