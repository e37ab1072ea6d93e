"""`lynx plan --frontier`: step time against peak memory for several algorithms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lynx_plan.cli import options
from lynx_plan.errors import LynxError

if TYPE_CHECKING:
    from lynx_plan.cli.session import Session
    from lynx_plan.model.graph import CostGraph
    from lynx_plan.model.plan import GivenWindow
    from lynx_plan.solve.base import Effort


Command = TypeVar("Command", bound=Callable[..., Any])


def frontier_options(command: Command) -> Command:
    """`--frontier`, `--algos` and `--plot`."""
    for add in (
        click.option("--plot", metavar="FILE", help="With --frontier: also draw it, as .png or .svg."),
        click.option("--algos", default="", metavar="LIST",
                     help="With --frontier: algorithms, with commas (default: none,full,selective,ondemand,heu)."),
        click.option("--frontier", "frontier_", is_flag=True,
                     help="Show step time against peak memory for several algorithms; writes no plan."),
    ):  # fmt: skip
        command = add(command)
    return command


def show_frontier(
    session: Session,
    graph: CostGraph,
    *,
    algos: str,
    plot: str | None,
    force: bool,
    json_: bool,
    micro_batches: int,
    windows: tuple[GivenWindow, ...],
    interleave: bool,
    effort: Effort,
) -> None:
    """Plan at many budgets, print table and chart (or a document), and write the picture if one is named."""
    from lynx_plan import files
    from lynx_plan.report.frontier import frontier_document, render_frontier
    from lynx_plan.report.names import mesh_text, model_text
    from lynx_plan.report.plot import check_plot, frontier_picture
    from lynx_plan.solve.frontier import FAST, KNEE_OF, frontier, knee

    if plot is not None:
        check_plot(plot)
        files.check_writable(plot, overwrite=force)
    names = options.algorithms(algos) if algos else FAST
    points = frontier(
        graph,
        algos=names,
        micro_batches=micro_batches,
        windows=windows,
        interleave=interleave,
        effort=effort,
        told=lambda algo: session.detail(f"planning with {algo}"),
    )
    if not points:
        raise LynxError("no algorithm gave a plan", where="--algos", hint="add heu to the list")
    mark = knee([point for point in points if point.algo == KNEE_OF])
    title = f"{model_text(graph.model)}, {mesh_text(graph.mesh)}"
    if json_:
        session.emit(frontier_document(points, mark))
    else:
        session.out().print(render_frontier(points, mark, title))
    if plot is not None:
        picture = frontier_picture(points, mark, title, ending=Path(plot).suffix.lower())
        files.write_bytes(picture, plot, overwrite=force)
        session.note(f"wrote {plot}")
