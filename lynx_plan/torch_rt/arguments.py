"""An op's arguments: its tensors in schema order, and the canonical text of everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.kinds import ATTENTION, argument, base_name, is_size

# Where a tensor lies is the machine's matter, and the same plan serves several machines.
_NOT_CANONICAL = ("device", "pin_memory", "group_name")


def tensor_arguments(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose tensors an op reads, in schema order, repeats included."""
    nodes = (value for _, value in named_arguments(node))
    return tuple(leaf for value in nodes for leaf in _leaves(value) if _is_tensor(leaf))


def value_arguments(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose values an op reads: tensors, and sizes that were computed; in schema order, repeats included."""
    nodes = (value for _, value in named_arguments(node))
    return tuple(leaf for value in nodes for leaf in _leaves(value) if _is_tensor(leaf) or _is_size(leaf))


def attributes(node: fx.Node) -> str:
    """Canonical text of the arguments that are not tensors and not their defaults: `dim=[0, 1], keepdim=True`."""
    if base_name(node) in ATTENTION:
        return _attention_attributes(node)
    defaults = _defaults(node)
    parts = []
    for name, value in named_arguments(node):
        if name in _NOT_CANONICAL or _is_tensor(value) or (name in defaults and value == defaults[name]):
            continue
        parts.append(f"{name}={_text(value)}")
    return ", ".join(parts)


def named_arguments(node: fx.Node) -> Iterator[tuple[str, Any]]:
    """(schema name, value) of the arguments given, in schema order."""
    if not isinstance(node.target, compat.OpOverload):
        yield from ((str(i), value) for i, value in enumerate(node.args))
        yield from sorted(node.kwargs.items())
        return
    for position, declared in enumerate(compat.schema(node.target).arguments):
        if position < len(node.args):
            yield declared.name, node.args[position]
        elif declared.name in node.kwargs:
            yield declared.name, node.kwargs[declared.name]


def values(node: fx.Node) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments with each node replaced by the fake value that it holds."""
    return fx.node.map_arg((node.args, node.kwargs), lambda leaf: leaf.meta["val"])


def _attention_attributes(node: fx.Node) -> str:
    # Backends name and order their arguments differently; these three are what attention is.
    parts = (f"{name}={_text(argument(node, name))}" for name in ("dropout_p", "is_causal", "scale"))
    return ", ".join(parts)


def _defaults(node: fx.Node) -> dict[str, Any]:
    if not isinstance(node.target, compat.OpOverload):
        return {}
    return {a.name: a.default_value for a in compat.schema(node.target).arguments if a.has_default_value()}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_size(value: Any) -> bool:
    return isinstance(value, fx.Node) and is_size(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), Tensor)


def _text(value: Any) -> str:
    if isinstance(value, fx.Node):
        return "%" if _is_tensor(value) else _text(value.meta["val"])
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(item) for item in value)}]"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value).removeprefix("torch.")
    return str(value)
