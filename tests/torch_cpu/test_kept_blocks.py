"""A block that cannot be traced is kept whole: the case `branch`, through the command line and through Step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lynx_plan
from lynx_plan import files
from lynx_plan.check import check_order
from lynx_plan.errors import AnswerNo, LynxError
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.model.plan import Plan
from lynx_plan.model.program import Item
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.capture import Captured, capture_module
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.live_bytes import LiveBytes
from lynx_plan.torch_rt.model_file import plain_loss
from tests.cli.conftest import Lynx, folder, lynx  # noqa: F401
from tests.torch_cpu.gpt_case import CPU
from tests.torch_cpu.plans import keep_all, plan_of

FILE = str(Path(__file__).parents[1] / "zoo" / "branch.py")


class Odd(nn.Module):
    """Looks at its data, draws random numbers, updates a buffer, takes and returns more than one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.frozen = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor, parts: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
        y = F.dropout(self.norm(self.layer(x)), 0.5) * scale + self.frozen(parts["more"])
        if float(y.detach().sum()) > 0:
            y = y.exp()
        return {"y": y, "index": y.argmax(-1)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.odd, self.last = nn.Linear(8, 8), Odd(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        out = self.odd(x, {"more": x * 2}, 0.5)
        picked = out["y"].gather(-1, out["index"].unsqueeze(-1))
        return (self.last(out["y"]) * picked).square().mean()


def capture(model: nn.Module, *args: object, strict: bool = False) -> Captured:
    spec = ModelSpec(path=__file__)
    return capture_module(model, args, plain_loss, spec=spec, mesh=None, mesh_shape=(), machine=CPU, strict=strict)


def test_the_branching_block_is_kept_and_the_other_five_are_planned(lynx: Lynx, folder: Path) -> None:  # noqa: F811
    result = lynx("profile", FILE)
    assert result.code == 0, result.err
    line = 1 + Path(FILE).read_text().splitlines().index("        if self.branches and x.sum() > 0:")
    warning = next(line for line in result.err.splitlines() if "warning: blocks.3 is kept whole" in line)
    assert f"{FILE}:{line}: the model's graph depends on its data" in warning
    graph = files.load("profile.json", CostGraph)
    assert [block.module for block in graph.capture.kept_blocks] == ["blocks.3"]
    assert all(op.effect for op in graph.ops if op.kind.startswith("lynx.kept"))
    assert all(op.time_ns > 0 for op in graph.ops if op.kind.startswith("lynx.kept"))
    assert lynx("plan", "--budget", "between:full,none,0.2").code == 0
    plan = files.load("plan.json", Plan)
    again = {item.op for item in lynx_items(plan, graph) if item.replica}
    layers = {layer.name for layer in graph.layers for op in layer.ops if op in again}
    assert {"blocks.2", "blocks.4"} <= layers <= {f"blocks.{i}" for i in (0, 1, 2, 4, 5)}
    assert lynx("run", "--verify", "--steps", "1").code == 0


def lynx_items(plan: Plan, graph: CostGraph) -> tuple[Item, ...]:
    from lynx_plan.analyze.programs import expand

    return expand(plan.stages[0].program, graph.layers)


def test_strict_makes_it_an_error(lynx: Lynx, folder: Path) -> None:  # noqa: F811
    result = lynx("profile", FILE, "--strict")
    assert result.code == 2
    assert "branch.py:" in result.err
    assert "depends on its data" in result.err
    assert list(folder.iterdir()) == []


def test_a_machine_file_prices_the_block_by_its_operations(lynx: Lynx, folder: Path) -> None:  # noqa: F811
    assert lynx("profile", FILE, "--machine", "cpu-demo").code == 0
    graph = files.load("profile.json", CostGraph)
    kept = [op for op in graph.ops if op.kind.startswith("lynx.kept")]
    whole = [op for op in graph.ops if op.module.startswith("blocks.2")]
    forward = sum(op.flops for op in whole if op.phase == "forward" and "mm" in op.kind)
    assert [op.flops for op in kept] == [forward, 2 * forward]


@pytest.mark.parametrize("algo", ["none", "full", "heu"])
def test_gradients_buffers_and_peaks_of_an_odd_block(algo: str) -> None:
    torch.manual_seed(1)
    model, batches = Model(), [(torch.randn(16, 8),) for _ in range(3)]
    captured = capture(model, *batches[0])
    assert [block.module for block in captured.graph.capture.kept_blocks] == ["odd"]
    plan = make_plan(captured.graph, algo=algo, budget="100%").plan
    before = {name: b.clone() for name, b in model.named_buffers()}
    torch.manual_seed(2)
    expected = eager_gradients(model, plain_loss, batches)
    after = {name: b.clone() for name, b in model.named_buffers()}
    model.load_state_dict(before, strict=False)
    step = lynx_plan.Step(model, plan)
    torch.manual_seed(2)
    step(batches)
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert all(torch.equal(b, after[name]) for name, b in model.named_buffers())
    static = [*step.prepare(1, marked=False), *batches[0], *model.parameters(), *model.buffers()]
    with LiveBytes(static) as live:
        step(batches[:1])
    assert abs(live.peak_bytes / plan.predicted.peak_activation_bytes - 1) <= 0.03


def test_what_a_kept_block_holds_is_never_recomputed() -> None:
    graph = capture(Model(), torch.randn(16, 8)).graph
    backward = next(op for op in graph.ops if op.kind == "lynx.kept_backward")
    tanh = next(op for op in graph.ops if op.kind == "aten.tanh")
    assert tanh.effect
    items = keep_all(graph)
    again = [*items[: backward.id], Item(op=tanh.id, replica=1), *items[backward.id :]]
    with pytest.raises(AnswerNo):
        check_order(graph, again, budget_bytes=None)


def test_an_error_of_the_block_itself_is_reported_and_nothing_is_kept() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 5), nn.Linear(4, 4)])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x.mean()

    with pytest.raises(LynxError, match="mat1 and mat2"):
        capture(Wrong(), torch.randn(2, 4))


def test_a_plan_with_a_kept_block_keeps_it_in_the_run() -> None:
    model, x = Model(), torch.randn(16, 8)
    graph = capture(model, x).graph
    step = lynx_plan.Step(model, plan_of(graph, keep_all(graph)))
    step([(x,)])
    assert step.bound.captured.graph.capture == graph.capture
    assert "forward" not in vars(model.odd)
