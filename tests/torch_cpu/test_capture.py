"""Capture: ops, groups, phases, layers, places and costs of a traced step."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn import functional as F

from lynx_plan.errors import LynxError
from lynx_plan.files import digest
from lynx_plan.model.graph import ModelSpec, Op, Phase, Role
from lynx_plan.torch_rt.capture import Captured, capture_module
from lynx_plan.torch_rt.mesh import fake_mesh
from lynx_plan.torch_rt.model_file import plain_loss
from tests.torch_cpu.gpt_case import CPU, EXAMPLE, HIDDEN, SMALL, capture_gpt
from tests.torch_cpu.models import Convolution, Tied, capture

TOKENS = SMALL["sequence"] * SMALL["micro_batch"]


@pytest.fixture(scope="module")
def gpt() -> Captured:
    return capture_gpt(2)


@pytest.fixture(scope="module")
def split_gpt() -> Captured:
    return capture_gpt(2, sequence_parallel=True)


def ops_of(captured: Captured, **fields: object) -> list[Op]:
    return [op for op in captured.graph.ops if all(getattr(op, key) == value for key, value in fields.items())]


def line_of(text: str) -> str:
    lines = [i for i, line in enumerate(EXAMPLE.read_text().splitlines(), 1) if text in line]
    assert len(lines) == 1
    return f"{EXAMPLE}:{lines[0]}"


def test_the_same_model_gives_the_same_graph(gpt):
    assert digest(capture_gpt(2).graph) == digest(gpt.graph)


def test_nothing_is_left_behind(gpt):
    assert not dist.is_initialized()
    assert type(nn.Linear(2, 2).to(torch.bfloat16).weight.data) is torch.Tensor


def test_layers_are_the_blocks_and_the_ends(gpt):
    names = [layer.name for layer in gpt.graph.layers]
    assert names == ["embedding", "layers.0", "layers.1", "head"]
    for layer in gpt.graph.layers:
        ops = [gpt.graph.ops[op] for op in layer.ops]
        assert {op.phase for op in ops} >= {Phase.FORWARD, Phase.WEIGHT_GRADIENT}
        accumulated = {op.parameter for op in ops if op.role is Role.ACCUMULATE}
        assert accumulated
        assert all(name.startswith(layer.name) for name in accumulated)


def test_blocks_have_the_same_ops(gpt):
    first, second = ([gpt.graph.ops[op].kind for op in layer.ops] for layer in gpt.graph.layers[1:3])
    assert first == second


def test_sums_of_gradients_are_in_the_block_that_makes_their_last_term(gpt):
    graph = gpt.graph
    for layer in graph.layers[1:3]:
        sums = [op for op in layer.ops if graph.ops[op].kind == "aten.add.Tensor" and graph.ops[op].phase != "forward"]
        assert [graph.ops[op].module for op in sums] == [f"{layer.name}.norm2", f"{layer.name}.norm1"]


def test_ops_know_their_module_and_line(gpt):
    gelu = ops_of(gpt, kind="aten.gelu")
    assert [op.module for op in gelu] == ["layers.0.mlp", "layers.1.mlp"]
    place = line_of("self.down(F.gelu(self.up(x)))")
    assert {op.source for op in gelu} == {place} == {op.source for op in ops_of(gpt, kind="aten.gelu_backward")}
    assert all(op.source.startswith(f"{EXAMPLE}:") for op in gpt.graph.ops)


def test_collectives_are_the_meshs(gpt):
    reductions = ops_of(gpt, role=Role.COLLECTIVE)
    assert {(op.kind, op.group, op.group_size) for op in reductions} == {("all_reduce", "tp", 2)}
    whole = TOKENS * HIDDEN * 4
    of_blocks = [op for op in reductions if op.module.startswith("layers")]
    assert [op.comm_bytes for op in of_blocks] == [whole] * 8  # two forward, two backward, in each block
    assert not any("group_name" in op.attributes for op in reductions)


def test_split_sequences_count_the_full_tensor(split_gpt):
    of_blocks = [op for op in ops_of(split_gpt, role=Role.COLLECTIVE) if op.module == "layers.1.mlp.up"]
    assert [op.kind for op in of_blocks] == ["all_gather", "reduce_scatter"]
    assert [op.comm_bytes for op in of_blocks] == [TOKENS * HIDDEN * 4] * 2


def test_waits_follow_their_collectives(gpt):
    graph = gpt.graph
    waits = ops_of(gpt, role=Role.WAIT)
    assert len(waits) == len(ops_of(gpt, role=Role.COLLECTIVE))
    for wait in waits:
        (waited,), (made,) = wait.inputs, wait.outputs
        assert graph.ops[graph.tensors[waited].producer].role is Role.COLLECTIVE
        assert graph.tensors[made].storage == graph.tensors[waited].storage


def test_weight_gradients_wait_for_nothing(gpt):
    graph = gpt.graph
    matmuls = [op for op in ops_of(gpt, kind="aten.mm") if op.phase is not Phase.FORWARD]
    phases = {Phase.BACKWARD: 0, Phase.WEIGHT_GRADIENT: 0}
    for op in matmuls:
        phases[op.phase] += 1
    assert phases == {Phase.BACKWARD: 9, Phase.WEIGHT_GRADIENT: 9}  # four in each block, and the head
    # The weight gradient of a column-parallel layer does not depend on the all-reduce of its input's gradient.
    for op in graph.ops:
        if op.phase is Phase.WEIGHT_GRADIENT and op.kind == "aten.mm" and "up" in op.module:
            makers = {graph.ops[graph.tensors[t].producer].role for t in op.inputs}
            assert Role.WAIT not in makers


def test_accumulations_follow_their_gradients(gpt):
    graph = gpt.graph
    accumulations = ops_of(gpt, role=Role.ACCUMULATE)
    assert len({op.parameter for op in accumulations}) == len(accumulations) == 2 * 12 + 5
    for op in accumulations:
        assert (op.kind, op.effect, op.outputs, op.phase) == ("lynx.accumulate", True, (), Phase.WEIGHT_GRADIENT)
        between = graph.ops[graph.tensors[op.inputs[0]].producer + 1 : op.id]
        assert all(other.role is Role.ACCUMULATE for other in between)


def test_flops_are_exact(gpt):
    hidden, tp = HIDDEN, 2
    block = 2 * TOKENS * (4 + 8) * hidden * hidden // tp
    attention = 4 * SMALL["micro_batch"] * SMALL["sequence"] ** 2 * hidden // tp
    forward = [op for op in gpt.graph.ops if op.phase is Phase.FORWARD and op.module.startswith("layers.0")]
    assert sum(op.flops for op in forward if op.kind in ("aten.mm", "aten.addmm")) == block
    assert sum(op.flops for op in forward if op.kind == "attention") == attention
    backward = [op for op in gpt.graph.ops if op.phase is not Phase.FORWARD and op.module.startswith("layers.0")]
    assert sum(op.flops for op in backward if op.kind == "aten.mm") == 2 * block
    assert sum(op.flops for op in backward if op.kind == "attention_backward") == attention * 5 // 2


def test_bytes_are_what_an_op_touches(gpt):
    by_name = {op.name: op for op in gpt.graph.ops}
    rows = TOKENS * HIDDEN * 4
    assert by_name["embedding"].bytes == 2 * rows + TOKENS * 8  # the rows looked up, not the table
    assert by_name["all_reduce"].bytes == 2 * rows
    assert by_name["add_2"].bytes == 3 * rows


def test_optimizer_state_is_sized_without_running_it():
    static = capture_gpt(0, optimizer="adamw").graph.static
    counters = 4 * (2 * 12 + 5)
    assert static.optimizer_bytes == 2 * static.parameters_bytes + counters
    assert capture_gpt(0).graph.static.optimizer_bytes == 0


def test_random_and_unrepeatable_ops_are_marked(gpt):
    assert not any(op.rng for op in gpt.graph.ops)
    captured = capture(Convolution(), torch.randn(2, 3, 5, 5))
    assert [op.kind for op in captured.graph.ops if op.rng] == ["aten.native_dropout"]
    updates = [op for op in captured.graph.ops if op.kind == "lynx.update_buffer"]
    assert {op.parameter for op in updates} == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    norm = next(op for op in captured.graph.ops if "batch_norm" in op.kind and op.phase is Phase.FORWARD)
    assert norm.effect  # run again, it would start from the updated buffers
    assert not next(op for op in captured.graph.ops if op.kind == "aten.convolution").effect


def test_tied_weights_have_one_gradient():
    captured = capture(Tied(), torch.arange(6).reshape(2, 3))
    assert [op.parameter for op in captured.graph.ops if op.role is Role.ACCUMULATE] == ["embedding.weight"]
    assert [ref.name for ref in captured.inputs[:2]] == ["embedding.weight", "head.weight"]


class Waits(nn.Module):
    """Waits twice, as models on the functional collectives do, and then makes a view."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = self.group

        class Reduce(torch.autograd.Function):
            @staticmethod
            def forward(ctx, y):
                return funcol.wait_tensor(funcol.all_reduce(y, "sum", group))

            @staticmethod
            def backward(ctx, gradient):
                return gradient

        return Reduce.apply(x @ self.weight).view(-1).pow(2).sum()


