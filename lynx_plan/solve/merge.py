"""Merges a backward pass with the next microbatch's forward pass: a list scheduler on two streams that knows memory.

Of what could run now, that with the longest remaining path runs first, if it fits into memory; weight gradients have
short paths, so they fill what is left, or make room. Transfers run in order of launch; waits and views run directly
before their first reader, views that none reads directly after what they view.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush

from lynx_plan.model.graph import Phase, Role
from lynx_plan.model.program import Item
from lynx_plan.simulate.streams import ComputeStream
from lynx_plan.solve.merge_facts import MergeFacts


class Memory(Enum):
    """What makes an item wait for memory. Neither is best everywhere: try both."""

    LIVE = "live"  # live bytes beyond the limit, or for a forward item, beyond the forward limit
    TO_COME = "to come"  # the same, and a forward item also where what the backward pass still needs finds no room


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The merged part, its time from idle streams, and activation bytes at its peak."""

    items: tuple[Item, ...]
    end_ns: int
    peak_bytes: int


def merge(facts: MergeFacts, memory: Memory, *, limit_bytes: int, forward_limit_bytes: int) -> Merged:
    """The order of the merged part. What would take the live bytes beyond its limit waits if anything else can run.
    Near-linear in items."""
    kind = _Merger if memory is Memory.LIVE else _ForesightMerger
    return kind(facts, limit_bytes, forward_limit_bytes).run()


