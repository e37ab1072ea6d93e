"""Orders of plans that recompute an op more than once: copies inserted into the order of `none`.

Weight gradients stay where `none` puts them, in the windows, so plans made this way have the same overlap as others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import Phase, Role
from lynx_plan.model.program import Item


def with_copies(index: GraphIndex, items: Sequence[Item], passes: Mapping[int, Iterable[int]]) -> tuple[Item, ...]:
    """The order with copies of forward ops before some backward ops (op id -> ops, in order of execution).

    Views and waits of a copied op are copied with it; copies that nothing reads are left out.
    """
    followers = _followers(index)
    counts: dict[int, int] = {}
    found: list[Item] = []
    for item in items:
        for op in passes.get(item.op, ()) if not item.replica else ():
            for one in (op, *followers.get(op, ())):
                counts[one] = counts.get(one, 0) + 1
                found.append(Item(one, counts[one]))
        found.append(item)
    return _renumbered(_without_dead(index, found))


def without_copies(index: GraphIndex, items: Sequence[Item], op: int) -> tuple[Item, ...]:
    """The order without the copies of a forward op (and of its views and waits), and without what only those needed."""
    gone = {op, *_followers(index).get(op, ())}
    return _renumbered(_without_dead(index, [item for item in items if not (item.replica and item.op in gone)]))


def _followers(index: GraphIndex) -> dict[int, list[int]]:
    """Forward op -> the forward views and waits of what it makes, in graph order."""
    graph = index.graph
    home: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    for op in graph.ops:
        if op.phase is not Phase.FORWARD or op.role not in (Role.VIEW, Role.WAIT):
            continue
        source = graph.tensors[op.inputs[0]].producer if op.inputs else -1
        source = home.get(source, source)
        if source >= 0:
            home[op.id] = source
            found.setdefault(source, []).append(op.id)
    return found


def _without_dead(index: GraphIndex, items: list[Item]) -> list[Item]:
    """Without copies that nothing reads, and then without those that only such copies read."""
    flow = resolve(index.graph, items)
    read = [False] * len(items)
    for position in range(len(items) - 1, -1, -1):
        if not items[position].replica or read[position]:
            for source in flow.sources[position]:
                if source >= 0:
                    read[source] = True
    return [item for position, item in enumerate(items) if not item.replica or read[position]]


def _renumbered(items: list[Item]) -> tuple[Item, ...]:
    """Copies of each op numbered from 1 without gaps."""
    counts: dict[int, int] = {}
    found = []
    for item in items:
        if item.replica:
            counts[item.op] = counts.get(item.op, 0) + 1
            found.append(Item(item.op, counts[item.op], item.microbatch))
        else:
            found.append(item)
    return tuple(found)