def capture_on(mesh, group_of, shape) -> Captured:
    model = Waits(group_of)
    spec = ModelSpec(path="waits.py")
    args = (torch.ones(4, 4),)
    return capture_module(model, args, plain_loss, spec=spec, mesh=mesh, mesh_shape=shape, machine=CPU)


def test_waits_on_waits_are_merged():
    shape = (("dp", 2), ("tp", 2))
    with fake_mesh(shape) as mesh:
        captured = capture_on(mesh, mesh.get_group("dp"), shape)
    launch, wait, view = captured.graph.ops[1:4]
    assert (launch.role, wait.role, view.role) == (Role.COLLECTIVE, Role.WAIT, Role.VIEW)
    assert (launch.group, view.inputs) == ("dp", wait.outputs)
    storages = {captured.graph.tensors[t].storage for op in (launch, wait, view) for t in op.outputs}
    assert len(storages) == 1


def test_groups_outside_the_mesh_are_refused():
    shape = (("dp", 2), ("tp", 2))
    with fake_mesh(shape) as mesh, pytest.raises(LynxError, match="no dimension of the mesh"):
        capture_on(mesh, dist.new_group([0, 3]), shape)


def test_dimensions_flattened_into_one_group():
    shape = (("dp", 2), ("cp", 2), ("tp", 2))
    with fake_mesh(shape) as mesh:
        for group, expected in (
            (mesh["dp", "cp"]._flatten().get_group(), ("dp+cp", 4, 2)),
            (mesh["dp", "tp"]._flatten().get_group(), ("dp+tp", 4, 2)),  # ranks 0, 1, 4, 5: 5 / 3, rounded up
            (dist.group.WORLD, ("dp+cp+tp", 8, 1)),
            (mesh.get_group("dp"), ("dp", 2, 4)),
        ):
            launch = capture_on(mesh, group, shape).graph.ops[1]
            assert (launch.group, launch.group_size, launch.group_stride) == expected


class Frozen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class ChangesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.add_(1) * self.weight).sum()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Frozen(), "does not depend on any parameter"),
        (ChangesItsInput(), "changes its input 0 in place"),
        (nn.Linear(4, 4), "scalar"),
    ],
    ids=["frozen", "input", "loss"],
)
def test_what_cannot_be_captured_is_named(model, message):
    with pytest.raises(LynxError, match=message):
        capture(model, torch.ones(4))


class Grouped(nn.Module):
    """Work outside its blocks: before, between and after."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(2))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](F.relu(self.stem(x)))
        return self.norm(self.blocks[1](x * 2)).sum()


def test_what_lies_between_blocks_is_a_layer_too():
    names = [layer.name for layer in capture(Grouped(), torch.ones(3, 4)).graph.layers]
    assert names == ["stem", "blocks.0", "model", "blocks.1", "norm"]
