"""Programs: the order in which a rank runs its items. The order alone is authoritative. Records only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lynx_plan.model.strict import STRICT

_ITEM = re.compile(r"^(?:(?P<layer>[+-]\d+)\.)?(?P<op>\d+)(?:r(?P<replica>\d+))?(?:m\+(?P<microbatch>\d+))?$")


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """One execution of an op: `replica` 0 is the original, 1, 2, ... are recomputations.

    `microbatch` counts from the program's own microbatch (1: the next one's op, interleaved here).
    An op's phase and role say whether replica 0 is a forward, backward, weight-gradient, launch, wait or
    accumulate copy; recomputed collectives launch and wait like the originals.
    """

    op: int
    replica: int = 0
    microbatch: int = 0

    def __str__(self) -> str:
        replica = f"r{self.replica}" if self.replica else ""
        return f"{self.op}{replica}" + (f"m+{self.microbatch}" if self.microbatch else "")


@dataclass(frozen=True, slots=True)
class RelativeItem:
    """An item of a template: the op is an index into the ops of the layer `offset` layers after the run's layer."""

    offset: int
    item: Item

    def __str__(self) -> str:
        return f"{self.offset:+d}.{self.item}" if self.offset else str(self.item)

    @staticmethod
    def parse(text: str) -> RelativeItem:
        """Inverse of `str`; raises ValueError."""
        match = _ITEM.match(text)
        if not match:
            raise ValueError(f"'{text}' is not an item such as 17, 17r1 or -1.17r1m+1")
        item = Item(int(match["op"]), int(match["replica"] or 0), int(match["microbatch"] or 0))
        return RelativeItem(int(match["layer"] or 0), item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A template applied to each of these layers in turn."""

    __pydantic_config__ = STRICT

    template: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A stage's program, compressed: templates of relative items (space-separated text), and runs of them.

    A plan that does not interleave microbatches has only `steady`: one microbatch's forward and backward. Else
    `prologue` (a forward pass) and `epilogue` (a backward pass) run once, and between them `steady`, once less than
    there are microbatches: a backward pass merged with the forward pass of the next microbatch (`m+1`).
    """

    __pydantic_config__ = STRICT

    templates: tuple[str, ...]
    prologue: tuple[Run, ...] = ()
    steady: tuple[Run, ...] = ()
    epilogue: tuple[Run, ...] = ()
