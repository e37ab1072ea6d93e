"""The cases that people report to break recomputation: what must hold for each, on one stage."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import lynx_plan
from lynx_plan.analyze.programs import expand
from lynx_plan.check import check_plan
from lynx_plan.errors import AnswerNo, Infeasible
from lynx_plan.model.graph import CostGraph, ModelSpec, Op, Phase, Role, StorageKind
from lynx_plan.model.plan import Plan
from lynx_plan.simulate.outcome import predict
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt import program_ops
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.live_bytes import LiveBytes
from lynx_plan.torch_rt.model_file import ModelFile, load_model_file
from lynx_plan.torch_rt.profile import profile
from lynx_plan.torch_rt.verify import first_difference
from tests.torch_cpu.ranks import run_ranks
from tests.torch_cpu.test_copies import altered
from tests.torch_cpu.test_zoo import PRICED
from tests.zoo import FOLDER

Run = Callable[[list[tuple]], torch.Tensor]  # a step of one microbatch: its losses
LARGE = {"blocks": 16, "width": 256, "hidden": 1024, "rows": 256}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spec_of(name: str, **arguments: int) -> ModelSpec:
    pairs = tuple(sorted((key, str(value)) for key, value in arguments.items()))
    return ModelSpec(path=str(FOLDER / f"{name}.py"), arguments=pairs)


@cache
def graph_of(spec: ModelSpec, tp: int = 0) -> CostGraph:
    return profile(spec, (("tp", tp),) if tp else (), machine=PRICED, link=PRICED.link if tp else None)


def planned(graph: CostGraph, algo: str, budget: str) -> Plan:
    plan = make_plan(graph, algo=algo, budget=budget, enforce_budget=False).plan
    check_plan(plan, graph)
    return plan


def copies(graph: CostGraph, plan: Plan) -> list[Op]:
    return [graph.ops[item.op] for item in expand(plan.stages[0].program, graph.layers) if item.replica]


def start(spec: ModelSpec, plan: Plan) -> tuple[ModelFile, nn.Module, lynx_plan.Step]:
    file = load_model_file(spec)
    model = file.build(None)
    return file, model, lynx_plan.Step(model, plan, file.loss, example_inputs=file.example_inputs())


def train_alike(
    contestants: list[tuple[nn.Module, Callable[[list[tuple]], torch.Tensor]]], file: ModelFile, steps: int
):
    """Train with SGD, step by step alike; the first thing that differs from the first contestant's, empty if none."""
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model, _ in contestants]
    for number in range(steps):
        found = []
        for model, step in contestants:
            torch.manual_seed(number)
            loss = step([file.batch(number, 0, 0)])
            gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            found.append({"loss": loss, **gradients, **{f"buffer {name}": b for name, b in model.named_buffers()}})
        for other in found[1:]:
            if difference := first_difference(found[0], other):
                return f"step {number}: {difference}"
        for optimizer in optimizers:
            optimizer.step()
    return ""


def eager_step(model: nn.Module, file: ModelFile) -> Run:
    def step(batches: list[tuple]) -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = file.loss(model(*batches[0]))
        loss.backward()
        return loss.detach()[None]

    return step


def test_dropout_20_steps_equal_to_no_recomputation() -> None:
    spec = spec_of("dropout", width=256, blocks=6, rows=64)
    graph = graph_of(spec)
    tight = planned(graph, "heu", "40%")
    assert any(op.rng for op in copies(graph, tight))
    contestants = []
    for plan in (planned(graph, "none", "100%"), tight):
        file, model, step = start(spec, plan)
        contestants.append((model, step))
    assert train_alike(contestants, file, 20) == ""


def test_dropout_with_an_altered_state_fails_and_the_op_is_named(monkeypatch) -> None:
    right = program_ops.replay_random
    monkeypatch.setattr(program_ops, "replay_random", lambda state, *args, **more: right(altered(state), *args, **more))
    spec = spec_of("dropout")
    file, model, step = start(spec, planned(graph_of(spec), "full", "100%"))
    batches = [file.example_inputs()]
    torch.manual_seed(4)
    expected = eager_gradients(model, file.loss, batches)
    torch.manual_seed(4)
    step(batches)
    assert first_difference(expected, {name: p.grad for name, p in model.named_parameters()}) != ""
    assert step.wrong_copy(batches[0]).startswith("blocks.2.native_dropout")


