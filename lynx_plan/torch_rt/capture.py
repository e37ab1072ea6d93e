"""Capture a training step: from a module or a model file to a cost graph without costs, and its joint graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from lynx_plan.model.capture import CaptureSpec
from lynx_plan.model.graph import CostGraph, ModelSpec, StaticMemory, StorageKind
from lynx_plan.model.machine import Machine
from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.call_shape import CallShape, call_of, shape_of
from lynx_plan.torch_rt.collector import collector_paused
from lynx_plan.torch_rt.export import Exporter, InputRef
from lynx_plan.torch_rt.fake_step import fake_tensors, optimizer_state
from lynx_plan.torch_rt.front_ends import Traced, trace_step
from lynx_plan.torch_rt.kept_facts import KeptFacts
from lynx_plan.torch_rt.mesh import MeshShape, fake_mesh, group_names
from lynx_plan.torch_rt.model_file import load_model_file
from lynx_plan.torch_rt.native_ops import notes_of
from lynx_plan.torch_rt.sizes import settle
from lynx_plan.torch_rt.source_notes import Note, display_path, note_of
from lynx_plan.torch_rt.tables import Tables
from lynx_plan.torch_rt.target import target_device
from lynx_plan.torch_rt.ties import tie_notes

BuildOptimizer = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True)
class Captured:
    """A step's structure: `graph` has no times. The other fields tie it to the joint graph that can run."""

    graph: CostGraph
    joint: fx.GraphModule  # forward and backward in one
    nodes: tuple[fx.Node | None, ...]  # op id -> its node; None: an accumulation or a buffer update
    values: tuple[fx.Node | None, ...]  # tensor id -> placeholder, op or getitem that holds it; None: nothing reads it
    ports: tuple[int, ...]  # tensor id -> index in its op's result; -1: it is the whole result
    inputs: tuple[InputRef, ...]  # of the joint graph, in order: parameters, buffers, inputs, tangents
    shape: CallShape  # of the module's arguments
    kept: tuple[KeptFacts, ...] = ()  # of the blocks that are kept whole

    def input_nodes(self) -> dict[fx.Node, InputRef]:
        """The joint graph's input nodes, in order, and what each stands for."""
        nodes = [node for node in self.joint.graph.nodes if node.op == "placeholder"]
        return dict(zip(nodes, self.inputs, strict=True))


@collector_paused()
def capture_file(spec: ModelSpec, mesh_shape: MeshShape, machine: Machine, **choices: Any) -> Captured:
    """Capture the model of a file for a mesh, on fake tensors in a fake world: nothing is allocated or started.

    `choices` are those of `capture_module`.
    """
    with target_device(machine):  # autocast contexts may be made while the file is imported, or with the model
        file = load_model_file(spec)
    with fake_mesh(mesh_shape) as mesh:
        with fake_tensors(), target_device(machine):
            model = file.build(mesh)
            inputs = file.example_inputs()
        return capture_module(
            model,
            inputs,
            file.loss,
            spec=spec,
            mesh=mesh,
            mesh_shape=mesh_shape,
            machine=machine,
            build_optimizer=file.build_optimizer,
            **choices,
        )


@collector_paused()
def capture_module(
    module: nn.Module,
    inputs: Any,
    loss: Callable[[Any], Tensor],
    *,
    spec: ModelSpec,
    mesh: DeviceMesh | None,
    mesh_shape: MeshShape,
    machine: Machine,
    build_optimizer: BuildOptimizer | None = None,
    capture: CaptureSpec | None = None,
    moe_load: float = 1.0,
    moe_bytes: str = "bound",
    strict: bool = False,
) -> Captured:
    """Capture a module's step, real or fake, under any process group; the module is not run.

    `inputs` are a tuple of arguments or a dict of keyword arguments. `capture`: how it was captured before, to be
    followed; None tries the front ends in their order, and `strict` keeps no block whole. Without `build_optimizer`
    the optimizer's state counts as nothing. `moe_load`, `moe_bytes`: see `sizes.settle`.
    """
    chosen = capture or CaptureSpec(moe_load=moe_load, moe_bytes=moe_bytes)
    shape, tensors = shape_of(call_of(module, inputs))
    with target_device(machine):
        traced = trace_step(module, shape, tensors, loss, spec.path, capture=capture, strict=strict)
    traced = _settled(traced, chosen, spec.path)
    exporter = Exporter(traced.joint, group_names(mesh), machine.device, lambda note: _source(note, spec.path))
    ops, layers = exporter.finish()
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer, state, notes = optimizer_state(build_optimizer, parameters) if build_optimizer else ("", 0, ())
    tables = exporter.tables
    graph = CostGraph(
        model=spec,
        mesh=mesh_shape,
        machine=machine,
        torch_version=compat.torch_version(),
        capture=traced.capture,
        optimizer=optimizer,
        static=_static_memory(tables, state),
        ops=ops,
        tensors=tuple(tables.tensors),
        storages=tuple(tables.storages),
        layers=layers,
        outputs=exporter.outputs,
        notes=(*traced.notes, *tie_notes(module), *notes_of(module), *notes),
    )
    return Captured(
        graph=graph,
        joint=traced.joint,
        nodes=tuple(exporter.nodes),
        values=tuple(tables.nodes),
        ports=tuple(tables.ports),
        inputs=tuple(exporter.inputs),
        shape=shape,
        kept=traced.kept,
    )


def _static_memory(tables: Tables, optimizer_bytes: int) -> StaticMemory:
    return StaticMemory(
        parameters_bytes=tables.bytes_of(StorageKind.PARAMETER),
        buffers_bytes=tables.bytes_of(StorageKind.BUFFER),
        gradients_bytes=tables.bytes_of(StorageKind.GRADIENT),
        optimizer_bytes=optimizer_bytes,
        inputs_bytes=tables.bytes_of(StorageKind.INPUT),
    )


def _settled(traced: Traced, chosen: CaptureSpec, path: str) -> Traced:
    """With numbers in place of sizes that depend on data."""
    load, bytes_by = chosen.moe_load, chosen.moe_bytes
    graph, show = traced.joint.graph, lambda node: _source(note_of(node), path) or path
    notes = settle(graph, load=load, bytes_by=bytes_by, show=show)
    capture = replace(traced.capture, moe_load=load, moe_bytes=bytes_by)
    return replace(traced, capture=capture, notes=(*traced.notes, *notes))


def _source(note: Note, model_path: str) -> str:
    return f"{display_path(note.file, model_path)}:{note.line}" if note.file else ""
