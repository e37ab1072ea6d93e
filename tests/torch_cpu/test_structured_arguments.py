"""Arguments of every shape: dicts, None, numbers, dataclasses, keyword-only; and the encoder-decoder case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lynx_plan
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.torch_rt.capture import capture_module
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.model_file import plain_loss
from tests.torch_cpu.gpt_case import CPU
from tests.torch_cpu.plans import keep_all, plan_of

WIDTH = 128


@dataclass
class Batch:
    x: Tensor
    scale: float
    mask: Tensor | None = None


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: Any = None, pair: Any = None, *, extra: Any = None, times: int = 1) -> Tensor:
        x = 0
        if batch is not None:
            x = self.layer(batch.x if isinstance(batch, Batch) else batch["x"]) * (
                batch.scale if isinstance(batch, Batch) else batch["scale"]
            )
        if pair is not None:
            x = x + self.layer(pair[0]) * pair[1]
        if extra is not None:
            x = x + sum(self.layer(t) for t in extra)
        return (x**times).mean()


def rand() -> Tensor:
    return torch.rand(2, 4)


CALLS = {
    "dict in a tuple": lambda: ({"x": rand(), "scale": 2.0, "unused": None},),
    "dataclass": lambda: (Batch(rand(), 3.0),),
    "named tuple and None": lambda: (None, Pair(rand(), rand())),
    "keyword-only": lambda: {"extra": [rand(), rand()], "times": 2},
    "nested": lambda: ({"x": rand(), "scale": 1}, (rand(), rand())),
}


def capture(model: nn.Module, inputs: Any) -> CostGraph:
    spec = ModelSpec(path=__file__)
    return capture_module(model, inputs, plain_loss, spec=spec, mesh=None, mesh_shape=(), machine=CPU).graph


@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)
def test_gradients_equal_eagers(make):
    model, batches = Flexible(), [make(), make()]
    graph = capture(model, make())
    expected = eager_gradients(model, plain_loss, batches)
    lynx_plan.Step(model, plan_of(graph, keep_all(graph)))(batches)
    assert all(torch.equal(p.grad, expected[name]) for name, p in model.named_parameters())


def test_another_constant_is_refused():
    model = Flexible()
    graph = capture(model, {"extra": [rand()], "times": 2})
    step = lynx_plan.Step(model, plan_of(graph, keep_all(graph)))
    step([{"extra": [rand()], "times": 2}])
    with pytest.raises(LynxError, match="is 3; the plan is for 2"):
        step([{"extra": [rand()], "times": 3}])
    with pytest.raises(LynxError, match="nested otherwise"):
        step([{"extra": [rand(), rand()], "times": 2}])


def test_a_plan_binds_to_the_constants_that_change_the_graph():
    model = Flexible()
    graph = capture(model, {"extra": [rand()], "times": 2})
    with pytest.raises(LynxError, match="the model changed"):
        lynx_plan.Step(model, plan_of(graph, keep_all(graph)))([{"extra": [rand()], "times": 3}])


def test_arguments_that_are_no_data_are_refused():
    with pytest.raises(LynxError, match="argument 0 of the model is a object"):
        capture(Flexible(), (object(),))


class Layer(nn.Module):
    def __init__(self, *, cross: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.query, self.memory = (nn.Linear(WIDTH, n * WIDTH) for n in (1, 2)) if cross else (None, None)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.query is not None))
        if self.query is not None:
            k, v = self.memory(encoded).chunk(2, -1)
            x = x + F.scaled_dot_product_attention(self.query(x), k, v)
        return x + self.down(F.gelu(self.up(x)))


class EncoderDecoder(nn.Module):
    """3 encoder and 5 decoder layers; each decoder layer reads the encoder's output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Layer(cross=False) for _ in range(3))
        self.decoder = nn.ModuleList(Layer(cross=True) for _ in range(5))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, *, inputs: dict[str, Tensor | None]) -> dict[str, Tensor]:
        encoded = inputs["source"]
        for layer in self.encoder:
            encoded = layer(encoded)
        encoded, x = self.norm(encoded), inputs["target"]
        if inputs["mask"] is not None:
            encoded = encoded * inputs["mask"]
        for layer in self.decoder:
            x = layer(x, encoded)
        return {"loss": x.square().mean()}


def test_enc_dec_holds_the_encoders_output_once():
    model = EncoderDecoder()
    inputs = {"inputs": {"source": torch.randn(2, 96, WIDTH), "target": torch.randn(2, 48, WIDTH), "mask": None}}
    graph = capture(model, inputs)
    names = [layer.name for layer in graph.layers]
    assert [n for n in names if n.startswith("encoder")] == [f"encoder.{i}" for i in range(3)]
    assert [n for n in names if n.startswith("decoder")] == [f"decoder.{i}" for i in range(5)]
    norm = next(op for op in graph.ops if op.kind == "aten.native_layer_norm")
    encoded = graph.tensors[norm.outputs[0]]
    same = [t for t in graph.tensors if t.storage == encoded.storage]
    readers = {op.module for op in graph.ops for t in op.inputs if t in {s.id for s in same} and op.phase == "forward"}
    assert {f"decoder.{i}.memory" for i in range(5)} <= readers
    assert graph.storages[encoded.storage].bytes == 2 * 96 * WIDTH * 4
    expected = eager_gradients(model, plain_loss, [inputs])
    lynx_plan.Step(model, plan_of(graph, keep_all(graph)))([inputs])
    assert all(torch.equal(p.grad, expected[name]) for name, p in model.named_parameters())
