"""Timed steps: when each item of a program began and ended, and when its transfers did, as tensors to send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from lynx_plan.model.graph import CostGraph, Role
from lynx_plan.model.program import Item
from lynx_plan.model.timeline import Event, Stream, Timeline
from lynx_plan.simulate.streams import ItemTimes
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
    """Moments (ns, the machine's clock) of timed steps: int64 [ranks, steps, microbatches, 3, positions + 1].

    Rows: begin of each item (and the last one's end), start and end of each collective's transfer (else 0).
    """

    moments: torch.Tensor

    @property
    def durations(self) -> torch.Tensor:
        """Of each item on the compute stream [ranks, steps, microbatches, positions]."""
        marks = self.moments[..., MARKS, :]
        return marks[..., 1:] - marks[..., :-1]

    @property
    def transfers(self) -> torch.Tensor:
        """Of each collective on the communication stream [ranks, steps, microbatches, positions]; else 0."""
        return (self.moments[..., COMM_END, :] - self.moments[..., COMM_START, :])[..., :-1]


def sample(
    graph: CostGraph, items: Sequence[Item], moments: Sequence[int], transfers: Sequence[Transfer]
) -> torch.Tensor:
    """One rank's timed step as int64 [microbatches, 3, positions + 1] (see `Samples`)."""
    width = len(items) + 1
    microbatches = len(moments) // width
    collectives = [position for position, item in enumerate(items) if graph.ops[item.op].role is Role.COLLECTIVE]
    assert len(moments) == microbatches * width, (len(moments), width)
    assert len(transfers) == microbatches * len(collectives), (len(transfers), len(collectives))
    rows = torch.zeros((microbatches, 3, width), dtype=torch.int64)
    rows[:, MARKS] = torch.tensor(moments, dtype=torch.int64).view(microbatches, width)
    free = 0  # a transfer of one rank does not begin before its last one is over
    for number, transfer in enumerate(transfers):
        microbatch, which = divmod(number, len(collectives))
        start = max(transfer.start_ns, free)
        free = max(start, transfer.end_ns)
        rows[microbatch, COMM_START, collectives[which]] = start
        rows[microbatch, COMM_END, collectives[which]] = free
    return rows


def item_times(graph: CostGraph, items: Sequence[Item], samples: Samples) -> ItemTimes:
    """Durations per position: compute, the median of all samples; transfers, the median of the quickest rank's.

    The rank that comes last to a transfer sees it without waiting for others. Contention is in the durations.
    """
    compute = samples.durations.flatten(0, 2).median(dim=0).values.tolist()
    comm = samples.transfers.amin(dim=0).flatten(0, 1).median(dim=0).values.tolist()
    roles = [graph.ops[item.op].role for item in items]
    return ItemTimes(
        compute_ns=tuple(0 if role in UNTIMED else int(ns) for role, ns in zip(roles, compute, strict=True)),
        comm_ns=tuple(int(ns) for ns in comm),
        steal_ns=(0,) * len(items),
        span_ns=(0,) * len(items),
    )


def blocked_ns(graph: CostGraph, items: Sequence[Item], samples: Samples) -> int:
    """Time that a step spends blocked in waits: the median over ranks and steps."""
    waits = [position for position, item in enumerate(items) if graph.ops[item.op].role is Role.WAIT]
    per_step = samples.durations[..., waits].sum(dim=(-1, -2))
    return int(median(per_step.flatten().tolist()))


def timeline(graph: CostGraph, items: Sequence[Item], samples: Samples) -> Timeline:
    """The measured timeline of all ranks: the timed step of median length, from its first item's begin."""
    marks = samples.moments[..., MARKS, :]
    lengths = (marks[:, :, -1, -1] - marks[:, :, 0, 0]).amax(dim=0)
    step = int(lengths.argsort()[len(lengths) // 2])
    origin = int(marks[:, step, 0, 0].min())
    events: list[Event] = []
    for rank, microbatches in enumerate(samples.moments[:, step].tolist()):
        events += _events(graph, items, rank, microbatches, origin)
    return Timeline(origin="measured", events=tuple(events), end_ns=max((e.end_ns for e in events), default=0))


def _events(
    graph: CostGraph, items: Sequence[Item], rank: int, microbatches: list[list[list[int]]], origin: int
) -> list[Event]:
    compute, comm = [], []
    for microbatch, rows in enumerate(microbatches):
        for position, item in enumerate(items):
            role = graph.ops[item.op].role
            where = {"rank": rank, "item": item, "microbatch": microbatch + item.microbatch}
            begin, end = rows[MARKS][position] - origin, rows[MARKS][position + 1] - origin
            if role is not Role.VIEW:
                compute.append(Event(stream=Stream.COMPUTE, start_ns=begin, end_ns=end, **where))
            if role is Role.COLLECTIVE:
                begin, end = rows[COMM_START][position] - origin, rows[COMM_END][position] - origin
                comm.append(Event(stream=Stream.COMM, start_ns=begin, end_ns=end, **where))
    return compute + comm
