"""`lynx run`: execute a plan on local ranks and compare prediction with measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lynx_plan.cli import options
from lynx_plan.cli.session import Session
from lynx_plan.errors import AnswerNo

if TYPE_CHECKING:
    from lynx_plan.model.plan import Plan

HELP = """Train a few steps by the plan on local ranks: predicted against measured.

\b
  lynx run --plan plan.json
  lynx run --plan plan.json --steps 10 --verify
  torchrun --nproc-per-node 2 -m lynx_plan run --plan plan.json --json

--verify compares every gradient bit for bit with the untouched model in eager PyTorch (exit code 1 if one differs).
"""


@click.command("run", help=HELP)
@click.option("--plan", "plan_file", default="plan.json", show_default=True, metavar="FILE", help="The plan to run.")
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Measured steps.")
@click.option("--verify", is_flag=True, help="Compare all gradients with eager PyTorch.")
@click.option("--model", metavar="PATH", help="The model file, if it is not where the plan says.")
@click.option("--link", metavar="RATE:LATENCY", help="Must be the plan's link, for which it was made.")
@click.option("--timeline", metavar="FILE", help="Also write the measured timeline.")
@click.option("--force", is_flag=True, help="Overwrite the timeline file.")
@options.json_option
@click.pass_obj
def command(
    session: Session,
    plan_file: str,
    steps: int,
    verify: bool,
    model: str | None,
    link: str | None,
    timeline: str | None,
    force: bool,
    json_: bool,
) -> None:
    from lynx_plan.files import check_writable, load
    from lynx_plan.model.plan import Plan

    options.check_made(plan_file)
    plan = load(plan_file, Plan)
    _check_link(plan, link)
    if timeline:
        check_writable(timeline, overwrite=force)

    from lynx_plan.report.documents import run_document
    from lynx_plan.report.summary import run_table, verification_failed
    from lynx_plan.torch_rt.launch import RunOptions, run

    folder = str(Path(plan_file).parent)
    rows = run(
        RunOptions(
            plans=((plan.algo, plan),), steps=steps, verify=verify, timeline=timeline, model=model, folder=folder
        )
    )
    for row in rows:
        if json_:
            session.emit(run_document(row))
        else:
            session.out().print(run_table(row))
        if timeline:
            session.wrote(timeline)
        if row.gradients_equal is False:
            raise AnswerNo(
                verification_failed(row),
                where=plan_file,
                hint="this is a bug of Lynx, or an op that is not deterministic; report it with the plan",
            )


def _check_link(plan: Plan, text: str | None) -> None:
    """A plan runs on the link that it was made for, and on no other."""
    given = options.link(text)
    if given is None:
        return
    known = plan.link
    if known and (known.bytes_per_s, known.latency_ns) == (given.bytes_per_s, given.latency_ns):
        return
    made_for = f"the link {known.text}" if known else "the machine's own link"
    raise AnswerNo(
        f"the plan was made for {made_for}, not for {given.text}",
        where="--link",
        hint=f"leave --link out, or make profile and plan again: lynx profile ... --link {given.text}",
    )
