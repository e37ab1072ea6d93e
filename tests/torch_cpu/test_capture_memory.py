"""What a cost graph says about storages is what real tensors do: sizes, and who shares one with whom."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from lynx_plan.model.graph import Role, StorageKind
from lynx_plan.torch_rt.capture import Captured
from tests.torch_cpu.gpt_case import load_gpt
from tests.torch_cpu.models import Convolution, Tied, Views, capture


class Recorder(fx.Interpreter):
    """Runs a joint graph on real tensors and keeps what every node made."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.made: dict[fx.Node, object] = {}

    def run_node(self, n: fx.Node) -> object:
        self.made[n] = super().run_node(n)
        return self.made[n]


def arguments(captured: Captured, model: nn.Module, args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    of_kind = {
        "parameter": lambda name: parameters[name].detach(),
        "buffer": lambda name: buffers[name],
        "input": lambda name: args[int(name)],
        "tangent": lambda name: torch.ones(()),
    }
    return [of_kind[ref.kind](ref.name) for ref in captured.inputs]


def record(captured: Captured, model: nn.Module, args: tuple[torch.Tensor, ...]) -> dict[int, torch.Tensor]:
    """Tensor id -> the real tensor."""
    recorder = Recorder(captured.joint)
    recorder.run(*arguments(captured, model, args))
    real: dict[int, torch.Tensor] = {}
    for tensor in captured.graph.tensors:
        if tensor.producer < 0:
            real[tensor.id] = recorder.made[captured.values[tensor.id]]
            continue
        made = recorder.made[captured.nodes[tensor.producer]]
        port = captured.ports[tensor.id]
        real[tensor.id] = made if port < 0 else made[port]
    return real


def gpt_case():
    _, file = load_gpt()
    return file.build(None), file.example_inputs()


def half_gpt_case():
    _, file = load_gpt(dtype="bfloat16")
    return file.build(None), file.example_inputs()


CASES = {
    "gpt": gpt_case,
    "half": half_gpt_case,
    "convolution": lambda: (Convolution(), (torch.randn(2, 3, 5, 5),)),
    "tied": lambda: (Tied(), (torch.arange(6).reshape(2, 3),)),
    "views": lambda: (Views(), (torch.randn(6, 8),)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    torch.manual_seed(0)
    model, args = CASES[request.param]()
    captured = capture(model, *args)
    return captured, record(captured, model, args), model, args


def test_storages_have_the_bytes_of_real_ones(case):
    captured, real, _, _ = case
    graph = captured.graph
    for tensor in graph.tensors:
        assert graph.storages[tensor.storage].bytes == real[tensor.id].untyped_storage().nbytes(), tensor
        assert tensor.shape == tuple(real[tensor.id].shape), tensor
        # The stride of a dimension of size 1 means nothing, and fake tensors differ there.
        strides = zip(tensor.shape, tensor.stride, real[tensor.id].stride(), strict=True)
        assert all(size == 1 or ours == theirs for size, ours, theirs in strides), tensor
        assert f"torch.{tensor.dtype}" == str(real[tensor.id].dtype), tensor


def test_tensors_share_a_storage_exactly_where_real_ones_do(case):
    captured, real, _, _ = case
    pairs = {(tensor.storage, real[tensor.id].untyped_storage()._cdata) for tensor in captured.graph.tensors}
    assert len(pairs) == len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs})


def test_roles_follow_from_storages(case):
    captured, _, _, _ = case
    graph = captured.graph
    for op in graph.ops:
        made = {graph.tensors[t].storage for t in op.outputs}
        read = {graph.tensors[t].storage for t in op.inputs}
        assert (op.role is Role.VIEW) == (bool(made) and made <= read), op
        assert op.role is not Role.VIEW or (op.bytes, op.flops) == (0, 0)


def test_joint_graph_computes_eager_gradients(case):
    captured, _, model, args = case
    torch.manual_seed(1)
    fresh = record(captured, model, args)
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(*args)
    loss.backward()
    assert torch.equal(fresh[captured.graph.outputs[0]], loss)
    sums: dict[str, torch.Tensor] = {}
    for op in captured.graph.ops:
        if op.role is Role.ACCUMULATE:
            sums[op.parameter] = fresh[op.inputs[0]]
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert sums.keys() == wanted.keys()
    assert all(torch.equal(sums[name], gradient) for name, gradient in wanted.items())


def test_static_memory_is_the_models(case):
    captured, _, model, _ = case
    static = captured.graph.static
    trained = [p for p in model.parameters() if p.grad is not None]
    assert static.parameters_bytes == sum(p.nbytes for p in model.parameters())
    assert static.buffers_bytes - constant_bytes(captured) == sum(b.nbytes for b in model.buffers())
    assert static.gradients_bytes == sum(p.nbytes for p in trained)


def constant_bytes(captured: Captured) -> int:
    graph = captured.graph
    constants = [t for t, node in enumerate(captured.values) if node is not None and node.op == "get_attr"]
    return sum(graph.storages[graph.tensors[t].storage].bytes for t in constants)


def test_every_op_is_in_one_layer_and_inputs_come_first(case):
    captured, _, _, _ = case
    graph = captured.graph
    assert sorted(op for layer in graph.layers for op in layer.ops) == list(range(len(graph.ops)))
    for op in graph.ops:
        assert all(graph.tensors[t].producer < op.id for t in op.inputs)
        assert all(graph.tensors[t].producer == op.id for t in op.outputs)
    kinds = {graph.storages[t.storage].kind for t in graph.tensors if t.producer >= 0}
    assert StorageKind.ACTIVATION in kinds
