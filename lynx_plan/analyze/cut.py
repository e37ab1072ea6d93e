"""Cut a cost graph into pipeline stages: a graph for each, and what crosses between them."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.layer_static import LayerStatic
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, Layer, Op, Phase, Role, Storage, StorageKind, Tensor

HINT = "put both layers into one stage, such as with another --split"
_BITS = re.compile(r"^(?:bfloat|float|complex|uint|int)(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A value that one stage sends to another, once per microbatch. Ids are those of the whole graph.

    `views`: other tensors that the receiver reads and that are the same bytes. `backward`: it travels with the
    backward pass, to an earlier stage. `bytes`: of the contiguous tensor.
    """

    tensor: int
    name: str
    sender: int
    receiver: int
    backward: bool
    bytes: int
    views: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A parameter that ops of two stages read: both hold it. `stages` are ascending."""

    parameter: str
    storage: int  # id in the whole graph
    stages: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGraph:
    """One stage: a graph of its own (execution order kept), and what it exchanges with others.

    `layers`: those of the whole graph. `ops`, `tensors`: the whole graph's id of each of the stage's, ascending.
    Received values are graph inputs of kind ACTIVATION. Sent values are outputs of the graph, so that they live to
    the end of the part that makes them, except where a backward op of the stage reads them anyway.
    """

    stage: int
    layers: range
    graph: CostGraph
    ops: tuple[int, ...]
    tensors: tuple[int, ...]
    received: tuple[Transfer, ...]
    sent: tuple[Transfer, ...]
    gradients_received: tuple[Transfer, ...]
    gradients_sent: tuple[Transfer, ...]
    tied: tuple[Tie, ...]

    def tensor_of(self, whole: int) -> int:
        """The stage's id of a tensor of the whole graph that it holds."""
        place = bisect_left(self.tensors, whole)
        if place == len(self.tensors) or self.tensors[place] != whole:
            raise KeyError(whole)
        return place

    def op_of(self, whole: int) -> int:
        """The stage's id of an op of the whole graph that it runs."""
        place = bisect_left(self.ops, whole)
        if place == len(self.ops) or self.ops[place] != whole:
            raise KeyError(whole)
        return place


def cut(graph: CostGraph, bounds: Sequence[int], *, static: LayerStatic | None = None) -> tuple[StageGraph, ...]:
    """The stages of a graph: stage k holds layers bounds[k] to bounds[k + 1] - 1. O(ops + tensors + transfers).

    `static`: of this graph, where it is there already. Raises LynxError for bounds that are not ascending from 0 to
    the number of layers, and where a value would have to travel against the pipeline's direction.
    """
    _check_bounds(graph, bounds)
    static = static or LayerStatic(GraphIndex(graph))
    cutter = _Cutter(bounds, static)
    return tuple(cutter.stage(number) for number in range(len(bounds) - 1))


def ties(static: LayerStatic, bounds: Sequence[int]) -> tuple[Tie, ...]:
    """The parameters that several stages hold: one tie for each pair of neighbouring holders."""
    graph, found = static.graph, []
    names = {storage: name for name, storage in static.trained.items()}
    for tensor in graph.tensors:
        if tensor.producer < 0 and graph.storages[tensor.storage].kind is StorageKind.PARAMETER:
            names.setdefault(tensor.storage, tensor.name)
    for storage, name in sorted(names.items()):
        stages = sorted({bisect_right(bounds, layer) - 1 for layer in static.holders[storage]})
        found += [Tie(parameter=name, storage=storage, stages=pair) for pair in pairwise(stages)]
    return tuple(found)


def tensor_bytes(tensor: Tensor, storage: Storage) -> int:
    """Bytes of the contiguous tensor; those of its storage where the dtype's width is not known."""
    if tensor.dtype == "bool":
        return prod(tensor.shape)
    bits = _BITS.match(tensor.dtype)
    return prod(tensor.shape) * int(bits[1]) // 8 if bits else storage.bytes


def _check_bounds(graph: CostGraph, bounds: Sequence[int]) -> None:
    ascending = all(a < b for a, b in pairwise(bounds))
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != len(graph.layers) or not ascending:
        raise LynxError(
            f"{tuple(bounds)} does not cut {len(graph.layers)} layers into stages",
            where="bounds",
            hint=f"bounds ascend from 0 to {len(graph.layers)}, and every stage has a layer",
        )


