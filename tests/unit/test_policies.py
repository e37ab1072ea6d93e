"""Bytes of a layer's policies are those of the exact simulator, in a stack of equal layers."""

from __future__ import annotations

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.solve.analysis import Analysis, analysis_of
from lynx_plan.solve.layer_memory import LayerMemory
from lynx_plan.solve.order import Decisions, build_order
from lynx_plan.solve.policies import Policy, frontier
from lynx_plan.solve.score import Scored, score
from lynx_plan.solve.stage_model import LayerModel, StageModel
from tests.unit.builders import Sizes, megatron_graph

CASES = {
    "windows with little room": Sizes(),
    "short collectives": Sizes(comm_ns=200_000),
    "windows with much room": Sizes(comm_ns=6_000_000),
    "dropout": Sizes(dropout=True),
}


class Stack:
    """A uniform stack, and its layers as HEU reads them."""

    def __init__(self, sizes: Sizes) -> None:
        graph = megatron_graph(4, sizes)
        self.index = GraphIndex(graph)  # what is known of a graph lives as long as its index
        self.analysis: Analysis = analysis_of(self.index)
        self.stage = StageModel(self.analysis.candidates, self.analysis.none)
        self.layers = [layer.id for layer in self.stage.graph.layers if layer.name.startswith("layers.")]
        self.position = {item.op: n for n, item in enumerate(self.analysis.none.items)}

    def plan(self, model: LayerModel, policy: Policy) -> Scored:
        """The exact simulation of one layer under a policy, all others keeping everything."""
        pairs = zip(model.facts.candidates, policy.places, strict=True)
        placements = tuple(self.stage.placement(c.ops[0], place) for c, place in pairs if place is not None)
        items = build_order(self.analysis.index, Decisions(placements=placements), skeleton=self.analysis.skeleton)
        assert tuple(item for item in items if not item.replica) == self.analysis.none.items
        return score(self.stage.graph, items)

    def peak(self, model: LayerModel, plan: Scored) -> int:
        """Highest bytes while the layer runs: its forward, and from its first copy or backward op on."""
        spots = [self.position[op] for op in self.stage.graph.layers[model.layer].ops]
        forward = [spot for spot in spots if spot < self.stage.forward_end]
        backward = [spot for spot in spots if spot >= self.stage.forward_end]
        start = min(LayerMemory(model).first_place, *backward)
        near = {*range(min(forward), max(forward) + 1), *range(start, max(backward) + 1)}
        highest, after = 0, len(self.position)
        for item, size in zip(reversed(plan.items), reversed(plan.memory.bytes), strict=True):
            after = after if item.replica else self.position[item.op]
            highest = max(highest, size if after in near else 0)
        return highest


def stretched_bytes(model: LayerModel, policy: Policy) -> int:
    """Bytes that a copy reads after backward has read them for the last time: they live on until the copy, which no
    row of the model says."""
    candidates = model.facts.candidates
    return sum(
        piece.bytes
        for candidate, place in zip(candidates, policy.places, strict=True)
        for source in candidate.sources
        for piece in candidates[source].read_pieces
        if place is not None and source not in candidate.held_sources and int(piece.last_read[0]) < place.at
    )


@pytest.mark.parametrize("sizes", CASES.values(), ids=list(CASES))
def test_freed_bytes_are_those_of_the_simulator(sizes: Sizes) -> None:
    stack = Stack(sizes)
    end = stack.stage.forward_end - 1
    none = stack.analysis.none.memory.bytes[end]
    for layer in stack.layers:
        model = stack.stage.layer(layer)
        policies = frontier(stack.stage, model, None, thorough=True)
        assert len(policies) > 5
        assert max(policy.freed_bytes for policy in policies) > sizes.hidden
        for policy in policies:
            assert none - stack.plan(model, policy).memory.bytes[end] == policy.freed_bytes


@pytest.mark.parametrize("sizes", CASES.values(), ids=list(CASES))
def test_peaks_are_those_of_the_simulator(sizes: Sizes) -> None:
    stack = Stack(sizes)
    for layer in stack.layers:
        model = stack.stage.layer(layer)
        policies = frontier(stack.stage, model, None, thorough=True)
        same = 0
        for policy in policies:
            exact = stack.peak(model, stack.plan(model, policy))
            stretched = stretched_bytes(model, policy)
            assert policy.peak_bytes + stretched >= exact
            same += not stretched and policy.peak_bytes == exact
        assert same


@pytest.mark.parametrize("sizes", CASES.values(), ids=list(CASES))
def test_no_policy_is_beaten_by_another(sizes: Sizes) -> None:
    """Keeping everything is one of them, and frees and costs nothing."""
    stack = Stack(sizes)
    policies = frontier(stack.stage, stack.stage.layer(stack.layers[1]), None, thorough=True)
    points = [(policy.cost_ns, -policy.freed_bytes, policy.peak_bytes) for policy in policies]
    for n, point in enumerate(points):
        others = points[:n] + points[n + 1 :]
        assert not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in others), point
    kept = [policy for policy in policies if not any(policy.places)]
    assert [(policy.cost_ns, policy.freed_bytes) for policy in kept] == [(0.0, 0.0)]
