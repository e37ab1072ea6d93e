"""Turns decisions (what is recomputed, and where) into the order of a step: the only place where plans get ordered.

Forward ops keep graph order. In the backward pass the critical ops keep graph order; views run directly before
their first use; a collective is launched as soon as its input exists; before a critical op waits for it, the
weight gradients that are ready run (as Megatron-LM does), then the recomputations placed in that window.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.program import Item
from lynx_plan.solve.meter import Meter
from lynx_plan.solve.skeleton import Skeleton


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Recompute forward op `op` in the window of backward collective `window`, or in the block that opens the
    backward of layer `block`, or `early`: before the backward pass begins (in the given windows); with none of these,
    directly before the first backward op that needs it."""

    op: int
    window: int = -1
    block: int = -1
    early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The ops to recompute; everything else that backward reads is kept. Views and waits follow their source.

    `limit_bytes` of activations: where an item would go beyond it, weight gradients that are ready run first, since
    what they read dies with them; without a limit they wait for a window.
    """

    placements: tuple[Placement, ...] = ()
    limit_bytes: int | None = None


def build_order(index: GraphIndex, decisions: Decisions, *, skeleton: Skeleton | None = None) -> tuple[Item, ...]:
    """The order of one microbatch under `decisions`; near-linear in ops.

    A copy is made earlier than placed where an earlier copy or backward op needs it, so the order is always legal.
    """
    return _Emitter(skeleton or Skeleton(index), decisions).run()


class _Emitter:
    """The state of writing one order."""

    def __init__(self, skeleton: Skeleton, decisions: Decisions) -> None:
        self.s = skeleton
        count = len(skeleton.inputs)
        self.items: list[Item] = [Item(op) for op in skeleton.forward_order]
        self.done = list(skeleton.forward)  # original executed
        self.copied = [False] * count
        self.renewed = [False] * count  # backward reads a copy of this forward op
        self.window_copies: dict[int, list[int]] = {}
        self.block_copies: dict[int, list[int]] = {}
        self.early_copies: list[int] = []
        self.needs = dict(skeleton.needs)
        self.launch_bases = dict(skeleton.launch_bases)
        self.launched: dict[int, int] = {}  # backward collective -> its number among the launches
        self.windows_left = len(skeleton.filling_waits)
        self.ready: list[int] = [op for op in skeleton.fillers if not self.needs[op]]
        self.filling = False
        self.making_room = False
        needed = self._decide(decisions)
        self.limit = decisions.limit_bytes
        self.meter = None if self.limit is None else Meter(skeleton, self.renewed, self._copied_ops(needed))

    def _copied_ops(self, needed: set[int]) -> list[int]:
        """All ops that get a copy: the needed ones, views and waits among them."""
        return [op for op in self.s.forward_order if op in needed]

    def _decide(self, decisions: Decisions) -> set[int]:
        """Sort the copies by where they run; gives the dropped ops that are needed again."""
        if not decisions.placements:
            return set()
        for placement in decisions.placements:
            assert self.s.forward[placement.op], placement
            assert not self.s.lazy[placement.op], placement
            self.renewed[placement.op] = True
        for op in self.s.forward_order:
            if self.s.lazy[op] and self.s.inputs[op]:
                self.renewed[op] = self.renewed[self.s.inputs[op][0]]
        needed = self._needed()
        for placement in decisions.placements:
            if placement.op in needed:
                if placement.window >= 0:
                    self.window_copies.setdefault(placement.window, []).append(placement.op)
                elif placement.early:
                    self.early_copies.append(placement.op)
                elif placement.block >= 0:
                    self.block_copies.setdefault(placement.block, []).append(placement.op)
        return needed

    def _needed(self) -> set[int]:
        """Dropped ops that backward reads, and what making them again reads: no other copy would be read."""
        backward = (op for op, forward in enumerate(self.s.forward) if not forward)
        return self._closure(source for op in backward for source in self.s.inputs[op] if self.renewed[source])

    def run(self) -> tuple[Item, ...]:
        self._renew(self.early_copies)
        for op in self.s.critical:
            if self.done[op]:
                continue
            if not self.windows_left:
                self._fill_before(op)
            self._wait_for(op)
            self._open_block(op)
            self._emit(op)
        self.filling = True
        self.block_copies.clear()
        self._fill(len(self.launched))
        self._finish()
        return tuple(self.items)

    def _finish(self) -> None:
        """Views and waits that nobody reads; everything else has run."""
        for op in range(len(self.done)):
            if not self.done[op]:
                assert self.s.lazy[op], f"op {op} was never ready"
                self._pull(op)

    def _wait_for(self, op: int) -> None:
        """Run the views and waits that `op` reads, filling the windows that they close."""
        for source in self.s.inputs[op]:
            if not self.done[source] and self.s.lazy[source]:
                self._pull(source)

    def _pull(self, op: int) -> None:
        """Run a view or a wait, whose time has come."""
        self._prepare(op)
        if op in self.s.filling_waits:
            launch = self.s.launch_of[op]
            if not self.filling and launch in self.launched:
                self._close_window(launch)
            self.windows_left -= not self.done[op]
        if not self.done[op]:  # what filled the window may have needed it
            self._run(op)

    def _close_window(self, launch: int) -> None:
        """Fill the window of `launch`: weight gradients, then the copies placed there."""
        self.filling = True
        self._fill(self.launched[launch])
        self._renew(self.window_copies.get(launch, ()))
        self.filling = False

    def _fill(self, window: int) -> None:
        """Run the ready weight gradients in graph order; not those that wait for a launch from `window` on."""
        held = []
        while self.ready:
            op = heapq.heappop(self.ready)
            late = any(
                not self.done[wait] and self.launched.get(self.s.launch_of[wait], -1) >= window
                for wait in self.s.wait_needs[op]
            )
            if late or self.s.index.op_layer[op] in self.block_copies:
                held.append(op)
            else:
                self._emit(op)
        for op in held:
            heapq.heappush(self.ready, op)

    def _fill_before(self, op: int) -> None:
        """With no window to come, weight gradients run where they stand in the graph."""
        held = []
        while self.ready and self.ready[0] < op:
            filler = heapq.heappop(self.ready)
            if self.s.index.op_layer[filler] in self.block_copies:
                held.append(filler)
            else:
                self._emit(filler)
        for filler in held:
            heapq.heappush(self.ready, filler)

    def _make_room(self, op: int) -> None:
        """Before an item that would go beyond the limit: the ready weight gradients that free something."""
        if self.meter is None or self.limit is None or self.making_room or self.s.lazy[op]:
            return
        self.making_room = True
        held = []
        while self.ready and self.meter.live + self.meter.needs(op) > self.limit:
            filler = heapq.heappop(self.ready)
            waits = any(not self.done[wait] for wait in self.s.wait_needs[filler])
            if waits or self.done[filler] or self.meter.frees(filler) <= 0 or not self._at_hand(filler):
                held.append(filler)
            else:
                self._emit(filler)
        for filler in held:
            heapq.heappush(self.ready, filler)
        self.making_room = False

    def _at_hand(self, op: int) -> bool:
        """All that a weight gradient reads is there, so that it needs no copy."""
        return all(
            self.copied[source] or not self.renewed[source]
            if self.s.forward[source]
            else self.done[source] or self.s.lazy[source]
            for source in self.s.inputs[op]
        )

    def _open_block(self, op: int) -> None:
        """Before the first critical op of a layer: the block of copies that opens its backward."""
        copies = self.block_copies.pop(self.s.index.op_layer[op], None)
        if copies:
            self._renew(copies)

    def _emit(self, op: int) -> None:
        """Run a compute op, launch or accumulate with all that it reads."""
        self._prepare(op)
        if not self.done[op]:
            self._run(op)

    def _prepare(self, op: int) -> None:
        """Make everything that `op` reads available: copies of what was dropped, then views and waits."""
        wanted = []
        for source in self.s.inputs[op]:
            if self.s.forward[source]:
                if self.renewed[source] and not self.copied[source]:
                    wanted.append(source)
            elif not self.done[source]:
                if self.s.lazy[source]:
                    self._pull(source)
                else:
                    self._emit(source)
        if wanted:
            self._renew(wanted)

    def _renew(self, ops: Iterable[int]) -> None:
        """Copy forward ops, and what they read that was dropped too, in graph order."""
        for op in sorted(self._closure(ops)):
            self.copied[op] = True
            self._make_room(op)
            self.items.append(Item(op, 1))
            if self.meter:
                self.meter.run(op, copy=True)

    def _closure(self, ops: Iterable[int]) -> set[int]:
        """These forward ops and the dropped ones that they need, without those copied already."""
        closure: set[int] = set()
        stack = [op for op in ops if not self.copied[op]]
        while stack:
            op = stack.pop()
            if op not in closure:
                closure.add(op)
                stack.extend(p for p in self.s.inputs[op] if self.renewed[p] and not self.copied[p])
        return closure

    def _run(self, op: int) -> None:
        """Append the original of `op`, then its accumulates, then the collectives whose input is now complete."""
        self._make_room(op)
        if self.done[op]:  # what made room needed it
            return
        self.done[op] = True
        self.items.append(Item(op))
        if self.meter:
            self.meter.run(op)
        for accumulate in self.s.accumulates.get(op, ()):
            self._emit(accumulate)
        if op in self.s.collectives:
            self.launched[op] = len(self.launched)
        launches = []
        for follower in self.s.triggers.get(op, ()):
            if follower in self.launch_bases:
                self.launch_bases[follower] -= 1
                if not self.launch_bases[follower]:
                    launches.append(follower)
            else:
                self.needs[follower] -= 1
                if not self.needs[follower]:
                    heapq.heappush(self.ready, follower)
        for launch in launches:
            if not self.done[launch]:
                self._emit(launch)