class _Cutter:
    """Facts of one cut that all its stages share."""

    def __init__(self, bounds: Sequence[int], static: LayerStatic) -> None:
        self.static = static
        self.graph = static.graph
        self.bounds = bounds
        stage_of_layer = [stage for stage, (a, b) in enumerate(pairwise(bounds)) for _ in range(a, b)]
        self.stage_of = [stage_of_layer[layer] for layer in static.index.op_layer]
        self.ops: list[list[int]] = [[] for _ in range(len(bounds) - 1)]
        for op, stage in enumerate(self.stage_of):
            self.ops[stage].append(op)
        self.inputs: list[set[int]] = [set() for _ in self.ops]  # per stage: tensors that no op of it makes
        self.storages: list[set[int]] = [set() for _ in self.ops]  # per stage: storages it holds all along
        self._hold(stage_of_layer)
        self.transfers = self._transfers()
        self.tied = ties(static, bounds)

    def _hold(self, stage_of_layer: list[int]) -> None:
        """Static storages, and graph inputs, go to every stage that reads them; those that nobody reads to one."""
        index, tensors = self.static.index, self.graph.tensors
        for storage in self.graph.storages:
            layers = self.static.holders[storage.id]
            stages = {stage_of_layer[layer] for layer in layers}
            if storage.kind is not StorageKind.ACTIVATION or not index.storage_tensors[storage.id]:
                for stage in stages or {0}:
                    self.storages[stage].add(storage.id)
            for tensor in index.storage_tensors[storage.id]:
                if tensors[tensor].producer < 0:
                    readers = {self.stage_of[op] for op in index.consumers[tensor]}
                    for stage in readers or stages or {0}:
                        self.inputs[stage].add(tensor)

    def _transfers(self) -> list[Transfer]:
        """What crosses, once per receiver, in the order of the tensors. Static storages are held, not sent."""
        graph, found = self.graph, set()
        for op, stage in zip(graph.ops, self.stage_of, strict=True):
            for tensor in op.inputs:
                producer = graph.tensors[tensor].producer
                if producer >= 0 and self.stage_of[producer] != stage:
                    self._check(graph.ops[producer], op)
                    self.inputs[stage].add(tensor)
                    if graph.storages[graph.tensors[tensor].storage].kind is StorageKind.ACTIVATION:
                        found.add((tensor, stage))
        merged: dict[tuple[int, tuple[int, int]], list[int]] = {}  # receiver and group -> tensors
        for tensor, stage in sorted(found):
            merged.setdefault((stage, self._group(tensor)), []).append(tensor)
        return [self._transfer(receiver, tensors) for (receiver, _), tensors in merged.items()]

    def _transfer(self, receiver: int, tensors: list[int]) -> Transfer:
        first = self.graph.tensors[tensors[0]]
        sender = self.stage_of[first.producer]
        return Transfer(
            tensor=first.id,
            name=first.name,
            sender=sender,
            receiver=receiver,
            backward=receiver < sender,
            bytes=tensor_bytes(first, self.graph.storages[first.storage]),
            views=tuple(tensors[1:]),
        )

    def _check(self, producer: Op, reader: Op) -> None:
        """Values go to later stages with the forward pass, and to earlier ones with the backward pass."""
        later = self.stage_of[reader.id] > self.stage_of[producer.id]
        if producer.phase is Phase.FORWARD if later else reader.phase is not Phase.FORWARD:
            return
        layer = self.static.index.op_layer
        made, read = (self.graph.layers[layer[op.id]].name for op in (producer, reader))
        raise LynxError(
            f"cannot cut between {made} and {read}: '{reader.name}' ({reader.phase.value}) would wait for "
            f"'{producer.name}' ({producer.phase.value}), which runs after it in a pipeline",
            where=f"/ops/{reader.id}",
            hint=HINT,
        )

    def _group(self, tensor: int) -> tuple[int, int]:
        """Equal for tensors that one transfer brings: views of one value that are all of its bytes."""
        graph, root = self.graph, tensor
        record = graph.tensors[tensor]
        whole = tensor_bytes(record, graph.storages[record.storage]) == graph.storages[record.storage].bytes
        if not whole:
            return tensor, 1
        while (producer := graph.tensors[root].producer) >= 0 and graph.ops[producer].role is Role.VIEW:
            root = graph.ops[producer].inputs[0]
        return root, 0

    def stage(self, number: int) -> StageGraph:
        """The graph of one stage, and its transfers."""
        received = [transfer for transfer in self.transfers if transfer.receiver == number]
        sent = [transfer for transfer in self.transfers if transfer.sender == number]
        writer = _StageWriter(self.graph, self.ops[number], self.inputs[number], received, self.storages[number])
        first, last = self.bounds[number], self.bounds[number + 1]
        graph = replace(
            self.graph,
            static=self.static.of(first, last),
            optimizer_ns=self.static.optimizer_ns_of(first, last),
            ops=writer.ops(),
            tensors=writer.tensors(),
            storages=writer.storages(),
            layers=writer.layers(self.graph.layers[first:last]),
            outputs=writer.outputs(sent),
        )
        return StageGraph(
            stage=number,
            layers=range(first, last),
            graph=graph,
            ops=tuple(self.ops[number]),
            tensors=tuple(writer.held),
            received=tuple(one for one in received if not one.backward),
            sent=tuple(one for one in sent if not one.backward),
            gradients_received=tuple(one for one in received if one.backward),
            gradients_sent=tuple(one for one in sent if one.backward),
            tied=tuple(tie for tie in self.tied if number in tie.stages),
        )


