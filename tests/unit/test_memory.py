"""The memory curve: closed forms on chains."""

from __future__ import annotations

import pytest

from lynx_plan.analyze.flow import resolve
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import MemoryCurve, memory_curve
from tests.unit.builders import chain_graph, plain_order


@pytest.mark.parametrize("length", [2, 3, 10])
def test_a_chain_peaks_at_its_first_backward_op(length: int) -> None:
    graph = chain_graph(length, size=100)
    items = plain_order(graph)
    curve = memory_curve(graph, items, resolve(graph, items))
    assert curve.bytes[:length] == tuple(100 * (i + 1) for i in range(length))
    assert curve.peak_bytes == 100 * (length + 1)  # all activations, and the first gradient
    assert curve.peak_position == length


def test_recomputing_one_activation_of_a_chain() -> None:
    graph = chain_graph(4, size=1)  # f0 f1 f2 f3 b3 b2 [f0r1] b1 b0 accumulate
    items = (*map(Item, range(6)), Item(0, 1), *map(Item, range(6, 9)))
    assert memory_curve(graph, items, resolve(graph, items)) == MemoryCurve(
        bytes=(1, 2, 2, 3, 4, 4, 3, 4, 3, 2), peak_bytes=4, peak_position=4
    )


def test_an_empty_order_needs_nothing() -> None:
    graph = chain_graph(2)
    assert memory_curve(graph, (), resolve(graph, ())) == MemoryCurve(bytes=(), peak_bytes=0, peak_position=0)
