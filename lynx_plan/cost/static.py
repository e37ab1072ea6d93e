"""Static memory by precision recipe and sharding: what parameters, gradients and optimizer states take on one rank.

Bytes per trained parameter (weight, main gradient, optimizer states), as in Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models" (2020), section 3, and Megatron-LM's accounting (18 bytes).
Sharding over d ranks of the data-parallel group divides the states (ZeRO 1), also the gradients (2), also the
parameters (3) by d; the layer that is at work is then whole for a while: a stated workspace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from lynx_plan.cost.levels import spans
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, Role, StaticMemory, StorageKind
from lynx_plan.model.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Bytes per trained parameter."""

    weight: int
    gradient: int
    states: int
    text: str


RECIPES = {
    "mixed-adam": Recipe(weight=2, gradient=4, states=12, text="16-bit weights, fp32 main gradients, master, moments"),
    "mixed-adam-grad16": Recipe(weight=2, gradient=2, states=12, text="16-bit weights and gradients, fp32 states"),
    "bf16-adam": Recipe(weight=2, gradient=2, states=4, text="everything in 16 bits, two moments"),
    "fp32-adam": Recipe(weight=4, gradient=4, states=8, text="everything in fp32, two moments"),
}
SHARDS = ("none", "optimizer", "gradients", "parameters")


def with_static(graph: CostGraph, machine: Machine, *, recipe: str, shard: str, within: str) -> CostGraph:
    """The graph with static memory by `recipe` ("model": as traced), sharded (`SHARDS`) over the data-parallel ranks.

    `within`: "all" of them, or those in one "node" of `machine`. Raises LynxError for an unknown name, weights of
    another width than the recipe's, or nothing to shard over.
    """
    static = graph.static if recipe == "model" else _by_recipe(graph, _known(recipe))
    static = replace(static, recipe=recipe)
    if shard == "none":
        return replace(graph, static=static)
    if shard not in SHARDS:
        raise LynxError(f"no sharding '{shard}'", where="--shard", hint=f"known: {', '.join(SHARDS)}")
    ranks = shard_ranks(graph, machine, within)
    if ranks < 2:
        hint = "add data-parallel ranks, such as --dp 8, or leave out --shard"
        raise LynxError("there are no data-parallel ranks to shard over", where="--shard", hint=hint)
    return replace(graph, static=_sharded(graph, static, shard, ranks))


def trained_parameters(graph: CostGraph) -> int:
    """Elements of the parameters that the step trains, on this rank."""
    trained = {op.parameter: op.inputs[0] for op in graph.ops if op.role is Role.ACCUMULATE}
    return sum(prod(graph.tensors[tensor].shape) for tensor in trained.values())


def optimizer_bytes_moved(static: StaticMemory) -> int:
    """Bytes that this rank's optimizer step reads and writes: parameters and states both, gradients read."""
    index = SHARDS.index(static.sharded)
    whole = [
        value * (static.shards if index >= least else 1)
        for value, least in ((static.parameters_bytes, 3), (static.optimizer_bytes, 1), (static.gradients_bytes, 2))
    ]
    return ceil((2 * (whole[0] + whole[1]) + whole[2]) / static.shards)


def shard_ranks(graph: CostGraph, machine: Machine, within: str) -> int:
    """Ranks with the same parameters, of dp and cp; with `within` "node" those of one node."""
    mesh = dict(graph.mesh)
    size = mesh.get("dp", 1) * mesh.get("cp", 1)
    if within == "all" or machine.devices == 0:
        return size
    parts = spans(machine, size, mesh.get("ep", 1) * mesh.get("tp", 1))
    return parts[0].members if parts and parts[0].link == machine.link else 1


def _known(recipe: str) -> Recipe:
    if recipe not in RECIPES:
        raise LynxError(f"no recipe '{recipe}'", where="--recipe", hint=f"known: model, {', '.join(RECIPES)}")
    return RECIPES[recipe]


def _by_recipe(graph: CostGraph, recipe: Recipe) -> StaticMemory:
    count = trained_parameters(graph)
    width = sum(s.bytes for s in graph.storages if s.kind is StorageKind.GRADIENT)  # gradients are like parameters
    if width != count * recipe.weight:
        raise LynxError(
            f"the model's trained parameters take {width / max(1, count):.1f} bytes each, the recipe's {recipe.weight}",
            where="--recipe",
            hint="build the model in the recipe's dtype, such as --arg dtype=bfloat16",
        )
    return replace(graph.static, gradients_bytes=count * recipe.gradient, optimizer_bytes=count * recipe.states)


def _sharded(graph: CostGraph, static: StaticMemory, shard: str, ranks: int) -> StaticMemory:
    index = SHARDS.index(shard)
    part = [
        ceil(value / ranks) if index >= least else value
        for value, least in ((static.optimizer_bytes, 1), (static.gradients_bytes, 2), (static.parameters_bytes, 3))
    ]
    layer = _largest_layer(graph)
    return replace(
        static,
        optimizer_bytes=part[0],
        gradients_bytes=part[1],
        parameters_bytes=part[2],
        workspace_bytes=static.workspace_bytes + layer * (index >= 2) + 2 * layer * (index == 3),
        sharded=shard,
        shards=ranks,
    )


def _largest_layer(graph: CostGraph) -> int:
    """Bytes of the parameters that one layer reads, at most: gathered for it, and its gradients before they are cut."""
    most = 0
    for layer in graph.layers:
        read = {graph.tensors[tensor].storage for op in layer.ops for tensor in graph.ops[op].inputs}
        most = max(most, sum(graph.storages[s].bytes for s in read if graph.storages[s].kind is StorageKind.PARAMETER))
    return most