class _StageWriter:
    """Writes one stage's records with ids of its own. `held`: the tensors of the whole that it has, ascending."""

    def __init__(
        self, whole: CostGraph, ops: list[int], inputs: set[int], received: list[Transfer], static: set[int]
    ) -> None:
        self.whole = whole
        self.own = ops
        self.op_ids = {op: number for number, op in enumerate(ops)}
        self.held = sorted(inputs.union(*(whole.ops[op].outputs for op in ops)))
        self.tensor_ids = {tensor: number for number, tensor in enumerate(self.held)}
        self.place: dict[int, tuple[int, int]] = {}  # tensor -> storage of the whole, and the received tensor or -1
        self.sizes: dict[tuple[int, int], int] = {}  # the same -> bytes, of received ones
        self._place(inputs, received)
        self.keys = sorted({*self.place.values(), *((storage, -1) for storage in static)})

    def _place(self, inputs: set[int], received: list[Transfer]) -> None:
        """Which storage each tensor lies in: received ones have storages of their own, and their views follow."""
        tensors = self.whole.tensors
        self.place = {tensor: (tensors[tensor].storage, -1) for tensor in inputs}
        for transfer in received:
            key = (tensors[transfer.tensor].storage, transfer.tensor)
            self.sizes[key] = transfer.bytes
            self.place.update(dict.fromkeys((transfer.tensor, *transfer.views), key))
        for op in self.own:
            record = self.whole.ops[op]
            for tensor in record.outputs:
                storage = tensors[tensor].storage
                shared = next((t for t in record.inputs if tensors[t].storage == storage), None)
                self.place[tensor] = (storage, -1) if shared is None else self.place[shared]

    def ops(self) -> tuple[Op, ...]:
        ids = self.tensor_ids
        return tuple(
            replace(
                self.whole.ops[op],
                id=number,
                inputs=tuple([ids[t] for t in self.whole.ops[op].inputs]),
                outputs=tuple([ids[t] for t in self.whole.ops[op].outputs]),
            )
            for number, op in enumerate(self.own)
        )

    def storages(self) -> tuple[Storage, ...]:
        """The storages of the stage's tensors, and those that it holds without any."""
        records = [self.whole.storages[storage] for storage, _ in self.keys]
        return tuple(
            replace(record, id=number, bytes=self.sizes.get(key, record.bytes))
            for number, (key, record) in enumerate(zip(self.keys, records, strict=True))
        )

    def tensors(self) -> tuple[Tensor, ...]:
        ids = {key: number for number, key in enumerate(self.keys)}
        records = [self.whole.tensors[tensor] for tensor in self.held]
        return tuple(
            replace(
                record, id=number, storage=ids[self.place[record.id]], producer=self.op_ids.get(record.producer, -1)
            )
            for number, record in enumerate(records)
        )

    def layers(self, layers: Sequence[Layer]) -> tuple[Layer, ...]:
        return tuple(
            replace(layer, id=number, ops=tuple([self.op_ids[op] for op in layer.ops]))
            for number, layer in enumerate(layers)
        )

    def outputs(self, sent: list[Transfer]) -> tuple[int, ...]:
        """The whole's outputs that are made here, and what is sent unless a backward op keeps it for longer."""
        ops, tensors = self.whole.ops, self.whole.tensors
        read = {self.place[t] for op in self.own if ops[op].phase is not Phase.FORWARD for t in ops[op].inputs}
        found = [t for t in self.whole.outputs if tensors[t].producer in self.op_ids]
        for transfer in sent:
            forward = ops[tensors[transfer.tensor].producer].phase is Phase.FORWARD
            if not forward or self.place[transfer.tensor] not in read:
                found.append(transfer.tensor)
        return tuple([self.tensor_ids[t] for t in dict.fromkeys(found)])
