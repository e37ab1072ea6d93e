"""The order of a whole step: its parts, and what they are one after the other.

A plain step runs one microbatch after the other. An interleaved one begins with the forward pass of the first
microbatch (prologue), goes on with the backward pass of each merged with the forward pass of the next (steady), and
ends with the backward pass of the last (epilogue).
"""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.model.program import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrolled:
    """A step's items with absolute microbatches. Run r of a part begins at `starts[r]`; `parts[r]` is the part's
    number."""

    items: tuple[Item, ...]
    starts: tuple[int, ...]
    parts: tuple[int, ...]

    def span(self, run: int) -> range:
        """Positions of a run."""
        end = self.starts[run + 1] if run + 1 < len(self.starts) else len(self.items)
        return range(self.starts[run], end)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrder:
    """The items of each part; microbatches count from the part's own."""

    steady: tuple[Item, ...]
    prologue: tuple[Item, ...] = ()
    epilogue: tuple[Item, ...] = ()

    @property
    def interleaved(self) -> bool:
        """Whether microbatches overlap."""
        return bool(self.prologue or self.epilogue)

    @property
    def parts(self) -> tuple[tuple[Item, ...], ...]:
        """The distinct parts, in the order of their first run."""
        return (self.prologue, self.steady, self.epilogue) if self.interleaved else (self.steady,)

    @property
    def alone(self) -> tuple[Item, ...]:
        """One microbatch by itself: forward, then backward."""
        return (*self.prologue, *self.epilogue) if self.interleaved else self.steady

    def runs(self, micro_batches: int) -> tuple[tuple[int, int], ...]:
        """(number of the part, its own microbatch) of each run, in order."""
        if not self.interleaved:
            return tuple((0, number) for number in range(micro_batches))
        last = micro_batches - 1
        return ((0, 0), *((1, number) for number in range(last)), (2, last))

    def unrolled(self, micro_batches: int) -> Unrolled:
        """All runs one after the other."""
        items: list[Item] = []
        starts: list[int] = []
        parts = self.parts
        runs = self.runs(micro_batches)
        for part, first in runs:
            starts.append(len(items))
            items += [Item(op=i.op, replica=i.replica, microbatch=i.microbatch + first) for i in parts[part]]
        return Unrolled(items=tuple(items), starts=tuple(starts), parts=tuple(part for part, _ in runs))
