"""What a pipeline's simulation reads and gives back: costs per stage, actions over time, transfers. Records only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx_plan.model.schedule import Action, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage's times (ns) and bytes per microbatch.

    `backward_ns` is the whole backward pass without `early_ns`; schedules that split it run `input_ns` and
    `weight_ns`. `early_ns` (recomputation that needs no gradient) runs before B or I, as soon as the rank is free.
    `send_ns`, `send_back_ns`: the transfers to the next and to the previous stage. `tail_ns`: once after the last
    action, such as the reduction of gradients and the optimizer. `saved_bytes` are held by a microbatch from its
    forward to its backward pass; of them `weight_bytes` (all if None) from I to W. The peaks are those of a
    microbatch by itself in either pass (W's: `weight_peak_bytes`).
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
    weight_bytes: int | None = None
    forward_peak_bytes: int = 0
    backward_peak_bytes: int = 0
    weight_peak_bytes: int = 0

    @property
    def kept_bytes(self) -> int:
        """What a microbatch holds between I and W."""
        return self.saved_bytes if self.weight_bytes is None else self.weight_bytes


# Per stage: the cost of each of its microbatches, or one for all. Static bytes and tails count once: the first one's.
Costs = Sequence[StageCost | Sequence[StageCost]]


def per_microbatch(cost: StageCost | Sequence[StageCost], micro_batches: int) -> Sequence[StageCost]:
    """A stage's cost of each microbatch."""
    if isinstance(cost, StageCost):
        return [cost] * micro_batches
    assert len(cost) == micro_batches, (len(cost), micro_batches)
    return cost


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedSum:
    """Stages that hold one parameter sum its gradients after their last action, before their tails."""

    stages: tuple[int, ...]
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """An action on its rank, which is free for it at `start_ns`: early work for `early_ns`, idle for `idle_ns` until
    what it waits for is there, then the rest."""

    action: Action
    start_ns: int
    early_ns: int
    idle_ns: int
    end_ns: int

    @property
    def busy_ns(self) -> int:
        return self.end_ns - self.start_ns - self.idle_ns

    @property
    def begin_ns(self) -> int:
        """When the work that waits for another stage begins."""
        return self.start_ns + self.early_ns + self.idle_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The transfer of a microbatch's input (`backward`: gradient) to a stage on another rank."""

    sender: int
    receiver: int
    stage: int
    microbatch: int
    backward: bool
    start_ns: int
    end_ns: int


Column = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What a simulation fills: per rank and action, and per link the start, end and slot of its transfers."""

    start: Column
    early: Column
    idle: Column
    end: Column
    sent: list[list[tuple[int, int, int]]]

    @staticmethod
    def empty(ranks: int, links: int) -> Clocks:
        def column() -> Column:
            return [[] for _ in range(ranks)]

        return Clocks(start=column(), early=column(), idle=column(), end=column(), sent=[[] for _ in range(links)])

    def of_rank(self, rank: int) -> tuple[list[int], list[int], list[int], list[int]]:
        return self.start[rank], self.early[rank], self.idle[rank], self.end[rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """`levels`: bytes held after each action of the rank; the peak is reached in `at` (None: static bytes only)."""

    peak_bytes: int
    at: Action | None
    levels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """A simulated schedule. Per rank, by its actions: when the rank was free for it, the early work (with contention:
    how long that took), the idle time after that, and its end. `transfers`: per link (start, end, slot). `end_ns`
    includes `tails`: per rank the start and end of what follows the last action, as if it ran in one go."""

    schedule: Schedule
    start_ns: tuple[tuple[int, ...], ...]
    early_ns: tuple[tuple[int, ...], ...]
    idle_ns: tuple[tuple[int, ...], ...]
    ends_ns: tuple[tuple[int, ...], ...]
    links: tuple[tuple[int, int], ...]
    transfers: tuple[tuple[tuple[int, int, int], ...], ...]
    tails: tuple[tuple[int, int], ...]
    end_ns: int
    memory: tuple[RankMemory, ...]
    in_flight: tuple[int, ...]

    @property
    def ran(self) -> tuple[tuple[Ran, ...], ...]:
        """Per rank its actions."""
        return tuple(
            tuple(
                Ran(action=action, start_ns=start, early_ns=early, idle_ns=idle, end_ns=end)
                for action, start, early, idle, end in zip(*columns, strict=True)
            )
            for columns in zip(
                self.schedule.orders, self.start_ns, self.early_ns, self.idle_ns, self.ends_ns, strict=True
            )
        )

    @property
    def sent(self) -> tuple[Sent, ...]:
        """The transfers, by link and in order."""
        found = []
        for (sender, receiver), mine in zip(self.links, self.transfers, strict=True):
            for start, end, slot in mine:
                line, number = divmod(slot, self.schedule.micro_batches)
                backward, stage = divmod(line, self.schedule.stages)
                found.append(
                    Sent(
                        sender=sender,
                        receiver=receiver,
                        stage=stage,
                        microbatch=number,
                        backward=bool(backward),
                        start_ns=start,
                        end_ns=end,
                    )
                )
        return tuple(found)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        return tuple(each.peak_bytes for each in self.memory)

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """Per rank the time of its actions, without tails."""
        return tuple(
            sum(ends) - sum(starts) - sum(idle)
            for starts, idle, ends in zip(self.start_ns, self.idle_ns, self.ends_ns, strict=True)
        )

    @property
    def bubble_ns(self) -> tuple[int, ...]:
        """Per rank the time that it stands idle until the end."""
        return tuple(
            self.end_ns - busy - (end - start) for busy, (start, end) in zip(self.busy_ns, self.tails, strict=True)
        )

    @property
    def bubble_share(self) -> float:
        """Of all ranks' time until the end, the part in which they stand idle."""
        return sum(self.bubble_ns) / (self.schedule.ranks * self.end_ns) if self.end_ns else 0.0

    def windows(self) -> dict[tuple[int, int], int]:
        """The bubble before each backward pass, by (stage, microbatch): what may run there at no cost of its own.

        From when the rank is free to when the gradient has arrived; early work that is there already included.
        """
        return {
            (action.stage, action.microbatch): early + idle
            for columns in zip(self.schedule.orders, self.early_ns, self.idle_ns, strict=True)
            for action, early, idle in zip(*columns, strict=True)
            if action.act in ("B", "I")
        }
