"""`lynx inspect`: a plan or a profile in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lynx_plan.cli import options
from lynx_plan.cli.session import Session
from lynx_plan.errors import AnswerNo, LynxError

if TYPE_CHECKING:
    from lynx_plan.model.graph import CostGraph
    from lynx_plan.model.plan import Plan

HELP = """Show a plan (policies, windows, a layer's two streams, memory) or a profile (classes, tensors, collectives).

\b
  lynx inspect plan.json
  lynx inspect plan.json --layer layers.3
  lynx inspect plan.json --why layers.3.gelu_3
  lynx inspect profile.json --json

A plan's pictures need the profile that it was made from: --profile, or profile.json beside the plan.
"""


@click.command("inspect", help=HELP)
@click.argument("file", default="plan.json", metavar="[FILE]")
@click.option("--profile", metavar="FILE", help="The profile of the plan (default: profile.json beside it).")
@click.option("--layer", metavar="NAME|NUMBER", help="The layer to draw (default: the middle of the commonest policy).")
@click.option("--why", metavar="TENSOR", help="Say why the plan keeps this value, or makes it again.")
@click.option("--ascii", "ascii_", is_flag=True, help="Draw with ASCII only.")
@options.json_option
@click.pass_obj
def command(
    session: Session, file: str, profile: str | None, layer: str | None, why: str | None, ascii_: bool, json_: bool
) -> None:
    from lynx_plan.files import load_any
    from lynx_plan.model.graph import CostGraph
    from lynx_plan.model.plan import Plan

    options.check_made(file)
    record = load_any(file)
    if isinstance(record, CostGraph):
        _show_profile(session, record, json_=json_)
    elif isinstance(record, Plan):
        if len(record.stages) != 1:
            what = f"has {len(record.stages)} stages; a profile holds one"
            raise LynxError(what, where=f"{file}#/stages", hint="plan again: lynx plan")
        graph = _find_profile(session, record, file, profile)
        if why is not None:
            _explain(session, record, graph, why, json_=json_)
            return
        if graph is None:
            _show_header(session, record, json_=json_)
        else:
            _show_plan(session, record, graph, layer=layer, ascii_=ascii_, json_=json_)
    else:
        kind = record.kind.removeprefix("lynx.")
        raise LynxError(f"is a {kind}: neither a plan nor a profile", where=file, hint="inspect plan.json")


def _find_profile(session: Session, plan: Plan, file: str, profile: str | None) -> CostGraph | None:
    """The profile named, or the one beside the plan if it is the plan's."""
    from lynx_plan.files import digest, load
    from lynx_plan.model.graph import CostGraph

    beside = Path(file).parent / "profile.json"
    if profile is None and not beside.is_file():
        return None
    path = profile or str(beside)
    graph = load(path, CostGraph)
    if digest(graph) == plan.profile_digest:
        session.detail(f"the plan's profile is {path}")
        return graph
    if profile is None:
        return None
    raise AnswerNo("is not the profile that this plan was made from", where=path, hint=f"plan again: lynx plan {path}")


def _show_profile(session: Session, graph: CostGraph, *, json_: bool) -> None:
    from lynx_plan.report.profile_view import inspect_profile, profile_document, render_profile
    from lynx_plan.solve.planner import make_plan

    view = inspect_profile(graph, make_plan(graph, algo="none", enforce_budget=False).plan)
    if json_:
        session.emit(profile_document(view))
    else:
        session.out().print(render_profile(view))


def _show_header(session: Session, plan: Plan, *, json_: bool) -> None:
    from lynx_plan.report.inspection import header_document, render_classes, render_header

    if json_:
        session.emit(header_document(plan))
    else:
        session.out().print(render_header(plan), "", render_classes(plan), sep="\n")
    session.note("policies, windows and charts need the profile of this plan, which is not beside it")
    session.note("hint: add --profile FILE")


def _show_plan(session: Session, plan: Plan, graph: CostGraph, *, layer: str | None, ascii_: bool, json_: bool) -> None:
    from lynx_plan.report.inspection import inspect_plan, plan_inspection_document, render_plan, shown_layer
    from lynx_plan.report.style import is_ascii

    view = inspect_plan(plan, graph)
    if json_:
        session.emit(plan_inspection_document(view))
        return
    console = session.out()
    shown = shown_layer(view) if layer is None else _layer_number(graph, layer)
    console.print(render_plan(view, layer=shown, ascii_only=ascii_ or is_ascii(console), width=console.width))


def _explain(session: Session, plan: Plan, graph: CostGraph | None, text: str, *, json_: bool) -> None:
    if graph is None:
        raise LynxError("--why needs the profile that the plan was made from", hint="add --profile FILE")

    from lynx_plan.analyze.programs import expand_step
    from lynx_plan.report.why import render_why, why_document
    from lynx_plan.solve.why import explain

    items = expand_step(plan.stages[0].program, graph.layers).alone
    idle_ns = sum(window.room_ns for window in plan.windows)
    answer = explain(graph, items, text, budget_bytes=plan.budget_bytes, idle_ns=idle_ns)
    if json_:
        session.emit(why_document(answer))
    else:
        session.out().print(render_why(answer))


def _layer_number(graph: CostGraph, text: str) -> int:
    for layer in graph.layers:
        if text in (layer.name, str(layer.id)):
            return layer.id
    names = ", ".join(layer.name for layer in graph.layers[:8])
    raise LynxError(
        f"no layer '{text}'", where="--layer", hint=f"layers: {names}{', ...' if len(graph.layers) > 8 else ''}"
    )
