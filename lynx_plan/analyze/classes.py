"""Layer classes: layers with the same ops, shapes and wiring, found by hashing positions, never names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import CostGraph, Op, Phase, Tensor

_INDEXED = re.compile(r"^(.*?)(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerClass:
    """Layers (ids, ascending) that one policy fits: same op lines; if priced, same costs too."""

    digest: str
    name: str
    layers: tuple[int, ...]


def layer_classes(index: GraphIndex, *, priced: bool) -> tuple[LayerClass, ...]:
    """The classes of a graph's layers, by first member. `digest` is the sha256 of the op lines (and costs)."""
    members: dict[tuple[str, ...], list[int]] = {}
    for layer in index.graph.layers:
        lines = op_lines(index, layer.id)
        costs = tuple(_cost_line(index.graph.ops[op]) for op in layer.ops) if priced else ()
        members.setdefault(lines + costs, []).append(layer.id)
    names = [layer.name for layer in index.graph.layers]
    return tuple(
        LayerClass(digest=_sha256(lines), name=class_name([names[i] for i in layers]), layers=tuple(layers))
        for lines, layers in members.items()
    )


def op_lines(index: GraphIndex, layer: int) -> tuple[str, ...]:
    """One canonical line per op of a layer: what it is, what it reads, what it makes.

    Equal for layers that are interchangeable. `#3.1` is output 1 of the layer's op 3; `<0` and `>0` are the first
    tensors from earlier and from later layers, in order of first use, so that it does not matter which layer is
    next; `%2` is the layer's third storage, which shows aliasing; a trailing `>fb` or `<b` says that forward or
    backward ops of later or earlier layers read the output, and `!` that it is an output of the graph.
    """
    writer = _LineWriter(index, layer)
    return tuple([writer.line(index.graph.ops[op]) for op in index.graph.layers[layer].ops])


def structure_digest(graph: CostGraph) -> str:
    """sha256 of what a plan binds to: ops, wiring, storages, layers, mesh, parameter bytes.

    Left out: costs, machine, torch version, names of ops and tensors, module paths, source lines.
    """
    structure = {
        "ops": [_op_structure(op) for op in graph.ops],
        "tensors": [(t.storage, t.producer, t.dtype, t.shape, t.stride) for t in graph.tensors],
        "storages": [(s.bytes, s.kind) for s in graph.storages],
        "layers": [(layer.name, layer.ops) for layer in graph.layers],
        "outputs": graph.outputs,
        "mesh": graph.mesh,
        "parameters_bytes": graph.static.parameters_bytes,
    }
    return _sha256([json.dumps(structure, separators=(",", ":"))])


def class_name(names: Sequence[str]) -> str:
    """A short name for layers: `head`, `layers.0-43`, `layers.0,2-5`; by number where they share a prefix."""
    matches = [_INDEXED.match(name) for name in names]
    prefixes = {match[1] for match in matches if match}
    if len(names) == 1 or len(prefixes) != 1 or None in matches:
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} like it"
    ranges: list[tuple[int, int]] = []
    for number in sorted(int(match[2]) for match in matches if match):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    if len(ranges) > 4:
        return f"{names[0]} and {len(names) - 1} like it"
    return prefixes.pop() + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _op_structure(op: Op) -> tuple[object, ...]:
    what = (op.kind, op.role, op.phase, op.attributes, op.rng, op.effect, op.parameter)
    return (*what, op.inputs, op.outputs, op.group, op.group_size, op.comm_bytes)


def _cost_line(op: Op) -> str:
    return f"{op.time_ns} {op.comm_ns} {op.steal_ns} {op.steal_span_ns} {op.flops} {op.bytes}"


def _sha256(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class _LineWriter:
    """Writes the lines of one layer; numbers boundary tensors and storages in order of first use."""

    def __init__(self, index: GraphIndex, layer: int) -> None:
        self.index = index
        self.graph = index.graph
        self.layer = layer
        self.known: dict[int, str] = {}  # tensor id -> its reference
        self.storages: dict[int, str] = {}  # storage id -> its label
        self.earlier = self.later = 0  # boundary tensors so far
        self.graph_outputs = frozenset(index.graph.outputs)

    def line(self, op: Op) -> str:
        reads = ", ".join([self.known.get(tensor) or self.boundary(tensor) for tensor in op.inputs])
        slot = self.index.op_slot[op.id]
        makes = ", ".join([self.output(tensor, slot, port) for port, tensor in enumerate(op.outputs)])
        words = [op.kind, op.phase.value, op.role.value]
        if op.attributes:
            words.append(f"[{op.attributes}]")
        if op.group:
            words.append(f"{op.group}x{op.group_size}:{op.comm_bytes}")
        words += [word for word, given in (("rng", op.rng), ("effect", op.effect)) if given]
        return f"{' '.join(words)} ({reads}) -> ({makes})"

    def boundary(self, tensor: int) -> str:
        """Describe a tensor from outside the layer at its first use; its short reference serves afterwards."""
        record = self.graph.tensors[tensor]
        if record.producer < 0:
            reference = self.graph.storages[record.storage].kind.value
        elif self.index.op_layer[record.producer] < self.layer:
            reference, self.earlier = f"<{self.earlier}", self.earlier + 1
        else:
            reference, self.later = f">{self.later}", self.later + 1
        label = self.label(record.storage)
        self.known[tensor] = f"{reference}{label}" if record.producer < 0 else reference
        return f"{reference}{label} {_shape(record)}"

    def output(self, tensor: int, slot: int, port: int) -> str:
        record = self.graph.tensors[tensor]
        self.known[tensor] = f"#{slot}.{port}" if port else f"#{slot}"
        size = f" {self.graph.storages[record.storage].bytes}B" if record.storage not in self.storages else ""
        return f"{_shape(record)} {self.label(record.storage)}{size}{self.readers(tensor)}"

    def label(self, storage: int) -> str:
        if storage not in self.storages:
            self.storages[storage] = f"%{len(self.storages)}"
        return self.storages[storage]

    def readers(self, tensor: int) -> str:
        """Who reads the tensor outside this layer."""
        index, ops = self.index, self.graph.ops
        marks = set()
        for op in index.consumers[tensor]:
            layer = index.op_layer[op]
            if layer != self.layer:
                marks.add((layer < self.layer, ops[op].phase is not Phase.FORWARD))
        text = ""
        for earlier, sign in ((False, ">"), (True, "<")):
            phases = [letter for backward, letter in ((False, "f"), (True, "b")) if (earlier, backward) in marks]
            text += f" {sign}{''.join(phases)}" if phases else ""
        return text + (" !" if tensor in self.graph_outputs else "")


def _shape(tensor: Tensor) -> str:
    """`float32[8,16]`, with the strides after it where they are not the contiguous ones."""
    text = f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    expected, contiguous = 1, True
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=False):
        contiguous = contiguous and (size == 1 or stride == expected)
        expected *= size
    return text if contiguous else f"{text}@[{','.join(map(str, tensor.stride))}]"