def test_batchnorm_buffers_equal_and_the_counter_reads_3() -> None:
    spec = spec_of("batchnorm")
    plan = planned(graph_of(spec), "heu", "60%")
    assert copies(graph_of(spec), plan)
    file, model, step = start(spec, plan)
    reference = copy.deepcopy(model)
    assert train_alike([(reference, eager_step(reference, file)), (model, step)], file, 3) == ""
    assert model.blocks[0][1].num_batches_tracked == 3


@pytest.mark.parametrize("algo", ["full", "heu"])
def test_adapters_recompute_nothing_where_no_gradient_flows(algo: str) -> None:
    spec = spec_of("adapters")
    graph = graph_of(spec)
    plan = planned(graph, algo, "60%")
    modules = {op.module.partition(".")[0] for op in copies(graph, plan)}
    assert modules == {"layers"}
    file, model, step = start(spec, plan)
    batches = [file.batch(0, number, 0) for number in range(2)]
    expected = eager_gradients(model, file.loss, batches)
    step(batches)
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert first_difference(expected, found) == ""
    assert all(name.endswith(("a.weight", "b.weight")) for name in found)


def test_autocast_casts_are_tensors_and_copies_have_the_same_dtypes() -> None:
    spec = spec_of("autocast")
    graph = graph_of(spec)
    casts = [graph.tensors[t] for op in graph.ops if op.kind == "aten._to_copy" for t in op.outputs]
    assert {tensor.dtype for tensor in casts} == {"bfloat16", "float32"}
    made = {tensor.storage for tensor in casts}
    plan = planned(graph, "none", "100%")
    free = replace(graph, storages=tuple(replace(s, bytes=0) if s.id in made else s for s in graph.storages))
    items = expand(plan.stages[0].program, graph.layers)
    assert predict(free, items).peak_activation_bytes < 0.8 * plan.predicted.peak_activation_bytes
    file, _, step = start(spec, planned(graph, "full", "100%"))
    assert step.wrong_copy(file.example_inputs()) == ""  # dtypes are compared too


def test_views_of_fused_qkv_are_one_storage() -> None:
    graph = graph_of(spec_of("views"))
    wide = [t for t in graph.tensors if t.producer >= 0 and graph.ops[t.producer].role is Role.COMPUTE]
    wide = [t for t in wide if t.shape[-1:] == (384,) and graph.ops[t.producer].phase is Phase.FORWARD]
    assert len(wide) == 4
    rows = 2 * 16
    for tensor in wide:
        sharing = [t for t in graph.tensors if t.storage == tensor.storage and t.shape == (2, 4, 16, 32)]
        assert len(sharing) == 3  # q, k and v
        assert graph.storages[tensor.storage].bytes == rows * 384 * 4


def test_tied_weights_are_seen_by_storage_and_said() -> None:
    graph = graph_of(spec_of("tied"))
    assert "embedding.weight and head.weight share memory, counted once" in graph.notes
    table = 1000 * 128 * 4
    kinds = [s.kind for s in graph.storages if s.bytes == table]
    assert kinds.count(StorageKind.PARAMETER) == 1
    assert kinds.count(StorageKind.GRADIENT) == 1


def test_tp_mlp_never_replays_an_all_reduce_that_nobody_needs(tmp_path) -> None:
    graph = graph_of(spec_of("tp_mlp"), tp=2)
    for algo, budget in (("full", "100%"), ("heu", "60%")):
        plan = planned(graph, algo, budget)
        assert copies(graph, plan)
        assert not any(op.role is Role.COLLECTIVE for op in copies(graph, plan))
    plan = planned(graph, "full", "100%")
    (one, other) = run_ranks(_tp_mlp, 2, tmp_path, plan)
    assert one["difference"] == other["difference"] == ""
    assert one["collectives"] == other["collectives"]
    assert len(one["collectives"]) == 8