class _Merger:
    """The state of writing one merged order."""

    def __init__(self, facts: MergeFacts, limit_bytes: int, forward_limit_bytes: int) -> None:
        self.f = facts
        count = len(facts.items)
        self.limit, self.forward_limit = limit_bytes, forward_limit_bytes
        self.left = list(facts.waits_for)
        self.available = [0] * count
        self.readers = list(facts.readers)
        self.live = sum(facts.sizes[i] for i in range(facts.before) if facts.readers[i])
        self.ready: list[tuple[int, int]] = []  # (minus the path, node)
        self.pending: list[tuple[int, int]] = []  # (time from which it can run, node)
        self.emitted = [False] * count
        self.order: list[Item] = []
        self.peak = self.live
        self.compute = ComputeStream()
        self.comm_free = 0

    def run(self) -> Merged:
        for node in range(len(self.left)):
            if not self.f.waits_for[node]:
                self._release(node)
        while self.ready or self.pending:
            while self.pending and self.pending[0][0] <= self.compute.now:
                node = heappop(self.pending)[1]
                heappush(self.ready, (-self.f.path_ns[node], node))
            node = self._pick()
            if node < 0 and self.pending:
                self.compute.advance(self.pending[0][0])
            else:
                self._run(node if node >= 0 else self._least())
        for node, emitted in enumerate(self.emitted):
            if not emitted:
                self._emit(node)
        end_ns = max(self.compute.now, self.comm_free)
        return Merged(items=tuple(self.order), end_ns=end_ns, peak_bytes=self.peak)

    def _pick(self) -> int:
        """The ready node of the longest path among those that fit; -1 if none does."""
        held = []
        found = -1
        while self.ready:
            entry = heappop(self.ready)
            node = entry[1]
            if self._fits(node):
                found = node
                break
            held.append(entry)
        for entry in held:
            heappush(self.ready, entry)
        return found

    def _fits(self, node: int) -> bool:
        limit = self.forward_limit if node >= self.f.backward else self.limit
        return self.live + self._made(node) <= limit or self._frees(node)

    def _least(self) -> int:
        """Nothing fits: the backward node that adds least, else the forward one."""
        return self._take(min(self.ready, key=lambda e: (e[1] >= self.f.backward, self._adds(e[1]), e[1])))

    def _take(self, entry: tuple[int, int]) -> int:
        self.ready.remove(entry)
        heapify(self.ready)
        return entry[1]

    def _adds(self, node: int) -> int:
        return self._made(node) - self._dying(node)

    def _made(self, node: int) -> int:
        return sum(self.f.sizes[i] for i in self.f.makes[node])

    def _dying(self, node: int) -> int:
        """Bytes of which this node is the last reader."""
        return sum(self.f.sizes[i] for i in self.f.reads[node] if self.readers[i] == 1 and not self.f.lasts[i])

    def _frees(self, node: int) -> bool:
        """Whether a weight gradient leaves less memory than it finds."""
        return self.f.ops[node].phase is Phase.WEIGHT_GRADIENT and self._dying(node) >= self._made(node) > 0

    def _release(self, node: int) -> None:
        """All that the node waits for is there, or will be at `available`."""
        if self.f.lazy[node]:
            for follower in self.f.after[node]:
                self._satisfy(follower, self.available[node])
        elif self.available[node] <= self.compute.now:
            heappush(self.ready, (-self.f.path_ns[node], node))
        else:
            heappush(self.pending, (self.available[node], node))

    def _satisfy(self, node: int, time_ns: int) -> None:
        self.available[node] = max(self.available[node], time_ns)
        self.left[node] -= 1
        if not self.left[node]:
            self._release(node)

    def _run(self, node: int) -> None:
        """Run a node now; its transfer, if it is a launch, when the communication stream is free."""
        op = self.f.ops[node]
        self._emit(node)
        self.compute.work(op.time_ns)
        done = self.compute.now
        if op.role is Role.COLLECTIVE:
            start = max(done, self.comm_free)
            self.comm_free = done = start + op.comm_ns
            self.compute.contend(start, min(done, start + (op.steal_span_ns or op.comm_ns)), op.steal_ns)
        for follower in self.f.after[node]:
            self._satisfy(follower, done if self.f.lazy[follower] else self.compute.now)

    def _emit(self, node: int) -> None:
        """Append the node's item, after the views and waits that it reads; count memory."""
        self.emitted[node] = True
        for source in self.f.sources[node]:
            if self.f.lazy[source] and not self.emitted[source]:
                self._emit(source)
        self.order.append(self.f.items[node])
        made = [i for i in self.f.makes[node] if self.f.readers[i] or self.f.lasts[i]]
        kept = sum(self.f.sizes[i] for i in made)
        self._count(node, kept)
        self.peak = max(self.peak, self.live + self._made(node) - kept)
        for instance in self.f.reads[node]:
            self.readers[instance] -= 1
            if not self.readers[instance] and not self.f.lasts[instance]:
                self._count(node, -self.f.sizes[instance])
        for follower in self.f.after[node]:
            if self.f.unread[follower] and not self.emitted[follower]:
                self._emit(follower)

    def _count(self, node: int, added: int) -> None:
        self.live += added


class _ForesightMerger(_Merger):
    """Forward items leave room for what the backward pass by itself still needs."""

    def __init__(self, facts: MergeFacts, limit_bytes: int, forward_limit_bytes: int) -> None:
        super().__init__(facts, limit_bytes, forward_limit_bytes)
        self.live_forward = 0  # of the live bytes made by the forward pass
        self.next = 0  # the first backward node that has not run
        weights = (node for node in range(facts.backward) if facts.ops[node].phase is Phase.WEIGHT_GRADIENT)
        self.spare = max(map(self._made, weights), default=0)  # for what frees more than it makes

    def _fits(self, node: int) -> bool:
        made = self._made(node)
        if node >= self.f.backward:
            while self.next < self.f.backward and (self.emitted[self.next] or self.f.lazy[self.next]):
                self.next += 1
            if self.live_forward + made + self.f.to_come[self.next] > self.forward_limit:
                return False
        return self.live + made <= self.limit - (0 if self._frees(node) else self.spare)

    def _least(self) -> int:
        """Nothing fits: a weight gradient that frees memory, else what comes first in the backward pass by itself."""
        return self._take(min(self.ready, key=lambda e: (not self._frees(e[1]), e[1])))

    def _count(self, node: int, added: int) -> None:
        super()._count(node, added)
        self.live_forward += added if node >= self.f.backward else 0
