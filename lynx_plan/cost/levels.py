"""What a collective costs on a cluster of several levels: the best of a flat ring, trees and a hierarchy of rings.

A group of n members, m_i of them joined at level i (product n), on links of latency a_i and rate b_i per device. All
devices of a block use their own links outwards at once, so a block of k devices has k b_i between blocks.

ring: one ring over all members. Steps and shares as on one level (collectives.py), at the slowest level's rate,
    min over i of k_i b_i with k_i the members inside; latency steps at the outermost level's a.
tree: chains inside the innermost level, double binary trees between its blocks (all_reduce only; Sanders, Speck,
    Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009), up and down:
    2 ((m_1 - 1) a_1 + ceil(log2(n / m_1)) a) + 2 S / b, with a of the outermost level and b as for the ring.
hierarchy: rings level by level. all_reduce: reduce-scatter from inside out, all-reduce at the outermost level,
    all-gather back; the payload at level i is S over the members inside it. all_gather and reduce_scatter: one way of
    that. all_to_all: one exchange per level of the whole payload. broadcast: scatter and all-gather, as all_reduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from lynx_plan.cost.collectives import Collective, canonical, collective_ns
from lynx_plan.model.machine import Link, Machine

_TWO_WAY = (Collective.ALL_REDUCE, Collective.BROADCAST)


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a group that one level joins: so many blocks of the level inside it."""

    members: int
    link: Link


def spans(machine: Machine, size: int, stride: int) -> tuple[Span, ...]:
    """The levels that a group of `size` ranks, each `stride` ranks after the last, spreads over, from inside out."""
    found: list[Span] = []
    inside = 1
    for devices, link in ((machine.devices, machine.link), *((level.devices, level.link) for level in machine.levels)):
        reached = size if devices == 0 else max(inside, min(size, devices // stride))
        if reached > inside:
            found.append(Span(ceil(reached / inside), link))
            inside = reached
    if inside < size:  # beyond the outermost level that is stated
        found.append(Span(ceil(size / inside), (machine.levels[-1].link if machine.levels else machine.link)))
    return tuple(found)


def best_ns(kind: str, size: int, stride: int, payload_bytes: int, machine: Machine) -> tuple[int, str]:
    """Nanoseconds of a collective by the best algorithm, and its name: "ring", "tree" or "hierarchy".

    On one level it is the ring. `payload_bytes` are those of the full tensor.
    """
    parts = spans(machine, size, stride)
    if not parts:
        return 0, "ring"
    if len(parts) == 1:
        return collective_ns(kind, size, payload_bytes, parts[0].link), "ring"
    collective = canonical(kind)
    choices = {"ring": _ring_ns(kind, parts, payload_bytes)}
    if collective in (Collective.SEND, Collective.RECV):
        return choices["ring"], "ring"
    if collective is Collective.ALL_REDUCE:
        choices["tree"] = _tree_ns(parts, payload_bytes)
    choices["hierarchy"] = _hierarchy_ns(collective, parts, payload_bytes)
    name = min(choices, key=lambda choice: (choices[choice], choice))
    return choices[name], name


def _slowest(parts: tuple[Span, ...]) -> Link:
    """Rate of the level that holds a flat algorithm back, latency of the outermost."""
    rates, inside = [], 1
    for part in parts:
        rates.append(inside * part.link.bytes_per_s)
        inside *= part.members
    return Link(bytes_per_s=min(rates), latency_ns=parts[-1].link.latency_ns)


def _members(parts: tuple[Span, ...]) -> int:
    total = 1
    for part in parts:
        total *= part.members
    return total


def _ring_ns(kind: str, parts: tuple[Span, ...], payload: int) -> int:
    if canonical(kind) in (Collective.SEND, Collective.RECV):
        return collective_ns(kind, 2, payload, parts[-1].link)
    if canonical(kind) is Collective.ALL_TO_ALL:
        return _direct_ns(parts, payload)
    return collective_ns(kind, _members(parts), payload, _slowest(parts))


def _direct_ns(parts: tuple[Span, ...], payload: int) -> int:
    """Every member sends to every other: what crosses a level goes over its own links, all levels at once."""
    total, inside, longest = _members(parts), 1, 0
    for part in parts:
        crossing = payload * (part.members - 1) * inside // total
        longest = max(
            longest, collective_ns("send", 2, crossing, Link(bytes_per_s=part.link.bytes_per_s, latency_ns=0))
        )
        inside *= part.members
    return (total - 1) * parts[-1].link.latency_ns + longest


def _tree_ns(parts: tuple[Span, ...], payload: int) -> int:
    inner, slowest = parts[0], _slowest(parts)
    hops = ceil(log2(_members(parts) / inner.members))
    latency = (inner.members - 1) * inner.link.latency_ns + hops * slowest.latency_ns
    moved = collective_ns("send", 2, payload, Link(bytes_per_s=slowest.bytes_per_s, latency_ns=0))
    return 2 * (latency + moved)


def _hierarchy_ns(collective: Collective, parts: tuple[Span, ...], payload: int) -> int:
    if collective is Collective.ALL_TO_ALL:
        return sum(collective_ns("all_to_all", part.members, payload, part.link) for part in parts)
    ways = 2 if collective in _TWO_WAY else 1
    total, inside = 0, 1
    for part in parts:
        total += ways * collective_ns("all_gather", part.members, payload // inside, part.link)
        inside *= part.members
    return total