def _tp_mlp(rank: int, plan: Plan) -> dict[str, object]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    file = load_model_file(plan.model)
    model = file.build(mesh)
    step = lynx_plan.Step(model, plan, file.loss, example_inputs=file.example_inputs(), mesh=mesh)
    batches = [file.example_inputs()]
    expected = eager_gradients(model, file.loss, batches)
    with Collectives() as seen:
        step(batches)
    found = {name: p.grad for name, p in model.named_parameters()}
    dist.barrier()
    return {"difference": first_difference(expected, found), "collectives": seen.names}


class Collectives(LiveBytes):
    """Lists the collectives that run under it, with their shapes."""

    def __init__(self) -> None:
        super().__init__([])
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "_c10d_functional" and "wait" not in str(func):
            self.names.append(f"{func} {list(args[0].shape)}")
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("algo", ["ondemand", "heu"])
def test_budgets_give_peaks_that_fall_with_the_budget(algo: str) -> None:
    graph = graph_of(spec_of("budgets", **LARGE))
    none = planned(graph, "none", "100%").predicted.peak_activation_bytes
    peaks = []
    for share in (100, 75, 50, 25, 10):
        plan = planned(graph, algo, f"{share}%")
        peaks.append(plan.predicted.peak_activation_bytes)
        assert plan.status == "over-budget" or peaks[-1] <= none * share / 100
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] <= none
    assert peaks[3] <= none / 4


def test_budgets_measured_peak_is_the_predicted() -> None:
    spec = spec_of("budgets", **LARGE)
    plan = planned(graph_of(spec), "heu", "25%")
    file, model, step = start(spec, plan)
    args = file.example_inputs()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    with LiveBytes([*model.parameters(), *gradients, *args, *step.prepare(1, marked=False)]) as live:
        step([args])
    assert live.peak_bytes == plan.predicted.peak_activation_bytes


def test_budgets_below_the_minimum_are_refused_with_it() -> None:
    graph = graph_of(spec_of("budgets", **LARGE))
    with pytest.raises(Infeasible) as refused:
        make_plan(graph, algo="heu", budget="5%")
    minimum = refused.value.minimum_budget_bytes
    assert refused.value.exit_code == 1
    assert f"--budget {minimum}B" in refused.value.hint
    assert make_plan(graph, algo="heu", budget=f"{minimum}B").plan.predicted.peak_bytes <= minimum


def test_stale_plans_are_refused_with_the_first_differing_ops() -> None:
    plan = planned(graph_of(spec_of("budgets")), "heu", "60%")
    wider = graph_of(spec_of("budgets", width=80))
    with pytest.raises(AnswerNo, match=r"stale: .*blocks\.0 op \d+: planned .*\[256,64\].*; now .*\[256,80\]"):
        check_plan(plan, wider)
    file = load_model_file(spec_of("budgets", width=80))
    with pytest.raises(AnswerNo, match=r"the model changed since the plan was made: .*\[256,80\]"):
        lynx_plan.Step(file.build(None), plan, file.loss, example_inputs=file.example_inputs())


def test_a_plan_that_names_what_matches_nothing_is_refused() -> None:
    graph = graph_of(spec_of("budgets"))
    plan = planned(graph, "heu", "60%")
    stage = plan.stages[0]
    changed = replace(stage.classes[0], ops=("aten.nothing", *stage.classes[0].ops[1:]))
    with pytest.raises(AnswerNo, match="matches no layers"):
        check_plan(replace(plan, stages=(replace(stage, classes=(changed, *stage.classes[1:])),)), graph)
    missing = replace(stage.classes[0], layers=(99,))
    with pytest.raises(AnswerNo, match="its classes do not hold every layer once"):
        check_plan(replace(plan, stages=(replace(stage, classes=(missing, *stage.classes[1:])),)), graph)


def test_uneven_layers_are_in_exactly_one_class_each() -> None:
    graph = graph_of(spec_of("uneven", vocab=2**15))
    plan = planned(graph, "heu", "90%")
    classes = [graph.layers[c.layers[0]].name + f" x{len(c.layers)}" for c in plan.stages[0].classes]
    members = sorted(layer for c in plan.stages[0].classes for layer in c.layers)
    assert members == list(range(len(graph.layers)))
    assert any(name.startswith("layers.0") for name in classes)
    head = max(graph.layers, key=lambda layer: sum(graph.ops[op].time_ns for op in layer.ops))
    assert head.name == "head"
