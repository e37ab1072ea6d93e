"""`lynx profile`: capture a model file's step and price it, by a machine file or by measuring on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.model.machine import Link, Machine
from lynx_plan.torch_rt.capture import capture_file
from lynx_plan.torch_rt.mesh import MeshShape

Progress = Callable[[str, int, int], None]


def profile(
    spec: ModelSpec,
    mesh_shape: MeshShape,
    *,
    machine: Machine | None,
    link: Link | None,
    progress: Progress | None = None,
    costs: str | None = None,
    strict: bool = False,
) -> CostGraph:
    """The priced cost graph of one rank. Without a machine: measured here, in as many processes as there are ranks,
    except for what the cost cache file `costs` holds. `strict`: a block that cannot be traced is an error.
    """
    ranks = math.prod(size for _, size in mesh_shape)
    if progress:
        progress("tracing", 0, 1)
    if machine is not None:
        from lynx_plan.cost.roofline import price

        graph = capture_file(spec, mesh_shape, machine, strict=strict).graph
        if progress:
            progress("tracing", 1, 1)
        return replace(price(graph, machine, link), link=link)
    from lynx_plan.torch_rt.measure import measure, this_machine

    captured = capture_file(spec, mesh_shape, this_machine(ranks), strict=strict)
    if progress:
        progress("tracing", 1, 1)
    return measure(captured, ranks=ranks, threads=1, link=link, progress=progress, costs=costs)
