"""Sizes that depend on data: what they are priced as, how large they may get, and how they stand in the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from lynx_plan.errors import LynxError
from lynx_plan.model.graph import HOST_KIND, ModelSpec, Role
from lynx_plan.torch_rt.capture import Captured, capture_module
from lynx_plan.torch_rt.mesh import fake_mesh
from lynx_plan.torch_rt.model_file import plain_loss
from tests.torch_cpu.gpt_case import CPU

ROWS, WIDTH = 48, 8
collectives = torch.ops._c10d_functional


class Parts(nn.Module):
    """Rows cut into parts of sizes that the data gives; each part through its own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, 4 * WIDTH) for _ in range(3))

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        sizes = counts.tolist()
        for size in sizes:
            torch._check(size >= 0)
            torch._check(size <= ROWS)
        made = [part @ weight for part, weight in zip(x.split(sizes), self.weights, strict=True)]
        return torch.cat(made).pow(2).mean()


class Chosen(nn.Module):
    """As many rows as are chosen; nobody says how many that can be."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        rows = counts.sum().item()
        torch._check(rows >= 0)
        return (x.new_ones(rows, WIDTH) @ self.weight).sum()


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


class Exchange(nn.Module):
    """Rows to two ranks and from them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group = mesh.get_group("ep").group_name
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, sent: Tensor, received: Tensor) -> Tensor:
        sizes = [sent.tolist(), received.tolist()]
        for size in (*sizes[0], *sizes[1]):
            torch._check(size >= 0)
            torch._check(size <= ROWS)
        arrived = collectives.wait_tensor(collectives.all_to_all_single(x, sizes[1], sizes[0], self.group))
        return (arrived @ self.weight).pow(2).mean()


def parts(**choices: object) -> Captured:
    return captured(Parts(), (torch.randn(ROWS, WIDTH), torch.tensor([10, 20, 18])), None, (), **choices)


def exchange(**choices: object) -> Captured:
    shape = (("ep", 2),)
    with fake_mesh(shape) as mesh:
        data = (torch.randn(ROWS, WIDTH), torch.tensor([24, 24]), torch.tensor([24, 24]))
        return captured(Exchange(mesh), data, mesh, shape, **choices)


def captured(model: nn.Module, args: tuple[Tensor, ...], mesh, shape, **choices) -> Captured:
    spec = ModelSpec(path=__file__)
    return capture_module(model, args, plain_loss, spec=spec, mesh=mesh, mesh_shape=shape, machine=CPU, **choices)


def shapes(found: Captured, kind: str) -> list[tuple[int, ...]]:
    graph = found.graph
    return [graph.tensors[tensor].shape for op in graph.ops if op.kind == kind for tensor in op.outputs]


def bytes_of(found: Captured, kind: str) -> list[int]:
    graph = found.graph
    outputs = [tensor for op in graph.ops if op.kind == kind for tensor in op.outputs]
    return [graph.storages[graph.tensors[tensor].storage].bytes for tensor in outputs]


def test_parts_of_a_whole_are_equal_and_no_larger_than_it():
    found = parts()
    row = 4 * 4 * WIDTH
    assert shapes(found, "aten.mm")[:3] == [(16, 4 * WIDTH)] * 3
    assert bytes_of(found, "aten.mm")[:3] == [ROWS * row] * 3
    assert bytes_of(found, "aten.cat")[:1] == [ROWS * row]  # not three times: the parts make up the whole


def test_memory_by_the_load():
    found = parts(moe_bytes="load")
    assert bytes_of(found, "aten.mm")[:3] == [16 * 4 * 4 * WIDTH] * 3
    assert (found.graph.capture.moe_load, found.graph.capture.moe_bytes) == (1.0, "load")


@pytest.mark.parametrize(("load", "rows"), [(1.0, ROWS), (1.25, 60), (2.0, 2 * ROWS)])
def test_rows_that_arrive_follow_the_load(load, rows):
    found = exchange(moe_load=load)
    (launch,) = [op for op in found.graph.ops if op.role is Role.COLLECTIVE]
    tensor = found.graph.tensors[launch.outputs[0]]
    assert tensor.shape == (rows, WIDTH)
    assert launch.comm_bytes == rows * WIDTH * 4
    assert found.graph.storages[tensor.storage].bytes == 2 * ROWS * WIDTH * 4  # ROWS from each of two ranks
    assert found.graph.capture.moe_load == load
    assert any(f"{load:g} times as many rows received as sent" in note for note in found.graph.notes)


def test_sizes_are_values_without_bytes_that_are_made_once():
    graph = exchange().graph
    makers = [op for op in graph.ops if op.kind == "aten._local_scalar_dense"]
    assert len(makers) == 4
    launch = next(op for op in graph.ops if op.role is Role.COLLECTIVE)
    made = {tensor for op in makers for tensor in op.outputs}
    assert made < set(launch.inputs)
    assert all(graph.storages[graph.tensors[tensor].storage].bytes == 0 for tensor in made)
    assert all(op.effect for op in makers)
    on_host = [op for op in graph.ops if op.kind.startswith(HOST_KIND)]
    assert all(op.bytes == op.flops == 0 and op.role is Role.COMPUTE for op in on_host)


def test_a_size_without_a_bound_is_named_with_its_line():
    with pytest.raises(LynxError, match="no upper bound") as caught:
        captured(Chosen(), (torch.randn(ROWS, WIDTH), torch.tensor([10, 20, 18])), None, ())
    text = Path(__file__).read_text().splitlines()
    line = next(number for number, each in enumerate(text, 1) if "counts.sum().item()" in each)
    assert caught.value.where.endswith(f"test_symbolic_sizes.py:{line}")
    assert "torch._check" in caught.value.hint


def test_a_graph_of_fixed_sizes_says_nothing_of_loads():
    found = captured(Fixed(), (torch.ones(4),), None, (), moe_load=2.0)
    assert not any("depend on data" in note for note in found.graph.notes)
