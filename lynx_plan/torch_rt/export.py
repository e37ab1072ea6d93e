"""Turn a tidy joint graph into a cost graph without costs: ops, tensors, storages, layers, phases."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx

from lynx_plan.errors import LynxError
from lynx_plan.model.graph import Layer, Op, Phase, Role, StorageKind
from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.arguments import attributes, tensor_arguments, value_arguments
from lynx_plan.torch_rt.joint import parameter_name
from lynx_plan.torch_rt.kept_block import held_nodes
from lynx_plan.torch_rt.kinds import argument, is_collective, is_random, is_size, is_unrepeatable, is_wait, kind_of
from lynx_plan.torch_rt.layers import collect_layers, forward_layers
from lynx_plan.torch_rt.mesh import Group
from lynx_plan.torch_rt.phases import phases
from lynx_plan.torch_rt.source_notes import Note, note_of
from lynx_plan.torch_rt.tables import Tables, producer
from lynx_plan.torch_rt.target import output_dtypes
from lynx_plan.torch_rt.work import extent_bytes, flops, moved_bytes, outputs

ACCUMULATE = "lynx.accumulate"
UPDATE_BUFFER = "lynx.update_buffer"
NO_GROUP = Group("", 1, 1)


@dataclass(frozen=True)
class InputRef:
    """A graph placeholder: kind is parameter, buffer, input or tangent; the name of an input is its index."""

    kind: str
    name: str


@dataclass(frozen=True)
class Effect:
    """What happens to a value once its op has run: it is accumulated, or it becomes a buffer's new value."""

    kind: str  # ACCUMULATE or UPDATE_BUFFER
    name: str  # of the parameter or buffer
    value: fx.Node


