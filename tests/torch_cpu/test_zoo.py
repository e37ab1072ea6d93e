"""Every model of the zoo: profiled, planned by every algorithm, and run with eager's bits and the predicted memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lynx_plan
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.check import check_plan
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.model.machine import Peak
from lynx_plan.model.plan import Plan
from lynx_plan.solve.base import Effort
from lynx_plan.solve.planner import make_plan
from lynx_plan.solve.registry import SOLVERS
from lynx_plan.torch_rt.bind import bind
from lynx_plan.torch_rt.capture import capture_file
from lynx_plan.torch_rt.live_bytes import LiveBytes
from lynx_plan.torch_rt.measure_items import op_items
from lynx_plan.torch_rt.measure_op import TimedOp
from lynx_plan.torch_rt.model_file import ModelFile, load_model_file
from lynx_plan.torch_rt.native_ops import step_by_step
from lynx_plan.torch_rt.operands import OperandPool
from lynx_plan.torch_rt.profile import profile
from lynx_plan.torch_rt.step import Step
from lynx_plan.torch_rt.verify import bits_equal
from tests.torch_cpu.gpt_case import CPU
from tests.zoo import FOLDER, ZOO, Kind

DTYPES = ("float32", "bfloat16", "float64", "complex64")
PRICED = replace(
    CPU, memory_bytes_per_s=10**10, peaks=tuple(Peak(dtype=d, flops_per_s=10**11, source="test") for d in DTYPES)
)
STEPS, MICROBATCHES = 2, 2
TIGHT, LOOSE = "60%", "90%"
SLOW, SMALL = ("checkmate",), 120  # its whole-graph MILP runs to the time limit on larger ones
QUICK = Effort(gap=0.05, time_limit_s=1.0)  # what is proven is not the point here
Result = dict[str, Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:.*has other strides than PyTorch's tracing said")
@pytest.mark.parametrize("kind", ZOO, ids=lambda kind: kind.name)
def test_zoo(kind: Kind) -> None:
    spec = ModelSpec(path=kind.path)
    graph = profile(spec, (), machine=PRICED, link=None)
    plans = distinct_plans(kind, graph)
    file = load_model_file(spec)
    model = file.build(None)
    start = copy.deepcopy(model.state_dict())
    batches = [[file.batch(step, number, 0) for number in range(MICROBATCHES)] for step in range(STEPS)]
    expected = eager_steps(model, file, batches)
    step = lynx_plan.Step(model, plans[0], file.loss, example_inputs=file.example_inputs())
    for plan in plans:
        model.load_state_dict(start)
        step = Step.of(model, bind(step.bound.captured, plan, None))
        results, peak = planned_steps(model, step, batches)
        name = f"{kind.name}, {plan.algo} at {plan.budget_text}"
        assert [differences(*pair) for pair in zip(expected, results, strict=True)] == [[]] * STEPS, name
        assert peak == plan.predicted.peak_activation_bytes, name


def distinct_plans(kind: Kind, graph: CostGraph) -> list[Plan]:
    """Plans of every algorithm at both budgets, checked; one of each program."""
    none = make_plan(graph, algo="none", budget=LOOSE, micro_batches=MICROBATCHES, enforce_budget=False).plan
    found = {none.stages: none}
    index = GraphIndex(graph)
    for algo in SOLVERS:
        if algo in SLOW and len(graph.ops) > SMALL:
            continue
        for budget in (TIGHT, LOOSE):
            made = make_plan(
                graph, algo=algo, budget=budget, micro_batches=MICROBATCHES, enforce_budget=False, effort=QUICK,
                index=index,
            ).plan  # fmt: skip
            assert made.predicted.peak_activation_bytes <= none.predicted.peak_activation_bytes
            if made.stages not in found:
                check_plan(made, graph)
                found[made.stages] = made
    least = min(plan.predicted.peak_activation_bytes for plan in found.values())
    assert least <= kind.tight * none.predicted.peak_activation_bytes
    return list(found.values())


def eager_steps(model: nn.Module, file: ModelFile, batches: list[list[tuple[Tensor, ...]]]) -> list[Result]:
    """Losses, gradients and buffers of each step of the untouched model; parameters stay."""
    results = []
    torch.manual_seed(1)
    for microbatches in batches:
        for parameter in model.parameters():
            parameter.grad = None
        losses = []
        for args in microbatches:
            with step_by_step():
                loss = file.loss(model(*args))
            loss.backward()
            losses.append(loss.detach())
        results.append(snapshot(model, torch.stack(losses)))
    for parameter in model.parameters():
        parameter.grad = None
    return results


def planned_steps(model: nn.Module, step: Step, batches: list[list[tuple[Tensor, ...]]]) -> tuple[list[Result], int]:
    """The same of a plan, and the peak of live activation bytes of the first step."""
    results = []
    torch.manual_seed(1)
    inputs = [tensor for args in batches[0] for tensor in args]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    static = [*model.parameters(), *model.buffers(), *gradients, *inputs, *step.prepare(MICROBATCHES, marked=False)]
    with LiveBytes(static) as live:
        losses = step(batches[0])
        peak = live.peak_bytes
    results.append(snapshot(model, losses))
    for microbatches in batches[1:]:
        results.append(snapshot(model, step(microbatches)))
    return results, peak


def snapshot(model: nn.Module, losses: Tensor) -> Result:
    gradients = {f"gradient {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    buffers = {f"buffer {n}": b.clone() for n, b in model.named_buffers()}
    return {"losses": losses.clone(), **gradients, **buffers}


def differences(expected: Result, found: Result) -> list[str]:
    names = sorted(expected.keys() | found.keys())
    return [n for n in names if n not in expected or n not in found or not bits_equal(expected[n], found[n])]


def test_the_table_lists_every_file() -> None:
    files = {path.stem for path in Path(FOLDER).glob("*.py")} - {"__init__"}
    assert [kind.name for kind in ZOO] == sorted(files)
    assert len(ZOO) >= 30


@pytest.mark.parametrize("name", ["batchnorm", "dlrm", "linear_algebra"])
def test_ops_that_refuse_random_integers_are_measured_all_the_same(name: str) -> None:
    captured = capture_file(ModelSpec(path=str(FOLDER / f"{name}.py")), (), CPU)
    items, _ = op_items(captured)
    pool = OperandPool()
    with torch.no_grad():
        for item in items:
            op = TimedOp(item, pool)
            op.visit(count=True)
            assert op.result()["median_ns"] > 0
