"""The parts of a transformer layer by their structure, named as in Megatron-LM's list of modules to recompute.

Matmuls and attention divide a layer's forward: what is elementwise before the first matmul, and between the output
projection and the next matmul, is a norm (residual adds apart); what follows is the MLP, or the experts.
"""

from __future__ import annotations

from collections.abc import Callable

from lynx_plan.model.graph import Op, Phase, Role
from lynx_plan.solve.candidates import DECIDING, Candidates

MATMULS = frozenset(("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_scaled_mm", "_grouped_mm"))


def layernorm(facts: Candidates, layer: int) -> list[int]:
    """Norms: one op, or the elementwise ops of one."""
    ops = _forward(facts, layer)
    named = [op.id for op in ops if "norm" in op.kind]
    if named:
        return named
    matmuls = _matmuls(ops)
    if not matmuls:
        return []
    second = _mlp_matmuls(ops)
    spans = [(-1, matmuls[0])] + ([(_before(ops, second[0]), second[0])] if second else [])
    return [
        op.id for low, high in spans for op in _own(facts, [o for o in ops[low + 1 : high] if o.role is Role.COMPUTE])
    ]


def mlp(facts: Candidates, layer: int) -> list[int]:
    """The MLP: its matmuls and what lies between them; nothing where the layer has experts."""
    return [] if _routed(facts, layer) else _between(facts, layer, ends=True)


def moe_act(facts: Candidates, layer: int) -> list[int]:
    """What lies between the experts' matmuls: the activation function."""
    return _between(facts, layer, ends=False) if _routed(facts, layer) else []


def moe(facts: Candidates, layer: int) -> list[int]:
    """The experts and what routes tokens to them; nothing where the layer has an MLP."""
    return _between(facts, layer, ends=True) if _routed(facts, layer) else []


MODULES: dict[str, Callable[[Candidates, int], list[int]]] = {
    "layernorm": layernorm,
    "mlp": mlp,
    "moe": moe,
    "moe_act": moe_act,
}


def _forward(facts: Candidates, layer: int) -> list[Op]:
    graph = facts.index.graph
    ops = (graph.ops[op] for op in graph.layers[layer].ops)
    return [op for op in ops if op.phase is Phase.FORWARD and op.role is not Role.VIEW]


def _matmuls(ops: list[Op]) -> list[int]:
    """Places of matmuls among `ops`."""
    return [i for i, op in enumerate(ops) if not MATMULS.isdisjoint(op.kind.split("."))]


def _mlp_matmuls(ops: list[Op]) -> list[int]:
    """Places of the matmuls after the output projection, which is the first matmul after the attention core."""
    core = max((i for i, op in enumerate(ops) if _is_core(ops, i, op)), default=-1)
    after = [i for i in _matmuls(ops) if i > core]
    unfused = core >= 0 and "attention" not in ops[core].kind
    return after[2 if unfused else 1 :] if core >= 0 else after


def _is_core(ops: list[Op], place: int, op: Op) -> bool:
    softmax = op.kind.split(".")[-1] in ("softmax", "_softmax")
    return "attention" in op.kind or (softmax and not _later_routing(ops, place))


def _later_routing(ops: list[Op], place: int) -> bool:
    """A softmax that a router reads, not an attention core's."""
    return any(not DECIDING.isdisjoint(op.kind.split(".")) for op in ops[place : place + 4])


def _between(facts: Candidates, layer: int, *, ends: bool) -> list[int]:
    ops = _forward(facts, layer)
    places = _mlp_matmuls(ops)
    if not places:
        return []
    inside = ops[places[0] : places[-1] + 1]
    if ends:
        return [op.id for op in inside]
    return [op.id for op in inside if MATMULS.isdisjoint(op.kind.split(".")) and op.role is Role.COMPUTE]


def _routed(facts: Candidates, layer: int) -> bool:
    return any(not DECIDING.isdisjoint(op.kind.split(".")) for op in _forward(facts, layer))


def _before(ops: list[Op], place: int) -> int:
    """The place of the last matmul, collective or wait before `place`."""
    hard = set(_matmuls(ops)) | {i for i, op in enumerate(ops) if op.role is not Role.COMPUTE}
    return max((i for i in hard if i < place), default=-1)


def _own(facts: Candidates, ops: list[Op]) -> list[Op]:
    """Without those that join two values from outside: residual adds, and what feeds them."""
    inside: set[int] = set()
    found: list[Op] = []
    for op in ops:
        sources = facts.sources[op.id]
        if len(sources) > 1 and inside.isdisjoint(sources):
            inside.clear()
            found.clear()
            continue
        inside.add(op.id)
        found.append(op)
    return found
