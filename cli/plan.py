"""`lynx plan`: from profile.json to plan.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lynx_plan.cli import frontier, options, search
from lynx_plan.cli.session import Session

if TYPE_CHECKING:
    from lynx_plan.solve.planner import Planned

HELP = """Decide what to keep, what to recompute and in which window; writes a checked plan.

\b
  lynx plan --budget 60%
  lynx plan gpt.json --algo heu --budget 60GiB -o gpt-plan.json
  lynx plan --budget between:full,none,0.5 --json
  lynx plan --algo opt --budget 60% --gap 1% --time-limit 60s
  lynx plan --budget 60% --window bubble:20ms
  lynx plan --frontier --plot frontier.svg

The profile is profile.json unless named. Exit code 1: no plan fits; the smallest budget that does is printed.
"""


@click.command("plan", help=HELP)
@click.argument("profile", default="profile.json", metavar="[PROFILE]")
@click.option("--algo", default="heu", show_default=True, help=f"One of {options.KNOWN}; a setting follows a colon.")
@options.budget_option
@options.micro_batches_option
@search.interleave_option
@search.search_options
@frontier.frontier_options
@options.output_options("plan.json")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    profile: str,
    algo: str,
    budget: str,
    micro_batches: int,
    interleave: bool,
    gap: str,
    time_limit: str,
    window: tuple[str, ...],
    frontier_: bool,
    algos: str,
    plot: str | None,
    output: str,
    force: bool,
    json_: bool,
) -> None:
    session: Session = ctx.obj
    share, seconds = search.gap(gap), search.seconds(time_limit)
    given = search.given_windows(window)
    if frontier_:
        graph = options.load_profile(profile)

        from lynx_plan.solve.base import Effort

        frontier.show_frontier(
            session, graph, algos=algos, plot=plot, force=force, json_=json_, micro_batches=micro_batches,
            windows=given, interleave=interleave, effort=Effort(gap=share, time_limit_s=seconds),
        )  # fmt: skip
        return
    if algos or plot:
        raise click.UsageError("'--algos' and '--plot' go with '--frontier'", ctx)
    options.check_output(ctx, output, force=force, json_=json_)
    name = options.algorithm(algo)
    graph = options.load_profile(profile)

    from lynx_plan.errors import Infeasible
    from lynx_plan.report.documents import infeasible_document
    from lynx_plan.solve.base import Effort
    from lynx_plan.solve.budget import parse_budget
    from lynx_plan.solve.planner import make_plan

    session.detail(f"read {profile}: {len(graph.ops)} ops in {len(graph.layers)} layers")
    try:
        with search.progress(session) as report:
            effort = Effort(gap=share, time_limit_s=seconds, report=report)
            planned = make_plan(
                graph, algo=name, budget=budget, micro_batches=micro_batches, windows=given, interleave=interleave,
                effort=effort,
            )  # fmt: skip
    except Infeasible as error:
        if json_:
            session.emit(infeasible_document(name, budget, parse_budget(budget, graph), error))
        raise
    unused = search.unused_note(ctx, name)
    _finish(ctx, session, planned, profile, output, unused, force=force, json_=json_)


def _finish(
    ctx: click.Context, session: Session, planned: Planned, profile: str, output: str, unused: str, *, force: bool,
    json_: bool,
) -> None:  # fmt: skip
    """Write the plan, and show it."""
    from lynx_plan import files
    from lynx_plan.report.documents import plan_document
    from lynx_plan.report.summary import plan_summary

    items = sum(len(template.split()) for template in planned.plan.stages[0].program.templates)
    session.detail(f"checked and simulated the plan; {items} items in its templates")
    files.write(planned.plan, output, overwrite=options.may_overwrite(ctx, force=force))
    if json_:
        path = None if output == "-" else output
        session.emit(plan_document(planned.plan, search_ns=planned.search_ns, path=path))
    else:
        console = session.err() if output == "-" else session.out()
        console.print(plan_summary(planned.plan, search_ns=planned.search_ns, none=planned.baseline))
    for note in (*planned.notes, *([unused] if unused else [])):
        session.note(f"note: {note}")
    beside = profile == "-" or Path(profile) == Path(output).parent / "profile.json"
    session.wrote(output, f"lynx inspect {output}" + ("" if beside else f" --profile {profile}"))
