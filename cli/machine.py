"""`lynx machine`: the machine files that prices come from, and one of this machine."""

from __future__ import annotations

import click

from lynx_plan.cli import options
from lynx_plan.cli.session import Session

HELP = """List the machine files that Lynx ships, show one with the source of each number, or measure this machine.

\b
  lynx machine list
  lynx machine show a100-80g-nvlink
  lynx machine measure -o here.json --ranks 2
  lynx profile examples/gpt.py --machine here.json
"""


@click.group("machine", help=HELP)
def command() -> None:
    pass


@command.command("list", help="The machine files that Lynx ships, by name.")
@options.json_option
@click.pass_obj
def list_(session: Session, json_: bool) -> None:
    from lynx_plan.files import load_machine, shipped_machines, to_json_object
    from lynx_plan.report.machine_view import machines_table

    machines = [load_machine(name) for name in shipped_machines()]
    if json_:
        session.emit({"machines": [to_json_object(machine) for machine in machines]})
    else:
        session.out().print(machines_table(machines))


@command.command("show", help="One machine's numbers, its levels, and where each number comes from.")
@click.argument("name", metavar="NAME|FILE")
@options.json_option
@click.pass_obj
def show(session: Session, name: str, json_: bool) -> None:
    from lynx_plan.files import load_machine, to_json_object
    from lynx_plan.report.machine_view import machine_view

    machine = load_machine(name)
    if json_:
        session.emit(to_json_object(machine))
    else:
        session.out().print(machine_view(machine))


@command.command("measure")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Concurrent processes.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Compute threads of each.")
@click.option("--name", default="this-machine", show_default=True, help="The machine's name in the file.")
@click.option("--quick", is_flag=True, help="A few sizes only.")
@options.output_options("machine.json")
@click.pass_context
def measure(ctx: click.Context, /, ranks: int, threads: int, name: str, quick: bool, output: str, force: bool) -> None:
    """Measure this CPU: matmuls and memory traffic by size, collectives among ranks, contention. Under torchrun, its
    ranks are measured. This version measures no GPU.
    """
    session: Session = ctx.obj
    options.check_output(ctx, output, force=force)

    from lynx_plan import files
    from lynx_plan.cli.profile import measuring_progress
    from lynx_plan.report.machine_view import machine_view
    from lynx_plan.torch_rt.measure_machine import measure_machine

    with measuring_progress(session) as progress:
        machine = measure_machine(name=name, ranks=ranks, threads=threads, quick=quick, progress=progress)
    if options.is_other_rank():
        return
    files.write(machine, output, overwrite=options.may_overwrite(ctx, force=force))
    (session.err() if output == "-" else session.out()).print(machine_view(machine))
    session.wrote(output, f"lynx profile MODEL.py --machine {output}")
