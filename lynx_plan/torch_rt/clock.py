"""Timed steps: when each item of a program began and ended, and when its transfers did, as tensors to send."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from lynx_plan.analyze.steps import StepOrder
from lynx_plan.model.graph import CostGraph, Role
from lynx_plan.model.plan import Outcome
from lynx_plan.model.program import Item
from lynx_plan.model.timeline import Event, Stream, Timeline
from lynx_plan.simulate.outcome import interleaved_outcome, outcome, shown
from lynx_plan.simulate.streams import ItemTimes, joined
from lynx_plan.torch_rt.link_clock import now_ns
from lynx_plan.torch_rt.paced_group import Transfer

UNTIMED = (Role.WAIT, Role.VIEW)  # the simulator gives them no duration of their own
MARKS, COMM_START, COMM_END = range(3)  # rows of a sample


class MarkClock:
    """Called between items; keeps the moments."""

    def __init__(self) -> None:
        self.moments: list[int] = []

    def __call__(self) -> None:
        self.moments.append(now_ns())


@dataclass(frozen=True, slots=True)
class Samples:
    """Moments (ns, the machine's clock) of timed steps: per part of the step's order int64 [ranks, steps, runs, 3,
    positions + 1].

    Rows: begin of each item (and the last one's end), start and end of each collective's transfer (else 0).
    """

    moments: tuple[torch.Tensor, ...]

    def durations(self, part: int) -> torch.Tensor:
        """Of each item on the compute stream [ranks, steps, runs, positions]."""
        marks = self.moments[part][..., MARKS, :]
        return marks[..., 1:] - marks[..., :-1]

    def transfers(self, part: int) -> torch.Tensor:
        """Of each collective on the communication stream [ranks, steps, runs, positions]; else 0."""
        return (self.moments[part][..., COMM_END, :] - self.moments[part][..., COMM_START, :])[..., :-1]


def sample(
    graph: CostGraph, order: StepOrder, microbatches: int, moments: Sequence[int], transfers: Sequence[Transfer]
) -> tuple[torch.Tensor, ...]:
    """One rank's timed step, per part int64 [runs, 3, positions + 1] (see `Samples`)."""
    runs = order.runs(microbatches)
    found: list[list[torch.Tensor]] = [[] for _ in order.parts]
    left, marks = deque(transfers), deque(moments)
    free = 0  # a transfer of one rank does not begin before its last one is over
    for part, _ in runs:
        items = order.parts[part]
        rows = torch.zeros((3, len(items) + 1), dtype=torch.int64)
        rows[MARKS] = torch.tensor([marks.popleft() for _ in range(len(items) + 1)], dtype=torch.int64)
        for position, item in enumerate(items):
            if graph.ops[item.op].role is Role.COLLECTIVE:
                transfer = left.popleft()
                start = max(transfer.start_ns, free)
                free = max(start, transfer.end_ns)
                rows[COMM_START, position], rows[COMM_END, position] = start, free
        found[part].append(rows)
    assert (len(left), len(marks)) == (0, 0)
    return tuple(
        torch.stack(rows) if rows else torch.zeros((0, 3, len(items) + 1), dtype=torch.int64)
        for rows, items in zip(found, order.parts, strict=True)
    )


def part_times(graph: CostGraph, items: Sequence[Item], samples: Samples, part: int) -> ItemTimes:
    """Durations per position of a part: compute, the median of all samples; transfers, the median of the quickest
    rank's.

    The rank that comes last to a transfer sees it without waiting for others. Contention is in the durations.
    """
    compute = samples.durations(part).flatten(0, 2).median(dim=0).values.tolist()
    comm = samples.transfers(part).amin(dim=0).flatten(0, 1).median(dim=0).values.tolist()
    roles = [graph.ops[item.op].role for item in items]
    return ItemTimes(
        compute_ns=tuple(0 if role in UNTIMED else int(ns) for role, ns in zip(roles, compute, strict=True)),
        comm_ns=tuple(int(ns) for ns in comm),
        steal_ns=(0,) * len(items),
        span_ns=(0,) * len(items),
    )


def measured_outcome(graph: CostGraph, order: StepOrder, samples: Samples, microbatches: int) -> Outcome:
    """What measured durations give, by the code that predicts."""
    times = [
        part_times(graph, items, samples, number) if samples.moments[number].shape[2] else None
        for number, items in enumerate(order.parts)
    ]
    if not order.interleaved:
        assert times[0] is not None
        return outcome(graph, order.steady, times[0], micro_batches=microbatches)
    unrolled = shown(order, microbatches)
    runs = [found for part in unrolled.parts if (found := times[part]) is not None]
    return interleaved_outcome(graph, unrolled, joined(runs), micro_batches=microbatches)


def blocked_ns(graph: CostGraph, order: StepOrder, samples: Samples) -> int:
    """Time that a step spends blocked in waits: the median over ranks and steps."""
    per_step = torch.zeros(samples.moments[0].shape[:2], dtype=torch.int64)
    for part, items in enumerate(order.parts):
        waits = [position for position, item in enumerate(items) if graph.ops[item.op].role is Role.WAIT]
        per_step += samples.durations(part)[..., waits].sum(dim=(-1, -2))
    return int(median(per_step.flatten().tolist()))


def timeline(graph: CostGraph, order: StepOrder, samples: Samples, microbatches: int) -> Timeline:
    """The measured timeline of all ranks: the timed step of median length, from its first item's begin."""
    first, last = samples.moments[0], samples.moments[-1]
    begin, end = first[:, :, 0, MARKS, 0], last[:, :, -1, MARKS, -1]
    lengths = (end - begin).amax(dim=0)
    step = int(lengths.argsort()[len(lengths) // 2])
    origin = int(begin[:, step].min())
    events: list[Event] = []
    for rank in range(first.shape[0]):
        numbers = [0] * len(order.parts)  # runs of each part so far
        found: tuple[list[Event], list[Event]] = ([], [])
        for part, microbatch in order.runs(microbatches):
            rows = samples.moments[part][rank, step, numbers[part]].tolist()
            numbers[part] += 1
            for all_events, new in zip(
                found, _events(graph, order.parts[part], rank, microbatch, rows, origin), strict=True
            ):
                all_events += new
        events += [*found[0], *found[1]]
    return Timeline(origin="measured", events=tuple(events), end_ns=max((e.end_ns for e in events), default=0))


def _events(
    graph: CostGraph, items: Sequence[Item], rank: int, microbatch: int, rows: list[list[int]], origin: int
) -> tuple[list[Event], list[Event]]:
    """Events of one run of a part on the compute and on the communication stream."""
    compute, comm = [], []
    for position, item in enumerate(items):
        role = graph.ops[item.op].role
        where = {"rank": rank, "item": item, "microbatch": microbatch + item.microbatch}
        begin, end = rows[MARKS][position] - origin, rows[MARKS][position + 1] - origin
        if role is not Role.VIEW:
            compute.append(Event(stream=Stream.COMPUTE, start_ns=begin, end_ns=end, **where))
        if role is Role.COLLECTIVE:
            begin, end = rows[COMM_START][position] - origin, rows[COMM_END][position] - origin
            comm.append(Event(stream=Stream.COMM, start_ns=begin, end_ns=end, **where))
    return compute, comm
