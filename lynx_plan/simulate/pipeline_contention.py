"""A pipeline schedule in order of time, where a rank computes slower while it sends or receives.

The same rules as in `pipeline.py`; apart from it because a transfer that begins in the middle of an action can be
known only when every rank's clock has come that far.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from heapq import heappop, heappush

from lynx_plan.simulate.pipeline_records import Clocks
from lynx_plan.simulate.pipeline_steps import NONE, Step, Steps

FULL = 10**6  # units of work that an undisturbed rank does per nanosecond


class _Kind(IntEnum):
    """At one time transfers end before work does, so that a value is there for who asks at that time."""

    TRANSFER = 0
    WORK = 1


def contended_clocks(steps: Steps, *, blocking: bool, slowdown: float) -> Clocks:
    """Run the steps; ranks that cannot go on just stop. Times are rounded up to whole nanoseconds per piece of work."""
    return _Run(steps, blocking, max(1, round(FULL / (1 + slowdown)))).clocks()


class _Rank:
    """A rank's clock: its step, and how much of the early or the other work is left."""

    def __init__(self) -> None:
        self.place = 0
        self.early = False  # the work at hand is early work
        self.working = False
        self.left = 0  # units of work, at time `since`
        self.since = 0
        self.busy_links = 0
        self.version = 0  # of the end that is in the queue
        self.ready_ns = 0  # when the step's early work was done


class _Run:
    def __init__(self, steps: Steps, blocking: bool, slow: int) -> None:
        self.steps, self.blocking, self.slow = steps, blocking, slow
        self.ranks = [_Rank() for _ in steps.of_rank]
        self.arrived = [False] * steps.slots
        self.made: dict[int, tuple[int, int]] = {}  # `blocking`: slots to be sent -> link, duration
        self.wanted: dict[int, int] = {}  # slot -> the rank whose step reads it
        self.queues: list[deque[tuple[int, int]]] = [deque() for _ in steps.links]
        self.link_busy = [False] * len(steps.links)
        self.events: list[tuple[int, _Kind, int, int]] = []
        self.result = Clocks.empty(len(self.ranks), len(steps.links))

    def clocks(self) -> Clocks:
        for rank in range(len(self.ranks)):
            self._begin_step(rank, 0)
        while self.events:
            now, kind, number, extra = heappop(self.events)
            if kind is _Kind.TRANSFER:
                self._transfer_done(number, extra, now)
            elif extra == self.ranks[number].version:
                self._work_done(number, now)
        return self.result

    def _step(self, rank: int) -> Step:
        return self.steps.of_rank[rank][self.ranks[rank].place]

    def _begin_step(self, rank: int, now: int) -> None:
        """The rank is free: early work first, while what it waits for is on its way."""
        state = self.ranks[rank]
        if state.place == len(self.steps.of_rank[rank]):
            return
        step = self._step(rank)
        self.result.start[rank].append(now)
        if step.read != NONE:
            self.wanted[step.read] = rank
            if step.read in self.made:
                self._enqueue(step.read, *self.made.pop(step.read), now)
        state.early = True
        self._work(rank, step.early_ns, now)

    def _work(self, rank: int, time_ns: int, now: int) -> None:
        state = self.ranks[rank]
        state.working, state.left, state.since = True, time_ns * FULL, now
        self._plan_end(rank)

    def _speed(self, state: _Rank) -> int:
        return self.slow if state.busy_links else FULL

    def _plan_end(self, rank: int) -> None:
        state = self.ranks[rank]
        state.version += 1
        end = state.since + -(-state.left // self._speed(state))
        heappush(self.events, (end, _Kind.WORK, rank, state.version))

    def _work_done(self, rank: int, now: int) -> None:
        state = self.ranks[rank]
        state.working = False
        step = self._step(rank)
        if state.early:
            state.early, state.ready_ns = False, now
            self.result.early[rank].append(now - self.result.start[rank][-1])
            if step.read == NONE or self.arrived[step.read]:
                self._go(rank, now)
            return
        self.result.end[rank].append(now)
        state.place += 1
        if step.write != NONE:
            self._hand_on(step, now)
        self._begin_step(rank, now)

    def _go(self, rank: int, now: int) -> None:
        """What the step waited for is there."""
        self.result.idle[rank].append(now - self.ranks[rank].ready_ns)
        self._work(rank, self._step(rank).time_ns, now)

    def _hand_on(self, step: Step, now: int) -> None:
        if step.link == NONE:
            self._arrive(step.write, now)
        elif self.blocking and step.write not in self.wanted:
            self.made[step.write] = (step.link, step.send_ns)
        else:
            self._enqueue(step.write, step.link, step.send_ns, now)

    def _enqueue(self, slot: int, link: int, send_ns: int, now: int) -> None:
        self.queues[link].append((slot, send_ns))
        if not self.link_busy[link]:
            self._transfer(link, now)

    def _transfer(self, link: int, now: int) -> None:
        slot, send_ns = self.queues[link].popleft()
        self.link_busy[link] = True
        self.result.sent[link].append((now, now + send_ns, slot))
        heappush(self.events, (now + send_ns, _Kind.TRANSFER, link, slot))
        self._change(link, 1, now)

    def _transfer_done(self, link: int, slot: int, now: int) -> None:
        self.link_busy[link] = False
        self._change(link, -1, now)
        if self.queues[link]:
            self._transfer(link, now)
        self._arrive(slot, now)

    def _change(self, link: int, by: int, now: int) -> None:
        """Both ends of a link become slower or faster."""
        for rank in self.steps.links[link]:
            state = self.ranks[rank]
            speed = self._speed(state)
            state.busy_links += by
            if state.working and self._speed(state) != speed:
                state.left = max(0, state.left - (now - state.since) * speed)
                state.since = now
                self._plan_end(rank)

    def _arrive(self, slot: int, now: int) -> None:
        self.arrived[slot] = True
        rank = self.wanted.get(slot, NONE)
        if rank == NONE:
            return
        state = self.ranks[rank]
        if not state.working and not state.early and self._step(rank).read == slot:
            self._go(rank, now)
