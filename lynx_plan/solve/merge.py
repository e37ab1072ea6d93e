"""Merges a backward pass with the next microbatch's forward pass: a list scheduler on two streams that knows memory.

Of what could run now, that with the longest remaining path runs first, if it fits into memory; weight gradients have
short paths, so they fill what is left, or make room. Transfers run in order of launch; waits and views run directly
before their first reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from lynx_plan.model.graph import Phase, Role
from lynx_plan.model.program import Item
from lynx_plan.simulate.streams import ComputeStream
from lynx_plan.solve.merge_facts import MergeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The merged part, its time from idle streams, and activation bytes at its peak."""

    items: tuple[Item, ...]
    end_ns: int
    peak_bytes: int


def merge(facts: MergeFacts, *, limit_bytes: int, forward_limit_bytes: int) -> Merged:
    """The order of the merged part. A forward item that would take the live bytes beyond `forward_limit_bytes` waits
    for backward items to free some, and what would take them beyond `limit_bytes` waits if anything else can run.
    Near-linear in items."""
    return _Merger(facts, limit_bytes, forward_limit_bytes).run()


class _Merger:
    """The state of writing one merged order."""

    def __init__(self, facts: MergeFacts, limit_bytes: int, forward_limit_bytes: int) -> None:
        self.f = facts
        count = len(facts.items)
        self.limits = [limit_bytes] * facts.backward + [forward_limit_bytes] * (count - facts.backward)
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
            if self.live + self._made(node) <= self.limits[node] or self._frees(node):
                found = node
                break
            held.append(entry)
        for entry in held:
            heappush(self.ready, entry)
        return found

    def _least(self) -> int:
        """Nothing fits: the backward node that adds least, else the forward one."""
        entry = min(self.ready, key=lambda e: (e[1] >= self.f.backward, self._made(e[1]) - self._dying(e[1]), e[1]))
        self.ready.remove(entry)
        heapify(self.ready)
        return entry[1]

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
        self.live += sum(self.f.sizes[i] for i in made)
        self.peak = max(self.peak, self.live + self._made(node) - sum(self.f.sizes[i] for i in made))
        for instance in self.f.reads[node]:
            self.readers[instance] -= 1
            if not self.readers[instance] and not self.f.lasts[instance]:
                self.live -= self.f.sizes[instance]
