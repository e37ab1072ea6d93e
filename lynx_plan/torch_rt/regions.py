"""Repeated blocks are read by Dynamo once: the graph of the first is a region, which stands for those that are alike.

Dynamo compares what a block reads (its attributes, its modules, its inputs' shapes) with what the first one read, and
reads it anew where that differs. Afterwards every region is copied to where it is called.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.layers import block_of

STACK = "nn_module_stack"
_MOST_KINDS = 10**6  # of blocks of one class: no limit
Stack = Mapping[str, tuple[str, Any]]


@contextmanager
def repeated_regions(model: nn.Module) -> Iterator[None]:
    """Inside, Dynamo reads classes of repeated blocks as regions."""
    kinds = _block_kinds(model)
    originals = [kind.__dict__.get("forward") for kind in kinds]
    for kind in kinds:
        kind.forward = compat.region(kind.forward, most=_MOST_KINDS)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            if original is None:
                del kind.forward
            else:
                kind.forward = original


def inline_regions(graph: fx.GraphModule, first: dict[str, Stack] | None = None) -> None:
    """Copy each region to its calls; a copy's nodes get the modules of the block that is called.

    Functions that the graph holds (bodies of checkpoints) are looked into. `first`: where each region was read.
    """
    first = {} if first is None else first
    for node in list(graph.graph.nodes):
        held = getattr(graph, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(held, fx.GraphModule) and not any(map(_is_call, node.users)):
            inline_regions(held, first)
        elif _is_call(node):
            stack = node.meta.get(STACK) or {}
            template = first.setdefault(str(node.args[1]), stack)
            inline_regions(getattr(graph, node.args[0].target), first)
            _inline(graph, node, _renamed(template, stack))
    graph.recompile()


def _is_call(node: fx.Node) -> bool:
    return node.target is compat.INVOKE_SUBGRAPH


def _block_kinds(model: nn.Module) -> list[type[nn.Module]]:
    """Classes of the user's own that have several blocks (`layers.3`)."""
    blocks = [module for path, module in model.named_modules() if path and block_of(path) == path]
    kinds = Counter(type(module) for module in blocks if "forward" not in vars(module))
    return [kind for kind, count in kinds.items() if count > 1 and not kind.__module__.startswith("torch.")]


def _renamed(template: Stack, own: Stack) -> tuple[str, str]:
    """(path of the block that was read, path of the block that is called)."""
    paths = [list(stack.values())[-1][0] if stack else "" for stack in (template, own)]
    return paths[0], paths[1]


def _inline(graph: fx.GraphModule, call: fx.Node, renamed: tuple[str, str]) -> None:
    holder, _, *operands = call.args
    region = getattr(graph, holder.target)
    values = dict(zip(region.graph.find_nodes(op="placeholder"), operands, strict=True))
    with graph.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            copy = graph.graph.node_copy(node, values.__getitem__)
            copy.meta[STACK] = _moved(node.meta.get(STACK) or {}, renamed)
            if node.op == "get_attr":
                copy.target = _hoisted(graph, region, node.target, renamed)
            values[node] = copy
    results = region.graph.output_node().args[0]
    for user in list(call.users):
        assert user.target is operator.getitem, user
        user.replace_all_uses_with(values[results[user.args[1]]])
        graph.graph.erase_node(user)
    graph.graph.erase_node(call)
    if not holder.users:
        graph.graph.erase_node(holder)


def _hoisted(graph: fx.GraphModule, region: fx.GraphModule, name: str, renamed: tuple[str, str]) -> str:
    """The name under which the graph holds a copy of what its region holds under `name`."""
    held, own = operator.attrgetter(name)(region), f"of_region_{len(graph._modules)}"
    graph.add_module(own, _copied(held, renamed))
    return own


def _copied(body: fx.GraphModule, renamed: tuple[str, str]) -> fx.GraphModule:
    """A function's body (of an autograd function, say) with the modules of the block that is called."""
    made = fx.Graph()
    result = made.graph_copy(body.graph, values := {})
    made.output(result).meta.update(body.graph.output_node().meta)
    for node in body.graph.nodes:
        if node.op != "output":
            values[node].meta[STACK] = _moved(node.meta.get(STACK) or {}, renamed)
    copy = compat.graph_module(body, made)
    copy.meta.update(body.meta)
    return copy


def _moved(stack: Stack, renamed: tuple[str, str]) -> dict[str, tuple[str, Any]]:
    old, new = renamed
    moved = {}
    for key, (path, kind) in stack.items():
        inside = path == old or path.startswith(f"{old}.")
        moved[key] = (new + path[len(old) :] if inside else path, kind)
    return moved
