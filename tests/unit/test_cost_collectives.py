"""Collective costs against the ring formulas, worked out by hand."""

from __future__ import annotations

import pytest

from lynx_plan.cost.collectives import Collective, canonical, collective_ns
from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link

LINK = Link(bytes_per_s=1_000_000_000, latency_ns=100)  # a byte per nanosecond


@pytest.mark.parametrize(
    ("kind", "size", "payload", "expected"),
    [
        ("all_reduce", 4, 4000, 6 * 100 + 6000),
        ("all_reduce", 2, 1000, 2 * 100 + 1000),
        ("all_gather", 4, 4000, 3 * 100 + 3000),
        ("reduce_scatter", 4, 4000, 3 * 100 + 3000),
        ("all_to_all", 8, 8000, 7 * 100 + 7000),
        ("broadcast", 4, 4000, 6 * 100 + 6000),
        ("send", 2, 4000, 100 + 4000),
        ("recv", 2, 4000, 100 + 4000),
        ("all_reduce", 1, 4000, 0),
        ("all_reduce", 4, 0, 600),
    ],
)
def test_closed_forms(kind: str, size: int, payload: int, expected: int) -> None:
    assert collective_ns(kind, size, payload, LINK) == expected


def test_halves_are_rounded_up() -> None:
    half = Link(bytes_per_s=2_000_000_000, latency_ns=0)
    assert [collective_ns("send", 2, count, half) for count in (1, 2, 3)] == [1, 1, 2]
    assert collective_ns("send", 2, 1, Link(bytes_per_s=3_000_000_000, latency_ns=0)) == 0


def test_large_payloads_stay_exact() -> None:
    payload = 2**60 + 1
    assert collective_ns("send", 2, payload, LINK) == payload + 100


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("_c10d_functional.all_reduce", Collective.ALL_REDUCE),
        ("_c10d_functional.all_reduce_.default", Collective.ALL_REDUCE),
        ("_c10d_functional.reduce_scatter_tensor", Collective.REDUCE_SCATTER),
        ("_c10d_functional.all_gather_into_tensor.default", Collective.ALL_GATHER),
        ("_c10d_functional.all_to_all_single", Collective.ALL_TO_ALL),
        ("allgather", Collective.ALL_GATHER),
        ("c10d.allreduce_", Collective.ALL_REDUCE),
    ],
)
def test_every_way_to_write_a_kind(kind: str, expected: Collective) -> None:
    assert canonical(kind) is expected


def test_unknown_kinds_and_impossible_sizes_are_errors() -> None:
    with pytest.raises(LynxError, match=r"no cost formula for the collective 'aten\.mm'"):
        collective_ns("aten.mm", 2, 10, LINK)
    with pytest.raises(LynxError, match="0 ranks"):
        collective_ns("all_reduce", 0, 10, LINK)
    with pytest.raises(LynxError, match="no rate to price by"):
        collective_ns("all_reduce", 2, 10, Link(bytes_per_s=0, latency_ns=0, text="measured"))


@pytest.mark.parametrize("kind", [c.value for c in Collective])
def test_more_bytes_or_a_slower_link_never_cost_less(kind: str) -> None:
    times = [collective_ns(kind, 4, payload, LINK) for payload in (1, 1000, 10**6, 10**9)]
    assert times == sorted(times)
    assert times[0] < times[-1]
    slower = Link(bytes_per_s=LINK.bytes_per_s // 2, latency_ns=LINK.latency_ns)
    assert collective_ns(kind, 4, 10**6, slower) > times[2]
    later = Link(bytes_per_s=LINK.bytes_per_s, latency_ns=LINK.latency_ns * 2)
    assert collective_ns(kind, 4, 10**6, later) > times[2]


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    parts = sum(collective_ns(kind, 8, 8 * 10**6, LINK) for kind in ("reduce_scatter", "all_gather"))
    assert collective_ns("all_reduce", 8, 8 * 10**6, LINK) == parts
