"""The mixture of experts: routing is decided once and kept, and sizes may differ from microbatch to microbatch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lynx_plan import files
from lynx_plan.analyze.programs import expand
from lynx_plan.check import check_order
from lynx_plan.cost.roofline import price
from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import CostGraph, ModelSpec, Phase
from lynx_plan.model.program import Item
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.bind import bind
from lynx_plan.torch_rt.capture import Captured, capture_file, capture_module
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.launch import RunOptions, run
from lynx_plan.torch_rt.live_bytes import LiveBytes
from lynx_plan.torch_rt.model_file import load_model_file, plain_loss
from lynx_plan.torch_rt.step import Step
from lynx_plan.torch_rt.verify import first_difference
from tests.torch_cpu.gpt_case import CPU
from tests.torch_cpu.plans import keep_all, may_run_again, plan_of, recompute_all
from tests.torch_cpu.test_parallel_examples import LINK

SPEC = ModelSpec(path=str(Path(__file__).parents[2] / "examples" / "moe.py"))
SMALL = (("dropless", "true"), ("hidden", "32"), ("layers", "2"), ("sequence", "16"), ("vocab", "64"))
TOKENS, WIDTH, EXPERTS = 256, 64, 8


class Ties(nn.Module):
    """Eight experts 64-256-64, two for each token. `closed`: nobody chooses the last expert."""

    def __init__(self, kind: str, closed: bool) -> None:
        super().__init__()
        example = vars(sys.modules[type(load_model_file(SPEC).build(None)).__module__])
        self.routing = example["Router"](WIDTH, EXPERTS, 2)
        self.experts = example[kind](example["ExpertParallel"](None), WIDTH, EXPERTS, 1.25)
        if closed:
            with torch.no_grad():
                self.routing.weight[-1] = -1e4
                self.routing.weight[:, 0] = torch.where(torch.arange(EXPERTS) < EXPERTS - 1, 0.0, -1e6)

    def forward(self, x: Tensor) -> Tensor:
        expert, weight = self.routing(x)
        made = self.experts(x.repeat_interleave(2, 0), expert) * weight.unsqueeze(-1)
        return (x + made.unflatten(0, (-1, 2)).sum(1)).pow(2).mean()


def tokens(seed: int) -> Tensor:
    """Half of the tokens are the same one."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, WIDTH, generator=generator)
    x[::2] = x[0].clone()
    x[:, 0] = 1
    return x


def captured(model: nn.Module) -> Captured:
    return capture_module(
        model, (tokens(0),), plain_loss, spec=ModelSpec(path=__file__), mesh=None, mesh_shape=(), machine=CPU
    )


@pytest.mark.parametrize("closed", [False, True], ids=["open", "one expert empty"])
@pytest.mark.parametrize("kind", ["CapacityExperts", "DroplessExperts"])
def test_ties_over_a_hundred_steps(kind, closed):
    torch.manual_seed(0)
    model = Ties(kind, closed)
    found = captured(model)
    step = Step.of(model, bind(found, plan_of(found.graph, recompute_all(found.graph)), None))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loads = set()
    for number in range(100):
        batches = [(tokens(number),)]
        expected = eager_gradients(model, plain_loss, batches)
        step(batches)
        made = {name: p.grad for name, p in model.named_parameters()}
        assert not first_difference(expected, made), number
        with torch.no_grad():
            counts = model.routing(batches[0][0])[0].bincount(minlength=EXPERTS)
        assert not closed or counts[-1] == 0
        loads.add(tuple(counts.tolist()))
        optimizer.step()
    assert len(loads) > 50  # so sizes changed


def test_no_solver_and_no_plan_routes_again():
    graph = capture_small(())
    routing = {op.id for op in graph.ops if op.kind in ("aten.topk", "aten.sort.stable", "aten._local_scalar_dense")}
    assert len(routing) >= 2 * 3
    assert all(graph.ops[op].effect for op in routing)
    assert not [op for op in routing if may_run_again(graph, op)]
    for algo in ("full", "selective", "ondemand", "heu"):
        plan = make_plan(graph, algo=algo, budget="between:full,none,0.0", enforce_budget=False).plan
        again = {item.op for item in expand(plan.stages[0].program, graph.layers) if item.replica}
        assert again
        assert not again & routing
    topk = next(op for op in graph.ops if op.kind == "aten.topk")
    backward = next(op.id for op in graph.ops if op.phase is not Phase.FORWARD)
    order = keep_all(graph)
    again = (*order[:backward], Item(topk.id, 1), *order[backward:])
    with pytest.raises(AnswerNo, match="replica"):
        check_order(graph, again, budget_bytes=None)


def capture_small(mesh: tuple[tuple[str, int], ...], **choices: object) -> CostGraph:
    machine = files.load_machine("cpu-demo")
    spec = replace(SPEC, arguments=SMALL)
    return replace(price(capture_file(spec, mesh, machine, **choices).graph, machine, LINK), link=LINK)


@pytest.mark.parametrize("mesh", [(), (("ep", 2),)], ids=["ep1", "ep2"])
def test_dropless_runs_bit_for_bit_within_its_bound(mesh):
    graph = capture_small(mesh, moe_load=1.25)
    plans = [
        ("none", plan_of(graph, keep_all(graph), micro_batches=3, algo="none")),
        ("full", plan_of(graph, recompute_all(graph), micro_batches=3, algo="full")),
        ("heu", make_plan(graph, algo="heu", budget="between:full,none,0.6", micro_batches=3).plan),
    ]
    rows = run(RunOptions(plans=tuple(plans), steps=1, verify=True))
    for row, (_, plan) in zip(rows, plans, strict=True):
        assert row.gradients_equal is True, (row.name, row.first_difference)
        assert 0 < row.measured.peak_activation_bytes <= plan.predicted.peak_activation_bytes, row.name
    assert rows[1].measured.peak_activation_bytes < rows[0].measured.peak_activation_bytes


def test_the_bound_holds_where_one_expert_gets_all():
    torch.manual_seed(0)
    model = Ties("DroplessExperts", closed=False)
    with torch.no_grad():
        model.routing.weight.zero_()
        model.routing.weight[:2, 0] = 10.0  # every token takes the first two experts
    found = captured(model)
    bound = bind(found, plan_of(found.graph, keep_all(found.graph)), None)
    step = Step.of(model, bound)
    batch = (tokens(1),)
    step([batch])
    gradients = [p.grad for p in model.parameters()]
    with LiveBytes([*model.parameters(), *gradients, *batch, *step.prepare(1, marked=False)]) as live:
        step([batch])
    assert live.peak_bytes <= bound.plan.predicted.peak_activation_bytes
