"""`lynx profile`: capture a model file's step and price it, by a machine file or by measuring on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from lynx_plan.cost.data_parallel import average_note
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.model.machine import Link, Machine
from lynx_plan.torch_rt.capture import capture_file
from lynx_plan.torch_rt.mesh import MeshShape

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticOptions:
    """How a training job holds parameters, gradients and optimizer states (`cost.static.with_static`)."""

    recipe: str = "model"
    shard: str = "none"
    within: str = "all"


def profile(
    spec: ModelSpec,
    mesh_shape: MeshShape,
    *,
    machine: Machine | None,
    link: Link | None,
    progress: Progress | None = None,
    costs: str | None = None,
    moe_load: float = 1.0,
    moe_bytes: str = "bound",
    strict: bool = False,
    static: StaticOptions | None = None,
) -> CostGraph:
    """The priced cost graph of one rank. Without a machine: measured here, in as many processes as there are ranks,
    except for what the cost cache file `costs` holds. `strict`: a block that cannot be traced is an error. `static`
    other than the default is for machine files only, since what is measured here is what `lynx run` runs.
    """
    ranks = math.prod(size for _, size in mesh_shape)
    if progress:
        progress("tracing", 0, 1)
    captured = capture_file(
        spec, mesh_shape, machine or _this_machine(ranks), strict=strict, moe_load=moe_load, moe_bytes=moe_bytes
    )
    if progress:
        progress("tracing", 1, 1)
    if machine is not None:
        from lynx_plan.cost.roofline import price
        from lynx_plan.cost.static import with_static

        held = static or StaticOptions()
        graph = with_static(captured.graph, machine, recipe=held.recipe, shard=held.shard, within=held.within)
        return _noted(replace(price(graph, machine, link), link=link))
    if static not in (None, StaticOptions()):
        text = "lynx run holds parameters, gradients and optimizer as the model file does"
        raise LynxError(text, where="--recipe, --shard", hint="price by a machine file: add --machine NAME")
    from lynx_plan.torch_rt.measure import measure

    return _noted(measure(captured, ranks=ranks, threads=1, link=link, progress=progress, costs=costs))


def _noted(graph: CostGraph) -> CostGraph:
    return replace(graph, notes=(*graph.notes, *average_note(graph)))


def _this_machine(ranks: int) -> Machine:
    from lynx_plan.torch_rt.measure import this_machine

    return this_machine(ranks)
