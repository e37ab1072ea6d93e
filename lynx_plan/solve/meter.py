"""Live bytes while an order is being written: what makes the list scheduler of `order.py` aware of memory."""

from __future__ import annotations

from collections.abc import Iterable

from lynx_plan.solve.skeleton import Skeleton


class Meter:
    """Activation bytes alive after the items so far, from the end of the forward pass on.

    Every storage counts the reads to come: of the original by backward ops and copies for which it was not renewed,
    of its copy by the others. It dies with the last one.
    """

    def __init__(self, skeleton: Skeleton, renewed: list[bool], copies: Iterable[int]) -> None:
        self.s, self.renewed = skeleton, renewed
        self.left: dict[tuple[int, bool], int] = {}  # (storage, of a copy) -> reads to come
        self.live = 0
        for op, forward in enumerate(skeleton.forward):
            if not forward:
                self._expect(op)
        for op in copies:
            self._expect(op)
        for (storage, copy), reads in self.left.items():
            maker = skeleton.index.storage_op[storage]
            if reads and not copy and maker >= 0 and skeleton.forward[maker]:
                self.live += self._bytes(storage)

    def needs(self, op: int) -> int:
        """Bytes that the op allocates."""
        return sum(self._bytes(storage) for storage in self._made(op))

    def run(self, op: int, *, copy: bool = False) -> None:
        """Count an item: what it makes, and what dies with it."""
        made = self._made(op)
        for storage in made:
            if self.left.get((storage, copy), 0):
                self.live += self._bytes(storage)
        for key in self._reads(op):
            self.left[key] -= 1
            if not self.left[key]:
                self.live -= self._bytes(key[0])

    def frees(self, op: int) -> int:
        """Bytes that die if the op runs now, less those that it makes."""
        dying = sum(self._bytes(storage) for storage, copy in self._reads(op) if self.left[storage, copy] == 1)
        return dying - sum(self._bytes(s) for s in self._made(op) if self.left.get((s, False), 0))

    def _expect(self, op: int) -> None:
        for key in self._reads(op):
            self.left[key] = self.left.get(key, 0) + 1

    def _reads(self, op: int) -> list[tuple[int, bool]]:
        """The activation storages that an item of this op reads, each once: its own alias is not a read."""
        index = self.s.index
        tensors = index.graph.tensors
        found: dict[tuple[int, bool], None] = {}
        for tensor in index.graph.ops[op].inputs:
            storage, producer = tensors[tensor].storage, tensors[tensor].producer
            if producer >= 0 and index.storage_op[storage] >= 0:
                found[storage, self.renewed[producer]] = None
        return list(found)

    def _made(self, op: int) -> list[int]:
        index = self.s.index
        storages = dict.fromkeys(index.graph.tensors[t].storage for t in index.graph.ops[op].outputs)
        return [storage for storage in storages if index.storage_op[storage] == op]

    def _bytes(self, storage: int) -> int:
        return self.s.index.graph.storages[storage].bytes
