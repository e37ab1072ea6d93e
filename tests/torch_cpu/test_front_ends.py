"""Front ends: which one traces a model, and that they trace the same step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import lynx_plan
from lynx_plan.analyze.classes import structure_digest
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import LynxError
from lynx_plan.model.capture import CaptureSpec
from lynx_plan.model.graph import CostGraph, ModelSpec, Role
from lynx_plan.torch_rt import front_ends
from lynx_plan.torch_rt.capture import Captured, capture_module
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.mesh import fake_mesh
from lynx_plan.torch_rt.model_file import load_model_file, plain_loss
from tests.torch_cpu.gpt_case import CPU, EXAMPLE, SMALL
from tests.torch_cpu.models import Convolution, Tied, Views
from tests.torch_cpu.plans import keep_all, plan_of


def by(front_end: str | None, module: nn.Module, *args: object) -> Captured:
    spec = ModelSpec(path=__file__)
    capture = CaptureSpec(front_end=front_end) if front_end else None
    return capture_module(module, args, plain_loss, spec=spec, mesh=None, mesh_shape=(), machine=CPU, capture=capture)


def gpt_by(front_end: str, *, split: bool) -> CostGraph:
    shape = (("tp", 2),)
    arguments = (*sorted({**dict(SMALL), "sequence_parallel": "true" if split else "false"}.items()),)
    spec = ModelSpec(path=str(EXAMPLE), arguments=arguments)
    file = load_model_file(spec)
    with fake_mesh(shape) as mesh:
        return capture_module(
            file.build(mesh),
            file.example_inputs(),
            file.loss,
            spec=spec,
            mesh=mesh,
            mesh_shape=shape,
            machine=CPU,
            capture=CaptureSpec(front_end=front_end),
        ).graph


def work(graph: CostGraph) -> list[tuple[object, ...]]:
    """What a step does, in order, without views: how they are written differs, and they cost nothing."""
    shapes = [(t.dtype, t.shape) for t in graph.tensors]
    return [
        (op.kind, op.phase, op.module, op.group, op.comm_bytes, op.flops, *[shapes[t] for t in op.outputs])
        for op in graph.ops
        if op.role is not Role.VIEW
    ]


@pytest.mark.parametrize("split", [False, True], ids=["tp", "sequence"])
def test_both_front_ends_trace_the_same_gpt(split):
    dynamo, joint = (gpt_by(name, split=split) for name in ("dynamo", "joint"))
    assert [layer.name for layer in dynamo.layers] == [layer.name for layer in joint.layers]
    assert sorted(work(dynamo), key=str) == sorted(work(joint), key=str)
    assert dynamo.static == joint.static
    assert {op.source for op in dynamo.ops if op.phase == "forward"} <= {op.source for op in joint.ops} | {""}


@pytest.mark.parametrize("model", [Convolution, Tied, Views])
def test_both_front_ends_keep_the_same_bytes(model):
    args = {Convolution: (torch.rand(2, 3, 8, 8),), Tied: (torch.randint(0, 10, (2, 3)),), Views: (torch.rand(8, 8),)}
    dynamo, joint = (by(name, model(), *args[model]).graph for name in ("dynamo", "joint"))
    assert dynamo.static == joint.static
    for graph in (dynamo, joint):
        GraphIndex(graph)


def test_dynamo_comes_first_and_the_graph_says_so():
    graph = by(None, nn.Sequential(nn.Linear(4, 4), Mean()), torch.ones(2, 4)).graph
    assert graph.capture == CaptureSpec(front_end="dynamo")
    assert graph.notes[0] == "traced by Dynamo capture, then joint export"


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


class LooksAtItsCaller(nn.Module):
    """Dynamo cannot read frames; plain tracing can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import sys

        name = sys._getframe(0).f_code.co_name
        return (self.layer(x) * len(name)).mean()


def test_what_dynamo_cannot_read_is_traced_plainly_and_the_reason_said():
    model, x = LooksAtItsCaller(), torch.rand(2, 4)
    captured = by(None, model, x)
    assert captured.graph.capture == CaptureSpec(front_end="joint")
    assert captured.graph.notes[0].startswith("traced by joint export, since Dynamo cannot read the model: ")
    assert "0x" not in captured.graph.notes[0]


def test_a_run_follows_the_plans_front_end(monkeypatch):
    model, x = nn.Sequential(nn.Linear(4, 4), Mean()), torch.rand(2, 4)
    expected = eager_gradients(model, plain_loss, [(x,)])
    for name in ("dynamo", "joint"):
        graph = by(name, model, x).graph
        step = lynx_plan.Step(model, plan_of(graph, keep_all(graph)))
        step([(x,)])
        assert step.bound.captured.graph.capture.front_end == name
        assert all(torch.equal(p.grad, expected[n]) for n, p in model.named_parameters())


def test_a_front_end_that_no_longer_can_is_an_error_and_no_other_is_tried():
    graph = by("joint", LooksAtItsCaller(), x := torch.rand(2, 4)).graph
    plan = replace(plan_of(graph, keep_all(graph)), capture=CaptureSpec(front_end="dynamo"))
    with pytest.raises(LynxError, match="Dynamo"):
        lynx_plan.Step(LooksAtItsCaller(), plan)([(x,)])


def test_captures_leave_nothing_behind():
    model, x = nn.Sequential(nn.Linear(4, 4), Mean()), torch.rand(2, 4)
    before = dict(torch._dynamo.config.get_config_copy()) if hasattr(torch, "_dynamo") else {}
    first, second = (structure_digest(by("dynamo", model, x).graph) for _ in range(2))
    assert first == second
    if before:
        assert dict(torch._dynamo.config.get_config_copy()) == before


def test_reasons_are_short_and_alike_from_run_to_run():
    text = "\nUnsupported: <Thing object at 0x7f00> in /home/someone/model.py\nmore"
    assert front_ends.short(RuntimeError(text)) == "Unsupported: <Thing object at > in model.py"
