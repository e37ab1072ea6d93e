"""`lynx compare`: several algorithms at one budget in one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lynx_plan.cli import options, search
from lynx_plan.cli.session import Session
from lynx_plan.errors import AnswerNo

if TYPE_CHECKING:
    from lynx_plan.model.graph import CostGraph
    from lynx_plan.report.compare import Entry

FIXED = ("none", "full", "selective")  # they have one answer, whatever the budget: shown and marked where it is over
HELP = f"""Plan with several algorithms and print one table, relative to the best on-demand plan.

\b
  lynx compare profile.json --budget 50%
  lynx compare --budget between:full,none,0.5 --algo none,full,ondemand,heu
  lynx compare profile.json --budget 50% --run --steps 5

Algorithms: {options.ALGORITHMS}. --run also measures each plan, and the untouched model in eager PyTorch.
"""


@click.command("compare", help=HELP)
@click.argument("profile", default="profile.json", metavar="[PROFILE]")
@options.budget_option
@click.option("--algo", default=options.ALGORITHMS.replace(" ", ""), show_default=True, help="Comma-separated list.")
@options.micro_batches_option
@search.interleave_option
@click.option("--run", "run_", is_flag=True, help="Also measure each plan, and verify its gradients.")
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Measured steps of each.")
@options.json_option
@click.pass_obj
def command(
    session: Session, profile: str, budget: str, algo: str, micro_batches: int, interleave: bool, run_: bool,
    steps: int, json_: bool,
) -> None:  # fmt: skip
    names = options.algorithms(algo)
    graph = options.load_profile(profile)

    from lynx_plan.report.compare import compare_document, compare_table
    from lynx_plan.report.names import mesh_text, model_text
    from lynx_plan.report.summary import verification_failed

    entries = [_entry(session, graph, name, budget, micro_batches, interleave=interleave) for name in names]
    if run_:
        entries = _measure(entries, steps, str(Path(profile).parent))
        if not entries:
            return
    if json_:
        session.emit(compare_document(entries))
    else:
        title = f"{model_text(graph.model)}, {mesh_text(graph.mesh)}, budget {_budget_text(entries, budget)}"
        session.out().print(compare_table(entries, title))
    if not any(entry.fits for entry in entries):
        raise AnswerNo("no plan fits the budget", where="--budget", hint="the table says what each needs")
    for entry in entries:
        if entry.measured and entry.measured.gradients_equal is False:
            raise AnswerNo(verification_failed(entry.measured), where=entry.name)


def _entry(
    session: Session, graph: CostGraph, name: str, budget: str, micro_batches: int, *, interleave: bool
) -> Entry:
    from lynx_plan.errors import Infeasible
    from lynx_plan.report.compare import Entry
    from lynx_plan.solve.budget import parse_budget
    from lynx_plan.solve.planner import make_plan

    try:
        planned = make_plan(
            graph, algo=name, budget=budget, micro_batches=micro_batches, interleave=interleave,
            enforce_budget=name not in FIXED,
        )  # fmt: skip
    except Infeasible as error:
        return Entry(name=name, budget=budget, budget_bytes=parse_budget(budget, graph), infeasible=error)
    session.detail(f"{name}: {planned.plan.status}, search {planned.search_ns / 1e9:.3f} s")
    for note in planned.notes:
        session.note(f"note: {name}: {note}")
    return Entry(
        name=name, budget=budget, budget_bytes=planned.plan.budget_bytes, plan=planned.plan, search_ns=planned.search_ns
    )


def _measure(entries: list[Entry], steps: int, folder: str) -> list[Entry]:
    """The entries with what a run measured, and `eager`; [] on a rank that does not report."""
    from lynx_plan.report.compare import Entry
    from lynx_plan.torch_rt.launch import RunOptions, run

    plans = tuple((entry.name, entry.plan) for entry in entries if entry.plan)
    what = RunOptions(plans=plans, steps=steps, verify=True, eager=True, folder=folder)
    rows = {row.name: row for row in run(what)}
    if not rows:
        return []
    measured = [replace(entry, measured=rows.get(entry.name)) for entry in entries]
    return [*measured, Entry(name="eager", measured=rows["eager"])]


def _budget_text(entries: list[Entry], budget: str) -> str:
    from lynx_plan.report.summary import budget_text

    return next((budget_text(entry.plan) for entry in entries if entry.plan), budget)
