"""Pipeline schedules over time: when each rank runs each action, what it waits for, how much memory it holds.

A rank runs its actions in order. An action that needs another stage's value waits for its transfer; transfers run one
after the other per pair of ranks and direction. What a backward pass can do before its gradient is there (`early_ns`:
recomputation) begins as soon as the rank is free: in the bubble.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lynx_plan.errors import AnswerNo
from lynx_plan.model.schedule import Act, Action, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage's times (ns) and bytes per microbatch.

    `backward_ns` is the whole backward pass without `early_ns`; schedules that split it run `input_ns` and
    `weight_ns`. `send_ns`, `send_back_ns`: the transfers to the next and to the previous stage. `tail_ns`: once after
    the last action, such as the reduction of gradients and the optimizer. `saved_bytes` are held by a microbatch from
    its forward to its backward pass; the peaks are those of a microbatch by itself in either pass.
    """

    forward_ns: int
    backward_ns: int
    early_ns: int = 0
    input_ns: int = 0
    weight_ns: int = 0
    send_ns: int = 0
    send_back_ns: int = 0
    tail_ns: int = 0
    static_bytes: int = 0
    saved_bytes: int = 0
    forward_peak_bytes: int = 0
    backward_peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """An action on its rank: idle for `idle_ns` before it started (early work not counted as idle)."""

    action: Action
    start_ns: int
    end_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """`ran`: per rank its actions. `end_ns` includes tails. `peak_bytes`: per rank; `in_flight`: per stage the most
    microbatches that it holds at once."""

    ran: tuple[tuple[Ran, ...], ...]
    end_ns: int
    peak_bytes: tuple[int, ...]
    in_flight: tuple[int, ...]

    @property
    def bubble_ns(self) -> tuple[int, ...]:
        """Per rank the time that it stands idle until the end."""
        return tuple(self.end_ns - sum(each.end_ns - each.start_ns for each in ran) for ran in self.ran)


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Per stage how many microbatches it holds at most between their forward and the end of their backward pass."""
    most, now = [0] * schedule.stages, [0] * schedule.stages
    for order in schedule.orders:
        for action in order:
            if action.act is Act.FORWARD:
                now[action.stage] += 1
                most[action.stage] = max(most[action.stage], now[action.stage])
            elif action.act is not Act.BACKWARD_INPUT:
                now[action.stage] -= 1
    return tuple(most)


def simulate_pipeline(schedule: Schedule, costs: Sequence[StageCost], *, blocking: bool = False) -> PipelineRun:
    """Run a schedule. `blocking`: a transfer starts only when its receiver is at the action that needs it.

    Raises AnswerNo where no action can ever run. O(actions).
    """
    return _Simulation(schedule, costs, blocking).run()


_CODES = {act: code for code, act in enumerate(Act)}
_F, _B, _I, _W = range(len(Act))
_NOT_YET = -1


class _Simulation:
    """The state of one run. An action's key is (code of its act * stages + stage) * microbatches + microbatch."""

    def __init__(self, schedule: Schedule, costs: Sequence[StageCost], blocking: bool) -> None:
        assert len(costs) == schedule.stages, (len(costs), schedule.stages)
        self.schedule, self.costs, self.blocking = schedule, costs, blocking
        self.count, self.stages = schedule.micro_batches, schedule.stages
        self.keys = [[self._key(_CODES[a.act], a.stage, a.microbatch) for a in order] for order in schedule.orders]
        self.free = [0] * schedule.ranks
        self.next = [0] * schedule.ranks
        size = len(Act) * self.stages * self.count
        self.ended = [_NOT_YET] * size
        self.arrived = [_NOT_YET] * size  # by the action that made the value
        self.exists = [False] * size
        for keys in self.keys:
            for key in keys:
                self.exists[key] = True
        self.link_free: dict[tuple[int, int], int] = {}
        self.ran: list[list[Ran]] = [[] for _ in range(schedule.ranks)]
        self.durations = [(c.forward_ns, c.backward_ns, c.input_ns, c.weight_ns) for c in costs]

    def _key(self, code: int, stage: int, microbatch: int) -> int:
        return (code * self.stages + stage) * self.count + microbatch

    def run(self) -> PipelineRun:
        waiting: dict[int, int] = {}  # what a rank waits for -> that rank
        todo = deque(range(self.schedule.ranks))
        while todo:
            rank = todo.popleft()
            keys = self.keys[rank]
            while self.next[rank] < len(keys):
                key = keys[self.next[rank]]
                source = self._source(key)
                if source >= 0 and self.ended[source] < 0:
                    waiting[source] = rank
                    break
                self._run(rank, key, source)
                self.next[rank] += 1
                if key in waiting:
                    todo.append(waiting.pop(key))
        self._check_done()
        return PipelineRun(
            ran=tuple(tuple(ran) for ran in self.ran),
            end_ns=max((free + self._tail(rank) for rank, free in enumerate(self.free)), default=0),
            peak_bytes=tuple(self._peak(rank) for rank in range(self.schedule.ranks)),
            in_flight=in_flight(self.schedule),
        )

    def _source(self, key: int) -> int:
        """The action whose value this one reads; -1 without one."""
        rest, microbatch = divmod(key, self.count)
        code, stage = divmod(rest, self.stages)
        if code == _F:
            return self._key(_F, stage - 1, microbatch) if stage else -1
        if code == _W:
            return self._key(_I, stage, microbatch)
        if stage == self.stages - 1:
            return self._key(_F, stage, microbatch)
        whole = self._key(_B, stage + 1, microbatch)
        return whole if self.exists[whole] else self._key(_I, stage + 1, microbatch)

    def _run(self, rank: int, key: int, source: int) -> None:
        rest = key // self.count
        code, stage = divmod(rest, self.stages)
        start = self.free[rank]
        early = self.costs[stage].early_ns if code in (_B, _I) else 0
        begin = start + early
        if source >= 0:
            begin = max(begin, self._arrival(source, rank, start))
        end = begin + self.durations[stage][code]
        action = self.schedule.orders[rank][self.next[rank]]
        self.ran[rank].append(Ran(action=action, start_ns=begin - early, end_ns=end, idle_ns=begin - early - start))
        self.ended[key] = self.free[rank] = end

    def _arrival(self, source: int, rank: int, now: int) -> int:
        """When the value that an action made is on this rank."""
        code, stage = divmod(source // self.count, self.stages)
        sender = self.schedule.rank_of_stage[stage]
        if sender == rank:
            return self.ended[source]
        if self.arrived[source] < 0:
            taken = self.costs[stage].send_ns if code == _F else self.costs[stage].send_back_ns
            begin = max(self.ended[source], self.link_free.get((sender, rank), 0), now if self.blocking else 0)
            self.link_free[sender, rank] = self.arrived[source] = begin + taken
        return self.arrived[source]

    def _tail(self, rank: int) -> int:
        stages = (s for s, home in enumerate(self.schedule.rank_of_stage) if home == rank)
        return sum(self.costs[stage].tail_ns for stage in stages)

    def _check_done(self) -> None:
        stuck = [
            str(order[done]) for order, done in zip(self.schedule.orders, self.next, strict=True) if done < len(order)
        ]
        if stuck:
            raise AnswerNo(
                f"schedule '{self.schedule.name}' cannot go on: {', '.join(stuck[:8])} wait for each other",
                where="--schedule",
            )

    def _peak(self, rank: int) -> int:
        """The most bytes that a rank holds: static, microbatches in flight, and the pass that runs."""
        held = sum(cost.static_bytes for s, cost in enumerate(self.costs) if self.schedule.rank_of_stage[s] == rank)
        peak = held
        for action in self.schedule.orders[rank]:
            cost = self.costs[action.stage]
            if action.act is Act.FORWARD:
                peak = max(peak, held + cost.forward_peak_bytes)
                held += cost.saved_bytes
            else:
                peak = max(peak, held - cost.saved_bytes + cost.backward_peak_bytes)
                held -= cost.saved_bytes if action.act is not Act.BACKWARD_INPUT else 0
        return peak
