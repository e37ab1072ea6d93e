"""Hand-made plans and measurements whose pictures are kept as golden text, and the comparison with those files."""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console, RenderableType

from lynx_plan import files
from lynx_plan.analyze.classes import op_lines, structure_digest
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import compress
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import Outcome, Plan, PlannedClass, StagePlan
from lynx_plan.model.program import Item
from lynx_plan.report.style import THEME
from lynx_plan.simulate.outcome import predict
from tests.unit.builders import megatron_graph

FOLDER = Path(__file__).parent
GRAPH = megatron_graph(4)


def check_golden(name: str, text: str) -> None:
    """Compare with the stored text; UPDATE_GOLDEN=1 stores it instead."""
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing: UPDATE_GOLDEN=1 makes it"
    assert text == path.read_text(encoding="utf-8")


def rendered(renderable: RenderableType) -> str:
    """What a terminal of 100 cells without colours shows."""
    stream = io.StringIO()
    Console(file=stream, width=100, no_color=True, color_system=None, theme=THEME).print(renderable)
    return stream.getvalue()


def plain_order(graph: CostGraph) -> tuple[Item, ...]:
    """Every op once, as captured: nothing is recomputed."""
    return tuple(Item(op.id) for op in graph.ops)


def recomputing_order(graph: CostGraph, *, in_windows: bool = True) -> tuple[Item, ...]:
    """Each layer recomputes gelu on demand before its use, and its first norm in (or after) a backward window."""
    index = GraphIndex(graph)
    order: list[Item] = []
    late = "up_reduce" if in_windows else "up_reduce_wait"
    for op in graph.ops:
        layer = graph.layers[index.op_layer[op.id]]
        slots = {graph.ops[member].name: member for member in layer.ops}
        if op.name == "down_wgrad":
            order.append(Item(slots["gelu"], 1))
        order.append(Item(op.id))
        if op.name == late:
            order.append(Item(slots["ln1"], 1))
    return tuple(order)


def plan_of(graph: CostGraph, order: tuple[Item, ...], *, algo: str, budget_bytes: int = 48 << 20) -> Plan:
    """The plan file of an order."""
    index = GraphIndex(graph)
    classes = [(layer.id, op_lines(index, layer.id)) for layer in graph.layers]
    stage = StagePlan(
        layers=tuple(layer.id for layer in graph.layers),
        classes=tuple(PlannedClass(digest="", name=graph.layers[i].name, layers=(i,), ops=ops) for i, ops in classes),
        program=compress(order, index),
    )
    return Plan(
        algo=algo, status="optimal", budget_text="60%", budget_bytes=budget_bytes, profile_digest=files.digest(graph),
        structure_digest=structure_digest(graph), model=graph.model, mesh=graph.mesh, link=graph.link, stages=(stage,),
        predicted=predict(graph, order),
    )  # fmt: skip


def slower(outcome: Outcome, share: float) -> Outcome:
    """A measurement that came out `share` slower than predicted, with the memory as predicted."""
    return Outcome(
        step_ns=round(outcome.step_ns * (1 + share)),
        peak_bytes=outcome.peak_bytes,
        peak_activation_bytes=outcome.peak_activation_bytes,
        recompute_hidden_ns=outcome.recompute_hidden_ns,
        recompute_exposed_ns=outcome.recompute_exposed_ns,
        comm_exposed_ns=outcome.comm_exposed_ns,
    )
