"""Cut the model into layers: each repeated block is one, and so is what lies before, between and after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lynx_plan.model.graph import Layer


def block_of(module: str) -> str:
    """The path up to its first index (`layers.3` of `layers.3.mlp.up`); "" for a module in no repeated block."""
    parts = module.split(".")
    index = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return "" if index is None else ".".join(parts[: index + 1])


def forward_layers(modules: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(layer of each forward op, names of the layers), from the ops' module paths in execution order."""
    blocks = [block_of(module) for module in modules]
    layer_of: list[int] = []
    members: list[list[str]] = []
    for position, block in enumerate(blocks):
        if position == 0 or block != blocks[position - 1]:
            members.append([])
        members[-1].append(modules[position])
        layer_of.append(len(members) - 1)
    names = _distinct(block_of(modules_[0]) or _joined(modules_) for modules_ in members)
    return tuple(layer_of), names


def _joined(modules: Sequence[str]) -> str:
    tops = dict.fromkeys(module.split(".")[0] for module in modules)
    return "+".join(top for top in tops if top) or "model"


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(result)


def collect_layers(layer_of: Sequence[int], names: Sequence[str]) -> tuple[Layer, ...]:
    """Records from the layer of each op, forward and backward."""
    ops: list[list[int]] = [[] for _ in names]
    for op, layer in enumerate(layer_of):
        ops[layer].append(op)
    return tuple(Layer(id=i, name=name, ops=tuple(ops[i])) for i, name in enumerate(names))
