"""From what each rank measured to the rows that rank 0 reports."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

import torch
import torch.distributed as dist

from lynx_plan import files
from lynx_plan.model.plan import Outcome
from lynx_plan.model.run import RunRow
from lynx_plan.torch_rt.clock import Samples, blocked_ns, measured_outcome
from lynx_plan.torch_rt.contest import Contestant
from lynx_plan.torch_rt.world import World


def gather(world: World, own: torch.Tensor) -> torch.Tensor:
    """Every rank's tensor of this shape, stacked [ranks, ...]. All ranks call it."""
    if world.size == 1:
        return own.unsqueeze(0)
    found = [torch.empty_like(own) for _ in range(world.size)]
    dist.all_gather(found, own.contiguous())
    return torch.stack(found)


def row_of(
    world: World, contestant: Contestant, *, static_bytes: int, micro_batches: int, difference: tuple[str, str] | None
) -> tuple[RunRow, Samples | None]:
    """The row of one contestant, and the samples of all ranks (None for eager). All ranks call it.

    `difference`: the first parameter whose gradient is not eager's and the first wrong copy, empty if none; None if
    not verified.
    """
    step_ns = gather(world, torch.tensor(contestant.step_ns)).amax(dim=0).tolist()  # the slowest rank's
    peak = int(gather(world, torch.tensor(contestant.peak_bytes)).max())
    static = int(gather(world, torch.tensor(static_bytes)).max())
    blocked = int(gather(world, torch.tensor(contestant.blocked_ns)).flatten().median())
    samples = None
    if contestant.samples:  # per step, per part
        parts = [torch.stack(steps) for steps in zip(*contestant.samples, strict=True)]
        samples = Samples(tuple(gather(world, part) for part in parts))
    hidden = exposed = 0
    if contestant.bound is not None and samples is not None:
        graph, order = contestant.bound.captured.graph, contestant.bound.order
        simulated = measured_outcome(graph, order, samples, micro_batches)
        hidden, exposed = simulated.recompute_hidden_ns, simulated.recompute_exposed_ns
        blocked = blocked_ns(graph, order, samples)
    measured = Outcome(
        step_ns=int(median(step_ns)),
        peak_bytes=static + peak,
        peak_activation_bytes=peak,
        recompute_hidden_ns=hidden,
        recompute_exposed_ns=exposed,
        comm_exposed_ns=blocked,
    )
    plan = contestant.bound.plan if contestant.bound else None
    row = RunRow(
        name=contestant.name,
        plan_digest=files.digest(plan) if plan else "",
        predicted=plan.predicted if plan else None,
        measured=measured,
        step_spread_ns=spread(step_ns),
        steps=len(step_ns),
        gradients_equal=None if difference is None else not difference[0],
        first_difference=difference[0] if difference else "",
        wrong_copy=difference[1] if difference else "",
    )
    return row, samples


def spread(values: Sequence[int]) -> int:
    """Half the interquartile range."""
    if len(values) < 2:
        return 0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return int((high - low) / 2)
