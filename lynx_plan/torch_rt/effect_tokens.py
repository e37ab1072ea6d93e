"""Take effect tokens out of a joint graph: they order ops with effects, and a program's order does that anyway.

Tracing wraps such an op (the check of a Cholesky factorisation for errors) as `with_effects(token, op, *args)`, which
gives a new token and the op's results; the first token is an input of the graph, the last one an output.
"""

from __future__ import annotations

import operator

from torch import fx

from lynx_plan.torch_rt import compat

_DESCRIPTORS = "torch._functorch._aot_autograd.descriptors"


def remove_tokens(graph: fx.Graph) -> None:
    """Run the wrapped ops plainly; the graph loses its token inputs and outputs."""
    wrapped = [node for node in graph.nodes if node.op == "call_function" and str(node.target) == "with_effects"]
    if not wrapped:
        return
    _drop_outputs(graph)
    for node in reversed(wrapped):
        _unwrap(graph, node)
    token = compat.private(_DESCRIPTORS, "ForwardTokenAOTInput"), compat.private(_DESCRIPTORS, "BackwardTokenAOTInput")
    for node in list(graph.nodes):
        if node.op == "placeholder" and isinstance(node.meta.get("desc"), token):
            graph.erase_node(node)


def _drop_outputs(graph: fx.Graph) -> None:
    names = ("ForwardTokenAOTOutput", "BackwardTokenAOTOutput")
    token = tuple(compat.private(_DESCRIPTORS, name) for name in names)
    end = next(iter(reversed(graph.nodes)))
    kept = [(v, d) for v, d in zip(end.args[0], end.meta["desc"], strict=True) if not isinstance(d, token)]
    end.args = (tuple(value for value, _ in kept),)
    end.meta["desc"] = [descriptor for _, descriptor in kept]


def _unwrap(graph: fx.Graph, node: fx.Node) -> None:
    """Users of the new token are gone by now, or take it from another wrapped op that is replaced later."""
    _, op, *args = node.args
    with graph.inserting_before(node):
        plain = graph.call_function(op, tuple(args), dict(node.kwargs))
    results = node.meta["val"][1:]
    plain.meta.update(node.meta)
    plain.meta["val"] = results if len(results) > 1 else results[0] if results else None
    for user in list(node.users):
        assert user.target is operator.getitem, user
        if user.args[1] == 0:
            user.replace_all_uses_with(node.args[0])
        elif len(results) == 1:
            user.replace_all_uses_with(plain)
        else:
            with graph.inserting_before(user):
                taken = graph.call_function(operator.getitem, (plain, user.args[1] - 1))
            taken.meta.update(user.meta)
            user.replace_all_uses_with(taken)
        graph.erase_node(user)
    graph.erase_node(node)
