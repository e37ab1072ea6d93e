"""Collectives on clusters of several levels: closed forms, and that more never costs less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lynx_plan.cost.collectives import collective_ns
from lynx_plan.cost.levels import Span, best_ns, spans
from lynx_plan.model.machine import Level, Link, Machine

NODE = Link(bytes_per_s=200 * 10**9, latency_ns=1000)
NET = Link(bytes_per_s=25 * 10**9, latency_ns=5000)
FLAT = Machine(name="flat", device="cuda", memory_bytes=1, margin_bytes=0, link=NODE)
CLUSTER = replace(FLAT, name="cluster", devices=8, levels=(Level(name="InfiniBand", link=NET),))
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
MB = 10**6


def test_a_group_spans_levels_by_its_size_and_stride():
    assert spans(CLUSTER, 8, 1) == (Span(8, NODE),)
    assert spans(CLUSTER, 4, 2) == (Span(4, NODE),)
    assert spans(CLUSTER, 32, 1) == (Span(8, NODE), Span(4, NET))
    assert spans(CLUSTER, 16, 4) == (Span(2, NODE), Span(8, NET))
    assert spans(CLUSTER, 4, 8) == (Span(4, NET),)
    assert spans(CLUSTER, 1, 1) == ()


def test_three_levels():
    rack = Link(bytes_per_s=10**9, latency_ns=9000)
    machine = replace(CLUSTER, levels=(Level(name="rack", devices=32, link=NET), Level(name="hall", link=rack)))
    assert spans(machine, 128, 1) == (Span(8, NODE), Span(4, NET), Span(4, rack))


@pytest.mark.parametrize("kind", [*KINDS, "send"])
def test_on_one_level_it_is_the_ring_as_ever(kind):
    for machine, size, stride in ((FLAT, 8, 1), (FLAT, 64, 8), (CLUSTER, 8, 1)):
        assert best_ns(kind, size, stride, 100 * MB, machine) == (collective_ns(kind, size, 100 * MB, NODE), "ring")
    assert best_ns(kind, 4, 8, MB, CLUSTER) == (collective_ns(kind, 4, MB, NET), "ring")


def test_a_large_all_reduce_takes_the_hierarchy_in_closed_form():
    payload = 800 * MB
    inside = 2 * (7 * 1000 + payload * 7 // 8 * 10**9 // NODE.bytes_per_s)
    across = 2 * (3 * 5000 + payload // 8 * 3 // 4 * 10**9 // NET.bytes_per_s)
    found, name = best_ns("all_reduce", 32, 1, payload, CLUSTER)
    ring = 2 * 31 * 5000 + 2 * payload * 31 // 32 * 10**9 // NODE.bytes_per_s  # 8 rails: 8 x 25 GB/s
    tree = 2 * (7 * 1000 + 2 * 5000) + 2 * payload * 10**9 // NODE.bytes_per_s
    assert found == pytest.approx(min(inside + across, ring, tree), abs=8)
    assert name == min({"hierarchy": inside + across, "ring": ring, "tree": tree}.items(), key=lambda pair: pair[1])[0]


def test_a_small_all_reduce_over_many_nodes_takes_the_tree():
    found, name = best_ns("all_reduce", 512, 1, 8, CLUSTER)
    assert (found, name) == (2 * (7 * 1000 + 6 * 5000), "tree")


def test_slow_rails_make_the_hierarchy_win():
    slow = replace(CLUSTER, levels=(Level(name="Ethernet", link=Link(bytes_per_s=10**9, latency_ns=20_000)),))
    assert best_ns("all_gather", 16, 1, 100 * MB, slow)[1] == "hierarchy"
    assert best_ns("all_to_all", 64, 1, MB, slow)[1] == "hierarchy"


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_payload_or_group_never_costs_less(kind):
    times = [best_ns(kind, 32, 1, payload, CLUSTER)[0] for payload in (0, 1000, MB, 10 * MB, 1000 * MB)]
    assert times == sorted(times)
    times = [best_ns(kind, size, 1, 10 * MB, CLUSTER)[0] for size in (1, 2, 4, 8, 16, 32, 64)]
    assert times == sorted(times)


def test_a_send_takes_the_link_of_its_distance():
    assert best_ns("send", 2, 1, MB, CLUSTER)[0] == collective_ns("send", 2, MB, NODE)
    assert best_ns("send", 2, 8, MB, CLUSTER)[0] == collective_ns("send", 2, MB, NET)
