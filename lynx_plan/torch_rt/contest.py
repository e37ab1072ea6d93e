"""Measure several plans, and eager PyTorch, in the same ranks: the same model, optimizer and data, in turns.

Three kinds of steps, apart from each other: plain ones give the step time, timed ones the times of items and
transfers, counted ones the peak of live bytes. A round runs one step of every contestant, so that whatever
slows the machine for a while slows them all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.bind import Bound
from lynx_plan.torch_rt.clock import MarkClock, sample
from lynx_plan.torch_rt.dtensors import local
from lynx_plan.torch_rt.eager import EagerStep
from lynx_plan.torch_rt.link_clock import now_ns
from lynx_plan.torch_rt.live_bytes import LiveBytes
from lynx_plan.torch_rt.step import Step
from lynx_plan.torch_rt.world import World

WARMUP = 1  # rounds that are not measured
Batches = list[tuple[Any, ...]]
Data = Callable[[int], Batches]  # step number -> its microbatches


@dataclass(slots=True)
class Contestant:
    """A plan's step, or eager's (`bound` is None), and what this rank measured of it."""

    name: str
    step: Step | EagerStep
    bound: Bound | None = None
    step_ns: list[int] = field(default_factory=list)
    samples: list[tuple[torch.Tensor, ...]] = field(default_factory=list)  # of timed steps, see `clock.sample`
    blocked_ns: list[int] = field(default_factory=list)  # in waits, per timed step
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """What all contestants share."""

    world: World
    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Data
    contestants: tuple[Contestant, ...]

    def rounds(self, count: int) -> Iterator[tuple[int, Contestant, Batches]]:
        """(round, contestant, data), each with the model as it was at first; another contestant begins each round."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        kept = [tensor.detach().clone() for tensor in tensors]
        gc.collect()
        gc.freeze()  # the graphs are many objects: no collection walks them between measurements
        for number in range(count):
            shift = number % len(self.contestants)
            for contestant in self.contestants[shift:] + self.contestants[:shift]:
                with torch.no_grad():
                    for tensor, value in zip(tensors, kept, strict=True):
                        tensor.copy_(value)
                yield number, contestant, self.data(number)
        gc.unfreeze()

    def barrier(self) -> None:
        if dist.is_initialized():
            dist.barrier()


def time_steps(arena: Arena, steps: int) -> None:
    """Whole steps, optimizer included, nothing instrumented."""
    for number, contestant, batches in arena.rounds(WARMUP + steps):
        arena.barrier()
        started = now_ns()
        contestant.step(batches)
        arena.optimizer.step()
        ended = now_ns()
        if number >= WARMUP:
            contestant.step_ns.append(ended - started)


def time_items(arena: Arena, steps: int) -> None:
    """Items and transfers of steps with clock marks between items."""
    recorder = arena.world.recorder
    for number, contestant, batches in arena.rounds(WARMUP + steps):
        clock = MarkClock()
        arena.barrier()
        recorder.start()
        if contestant.bound is None:
            contestant.step(batches, average=False)
        else:
            contestant.step(batches, clock=clock)
        arena.barrier()  # transfers are over
        transfers = recorder.stop()[:-1]  # without the barrier's own
        if number < WARMUP:
            continue
        contestant.blocked_ns.append(sum(transfer.blocked_ns for transfer in transfers))
        if contestant.bound is not None:
            graph, order = contestant.bound.captured.graph, contestant.bound.order
            contestant.samples.append(sample(graph, order, len(batches), clock.moments, transfers))


def count_bytes(arena: Arena) -> None:
    """The peak of live activation storages in a step's forward and backward passes."""
    for _, contestant, batches in arena.rounds(1):
        static = static_tensors(arena, contestant, batches)
        live = LiveBytes(static)
        with live:
            contestant.step(batches)
        contestant.peak_bytes = live.peak_bytes


def static_tensors(arena: Arena, contestant: Contestant, batches: Batches) -> Sequence[torch.Tensor]:
    """Everything that is on the device before a step: it counts as static, not as activation."""
    tensors = [*arena.model.parameters(), *arena.model.buffers()]
    tensors += [parameter.grad for parameter in arena.model.parameters() if parameter.grad is not None]
    tensors += [
        value for state in arena.optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    tensors += [leaf for leaf in compat.tree_leaves(batches) if isinstance(leaf, torch.Tensor)]
    if isinstance(contestant.step, Step):
        tensors += contestant.step.prepare(len(batches), marked=False)
    return [local(tensor) for tensor in tensors]
