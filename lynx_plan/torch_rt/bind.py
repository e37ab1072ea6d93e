"""Bind a plan to a real module: is it the model the plan was made for, and do all ranks agree?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from lynx_plan import files
from lynx_plan.analyze.classes import structure_digest
from lynx_plan.analyze.flow import Flow, resolve
from lynx_plan.analyze.programs import expand_step
from lynx_plan.analyze.steps import StepOrder
from lynx_plan.check import check_plan, differences
from lynx_plan.errors import AnswerNo
from lynx_plan.model.plan import Plan
from lynx_plan.model.program import Item
from lynx_plan.torch_rt.capture import Captured
from lynx_plan.torch_rt.failure import Disagreement

SHOWN = 5  # differences in a message
REPLAN = "profile and plan again: lynx profile, then lynx plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A plan whose program fits the captured module. `items` and `flow` are those of one microbatch by itself."""

    plan: Plan
    captured: Captured
    order: StepOrder
    items: tuple[Item, ...]
    flow: Flow


def bind(captured: Captured, plan: Plan, mesh: DeviceMesh | None) -> Bound:
    """Check the plan against the module and the other ranks; every rank of the mesh must call it.

    Raises Disagreement where ranks hold different plans or models, AnswerNo where the model is not the plan's or
    the program is not legal for it. All ranks raise the same, so none starts.
    """
    structure = structure_digest(captured.graph)
    _agree("another plan", files.digest(plan), mesh)
    _agree("another model", structure, mesh)
    if structure != plan.structure_digest:
        changed = differences(plan, captured.graph)
        more = f"; and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        raise AnswerNo(f"the model changed since the plan was made: {'; '.join(changed[:SHOWN])}{more}", hint=REPLAN)
    check_plan(plan, captured.graph)
    order = expand_step(plan.stages[0].program, captured.graph.layers)
    flow = resolve(captured.graph, order.alone)
    return Bound(plan=plan, captured=captured, order=order, items=order.alone, flow=flow)


def _agree(what: str, digest: str, mesh: DeviceMesh | None) -> None:
    """Every rank of every group of the mesh has the same digest; LynxError naming the first that has not."""
    if mesh is None:
        return
    own = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8, device=mesh.device_type)
    for name in mesh.mesh_dim_names or ():
        group = mesh.get_group(name)
        ranks = dist.get_process_group_ranks(group)
        found = [torch.empty_like(own) for _ in ranks]
        dist.all_gather(found, own, group=group)
        texts = [bytes(each.tolist()).hex() for each in found]
        for rank, text in zip(ranks, texts, strict=True):
            if text != texts[0]:
                raise Disagreement(
                    f"rank {rank} holds {what} than rank {ranks[0]}: digest {text[:12]} instead of {texts[0][:12]}",
                    hint="give every rank the same files and the same arguments",
                )
