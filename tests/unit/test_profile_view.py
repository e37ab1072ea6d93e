"""What `lynx inspect profile.json` says: reasons of collectives, holders of tensors, the floor of memory."""

from __future__ import annotations

import pytest

from lynx_plan import files
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.reasons import every, reason
from lynx_plan.model.graph import CostGraph, Role
from lynx_plan.report.profile_view import inspect_profile, profile_document
from lynx_plan.solve.planner import make_plan
from tests.unit.builders import megatron_graph
from tests.unit.source_tree import ROOT

SAMPLE = ROOT / "sample_profiles" / "gpt-1.3b-tp2-a100-80g-nvlink.profile.json.gz"


@pytest.fixture(scope="module")
def gpt() -> CostGraph:
    return files.load(SAMPLE, CostGraph)


def test_one_place_for_all_blocks():
    assert every("layers.3.mlp.experts.12.up") == "layers.*.mlp.experts.*.up"


def test_every_collective_of_a_gpt_has_its_reason(gpt: CostGraph):
    index = GraphIndex(gpt)
    found = {reason(index, op) for op in gpt.ops if op.role is Role.COLLECTIVE}
    for expected in (
        "sums the partial results of layers.*.attention.projection",
        "sums the partial results of layers.*.mlp.down",
        "sums the input gradients of layers.*.mlp.up",
        "sums the input gradients of layers.*.attention.qkv",
        "sums the partial results of embedding",
        "combines amax over the ranks of head",
    ):
        assert expected in found, sorted(found)


def test_rows_add_up_to_all_collectives_and_to_what_none_waits_for(gpt: CostGraph):
    plan = make_plan(gpt, algo="none", enforce_budget=False).plan
    view = inspect_profile(gpt, plan)
    collectives = [op for op in gpt.ops if op.role is Role.COLLECTIVE]
    assert sum(row.count for row in view.collectives) == len(collectives)
    assert sum(row.exposed_ns for row in view.collectives) == plan.predicted.comm_exposed_ns
    assert len(view.collectives) < 14


def test_the_largest_tensors_name_their_maker_and_who_needs_them(gpt: CostGraph):
    view = inspect_profile(gpt, make_plan(gpt, algo="none", enforce_budget=False).plan)
    sizes = [kept.bytes * kept.count for kept in view.largest]
    assert sizes == sorted(sizes, reverse=True)
    gelu = next(kept for kept in view.largest if kept.needed_by == ("gelu_backward of layers.*.mlp",))
    assert gelu.name == "addmm of layers.*.mlp.up"
    assert gelu.count == 24
    assert gelu.source.endswith(".py:191") or ".py:" in gelu.source


def test_the_floor_is_below_every_plan(gpt: CostGraph):
    floor = inspect_profile(gpt, make_plan(gpt, algo="none", enforce_budget=False).plan).floor
    assert dict(floor.static)["parameters"] == gpt.static.parameters_bytes
    full = make_plan(gpt, algo="full", enforce_budget=False).plan
    assert gpt.static.total_bytes < floor.total_bytes <= full.predicted.peak_bytes


def test_the_document_says_the_same():
    graph = megatron_graph(3)
    view = inspect_profile(graph, make_plan(graph, algo="none", enforce_budget=False).plan)
    document = profile_document(view)
    assert document["floor"]["total_bytes"] == view.floor.total_bytes
    assert [row["reason"] for row in document["collectives"]] == [row.reason for row in view.collectives]
    assert document["largest"][0]["needed_by"]
