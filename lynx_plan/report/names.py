"""Short names of ops, layers and models for humans."""

from __future__ import annotations

from collections.abc import Sequence

from lynx_plan.analyze.classes import class_name
from lynx_plan.model.graph import CostGraph, Layer, ModelSpec, Op


def op_name(op: Op, layer: Layer) -> str:
    """`mlp.gelu`: the module within its layer, and the op's kind."""
    kind = kind_name(op.kind)
    module = op.module.removeprefix(layer.name).strip(".")
    return f"{module}.{kind}" if module else kind


def kind_name(kind: str) -> str:
    """`add` for `aten.add.Tensor`: without namespace and overload."""
    parts = kind.split(".")
    return parts[1] if len(parts) > 1 else kind


def layer_range(layers: Sequence[Layer]) -> str:
    """`layers.0-7 (8)`; `layers.0,2-5 (5)`."""
    text = class_name([layer.name for layer in layers])
    return text if len(layers) == 1 else f"{text} ({len(layers)})"


def model_text(model: ModelSpec) -> str:
    """The model as it was typed: `examples/gpt.py:build_model layers=4`."""
    builder = "" if model.builder == "build_model" else f":{model.builder}"
    return " ".join([f"{model.path}{builder}", *(f"{key}={value}" for key, value in model.arguments)])


def mesh_text(mesh: Sequence[tuple[str, int]]) -> str:
    """`tp 2`; `1 rank` without a mesh."""
    return ", ".join(f"{name} {size}" for name, size in mesh if size > 1) or "1 rank"


def machine_text(graph: CostGraph) -> str:
    """The target device and the link that its collectives were priced for."""
    link = graph.link or graph.machine.link
    emulated = " (emulated)" if graph.link else ""
    text = link.text or f"{link.bytes_per_s / 1e9:.2f}GB/s:{link.latency_ns / 1000:.0f}us"
    return f"{graph.machine.name}, link {text}{emulated}"