class Exporter:
    """One pass over the joint graph; the results are its fields."""

    def __init__(
        self, joint: fx.GraphModule, groups: Mapping[str, Group], device: str, show: Callable[[Note], str]
    ) -> None:
        self.tables = Tables()
        self.ops: list[Op] = []
        self.nodes: list[fx.Node | None] = []
        self.inputs: list[InputRef] = []
        self.outputs: tuple[int, ...] = ()
        self._groups = groups
        self._device = device
        self._show = show
        self._backward: list[bool] = []
        self._layers = _LayerFinder()
        self._effects = effects_after(joint.graph)
        self._mutated = {e.name for effects in self._effects.values() for e in effects if e.kind == UPDATE_BUFFER}
        for node in joint.graph.nodes:
            self._visit(node)

    def finish(self) -> tuple[tuple[Op, ...], tuple[Layer, ...]]:
        """Ops with phases, and the layers."""
        makers = [tensor.producer for tensor in self.tables.tensors]
        found = phases(self.ops, makers, self._backward)
        ops = tuple(replace(op, phase=phase) for op, phase in zip(self.ops, found, strict=True))
        return ops, self._layers.layers()

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._add_placeholder(node)
        elif node.op == "get_attr":
            self.tables.add_input(node, node.name, StorageKind.BUFFER)
        elif node.op == "output":
            kept = [v for v, d in zip(node.args[0], node.meta["desc"], strict=True) if _is(d, compat.PlainAOTOutput)]
            self.outputs = tuple(self.tables.of(value) for value in kept)
        elif node.target is operator.getitem:
            if isinstance(node.meta["val"], torch.Tensor):
                self.tables.of(node)
        else:
            self._add_op(node)
        for held in held_nodes(node):
            self._hold(held)
        for effect in self._effects.get(node, ()):
            self._add_effect(effect, node)

    def _add_placeholder(self, node: fx.Node) -> None:
        ref, kind = input_ref(node)
        if not isinstance(node.meta.get("val"), torch.Tensor):  # numbers have none
            hint = "let example_inputs and batch give tensors only; bind other arguments in build_model"
            raise LynxError(f"argument {ref.name} of the model is not a tensor", hint=hint)
        self.inputs.append(ref)
        name = ref.name if ref.kind in ("parameter", "buffer") else f"{ref.kind}.{ref.name}"
        self.tables.add_input(node, name, kind)

    def _add_op(self, node: fx.Node) -> None:
        inputs = tuple(self.tables.of(leaf) for leaf in value_arguments(node))
        wait = is_wait(node)
        dtypes = output_dtypes(node, self._device)
        made = self.tables.add_outputs(node, len(self.ops), dtypes, inputs[0] if wait else None)
        role = self._role(node, inputs, made)
        note = note_of(node) if not compat.is_backward(node) else Note()
        group = self._group(node) if role is Role.COLLECTIVE else NO_GROUP
        free = role in (Role.VIEW, Role.WAIT) or is_size(node)
        op = Op(
            id=len(self.ops),
            name=node.name,
            kind=kind_of(node),
            role=role,
            phase=Phase.FORWARD,
            inputs=inputs,
            outputs=made,
            attributes=attributes(node),
            group=group.dimension,
            group_size=group.size,
            group_stride=group.stride,
            comm_bytes=full_bytes(node) if role is Role.COLLECTIVE else 0,
            flops=0 if free or role is Role.COLLECTIVE else flops(node),
            bytes=0 if free else moved_bytes(node),
            rng=is_random(node),
            effect=not made or self._happens_once(node) or self._reads_mutated(inputs),
        )
        self._append(op, node, note)

    def _hold(self, node: fx.Node) -> None:
        """A block that is kept whole holds this value, so no other copy of it is made."""
        storage = self.tables.tensors[self.tables.of(node)].storage
        makers = {t.producer for t in self.tables.tensors if t.storage == storage and t.producer >= 0}
        for maker in makers:
            if self.ops[maker].role in (Role.COMPUTE, Role.COLLECTIVE):
                self.ops[maker] = replace(self.ops[maker], effect=True)

    def _add_effect(self, effect: Effect, after: fx.Node) -> None:
        value = self.tables.of(effect.value)
        tensor = self.tables.tensors[value]
        size = extent_bytes(effect.value.meta["val"])
        accumulate = effect.kind == ACCUMULATE
        if accumulate:
            self.tables.add_storage(size, StorageKind.GRADIENT)
        op = Op(
            id=len(self.ops),
            name=f"{effect.kind.removeprefix('lynx.')}.{effect.name}",
            kind=effect.kind,
            role=Role.ACCUMULATE if accumulate else Role.COMPUTE,
            phase=Phase.FORWARD,
            inputs=(value,),
            outputs=(),
            flops=size // getattr(torch, tensor.dtype).itemsize if accumulate else 0,
            bytes=(3 if accumulate else 2) * size,
            effect=True,
            parameter=effect.name,
        )
        note = Note() if accumulate else note_of(after)
        self._append(op, None, note, backward=accumulate)

    def _append(self, op: Op, node: fx.Node | None, note: Note, *, backward: bool | None = None) -> None:
        is_backward = compat.is_backward(node) if backward is None else backward
        latest = max((self.tables.tensors[tensor].producer for tensor in op.inputs), default=-1)
        note = self._layers.place(op, node, note, is_backward, latest)
        self.ops.append(replace(op, module=note.module, source=self._show(note)))
        self.nodes.append(node)
        self._backward.append(is_backward)

    def _role(self, node: fx.Node, inputs: tuple[int, ...], made: tuple[int, ...]) -> Role:
        if is_wait(node):
            return Role.WAIT
        if is_collective(node):
            return Role.COLLECTIVE
        read = {self.tables.tensors[tensor].storage for tensor in inputs}
        aliases = bool(made) and all(self.tables.tensors[tensor].storage in read for tensor in made)
        return Role.VIEW if aliases else Role.COMPUTE

    def _happens_once(self, node: fx.Node) -> bool:
        # A size in backward is arithmetic on sizes, in whatever order.
        return is_unrepeatable(node) and not (is_size(node) and compat.is_backward(node))

    def _group(self, node: fx.Node) -> Group:
        name = argument(node, "group_name")
        if name not in self._groups:
            hint = "communicate over mesh.get_group(DIMENSION), one mesh dimension at a time"
            raise LynxError(f"{kind_of(node)} runs over a process group that is no dimension of the mesh", hint=hint)
        return self._groups[name]

    def _reads_mutated(self, inputs: tuple[int, ...]) -> bool:
        # Run again, it would see the buffer's new value.
        return any(self.tables.tensors[t].producer < 0 and self.tables.tensors[t].name in self._mutated for t in inputs)


