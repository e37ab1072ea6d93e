"""What is to be measured: one item of JSON data per distinct op of a captured graph, and one for the optimizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from lynx_plan.analyze.classes import layer_classes
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.cost.data_parallel import Average
from lynx_plan.model.graph import HOST_KIND, CostGraph, Op, Role, StorageKind, Tensor
from lynx_plan.torch_rt import kept_block
from lynx_plan.torch_rt.measure_call import node_call, tensor_data
from lynx_plan.torch_rt.measure_reuse import COLD_BYTES, reuse_distances

if TYPE_CHECKING:
    from lynx_plan.torch_rt.capture import Captured

Item = dict[str, Any]


def op_items(captured: Captured) -> tuple[list[Item], tuple[int, ...]]:
    """The distinct items, and per op the index of its own; -1: the op costs nothing."""
    distances = _alike_in_a_class(captured.graph, reuse_distances(captured.graph))
    tensor_of = {node: tensor for tensor, node in enumerate(captured.values) if node is not None}
    found: dict[str, int] = {}
    items: list[Item] = []
    indices = []
    for op in captured.graph.ops:
        item = _item(captured, op, distances[op.id], tensor_of)
        if item is None:
            indices.append(-1)
            continue
        key = json.dumps(item, sort_keys=True)
        if key not in found:
            found[key] = len(items)
            items.append(item)
        indices.append(found[key])
    return items, tuple(indices)


def _alike_in_a_class(graph: CostGraph, distances: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The middle member's distances for every layer of a class: identical layers must cost the same."""
    alike = list(distances)
    for same in layer_classes(GraphIndex(graph), priced=False):
        middle = graph.layers[same.layers[len(same.layers) // 2]]
        for member in same.layers:
            for op, typical in zip(graph.layers[member].ops, middle.ops, strict=True):
                alike[op] = distances[typical]
    return tuple(alike)


def _item(captured: Captured, op: Op, distances: tuple[int, ...], tensor_of: dict[fx.Node, int]) -> Item | None:
    graph, node = captured.graph, captured.nodes[op.id]
    if op.role in (Role.VIEW, Role.WAIT) or op.kind.startswith(HOST_KIND) or op.kind in kept_block.KINDS:
        return None
    reuse = dict(zip(op.inputs, distances, strict=True))
    if node is None:  # an accumulation or a buffer update: a copy into static memory
        new = graph.tensors[op.inputs[0]]
        data = {**tensor_data(new.shape, new.stride, new.dtype), "reuse": distances[0]}
        return {"what": "accumulate", "new": data, "main": _static_like(graph, op, new)}
    call = node_call(node, lambda operand: reuse.get(tensor_of.get(operand, -1), COLD_BYTES), op.group_size)
    if op.role is Role.COLLECTIVE:
        if op.kind == "all_to_all":
            _exchange_equally(call["args"], op.group_size)
        return {"what": "collective", "call": call}
    return {"what": "op", "call": call}


def _exchange_equally(args: list[Any], ranks: int) -> None:
    """The same rows between all ranks, as many as the priced load has: what a rank sends, another must expect."""
    tensor, received, sent = args[0]["tensor"], *args[1:3]
    rows = -(-max(sum(received), sum(sent)) // ranks)
    tensor["shape"][0] = rows * ranks
    args[1], args[2] = [rows] * ranks, [rows] * ranks


def _static_like(graph: CostGraph, op: Op, new: Tensor) -> Item:
    """The main gradient that an accumulation writes: of the parameter's dtype, contiguous."""
    strides, step = [], 1
    for size in reversed(new.shape):
        strides.append(step)
        step *= max(size, 1)
    dtype = next((t.dtype for t in graph.tensors if t.producer < 0 and t.name == op.parameter), new.dtype)
    return tensor_data(new.shape, strides[::-1], dtype)


def average_items(average: Average) -> list[Item]:
    """The all-reduces of gradients at the end of a step, one per dtype."""
    items: list[Item] = []
    for dtype, size in average.bytes:
        data = tensor_data((size // getattr(torch, dtype).itemsize,), (1,), dtype)
        args = [{"tensor": {**data, "reuse": COLD_BYTES}}, "sum", {"group": average.ranks}]
        call = {"target": "_c10d_functional.all_reduce_.default", "args": args, "kwargs": {}}
        items.append({"what": "collective", "call": call})
    return items


def optimizer_item(graph: CostGraph, allowed_bytes: int) -> Item:
    """The optimizer step over as many of the parameters as `allowed_bytes` hold with gradients and state."""
    parameters: dict[int, Tensor] = {}
    for tensor in graph.tensors:
        if tensor.producer < 0 and graph.storages[tensor.storage].kind is StorageKind.PARAMETER:
            parameters.setdefault(tensor.storage, tensor)
    static = graph.static
    needed = static.parameters_bytes + static.gradients_bytes + static.optimizer_bytes
    total = sum(graph.storages[storage].bytes for storage in parameters)
    limit = total * min(1.0, allowed_bytes / max(needed, 1))
    taken, taken_bytes = [], 0
    for storage, tensor in parameters.items():
        size = graph.storages[storage].bytes
        if not taken or taken_bytes + size <= limit:
            taken.append({"shape": list(tensor.shape), "dtype": tensor.dtype})
            taken_bytes += size
    model = graph.model
    spec = {"path": model.path, "builder": model.builder, "arguments": [list(pair) for pair in model.arguments]}
    return {"what": "optimizer", "parameters": taken, "scale": total / max(taken_bytes, 1), "model": spec}
