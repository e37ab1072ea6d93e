"""A graph, or one of its layers, as nodes for `RematMilp`: an op with its views and waits, or several ops in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lynx_plan.model.graph import Phase, Role
from lynx_plan.solve.analysis import Analysis
from lynx_plan.solve.remat_milp import Node

MOST = 60  # nodes of a coarsened part


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nodes in the order of `none`, the first `forward` ones forward; `ops`: per node its ops but views and waits."""

    nodes: tuple[Node, ...]
    ops: tuple[tuple[int, ...], ...]
    forward: int


def part_of(analysis: Analysis, ops: Sequence[int], movable: Callable[[int], bool]) -> Part:
    """These ops (their lazy followers come with them); what they read from elsewhere is there anyway."""
    graph = analysis.index.graph
    inside = frozenset(ops)
    order = [item.op for item in analysis.none.items if item.op in inside]
    home: dict[int, int] = {}  # op -> number of its node
    heads: list[int] = []
    for op in order:
        record = graph.ops[op]
        source = graph.tensors[record.inputs[0]].producer if record.inputs else -1
        joins = record.role in (Role.VIEW, Role.WAIT, Role.ACCUMULATE) and source in home
        if joins:
            home[op] = home[source]
        else:
            home[op] = len(heads)
            heads.append(op)
    members: list[list[int]] = [[] for _ in heads]
    for op, number in home.items():
        members[number].append(op)
    nodes = [_node(analysis, number, group, home, movable) for number, group in enumerate(members)]
    forward = sum(graph.ops[op].phase is Phase.FORWARD for op in heads)
    return Part(nodes=tuple(nodes), ops=tuple((head,) for head in heads), forward=forward)


def _node(
    analysis: Analysis, number: int, group: list[int], home: dict[int, int], movable: Callable[[int], bool]
) -> Node:
    graph = analysis.index.graph
    producers = (graph.tensors[t].producer for op in group for t in graph.ops[op].inputs)
    reads = sorted({home[p] for p in producers if p in home and home[p] < number})
    head = graph.ops[group[0]]
    return Node(
        reads=tuple(reads),
        time_ns=head.time_ns + head.comm_ns,
        bytes=sum(graph.storages[s].bytes for op in group for s in analysis.candidates.pieces[op]),
        movable=head.phase is Phase.FORWARD and movable(head.id),
    )


def coarsened(part: Part, most: int = MOST) -> Part:
    """At most so many nodes: neighbours of the smallest values join, forward with forward only."""
    groups = [[i] for i in range(len(part.nodes))]
    while len(groups) > most:
        pairs = [
            (part.nodes[a[-1]].bytes, n)
            for n, (a, b) in enumerate(pairwise(groups))
            if (a[-1] < part.forward) == (b[0] < part.forward)
        ]
        if not pairs:
            break
        _, n = min(pairs)
        groups[n : n + 2] = [groups[n] + groups[n + 1]]
    return _merged(part, groups)


def _merged(part: Part, groups: list[list[int]]) -> Part:
    home = {i: number for number, group in enumerate(groups) for i in group}
    nodes = []
    for number, group in enumerate(groups):
        read = {home[r] for i in group for r in part.nodes[i].reads} - {number}
        seen_outside = [i for i in group if any(i in n.reads and home[j] != number for j, n in enumerate(part.nodes))]
        nodes.append(
            Node(
                reads=tuple(sorted(read)),
                time_ns=sum(part.nodes[i].time_ns for i in group),
                bytes=sum(part.nodes[i].bytes for i in seen_outside),
                movable=all(part.nodes[i].movable for i in group),
            )
        )
    ops = tuple(tuple(op for i in group for op in part.ops[i]) for group in groups)
    return Part(nodes=tuple(nodes), ops=ops, forward=sum(group[0] < part.forward for group in groups))
