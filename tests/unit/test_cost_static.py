"""Static memory by recipe and sharding, in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lynx_plan import files
from lynx_plan.cost.roofline import price
from lynx_plan.cost.static import RECIPES, optimizer_bytes_moved, shard_ranks, trained_parameters, with_static
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.machine import Level, Machine
from tests.unit.source_tree import ROOT

SAMPLE = ROOT / "sample_profiles" / "gpt-1.3b-tp2-a100-80g-nvlink.profile.json.gz"


@pytest.fixture(scope="module")
def gpt() -> CostGraph:
    """bf16; two of its ranks hold a copy each (dp 8 is put on top of its tp 2)."""
    return replace(files.load(SAMPLE, CostGraph), mesh=(("dp", 8), ("tp", 2)))


def held(
    gpt: CostGraph, recipe: str = "model", shard: str = "none", within: str = "all", **machine: object
) -> CostGraph:
    target = replace(gpt.machine, **machine)
    return with_static(gpt, target, recipe=recipe, shard=shard, within=within)


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.weight == 2])
def test_bytes_per_parameter(gpt: CostGraph, name: str):
    count, recipe = trained_parameters(gpt), RECIPES[name]
    static = held(gpt, name).static
    assert static.parameters_bytes == count * 2  # all are trained
    assert static.gradients_bytes == count * recipe.gradient
    assert static.optimizer_bytes == count * recipe.states
    whole = static.parameters_bytes + static.gradients_bytes + static.optimizer_bytes
    assert whole == count * {"mixed-adam": 18, "mixed-adam-grad16": 16, "bf16-adam": 8}[name]


def test_sharding_divides_as_zero_does(gpt: CostGraph):
    count = trained_parameters(gpt)
    none, one, two, three = (
        held(gpt, "mixed-adam", shard).static for shard in ("none", "optimizer", "gradients", "parameters")
    )
    eighth = lambda value: -(-value // 8)  # noqa: E731
    assert (one.parameters_bytes, one.gradients_bytes, one.optimizer_bytes) == (
        2 * count,
        4 * count,
        eighth(12 * count),
    )
    assert (two.gradients_bytes, two.optimizer_bytes) == (eighth(4 * count), eighth(12 * count))
    assert three.parameters_bytes == eighth(2 * count)
    assert none.workspace_bytes == one.workspace_bytes == 0 < two.workspace_bytes < three.workspace_bytes
    assert none.total_bytes > one.total_bytes > two.total_bytes > three.total_bytes
    assert (three.sharded, three.shards) == ("parameters", 8)


def test_the_optimizers_traffic_follows(gpt: CostGraph):
    plain = held(gpt, "mixed-adam")
    for shard in ("optimizer", "gradients", "parameters"):
        sharded = held(gpt, "mixed-adam", shard)
        moved = optimizer_bytes_moved(sharded.static)
        assert moved == pytest.approx(optimizer_bytes_moved(plain.static) / 8, rel=1e-6)
        # both end with the same average of gradients over the data-parallel ranks
        saved = price(plain, gpt.machine, None).optimizer_ns - price(sharded, gpt.machine, None).optimizer_ns
        assert saved > 5 / 6 * optimizer_bytes_moved(plain.static) * 10**9 / gpt.machine.memory_bytes_per_s


def test_within_a_node(gpt: CostGraph):
    level = Level(name="InfiniBand", link=gpt.machine.link)
    machine = replace(gpt.machine, devices=8, levels=(replace(level, link=replace(level.link, bytes_per_s=10**9)),))
    assert shard_ranks(gpt, machine, "node") == 4  # 8 devices, 2 of them one copy
    assert shard_ranks(gpt, machine, "all") == 8
    graph = with_static(gpt, machine, recipe="model", shard="optimizer", within="node")
    assert graph.static.shards == 4


def test_as_traced_is_as_before(gpt: CostGraph):
    assert held(gpt).static == gpt.static
    assert (
        optimizer_bytes_moved(gpt.static)
        == 2 * (gpt.static.parameters_bytes + gpt.static.optimizer_bytes) + gpt.static.gradients_bytes
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "magic"}, "no recipe 'magic'"),
        ({"recipe": "fp32-adam"}, "take 2.0 bytes each, the recipe's 4"),
        ({"shard": "everything"}, "no sharding"),
    ],
)
def test_what_makes_no_sense_is_refused(gpt: CostGraph, changes: dict[str, str], message: str):
    with pytest.raises(LynxError, match=message):
        held(gpt, **changes)


def test_sharding_needs_ranks_to_shard_over(gpt: CostGraph):
    machine: Machine = gpt.machine
    with pytest.raises(LynxError, match="no data-parallel ranks"):
        with_static(replace(gpt, mesh=(("tp", 2),)), machine, recipe="model", shard="optimizer", within="all")
