"""Why a collective exists, read off the graph: what it sums, gathers or sends, for which module, in which pass."""

from __future__ import annotations

import re

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import Op, Phase, Role, StorageKind

_PLACE = re.compile(r"\.\d+")
# Ops that sum over a dimension that tensor parallelism splits, or over a split vocabulary.
_PARTIAL = ("mm", "addmm", "bmm", "baddbmm", "_unsafe_view", "embedding", "masked_fill", "convolution", "attention")


def every(module: str) -> str:
    """`layers.*.mlp.up` for `layers.3.mlp.up`: the same place in every repeated block."""
    return _PLACE.sub(".*", module)


def place(index: GraphIndex, op: Op) -> str:
    """Where an op belongs: its module, or its layer if it has none, the same for every repeated block."""
    return every(op.module or index.graph.layers[index.op_layer[op.id]].name)


def reason(index: GraphIndex, op: Op) -> str:
    """One clause, such as `sums the partial results of layers.*.mlp.down`. The op is a collective."""
    kind = op.kind.removesuffix(".default").rpartition(".")[2]
    if parameter := _accumulated(index, op):
        return f"{'sums and scatters' if kind == 'reduce_scatter' else 'sums'} the gradient of {every(parameter)}"
    if parameter := _parameter(index, op):
        again = "" if op.phase is Phase.FORWARD else " again"
        return f"gathers the parameters of {every(parameter)}{again}"
    own = place(index, op)
    return _forward(index, op, kind, own) if op.phase is Phase.FORWARD else _backward(kind, own)


def _forward(index: GraphIndex, op: Op, kind: str, own: str) -> str:
    maker, reader = _maker(index, op), _reader(index, op)
    made = place(index, maker) if maker is not None else own
    how = _kind(maker) if maker is not None else _PARTIAL[0]
    match kind:
        case "all_reduce" if how in _PARTIAL:
            return f"sums the partial results of {made}"
        case "all_reduce":
            return f"combines {how} over the ranks of {made}"
        case "reduce_scatter":
            return f"sums the partial results of {made} and scatters them"
        case "all_gather":
            return f"gathers the shards that {reader or own} needs whole"
        case "all_to_all":
            return f"exchanges shards between {made} and {reader or own}"
    return f"moves results of {made}"


def _backward(kind: str, own: str) -> str:
    match kind:
        case "all_reduce":
            return f"sums the input gradients of {own}"
        case "reduce_scatter":
            return f"sums the input gradients of {own} and scatters them"
        case "all_gather":
            return f"gathers the output gradients of {own}"
        case "all_to_all":
            return f"exchanges gradients of {own}"
    return f"moves gradients of {own}"


def _kind(op: Op) -> str:
    return op.kind.removeprefix("aten.").partition(".")[0]


def _maker(index: GraphIndex, op: Op) -> Op | None:
    """The op behind the first input, through views, waits and sums; None for an input of the graph."""
    graph, tensor = index.graph, op.inputs[0]
    while (producer := graph.tensors[tensor].producer) >= 0:
        found = graph.ops[producer]
        if found.role not in (Role.VIEW, Role.WAIT):
            return found
        tensor = found.inputs[0]
    return None


def _parameter(index: GraphIndex, op: Op) -> str:
    """The parameter that is sent, through views; "" if it is something else."""
    graph = index.graph
    for tensor in op.inputs:
        storage = graph.storages[graph.tensors[tensor].storage]
        if storage.kind is StorageKind.PARAMETER:
            names = [graph.tensors[t].name for t in index.storage_tensors[storage.id] if graph.tensors[t].producer < 0]
            return names[0] if names else ""
    return ""


def _after(index: GraphIndex, op: Op) -> list[Op]:
    """The ops that read the result, through its wait and views."""
    graph, found, open_ = index.graph, [], list(op.outputs)
    while open_:
        for reader in (graph.ops[r] for r in index.consumers[open_.pop()]):
            if reader.role in (Role.WAIT, Role.VIEW):
                open_ += reader.outputs
            else:
                found.append(reader)
    return found


def _accumulated(index: GraphIndex, op: Op) -> str:
    """The parameter whose gradient the result is; "" if it is read for something else."""
    readers = _after(index, op)
    if readers and all(reader.role is Role.ACCUMULATE for reader in readers):
        return readers[0].parameter
    return ""


def _reader(index: GraphIndex, op: Op) -> str:
    readers = sorted(_after(index, op), key=lambda reader: reader.id)
    return place(index, readers[0]) if readers else ""
