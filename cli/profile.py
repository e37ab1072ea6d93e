"""`lynx profile`: from a model file to profile.json."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from lynx_plan.cli import options
from lynx_plan.cli.session import Session

if TYPE_CHECKING:
    from lynx_plan.model.graph import CostGraph, ModelSpec

HELP = """Trace one training step of MODEL.py (or MODEL.py:builder) and price every op.

\b
  lynx profile examples/gpt.py --tp 2 --link 500MB/s:100us
  lynx profile examples/moe.py --dp 2 --ep 2 --link 500MB/s:100us
  lynx profile examples/gpt.py --tp 8 --arg layers=44 --machine a100-80g-nvlink -o gpt.json
  lynx profile my_model.py:build_small
  lynx profile --hf llama/config.json --seq 2048 --micro-batch 4 --tp 8 --machine h100-80g-nvlink

Nothing is allocated and no ranks are started while tracing. Without --machine the ops are measured on this CPU, in
as many processes as there are ranks; under torchrun, on its ranks, of which rank 0 writes the file.
"""
Report = Callable[[str, int, int], None]


@click.command("profile", help=HELP)
@click.argument("model", required=False, metavar="[MODEL.py[:BUILDER]]")
@options.hf_options
@options.mesh_options
@click.option("--arg", "arguments", multiple=True, metavar="KEY=VALUE", help="Argument of the model file; repeatable.")
@click.option("--machine", metavar="NAME|FILE", help="Price by a machine file instead of measuring on this CPU.")
@click.option("--link", metavar="RATE:LATENCY", help="Price collectives for this link, such as 500MB/s:100us.")
@click.option("--fusion", metavar="NAME", help="Price fused kernels as a backend has them: megatron, none.")
@click.option("--costs", metavar="FILE", help="Take measured costs from this file, and keep new ones in it.")
@click.option("--show", is_flag=True, help="Also show classes, largest tensors, collectives: as lynx inspect does.")
@options.moe_options
@options.static_options
@click.option("--strict", is_flag=True, help="A block that cannot be traced is an error, not kept whole.")
@options.output_options("profile.json")
@click.pass_context
def command(ctx: click.Context, /, output: str, force: bool, show: bool, **given: Any) -> None:
    session: Session = ctx.obj
    options.check_output(ctx, output, force=force)
    wanted = _wanted(ctx, **given)

    from lynx_plan import files
    from lynx_plan.torch_rt.profile import profile

    # what the model file prints is no part of the result
    with measuring_progress(session) as progress, redirect_stdout(sys.stderr):
        graph = profile(**wanted, progress=progress)
    if options.is_other_rank():
        return  # rank 0 of an outer torchrun writes what all ranks measured
    files.write(graph, output, overwrite=options.may_overwrite(ctx, force=force))
    _report(session, graph, output, show=show)


def _wanted(
    ctx: click.Context,
    *,
    machine: str | None,
    link: str | None,
    fusion: str | None,
    costs: str | None,
    recipe: str,
    shard: str,
    shard_within: str,
    **given: Any,
) -> dict[str, Any]:
    """The arguments of `profile`, from those of the command line."""
    spec, priced_link = _model(ctx, given), options.link(link)
    mesh = options.mesh(**{name: given[name] for name in options.MESH})
    if machine and ctx.get_parameter_source("costs") == click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--costs holds measured costs; --machine prices by formula: give one of them", ctx)

    from lynx_plan.files import load_machine
    from lynx_plan.torch_rt.profile import StaticOptions

    return {
        "spec": spec,
        "mesh_shape": mesh,
        "machine": options.with_fusion(load_machine(machine) if machine else None, fusion),
        "link": priced_link,
        "costs": costs,
        "static": StaticOptions(recipe=recipe, shard=shard, within=shard_within),
        **{name: given[name] for name in ("moe_load", "moe_bytes", "strict")},
    }


def _model(ctx: click.Context, given: dict[str, Any]) -> ModelSpec:
    """The model file, or the configuration."""
    model, hf = given["model"], given["hf"]
    if (model is None) == (hf is None):
        raise click.UsageError("give either a model file MODEL.py or --hf CONFIG", ctx)
    if model is not None:
        return options.model_spec(model, given["arguments"])
    own = {name: given[name] for name in ("seq", "micro_batch", "dtype")}
    return options.hf_spec(hf, given["arguments"], **own)


def _report(session: Session, graph: CostGraph, output: str, *, show: bool) -> None:
    """The summary, or the whole view, then the notes and the next command."""
    from lynx_plan.report.profile_view import details, inspect_profile
    from lynx_plan.report.summary import profile_summary
    from lynx_plan.solve.planner import make_plan

    none = make_plan(graph, algo="none", enforce_budget=False).plan
    console = session.err() if output == "-" else session.out()
    console.print(profile_summary(graph, none.predicted))
    if show:
        console.print(*details(inspect_profile(graph, none)), sep="\n")
    for note in graph.notes:
        session.note(f"note: {note}")
    given = "" if output == "profile.json" else f" {output}"
    session.wrote(output, f"lynx plan{given} --budget 60%")


@contextmanager
def measuring_progress(session: Session) -> Iterator[Report]:
    """A progress bar on a terminal's standard error; elsewhere one line per stage if `-v` asks for them."""
    if session.quiet or not sys.stderr.isatty() or options.is_other_rank():
        yield _stages(session)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=session.err(), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield report


def _stages(session: Session) -> Report:
    """Name each stage when it begins."""
    begun: set[str] = set()

    def report(stage: str, _done: int, total: int) -> None:
        if stage not in begun:
            begun.add(stage)
            session.detail(f"{stage} ({total})")

    return report