class _LayerFinder:
    """Which layer an op is in: a forward op by its module, a backward op by the forward op that it differentiates."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._forward: list[int] = []  # forward op ids
        self._anchors: list[int] = []  # op id -> op whose layer it shares: itself if it is a forward op
        self._first: dict[int, int] = {}  # sequence number -> first forward op

    def place(self, op: Op, node: fx.Node | None, note: Note, backward: bool, latest: int) -> Note:
        """Remember an op; the note of the op that it belongs to. `latest` is the last op that made an input of it."""
        number = compat.sequence_number(node) if node is not None else None
        if not backward:
            anchor = op.id
            self._forward.append(op.id)
            if number is not None:
                self._first.setdefault(number, op.id)
        else:
            # A sum of gradients, an accumulation: where the latest of its inputs was made.
            anchor = latest if number is None or compat.is_gradient_sum(node) else self._first.get(number, latest)
        if anchor != op.id:
            note = self._notes[anchor] if anchor >= 0 else note
        self._notes.append(note)
        self._anchors.append(anchor)
        return note

    def layers(self) -> tuple[Layer, ...]:
        found, names = forward_layers([self._notes[op].module for op in self._forward])
        layer_of_forward = dict(zip(self._forward, found, strict=True))
        layer_of: list[int] = []
        for op, anchor in enumerate(self._anchors):
            last = len(names) - 1  # a backward op of inputs only: it starts the backward pass
            layer_of.append(layer_of_forward[op] if anchor == op else layer_of[anchor] if anchor >= 0 else last)
        return collect_layers(layer_of, names)


def input_ref(node: fx.Node) -> tuple[InputRef, StorageKind]:
    """What a placeholder stands for."""
    descriptor = node.meta["desc"]
    if _is(descriptor, compat.ParamAOTInput):
        return InputRef("parameter", parameter_name(descriptor.target)), StorageKind.PARAMETER
    if _is(descriptor, compat.BufferAOTInput):
        return InputRef("buffer", parameter_name(descriptor.target)), StorageKind.BUFFER
    if _is(descriptor, compat.PlainAOTInput):
        return InputRef("input", str(descriptor.idx)), StorageKind.INPUT
    if _is(descriptor, compat.TangentAOTInput):
        return InputRef("tangent", str(descriptor.output.idx)), StorageKind.INPUT
    raise LynxError(
        f"the traced graph has an input that Lynx cannot supply: {type(descriptor).__name__}",
        hint="use plain tensors or DTensors as parameters, not other tensor subclasses",
    )


def effects_after(graph: fx.Graph) -> dict[fx.Node, list[Effect]]:
    """Op -> what happens right after it: accumulations of its gradients, updates of buffers."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    end = next(iter(reversed(graph.nodes)))
    holders = {parameter_name(n.meta["desc"].target): n for n in graph.nodes if _is_buffer(n)}
    result: dict[fx.Node, list[Effect]] = {}
    for value, descriptor in zip(end.args[0], end.meta["desc"], strict=True):
        if value is None or _is(descriptor, compat.PlainAOTOutput):
            continue
        owner, _ = producer(value)
        if _is(descriptor, compat.GradAOTOutput) and _is(descriptor.grad_of, compat.ParamAOTInput):
            effect = Effect(ACCUMULATE, parameter_name(descriptor.grad_of.target), value)
        elif _is(descriptor, compat.InputMutationAOTOutput) and _is(descriptor.mutated_input, compat.BufferAOTInput):
            effect = Effect(UPDATE_BUFFER, parameter_name(descriptor.mutated_input.target), value)
            # Not before the last forward op that reads the old value.
            readers = [user for user in holders[effect.name].users if not compat.is_backward(user)]
            owner = max((owner, *(r for r in readers if r.op == "call_function")), key=position.__getitem__)
        else:
            raise LynxError(
                f"the model changes something that Lynx cannot update: {type(descriptor).__name__}",
                hint="change buffers only, never the inputs or parameters, in forward",
            )
        result.setdefault(owner, []).append(effect)
    return result


def full_bytes(node: fx.Node) -> int:
    """Bytes of the full tensor of a collective: what is gathered, scattered or reduced."""
    read = sum(extent_bytes(leaf.meta["val"]) for leaf in tensor_arguments(node))
    return max(read, sum(extent_bytes(value) for value in outputs(node) if value is not None))


def _is(descriptor: object, kind: type) -> bool:
    return isinstance(descriptor, kind)


def _is_buffer(node: fx.Node) -> bool:
    return node.op == "placeholder" and _is(node.meta["desc"], compat.BufferAOTInput)
