"""Pipeline schedules over time: when each rank runs each action, and what it waits for.

A rank runs its actions in order. An action that needs another stage's value waits for its transfer; transfers run one
after the other per pair of ranks and direction. What a backward pass can do before its gradient is there (`early_ns`:
recomputation) begins as soon as the rank is free: in the bubble. Stages on one rank hand over without a transfer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lynx_plan.errors import AnswerNo
from lynx_plan.model.schedule import Schedule
from lynx_plan.simulate.pipeline_contention import contended_clocks
from lynx_plan.simulate.pipeline_memory import in_flight, rank_memory
from lynx_plan.simulate.pipeline_records import Clocks, Costs, PipelineRun, StageCost, TiedSum, per_microbatch
from lynx_plan.simulate.pipeline_steps import NONE, WHERE, Steps, steps_of

__all__ = ["PipelineRun", "StageCost", "TiedSum", "in_flight", "simulate_pipeline"]


def simulate_pipeline(
    schedule: Schedule,
    costs: Costs,
    *,
    blocking: bool = False,
    slowdown: float = 0.0,
    ties: Sequence[TiedSum] = (),
) -> PipelineRun:
    """Run a schedule.

    A transfer starts when its sender is done (receives are posted early); `blocking`: not before its receiver is at
    the action that needs it, either. `slowdown`: while a rank sends or receives, its compute takes 1 + slowdown times
    as long; with it a simulation in order of time replaces the faster one. Raises LynxError where the schedule is not
    complete, AnswerNo where it cannot go on. O(actions), with `slowdown` O(actions log ranks).
    """
    steps = steps_of(schedule, costs)
    if slowdown:
        clocks = contended_clocks(steps, blocking=blocking, slowdown=slowdown)
    else:
        clocks = _Run(steps, blocking).clocks()
    _check_done(schedule, clocks)
    tails = _tails(schedule, costs, clocks, ties)
    return PipelineRun(
        schedule=schedule,
        start_ns=tuple(map(tuple, clocks.start)),
        early_ns=tuple(map(tuple, clocks.early)),
        idle_ns=tuple(map(tuple, clocks.idle)),
        ends_ns=tuple(map(tuple, clocks.end)),
        links=steps.links,
        transfers=tuple(map(tuple, clocks.sent)),
        tails=tails,
        end_ns=max((end for _, end in tails), default=0),
        memory=rank_memory(schedule, costs),
        in_flight=in_flight(schedule),
    )


class _Run:
    """Ranks run ahead as far as they can; one that waits goes on when its slot is filled."""

    def __init__(self, steps: Steps, blocking: bool) -> None:
        self.steps, self.blocking = steps, blocking
        ranks = len(steps.of_rank)
        self.free = [0] * ranks
        self.place = [0] * ranks
        self.ready = [NONE] * steps.slots  # since when; `blocking`: since when it may be sent
        self.source: dict[int, tuple[int, int]] = {}  # `blocking`: per slot its link and how long it is sent
        self.link_free = [0] * len(steps.links)
        self.waiting: dict[int, int] = {}  # slot -> the rank that waits for it
        self.result = Clocks.empty(ranks, len(steps.links))

    def clocks(self) -> Clocks:
        todo = deque(range(len(self.free)))
        while todo:
            todo.extend(self._go_on(todo.popleft()))
        return self.result

    def _go_on(self, rank: int) -> list[int]:
        """Run a rank until it has to wait; the ranks that can go on by what it handed on."""
        ready, waiting, awake = self.ready, self.waiting, []
        starts, earlies, idles, ends = self.result.of_rank(rank)
        free = self.free[rank]
        steps = self.steps.of_rank[rank]
        for place in range(self.place[rank], len(steps)):
            read, write, link, send_ns, early_ns, time_ns = steps[place]
            begin = free + early_ns
            if read >= 0:
                if ready[read] < 0:
                    waiting[read] = rank
                    break
                arrived = self._fetched(read, free) if self.blocking else ready[read]
                idle = max(0, arrived - begin)
                begin += idle
            else:
                idle = 0
            end = begin + time_ns
            starts.append(free)
            earlies.append(early_ns)
            idles.append(idle)
            ends.append(end)
            free = end
            if write >= 0:
                ready[write] = end if link < 0 else self._send(write, link, end, send_ns)
                if write in waiting:
                    awake.append(waiting.pop(write))
        self.free[rank], self.place[rank] = free, len(starts)
        return awake

    def _send(self, slot: int, link: int, now: int, send_ns: int) -> int:
        """When a value that is there now arrives; `blocking`: leaves it to its receiver."""
        if self.blocking:
            self.source[slot] = (link, send_ns)
            return now
        start = max(now, self.link_free[link])
        self.link_free[link] = end = start + send_ns
        self.result.sent[link].append((start, end, slot))
        return end

    def _fetched(self, slot: int, now: int) -> int:
        """When a value arrives whose receiver is ready for it now."""
        if slot not in self.source:
            return self.ready[slot]
        link, send_ns = self.source[slot]
        start = max(now, self.ready[slot], self.link_free[link])
        self.link_free[link] = end = start + send_ns
        self.result.sent[link].append((start, end, slot))
        return end


def _check_done(schedule: Schedule, clocks: Clocks) -> None:
    stuck = [
        str(order[len(ends)]) for order, ends in zip(schedule.orders, clocks.end, strict=True) if len(ends) < len(order)
    ]
    if stuck:
        raise AnswerNo(
            f"schedule '{schedule.name}' cannot go on: {', '.join(stuck[:8])} wait for each other", where=WHERE
        )


def _tails(schedule: Schedule, costs: Costs, clocks: Clocks, ties: Sequence[TiedSum]) -> tuple[tuple[int, int], ...]:
    """Per rank the start and end of what follows its actions: sums of tied weights, then each stage's tail.

    A rank that waits for another one's sum is idle: its tail starts when its own last work does.
    """
    done = [ends[-1] if ends else 0 for ends in clocks.end]
    busy = [0] * schedule.ranks
    for tie in ties:
        ranks = sorted({schedule.rank_of_stage[stage] for stage in tie.stages})
        if len(ranks) > 1:
            start = max(done[rank] for rank in ranks)
            for rank in ranks:
                done[rank] = start + tie.time_ns
                busy[rank] += tie.time_ns
    for stage, rank in enumerate(schedule.rank_of_stage):
        tail = per_microbatch(costs[stage], schedule.micro_batches)[0].tail_ns
        done[rank] += tail
        busy[rank] += tail
    return tuple((end - work, end) for end, work in zip(done, busy, strict=True))
